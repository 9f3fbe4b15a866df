//! The part of NVIDIA's RM ioctl interface that Ghost's stock backend and
//! guardian speak.
//!
//! The resource manager (RM) is the part of the NVIDIA driver that owns
//! *clients* (one or more per open `/dev/nvidiactl`) and, below each client, a
//! tree of *objects*: devices, subdevices, channel groups, channels. This crate
//! knows the numbers and layouts ([`abi`]), the answers ([`status`]), what each
//! driver branch accepts ([`branch`]), what a tenant asks of the driver
//! ([`tenant`]) and which answers are its container's ([`card`]), how to speak on a descriptor that
//! belongs to anyone ([`Control`]), and how to hold a client of one's own
//! ([`Session`]).
//!
//! It does not decide anything, does not look for processes, and keeps no
//! descriptor that it did not open. Numbers and layouts were measured
//! (H200, driver 580.159.04) and compared with the headers that NVIDIA
//! publishes for each branch in [`branch`].

pub mod abi;
pub mod branch;
mod bytes;
pub mod card;
mod control;
mod discover;
mod meter;
mod session;
pub mod status;
pub mod tenant;

pub use abi::{Channel, Client, Gpu, Object};
pub use branch::{AllocForm, Branch, BranchError, DriverVersion};
pub use control::{Control, PartlyDone, RmError};
pub use discover::{AttachedGpu, GroupIds};
pub use meter::{Busy, ContextSwitches, Drained, Edge, MeterError, Switch};
pub use session::{Session, SessionError};
pub use status::Status;
