//! Other processes, held by descriptors that cannot come to mean another one.
//!
//! [`ProcId`] names a process so that a reused pid is noticed, [`PidFd`] holds
//! one, tells when it exits and lends its descriptors for the length of a call.
//! This crate decides nothing and knows nothing of GPUs.

mod pidfd;
mod procid;

pub use pidfd::{PidFd, poll_exits};
pub use procid::{ProcError, ProcId};
