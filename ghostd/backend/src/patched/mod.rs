//! NVIDIA's kernel module with Ghost woven in: containers, their limits and their members are the
//! module's, and hold when ghostd is gone. While ghostd lives it leads: timeslices and pauses are
//! its own, under a lease, and end with its file, so that no guardian is needed.
//!
//! | module | what |
//! | --- | --- |
//! | `mirror` | the module's tree, kept as ghostd wants it |
//! | `gpus` | GPUs as the module, the resource manager and NVML number them; GPU time |
//! | `watch` | what the module says by itself |
//!
//! The module's words differ from a plan's in two places. A pause stops the containers below too:
//! a plan pauses those with it, for all reasons for a pause are inherited. And a process that is put
//! elsewhere leaves there what it has already: its groups stay in the container in which its client
//! of the driver was made.

mod gpus;
mod mirror;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ghost_model::report::Process;
use ghost_model::sample::{GroupId, Reading};
use ghost_model::{
    Action, BackendKind, Bytes, Capabilities, Enforcer, GpuId, GpuInfo, GpuSample, GroupSample,
    Key, Members, MemoryEvents, MemorySeen, MemoryUse, MemoryWanted, Micros, Name, ProcId, Sample,
    Spec,
};
use ghost_uapi::{Device, Error, Group, GroupNumber, Kind, Lease, Version, sys};

use crate::cgroup::Hierarchy;
use crate::nvidia::{Roots, clock};
use crate::{Backend, Event, Failure, procs};
use gpus::Gpus;
use mirror::Mirror;
use watch::Watch;

pub use ghost_uapi::PATH;

/// What a ghostd that no longer gets to its upkeep has stopped runs again after this long.
const LEASE: Duration = Duration::from_secs(1);
/// The module's tree is compared with what is wanted this often.
const KEEP: Micros = Micros(1_000_000);

/// Why there is no module to drive.
#[derive(Debug, thiserror::Error)]
pub enum PatchedError {
    /// It is not there, or does not answer.
    #[error(transparent)]
    Device(#[from] Error),
    /// It is there and holds nothing.
    #[error(
        "{path}: the module's hooks are off; write 1 to /sys/module/nvidia/parameters/ghost_hooks"
    )]
    Off {
        /// The device.
        path: PathBuf,
    },
}

/// The backend for a driver with Ghost woven in.
pub struct Patched {
    device: Device,
    version: Version,
    watch: Watch,
    gpus: Gpus,
    hierarchy: Option<Hierarchy>,
    mirror: Mirror,
    keep_due: Micros,
    /// As they were when they were last listed.
    groups: Vec<Group>,
    /// Processes that have or had groups, by pid and GPU, and the container in which they had the
    /// first.
    appeared: BTreeMap<(u32, GpuId), (ProcId, Name)>,
    /// Who a client belongs to, by the client's number.
    owners: BTreeMap<u64, ProcId>,
    leads: Result<(), String>,
    events: Vec<Event>,
}

/// The module at `path`, if it answers and holds something.
///
/// # Errors
/// [`PatchedError`]
pub fn probe(path: &Path) -> Result<(Device, Version), PatchedError> {
    let device = Device::open(path)?;
    let version = device.version()?;
    if version.hooks == 0 {
        return Err(PatchedError::Off {
            path: path.to_owned(),
        });
    }
    Ok((device, version))
}

impl Patched {
    /// Begins to drive the module at `path`. What it holds stays as it is until it is told
    /// otherwise.
    ///
    /// # Errors
    /// [`PatchedError`]
    pub fn open(path: &Path, roots: &Roots) -> Result<Self, PatchedError> {
        // First, so that nothing is missed.
        let watch = Watch::start(path)?;
        let (device, version) = probe(path)?;
        let mut patched = Self {
            gpus: Gpus::open(roots, &device),
            device,
            version,
            watch,
            hierarchy: Hierarchy::find(),
            mirror: Mirror::default(),
            keep_due: Micros::ZERO,
            groups: Vec::new(),
            appeared: BTreeMap::new(),
            owners: BTreeMap::new(),
            leads: Ok(()),
            events: Vec::new(),
        };
        patched.events.extend(patched.gpus.refused());
        patched.renew();
        patched.keep();
        Ok(patched)
    }

