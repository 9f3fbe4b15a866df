//! Puts what was asked and what is so together into the documents that REST gives.

use crate::control::{Observed, Seen};
use crate::core::{Catalog, Entry};
use crate::proc::Proc;
use ghost_model::key::Mode;
use ghost_model::report::{Container, EventFlags, Node, Process, Remote, Stat, State, Status};
use ghost_model::value::{Devices, Limit};
use ghost_model::{Enforcer, GpuId, GpuState, Key, Name, Spec, Value};
use ghost_policy::ContainerStat;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

/// The most processes that a note names.
const PIDS: usize = 8;

/// The container that a tree node without anything in it shows.
static NOTHING: LazyLock<Seen> = LazyLock::new(Seen::default);

/// What is known of a container's work on a peer.
#[derive(Debug, Default)]
pub struct Elsewhere {
    /// Its processes that compute there.
    pub processes: Vec<Remote>,
    /// Why it could not.
    pub note: Option<String>,
}

/// One container's document. Containers above it are looked up in `catalog`.
pub fn container(
    entry: &Entry,
    catalog: &Catalog,
    now: &Observed,
    proc: &Proc,
    elsewhere: Elsewhere,
) -> Container {
    let spec = entry.spec();
    let seen = now.containers.get(&entry.name).unwrap_or(&NOTHING);
    let frozen = spec.freeze() || above(entry, catalog, |e| e.spec().freeze());
    let processes = processes(entry, seen, proc);
    let populated = seen.populated || !processes.is_empty();
    let devices = devices(&entry.name, catalog, now);
    Container {
        name: entry.name.clone(),
        uid: entry.uid.clone(),
        generation: entry.generation,
        owner: entry.owner,
        labels: entry.all_labels(),
        status: Status {
            observed_generation: now.in_force.get(&entry.uid).copied().unwrap_or(0),
            state: state(seen, populated, frozen && !seen.runs),
            effective: effective(&spec),
            enforced_by: Key::ALL
                .iter()
                .filter(|k| k.mode() == Mode::Setting)
                .map(|k| (*k, enforcer(*k, seen, now)))
                .collect(),
            memory_current: seen.memory.clone(),
            memory_events: seen.memory_events.clone(),
            memory_events_local: seen.memory_events_local.clone(),
            memory_peak: now
                .counters
                .peak
                .get(&entry.name)
                .cloned()
                .unwrap_or_default(),
            stat: seen
                .stats
                .iter()
                .map(|(g, s)| (g.clone(), stat(s)))
                .collect(),
            events: EventFlags {
                populated: u8::from(populated),
                frozen: u8::from(frozen && !seen.runs),
            },
            slices_reasserted: now
                .counters
                .reasserted
                .get(&entry.name)
                .copied()
                .unwrap_or(0),
            notes: notes(entry, &spec, seen, &devices, now)
                .into_iter()
                .chain(elsewhere.note)
                .collect(),
            devices_effective: devices,
            procs: processes,
            overflow: elsewhere.processes,
        },
        spec,
    }
}

/// This host's document. `notify` is where listeners are taken, if they are.
pub fn node(catalog: &Catalog, now: &Observed, notify: Option<&Path>) -> Node {
    let strangers = now.processes.iter().filter(|p| p.container.is_system());
    let failures = now.failures.iter().map(|(_, why)| why);
    Node {
        version: env!("CARGO_PKG_VERSION").into(),
        capabilities: (*now.capabilities).clone(),
        gpus: (*now.gpus).clone(),
        notify_socket: notify.map(|path| path.display().to_string()),
        overflow: None,
        strangers: strangers.cloned().collect(),
        notes: catalog.notes.iter().chain(failures).cloned().collect(),
    }
}

/// A container's own processes, those included that were attached and that the backend has not
/// seen yet.
pub fn processes(entry: &Entry, seen: &Seen, proc: &Proc) -> Vec<Process> {
    let mut all = (*seen.processes).clone();
    for id in &entry.pids {
        if all.iter().any(|p| p.pid == id.pid) {
            continue;
        }
        if let Some(found) = proc.find(id.pid).filter(|found| found.id == *id) {
            all.push(Process {
                pid: id.pid,
                command: found.command,
                container: entry.name.clone(),
                groups: BTreeMap::new(),
                memory: BTreeMap::new(),
                refused: None,
            });
        }
    }
    all
}

/// `gpu.stat` of one GPU.
pub fn stat(s: &ContainerStat) -> Stat {
    Stat {
        usage_usec: s.usage_usec,
        usage_ratio: s.usage_ratio,
        nr_periods: s.nr_periods,
        nr_throttled: s.nr_throttled,
        throttled_usec: s.throttled_usec,
    }
}

