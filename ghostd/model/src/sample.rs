//! What a backend saw: one [`Sample`] a step. A reading that is missing or stale is said to be
//! so; it is never a zero.

use crate::gpu::GpuId;
use crate::name::Name;
use crate::units::{Bytes, Micros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything the policy may know of the world at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The moment, on the host's monotonic clock. It never goes back.
    pub at: Micros,
    /// The GPUs that are shared, in the order of their UUIDs.
    pub gpus: Vec<GpuSample>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Which.
    pub gpu: GpuId,
    /// Its channel groups, in the order of their ids.
    pub groups: Vec<GroupSample>,
    /// Memory in use by each container and those below it, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<Name, Bytes>,
}

/// A backend's own number for a channel group. It is never used twice while the backend lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u64);

/// One compute channel group: the unit to which the GPU's scheduler gives timeslices, one for
/// each CUDA context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupSample {
    /// Which.
    pub id: GroupId,
    /// The process that owns it.
    pub pid: u32,
    /// The container of that process; [`Name::system`] where it has none.
    pub container: Name,
    /// The timeslice in force.
    pub slice: Reading<Micros>,
    /// GPU time used since the group was first seen; it never shrinks.
    pub used: Reading<Micros>,
    /// Whether it had work at the end of the last measured window.
    pub active: Reading<bool>,
    /// Whether its channels are disabled by us.
    pub paused: bool,
}

/// A measured value and the moment for which it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Reading<T> {
    /// As recent as its source gives.
    Fresh {
        /// The value.
        value: T,
        /// The moment for which it holds, at or before the sample's.
        at: Micros,
    },
    /// The source did not answer lately; this is the last that it said.
    Stale {
        /// The value.
        value: T,
        /// The moment for which it held.
        at: Micros,
    },
    /// Never read, or not readable here.
    #[default]
    Missing,
}

impl<T: Copy> Reading<T> {
    /// The value if it is fresh.
    pub fn fresh(&self) -> Option<T> {
        match self {
            Reading::Fresh { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The last value, however old.
    pub fn last(&self) -> Option<T> {
        match self {
            Reading::Fresh { value, .. } | Reading::Stale { value, .. } => Some(*value),
            Reading::Missing => None,
        }
    }

    /// The moment for which the last value held.
    pub fn at(&self) -> Option<Micros> {
        match self {
            Reading::Fresh { at, .. } | Reading::Stale { at, .. } => Some(*at),
            Reading::Missing => None,
        }
    }
}
