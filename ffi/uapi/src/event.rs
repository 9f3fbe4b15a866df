//! What happened, as the device tells it to whoever reads.

use crate::{ContainerId, GpuNumber, sys};

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// This many records are missing: they were read too late.
    Lost(u64),
    /// A client of the driver was made.
    Client,
    /// It has gone.
    ClientGone,
    /// A channel group was made; its number.
    Group(u64),
    /// It has gone.
    GroupGone(u64),
    /// A GPU was found.
    Gpu,
    /// An allocation of so many bytes was refused.
    MemoryMax(u64),
    /// Use went beyond `memory_high`; bytes in use.
    MemoryHigh(u64),
    /// A tenant's timeslice was replaced; microseconds that it asked for.
    Clamped(u64),
    /// A tenant's scheduling control was refused; its number.
    Refused(u64),
    /// A lease lapsed, or a leader closed its file.
    Lapsed,
    /// Of a later version.
    Other(u32),
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// 1, 2, … over all records that there ever were.
    pub seq: u64,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// What happened.
    pub kind: Kind,
    /// The process, if there is one.
    pub pid: Option<u32>,
    /// The GPU, if there is one.
    pub gpu: Option<GpuNumber>,
    /// The container, [`ContainerId::NONE`] if there is none.
    pub container: ContainerId,
}

impl From<sys::ghost_event> for Event {
    fn from(raw: sys::ghost_event) -> Self {
        let kind = match raw.type_ {
            sys::GHOST_EVENT_LOST => Kind::Lost(raw.value),
            sys::GHOST_EVENT_CLIENT => Kind::Client,
            sys::GHOST_EVENT_CLIENT_GONE => Kind::ClientGone,
            sys::GHOST_EVENT_GROUP => Kind::Group(raw.object),
            sys::GHOST_EVENT_GROUP_GONE => Kind::GroupGone(raw.object),
            sys::GHOST_EVENT_GPU => Kind::Gpu,
            sys::GHOST_EVENT_MEMORY_MAX => Kind::MemoryMax(raw.value),
            sys::GHOST_EVENT_MEMORY_HIGH => Kind::MemoryHigh(raw.value),
            sys::GHOST_EVENT_CLAMPED => Kind::Clamped(raw.value),
            sys::GHOST_EVENT_REFUSED => Kind::Refused(raw.value),
            sys::GHOST_EVENT_LAPSED => Kind::Lapsed,
            other => Kind::Other(other),
        };
        let gpu = GpuNumber(raw.gpu);
        Self {
            seq: raw.seq,
            at_ns: raw.at_ns,
            kind,
            pid: (raw.pid != 0).then_some(raw.pid),
            gpu: (gpu != GpuNumber::ALL).then_some(gpu),
            container: ContainerId(raw.container),
        }
    }
}