/// Who holds a key of one container. An allocation is held where its process is asked about.
fn enforcer(key: Key, seen: &Seen, now: &Observed) -> Enforcer {
    let held = now.capabilities.enforcer(key);
    let by_filter = matches!(key, Key::MemoryMax | Key::MemoryMin);
    if !by_filter || held == Enforcer::Nobody || seen.not_held.is_empty() {
        held
    } else if seen.held {
        Enforcer::Mixed
    } else {
        Enforcer::Nobody
    }
}

fn state(seen: &Seen, populated: bool, frozen: bool) -> State {
    let held_back = || seen.stats.values().any(|s| s.paused.is_some());
    match () {
        () if frozen => State::Frozen,
        () if !populated => State::Empty,
        () if seen.active => State::Running,
        () if held_back() => State::Throttled,
        () => State::Idle,
    }
}

fn above(entry: &Entry, catalog: &Catalog, what: impl Fn(&Entry) -> bool) -> bool {
    let lineage = entry.name.lineage().skip(1);
    let mut entries = lineage.filter_map(|name| catalog.entries.get(&name));
    entries.any(|e| what(e))
}

/// The GPUs that the processes of a container may use.
pub(crate) fn devices(name: &Name, catalog: &Catalog, now: &Observed) -> Vec<GpuId> {
    let grants: Vec<Devices> = name
        .lineage()
        .filter_map(|name| catalog.entries.get(&name))
        .map(|e| e.spec().devices())
        .collect();
    let granted = |gpu: &GpuId| {
        grants.iter().all(|d| match d {
            Devices::All => true,
            Devices::Only(ids) => ids.contains(gpu),
        })
    };
    let shared = now.gpus.iter().filter(|g| g.state == GpuState::Shared);
    shared.map(|g| g.id.clone()).filter(granted).collect()
}

fn effective(spec: &Spec) -> Spec {
    let mut all = Spec::default();
    for key in Key::ALL.iter().filter(|k| k.mode() == Mode::Setting) {
        if let Some(value) = spec.effective(*key, None) {
            // Without a GPU no key is refused.
            let _ = all.set(*key, None, value);
        }
    }
    all.overlaid(spec)
}

fn notes(
    entry: &Entry,
    spec: &Spec,
    seen: &Seen,
    devices: &[GpuId],
    now: &Observed,
) -> Vec<String> {
    let mut notes = Vec::new();
    let held = &now.capabilities;
    let mut unheld: Vec<Key> = spec
        .iter()
        .filter(|(k, _, v)| Value::default_of(*k).as_ref() != Some(*v))
        .map(|(k, _, _)| k)
        .filter(|k| held.enforcer(*k) == Enforcer::Nobody)
        .collect();
    unheld.dedup();
    for key in unheld {
        notes.push(format!(
            "{key} is kept and shown, but nobody enforces it here (backend {})",
            held.backend
        ));
    }
    notes.extend(memory_notes(spec, seen, devices, now));
    for process in seen.processes.iter() {
        if let Some(why) = &process.refused {
            notes.push(format!("process {} is not held: {why}", process.pid));
        }
    }
    let mine = |(name, _): &&(Option<Name>, String)| name.as_ref() == Some(&entry.name);
    notes.extend(now.failures.iter().filter(mine).map(|(_, why)| why.clone()));
    notes
}

fn memory_notes(spec: &Spec, seen: &Seen, devices: &[GpuId], now: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    let is_held = |key| now.capabilities.enforcer(key) != Enforcer::Nobody;
    for gpu in devices {
        let used = seen.memory.get(gpu).copied().unwrap_or_default();
        let beyond = |key| spec.memory(key, gpu).filter(|limit| used > *limit);
        if let Some(max) = beyond(Key::MemoryMax).filter(|_| is_held(Key::MemoryMax)) {
            notes.push(format!(
                "{} is in use on {gpu}; new allocations fail until it falls below {}",
                used.human(),
                max.human()
            ));
        }
        if let Some(high) = beyond(Key::MemoryHigh).filter(|_| is_held(Key::MemoryHigh)) {
            notes.push(format!(
                "{} is in use on {gpu}; its weight counts a tenth there until it falls to {}",
                used.human(),
                high.human()
            ));
        }
    }
    let unlimited = Value::Limit(Limit::Max);
    let limited = |(key, _, value): (Key, _, &Value)| key == Key::MemoryMax && *value != unlimited;
    let not_held = &seen.not_held;
    if is_held(Key::MemoryMax) && !not_held.is_empty() && spec.iter().any(limited) {
        let mut pids: Vec<String> = not_held.iter().take(PIDS).map(u32::to_string).collect();
        if let Some(more) = not_held.len().checked_sub(PIDS).filter(|more| *more > 0) {
            pids.push(format!("{more} more"));
        }
        notes.push(format!(
            "gpu.memory.max does not hold processes that were not started under it \
             (`ghostctl run`, or a runtime with its seccomp profile): {}",
            pids.join(", ")
        ));
    }
    notes
}