    fn keep(&mut self) {
        self.keep_due = clock::now() + KEEP;
        self.mirror
            .keep(&self.device, &self.gpus.numbers(), self.hierarchy.as_ref());
    }

    /// Leads on. Who cannot lead keeps at least what it has paused.
    fn renew(&mut self) {
        let led = self.device.lead(Lease::For(LEASE));
        let led = led.map_err(|error| match error.errno() {
            Some(libc::EBUSY) => "another program leads: is there a second ghostd?".to_owned(),
            _ => error.to_string(),
        });
        if led.is_err() && self.device.renew(Lease::For(LEASE)).is_err() {
            tracing::debug!("no lease is renewed");
        }
        if let (Err(problem), Ok(())) = (&led, &self.leads) {
            tracing::warn!("{problem}");
        }
        self.leads = led;
    }

    /// Lists the groups, and tells the meters of those that are new.
    fn list_groups(&mut self) {
        match self.device.groups() {
            Ok(groups) => {
                self.gpus.follow(&self.groups, &groups);
                self.groups = groups;
            }
            // What is not known is what it was.
            Err(error) => tracing::warn!(%error, "channel groups are not listed"),
        }
    }

    /// Processes that came and went.
    fn note_processes(&mut self) {
        let mut seen = BTreeSet::new();
        for group in &self.groups {
            let Some(gpu) = self.gpus.id(group.gpu) else {
                continue;
            };
            let key = (group.pid, gpu);
            if !self.appeared.contains_key(&key)
                && let Some(id) = procs::identify(group.pid)
            {
                let container = self.mirror.name(group.container);
                self.events.push(Event::Appeared {
                    pid: group.pid,
                    container: container.clone(),
                    gpu: key.1.clone(),
                });
                self.appeared.insert(key.clone(), (id, container));
            }
            seen.insert(key);
        }
        let mut exited = BTreeMap::new();
        self.appeared.retain(|key, (id, container)| {
            let lives = seen.contains(key) || procs::identify(id.pid) == Some(*id);
            if !lives {
                exited.insert(id.pid, container.clone());
            }
            lives
        });
        let exited = exited.into_iter();
        self.events
            .extend(exited.map(|(pid, container)| Event::Exited { pid, container }));
    }

