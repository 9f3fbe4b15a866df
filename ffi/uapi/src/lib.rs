//! `/dev/nvidia-ghost`: containers, limits and channel groups as NVIDIA's kernel module holds them
//! with Ghost woven in. What each request means, and its errors, is told by the header
//! `driver-patches/include/uapi/ghost.h`; this crate has its layouts ([`sys`]), a device on which
//! each request is a method ([`Device`]), and errors that name what was asked for ([`Error`]).
//!
//! Structures of this crate are of version 1 of the interface and tell their size in each request:
//! a later module takes them, and leaves what it added at what it was.
//!
//! `sys.rs` is made by bindgen (`cargo run -p xtask -- gen`); a test compares every layout and number
//! with what a C compiler makes of the header.

mod device;
mod error;
mod event;
mod list;
pub mod request;
#[allow(
    missing_docs,
    non_camel_case_types,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
pub mod sys;

pub use device::{Device, Lease, Limits, Max, Stat, Version};
pub use error::Error;
pub use event::{Event, Kind};
pub use list::{Cgroup, Client, Container, Gpu, Group};

/// Where the device is.
pub const PATH: &str = "/dev/nvidia-ghost";

/// A container: the module's own number, never used twice while it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// No container: the parent of those at the top.
    pub const NONE: Self = Self(sys::GHOST_NONE as u64);
    /// The container of processes that nobody put anywhere.
    pub const SYSTEM: Self = Self(sys::GHOST_SYSTEM as u64);
}

impl std::fmt::Display for ContainerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "container {}", self.0)
    }
}

/// A GPU: the driver's `gpu_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuNumber(pub u32);

impl GpuNumber {
    /// Every GPU, those that are found later included.
    pub const ALL: Self = Self(sys::GHOST_ALL_GPUS);
}

impl std::fmt::Display for GpuNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::ALL => f.write_str("all gpus"),
            Self(number) => write!(f, "gpu {number:#x}"),
        }
    }
}

/// A channel group: the module's own number, never used twice while it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(pub u64);
