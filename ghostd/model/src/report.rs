//! What REST and `--json` say of containers, processes, nodes and events. `spec` is what was
//! asked, `status` what is so.

use crate::backend::{Capabilities, Enforcer};
use crate::gpu::{GpuId, GpuInfo};
use crate::key::Key;
use crate::memory::MemoryEvents;
use crate::name::Name;
use crate::spec::Spec;
use crate::units::{Bytes, Micros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a container does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum State {
    /// No process is in it.
    Empty,
    /// It has processes, none of which used a GPU lately.
    Idle,
    /// It uses a GPU.
    Running,
    /// It is held back by `gpu.max` or `gpu.idle` at this moment.
    Throttled,
    /// `ghost.freeze`, its own or one above.
    Frozen,
}

/// `gpu.stat` on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Stat {
    /// GPU time used, microseconds.
    pub usage_usec: Micros,
    /// Part of the GPU's time used in the last second or so, 0 to 1; `None` where it was not
    /// measured.
    pub usage_ratio: Option<f64>,
    /// Periods of `gpu.max` that began with work to do.
    pub nr_periods: u64,
    /// Periods in which the budget ran out.
    pub nr_throttled: u64,
    /// Time spent paused for want of budget.
    pub throttled_usec: Micros,
}

/// One file or override that a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Source {
    /// The key.
    pub key: Key,
    /// The GPU, for a value of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuId>,
    /// The value as a file would have it.
    pub value: String,
    /// A file's path, `override` or `runtime`.
    pub origin: String,
}

/// A container: its name, what was asked and what is so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Container {
    /// Its name.
    pub name: Name,
    /// Unique for ever, also when the name is used again.
    pub uid: String,
    /// Counts changes of the spec.
    pub generation: u64,
    /// The user who may attach own processes to it and lower its limits.
    #[serde(default)]
    pub owner: u32,
    /// For its users' own order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What was asked.
    pub spec: Spec,
    /// What is so.
    pub status: Status,
}

/// What is so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Status {
    /// The generation that is in force.
    pub observed_generation: u64,
    /// What it does.
    pub state: State,
    /// Every setting as it holds, defaults included.
    pub effective: Spec,
    /// GPUs granted.
    #[serde(rename = "gpu.devices.effective")]
    pub devices_effective: Vec<GpuId>,
    /// Who holds each setting.
    pub enforced_by: BTreeMap<Key, Enforcer>,
    /// Memory in use by its processes and those below it, by GPU; GPUs that could not be read
    /// are absent.
    #[serde(rename = "gpu.memory.current")]
    pub memory_current: BTreeMap<GpuId, Bytes>,
    /// The most that was.
    #[serde(rename = "gpu.memory.peak")]
    pub memory_peak: BTreeMap<GpuId, Bytes>,
    /// How often limits of memory made themselves felt, those below it included.
    #[serde(default, rename = "gpu.memory.events")]
    pub memory_events: BTreeMap<GpuId, MemoryEvents>,
    /// The same, without those below it.
    #[serde(default, rename = "gpu.memory.events.local")]
    pub memory_events_local: BTreeMap<GpuId, MemoryEvents>,
    /// By GPU, those below it included.
    #[serde(rename = "gpu.stat")]
    pub stat: BTreeMap<GpuId, Stat>,
    /// Its own members, not those of the containers below it.
    #[serde(rename = "ghost.procs")]
    pub procs: Vec<Process>,
    /// `populated` and `frozen`, for itself and those below it.
    #[serde(rename = "ghost.events")]
    pub events: EventFlags,
    /// Timeslices that a tenant changed and Ghost set back.
    pub slices_reasserted: u64,
    /// Its own processes whose work is computed on a peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overflow: Vec<Remote>,
    /// What the user should know: a limit below present use, a member that cannot be held, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// `ghost.events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventFlags {
    /// 1 if a process is in it or below.
    pub populated: u8,
    /// 1 if it is frozen and every channel group of it is stopped.
    pub frozen: u8,
}