    fn hear(&mut self) {
        for event in self.watch.take() {
            let container = self.mirror.name(event.container);
            let pid = event.pid.unwrap_or_default();
            match event.kind {
                Kind::Gpu => {
                    self.gpus.read(&self.device);
                    self.keep_due = Micros::ZERO;
                }
                Kind::Clamped(_) => {
                    if let Some(gpu) = event.gpu.and_then(|gpu| self.gpus.id(gpu)) {
                        self.events.push(Event::Reasserted {
                            pid,
                            container,
                            gpu,
                        });
                    }
                }
                Kind::Refused(control) => {
                    tracing::info!(
                        pid, %container,
                        "a scheduling control ({control:#x}) was refused"
                    );
                }
                Kind::Lapsed => tracing::warn!("a lease of the module lapsed"),
                Kind::Lost(records) => tracing::debug!(records, "events were read too late"),
                _ => {}
            }
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let gone = |error: Error| if error.is_gone() { Ok(()) } else { Err(error) };
        let done = match action {
            Action::SetSlice { group, slice, .. } => {
                let (least, most) = (sys::GHOST_SLICE_MIN.into(), sys::GHOST_SLICE_MAX.into());
                let us = slice.0.clamp(least, most);
                self.device.set_slice(GroupNumber(group.0), us)
            }
            Action::Pause { gpu, container, .. } | Action::Resume { gpu, container } => {
                let number = self.gpus.number(gpu);
                let (Some(gpu), Some(id)) = (number, self.mirror.id(container)) else {
                    return Ok(());
                };
                match action {
                    Action::Resume { .. } => self.device.resume(id, gpu),
                    _ => self.device.pause(id, gpu),
                }
            }
        };
        done.or_else(gone).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        })
    }

    /// The processes of all clients that are listed.
    fn held(&mut self, clients: &[ghost_uapi::Client]) -> BTreeSet<ProcId> {
        let there: BTreeSet<u64> = clients.iter().map(|client| client.id).collect();
        self.owners.retain(|id, _| there.contains(id));
        for client in clients {
            // A client outlives its process only where another holds its file.
            if !self.owners.contains_key(&client.id)
                && let Some(id) = procs::identify(client.pid)
            {
                self.owners.insert(client.id, id);
            }
        }
        self.owners.values().copied().collect()
    }

    fn stats(&self) -> BTreeMap<Name, BTreeMap<GpuId, MemoryUse>> {
        let gpus = self.gpus.numbers();
        let mut all = BTreeMap::new();
        for (name, id) in self.mirror.containers() {
            let on = gpus.iter().filter_map(|(number, gpu)| {
                let stat = self.device.stat(id, *number).ok()?;
                let used = MemoryUse {
                    current: Bytes(stat.memory_current),
                    peak: Bytes(stat.memory_peak),
                    events: events_of(&stat.events),
                    events_local: events_of(&stat.events_local),
                };
                (used != MemoryUse::default()).then(|| (gpu.clone(), used))
            });
            let on: BTreeMap<_, _> = on.collect();
            if !on.is_empty() {
                all.insert(name.clone(), on);
            }
        }
        all
    }
}

fn events_of(raw: &sys::ghost_events) -> MemoryEvents {
    MemoryEvents {
        low: raw.low,
        high: raw.high,
        max: raw.max,
        fail: raw.fail,
    }
}

impl Backend for Patched {
    fn capabilities(&self) -> Capabilities {
        let memory = [
            Key::MemoryMax,
            Key::MemoryHigh,
            Key::MemoryLow,
            Key::MemoryMin,
        ];
        let in_kernel = [Key::Weight, Key::Max];
        // A pause ends with the file that it was asked on.
        let of_daemon = [Key::Idle, Key::Latency, Key::Freeze, Key::Devices];
        let mut enforced_by = BTreeMap::from([(Key::Cgroup, Enforcer::Kernel)]);
        let (meter, mut notes) = self.gpus.meters();
        if self.version.holds(sys::GHOST_HOOKS_MEMORY) {
            enforced_by.extend(memory.map(|key| (key, Enforcer::Kernel)));
            if !self.version.holds(sys::GHOST_HOOKS_UVM) {
                notes.push("managed memory (UVM) is not charged: no limit holds it".to_owned());
            }
        }
        if self.version.holds(sys::GHOST_HOOKS_TIME) {
            enforced_by.extend(in_kernel.map(|key| (key, Enforcer::Kernel)));
            enforced_by.extend(of_daemon.map(|key| (key, Enforcer::Daemon)));
        }
        if self.version.hooks == 0 {
            notes.push("the module's hooks are off: it holds nothing".to_owned());
            enforced_by.clear();
        }
        if self.version.is_test {
            notes.push("the module has an entry for tests: this is no release".to_owned());
        }
        if self.hierarchy.is_none() {
            notes.push("no cgroup v2 is mounted: processes can only be attached by pid".to_owned());
        }
        notes.extend(self.leads.as_ref().err().cloned());
        notes.extend(self.mirror.problems().map(str::to_owned));
        Capabilities {
            backend: BackendKind::Patched,
            driver: Some(self.version.driver.clone()),
            patch: Some(self.version.build.clone()),
            enforced_by,
            meter,
            notes,
        }
    }

