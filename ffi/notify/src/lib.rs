//! Other processes: named, held by descriptors that cannot come to mean another
//! one, and answered for where their system calls are to be decided elsewhere.
//!
//! [`ProcId`] names a process so that a reused pid is noticed, [`PidFd`] holds
//! one, tells when it exits and lends its descriptors for the length of a call.
//! [`filter`] makes ioctls of given numbers wait for an answer, [`Listener`]
//! receives and answers them, [`Thread`] and [`as_tenant`] are what an answerer
//! needs to do such a call in the caller's place, [`kick`] has calls asked anew
//! whose answerer died, and [`pass`] hands listeners on. This crate decides
//! nothing and knows nothing of GPUs.

mod as_tenant;
pub mod filter;
pub mod kick;
mod listener;
pub mod pass;
mod pidfd;
mod procid;
mod thread;

pub use as_tenant::{as_tenant, as_tenant_lasting, own_rights};
pub use listener::{Delivered, Ioctl, Listener, Notification, NotifyError, Received};
pub use pidfd::{PidFd, poll_exits};
pub use procid::{ProcError, ProcId};
pub use thread::{Credentials, Memory, Thread};