/// A process with GPU work, or a member without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Process {
    /// Its id in ghostd's pid namespace.
    pub pid: u32,
    /// Its name, made fit for a terminal.
    pub command: String,
    /// The container that it belongs to; `system` for strangers.
    pub container: Name,
    /// Channel groups (CUDA contexts), by GPU.
    pub groups: BTreeMap<GpuId, u32>,
    /// Memory in use, by GPU; absent where it could not be read.
    pub memory: BTreeMap<GpuId, Bytes>,
    /// Why it is not held, if it is not: an MPS client, a MIG device, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// This host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Node {
    /// Ghost's version.
    pub version: String,
    /// What is held here, and by whom.
    #[serde(flatten)]
    pub capabilities: Capabilities,
    /// The GPUs.
    pub gpus: Vec<GpuInfo>,
    /// Where container runtimes hand the listeners of seccomp filters to ghostd; `None` where no
    /// limit of memory is held by such filters.
    #[serde(default)]
    pub notify_socket: Option<String>,
    /// How work of other hosts is taken here; `None` where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Listener>,
    /// GPU processes that belong to no container.
    pub strangers: Vec<Process>,
    /// Problems that last: a file that could not be read, a guardian that is not there, … Under a
    /// name of its own, for the capabilities have `notes` in the same object.
    #[serde(rename = "problems")]
    pub notes: Vec<String>,
}

/// A process whose work is computed on another host than its own, and what was counted since its
/// start: there by the process, here by its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Remote {
    /// The peer, by name or address; of one that computes here, its host, as that calls itself.
    pub peer: String,
    /// Whether it computes here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incoming: bool,
    /// The process, as its own pid namespace has it.
    pub pid: u32,
    /// Calls sent and not waited for.
    pub posted: u64,
    /// Calls that were waited for.
    pub waited: u64,
    /// Calls that overflow does not carry.
    pub refused: u64,
    /// Bytes to where it computes.
    pub bytes_up: u64,
    /// Bytes from there.
    pub bytes_down: u64,
    /// Microseconds spent in waits, all threads together.
    pub wait_usec: u64,
}

/// How work of other hosts is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Listener {
    /// `IP:PORT`.
    pub listen: String,
    /// SHA-256 of the certificate, hexadecimal; `None`: no TLS.
    pub fingerprint: Option<String>,
    /// Where the secret is that clients must know; `None`: nobody is asked for one.
    pub token_file: Option<String>,
    /// Sessions that are open now.
    pub sessions: usize,
}

/// A host whose GPUs containers may use. Its secret is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Peer {
    /// As `gpu.overflow` and `run --on` have it.
    pub name: String,
    /// `HOST:PORT`.
    pub address: String,
    /// SHA-256 of its certificate, hexadecimal; `None`: no TLS.
    pub fingerprint: Option<String>,
    /// Whether a secret for it is kept.
    pub token: bool,
    /// Whether it is drained: no program begins there.
    #[serde(default)]
    pub drained: bool,
    /// What it says of itself, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look: Option<Look>,
}

/// What a peer was seen to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Look {
    /// It answered.
    Reached {
        /// Microseconds between a question and its answer.
        rtt_usec: u64,
        /// How many more processes it takes.
        sessions: u32,
        /// The GPUs that it shares.
        gpus: Vec<PeerGpu>,
    },
    /// It did not.
    Failed {
        /// Why.
        reason: String,
    },
}

/// A GPU of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PeerGpu {
    /// Product name.
    pub name: String,
    /// Bytes of memory on the card.
    pub memory_total: Bytes,
    /// Bytes that programs of other hosts can get yet.
    pub memory_free: Bytes,
    /// Percent of its time that was used lately.
    pub busy_percent: u8,
}

/// Where a program of a container would compute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Placement {
    /// The peer, by name or address; `None`: this host.
    pub on: Option<String>,
    /// Why there, where that was chosen by what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Give this back as `page_token` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Counts up; a gap means that events were dropped.
    pub id: u64,
    /// RFC 3339.
    pub at: String,
    /// What: `created`, `changed`, `deleted`, `attached`, `appeared`, `exited`, `frozen`, `thawed`,
    /// `reasserted`, `refused`, `reloaded`, `lapsed`, `memory-high`, `memory-max`.
    pub what: String,
    /// The container, if it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Name>,
    /// One line for people.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reads_back() {
        let node = Node {
            version: "0.1.0".into(),
            capabilities: Capabilities {
                backend: crate::BackendKind::Sim,
                driver: None,
                patch: None,
                enforced_by: BTreeMap::new(),
                meter: "arithmetic".into(),
                notes: vec!["of the backend".into()],
            },
            gpus: Vec::new(),
            notify_socket: Some("/run/ghost/notify.sock".into()),
            overflow: None,
            strangers: Vec::new(),
            notes: vec!["of the daemon".into()],
        };
        let text = serde_json::to_string(&node).unwrap();
        assert_eq!(serde_json::from_str::<Node>(&text).unwrap(), node);
    }
}