    fn gpus(&mut self) -> Vec<GpuInfo> {
        // The hooks may be turned off at any time, and then nothing may be claimed of them.
        match self.device.version() {
            Ok(version) => self.version = version,
            Err(error) => tracing::warn!(%error, "what is held is not known"),
        }
        self.gpus.read(&self.device);
        self.gpus.infos()
    }

    fn set_containers(&mut self, specs: &BTreeMap<Name, Spec>) {
        self.mirror.set_containers(specs);
        self.keep();
    }

    fn set_members(&mut self, members: &Members) {
        self.mirror.set_members(members);
        self.keep();
    }

    fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.mirror.set_memory(wanted);
        self.keep();
    }

    fn memory(&mut self) -> Option<MemorySeen> {
        if !self.version.holds(sys::GHOST_HOOKS_MEMORY) {
            return None;
        }
        let clients = self.device.clients().ok()?;
        Some(MemorySeen {
            held: self.held(&clients),
            containers: self.stats(),
        })
    }

    fn wake_by(&mut self, wake: Box<dyn Fn() + Send>) {
        self.watch.wake_by(wake);
    }

    fn sample(&mut self) -> Sample {
        self.hear();
        let now = clock::now();
        self.list_groups();
        self.note_processes();
        self.gpus.step(now);
        let now = clock::now();
        let gpus = self.gpus.numbers().into_iter().map(|(number, gpu)| {
            let here = self.groups.iter().filter(|group| group.gpu == number);
            let groups = here.map(|group| {
                let id = GroupId(group.id.0);
                let (used, active) = self.gpus.read_meter(number, id, now);
                let slice = match group.slice_us {
                    0 => Reading::Missing,
                    us => Reading::Fresh {
                        value: Micros(us),
                        at: now,
                    },
                };
                GroupSample {
                    id,
                    pid: group.pid,
                    container: self.mirror.name(group.container),
                    slice,
                    used,
                    active,
                    paused: group.paused,
                }
            });
            GpuSample {
                groups: groups.collect(),
                memory: BTreeMap::new(),
                gpu,
            }
        });
        Sample {
            at: now,
            gpus: gpus.collect(),
        }
    }

    fn stirs(&mut self) -> bool {
        self.renew();
        self.watch.has_news()
    }

    fn upkeep(&mut self) -> bool {
        self.renew();
        let now = clock::now();
        self.gpus.upkeep(now);
        if self.keep_due <= now {
            self.keep();
        }
        self.watch.has_news()
    }

    fn apply(&mut self, actions: &[Action]) -> Vec<Failure> {
        let failed = actions.iter().filter_map(|action| {
            let cause = self.act(action).err()?;
            Some(Failure {
                action: action.clone(),
                cause,
            })
        });
        failed.collect()
    }

    fn processes(&mut self) -> Vec<Process> {
        let mut all: BTreeMap<u32, Process> = BTreeMap::new();
        let clients = self.device.clients().unwrap_or_default();
        for client in &clients {
            let container = self.mirror.name(client.container);
            // The last client tells where a process is: those before may stand where it was.
            let process = all
                .entry(client.pid)
                .or_insert_with(|| procs::without_gpu(client.pid, container.clone()));
            process.container = container;
        }
        for group in &self.groups {
            let Some(gpu) = self.gpus.id(group.gpu) else {
                continue;
            };
            let container = self.mirror.name(group.container);
            let process = all
                .entry(group.pid)
                .or_insert_with(|| procs::without_gpu(group.pid, container));
            *process.groups.entry(gpu).or_default() += 1;
        }
        if let Some(members) = self.mirror.members() {
            for (id, container) in procs::alive(members, |pid| all.contains_key(&pid)) {
                all.insert(id.pid, procs::without_gpu(id.pid, container));
            }
        }
        self.gpus.fill(&mut all, &clients);
        all.into_values().collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
