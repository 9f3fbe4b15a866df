//! GPU memory: what a container may take of each GPU's, and what it holds. The words are cgroup
//! v2's: `min` and `low` protect, `high` slows, `max` refuses.

use crate::gpu::GpuId;
use crate::name::Name;
use crate::process::ProcId;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a container, with all below it, may take of one GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimits {
    /// Kept for it: others' allocations fail before they take it.
    pub min: Bytes,
    /// Kept for it as far as possible: others that take it are counted.
    pub low: Bytes,
    /// Beyond it the container gets less GPU time; `None` is `max`.
    pub high: Option<Bytes>,
    /// Beyond it allocations fail; `None` is `max`.
    pub max: Option<Bytes>,
}

/// `gpu.memory.events`: how often each happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryEvents {
    /// Somebody else took memory that `low` protects.
    pub low: u64,
    /// Use went beyond `high`.
    pub high: u64,
    /// An allocation would have gone beyond `max`.
    pub max: u64,
    /// An allocation failed, for whatever reason.
    pub fail: u64,
}

/// What a container holds of one GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Bytes in use, those below it included.
    pub current: Bytes,
    /// The most that was.
    pub peak: Bytes,
    /// Events, those below it included.
    pub events: MemoryEvents,
    /// Its own events.
    pub events_local: MemoryEvents,
}

/// The limits of every container that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemoryWanted(pub BTreeMap<Name, BTreeMap<GpuId, MemoryLimits>>);

/// What is so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySeen {
    /// By container; those that hold nothing and never did are absent.
    pub containers: BTreeMap<Name, BTreeMap<GpuId, MemoryUse>>,
    /// Processes whose allocations are asked about before they happen.
    pub held: BTreeSet<ProcId>,
}
