//! What exists in a simulation: GPUs, processes, channel groups, and who is held how.

use std::collections::{BTreeMap, BTreeSet};

use ghost_guardian::broker::books::Refusal;
use ghost_model::report::Process;
use ghost_model::{
    Action, Bytes, GpuId, GpuInfo, GpuSample, GpuState, GroupId, GroupSample, Members, MemorySeen,
    MemoryWanted, Micros, Name, ProcId, Reading, Sample,
};
use nix::time::{ClockId, clock_gettime};

use super::Config;
use super::gpu::{Gpu, Group, Load};
use super::memory::Memory;
use crate::{Event, procs};

/// The timeslice of a new channel group, as NVIDIA's driver sets it.
const SLICE: Micros = Micros(2048);

/// How GPU time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meter {
    /// Every reading is of the moment at which it is made.
    Exact,
    /// Readings change only at multiples of this time, as those of a real meter do; a group that
    /// is younger has none.
    Every(Micros),
}

/// What is wrong with the readings of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its source says no more; the last reading is [`Reading::Stale`].
    Stale,
    /// There is no reading.
    Missing,
}

/// Why there is no channel group, or no memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpawnError {
    /// There are fewer GPUs.
    #[error("no simulated GPU {0}: `ghostctl gpu list` shows those that there are")]
    NoGpu(u32),
    /// The group is gone.
    #[error("channel group {} is gone", .0.0)]
    NoGroup(GroupId),
    /// A limit's refusal.
    #[error("out of memory: {0}")]
    Memory(#[from] Refusal),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    Manual(Micros),
    Monotonic,
}

impl Clock {
    fn now(self) -> Micros {
        match self {
            Clock::Manual(now) => now,
            // CLOCK_MONOTONIC is always there.
            Clock::Monotonic => clock_gettime(ClockId::CLOCK_MONOTONIC)
                .map(|t| Micros(std::time::Duration::from(t).as_micros() as u64))
                .unwrap_or_default(),
        }
    }
}

#[derive(Debug)]
struct Device {
    id: GpuId,
    gpu: Gpu,
    paused: BTreeSet<Name>,
}

#[derive(Debug)]
struct Proc {
    command: String,
    cgroup: Option<String>,
    container: Name,
}

#[derive(Debug)]
struct Owned {
    process: ProcId,
    device: usize,
    wanted: Option<Micros>,
    paused: bool,
    // When, time used, whether it had work.
    measured: Option<(Micros, Micros, bool)>,
    fault: Option<Fault>,
}

#[derive(Debug)]
pub(super) struct World {
    clock: Clock,
    config: Config,
    devices: Vec<Device>,
    processes: BTreeMap<ProcId, Proc>,
    groups: BTreeMap<GroupId, Owned>,
    memory: Memory,
    members: Members,
    events: Vec<Event>,
    made: u64,
}

pub(super) fn uuid(index: u32) -> GpuId {
    let text = format!("GPU-51b00000-0000-0000-0000-{index:012x}");
    text.parse().expect("a UUID names a GPU")
}

impl World {
    pub(super) fn new(clock: Clock, config: Config) -> Self {
        let now = clock.now();
        let device = |index| Device {
            id: uuid(index),
            gpu: Gpu::new(config.params, now),
            paused: BTreeSet::new(),
        };
        World {
            clock,
            config,
            devices: (0..config.gpus).map(device).collect(),
            processes: BTreeMap::new(),
            groups: BTreeMap::new(),
            memory: Memory::new((0..config.gpus).map(uuid), config.memory),
            members: Members::default(),
            events: Vec::new(),
            made: 0,
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Lets everything happen that the clock says has.
    pub(super) fn catch_up(&mut self) {
        self.pass(self.clock.now());
    }

    pub(super) fn advance(&mut self, to: Micros) {
        if let Clock::Manual(now) = &mut self.clock {
            *now = to.max(*now);
        }
        self.catch_up();
    }

    fn pass(&mut self, to: Micros) {
        let from = self.devices.first().map_or(to, |d| d.gpu.now());
        if let Meter::Every(every) = self.config.meter {
            let every = every.0.max(1);
            let mut tick = (from.0 / every + 1) * every;
            while tick <= to.0 {
                self.devices
                    .iter_mut()
                    .for_each(|d| d.gpu.advance(Micros(tick)));
                self.measure();
                tick = tick.saturating_add(every);
            }
        }
        self.devices.iter_mut().for_each(|d| d.gpu.advance(to));
        if self.config.meter == Meter::Exact {
            self.measure();
        }
    }

    fn measure(&mut self) {
        for (&id, owned) in self.groups.iter_mut().filter(|(_, o)| o.fault.is_none()) {
            let Some(device) = self.devices.get(owned.device) else {
                continue;
            };
            if let Some(group) = device.gpu.group(id) {
                owned.measured = Some((device.gpu.now(), group.used(), group.has_work()));
            }
        }
    }

    pub(super) fn start(&mut self, process: ProcId, command: &str, cgroup: Option<&str>) {
        let proc = Proc {
            command: command.to_owned(),
            cgroup: cgroup.map(str::to_owned),
            container: self.members.container_of(process, cgroup),
        };
        self.processes.insert(process, proc);
        self.hold();
    }

    pub(super) fn spawn(
        &mut self,
        process: ProcId,
        gpu: u32,
        load: Load,
        memory: Bytes,
    ) -> Result<GroupId, SpawnError> {
        let index = gpu as usize;
        let there = self.devices.get(index).map(|device| device.id.clone());
        let gpu = there.ok_or(SpawnError::NoGpu(gpu))?;
        if !self.processes.contains_key(&process) {
            self.start(process, "sim", None);
        }
        let id = GroupId(self.made);
        self.made += 1;
        if memory.0 > 0 {
            let container = self.container(process);
            self.memory
                .allocate(process, (id, index), &container, memory)?;
        }
        if let Some(device) = self.devices.get_mut(index) {
            device.gpu.add(id, SLICE);
            device.gpu.set_load(id, load);
        }
        let first = !self
            .groups
            .values()
            .any(|o| o.process == process && o.device == index);
        if first {
            self.events.push(Event::Appeared {
                pid: process.pid,
                container: self.container(process),
                gpu,
            });
        }
        let owned = Owned {
            process,
            device: index,
            wanted: None,
            paused: false,
            measured: None,
            fault: None,
        };
        self.groups.insert(id, owned);
        self.count_contexts(process);
        self.hold();
        Ok(id)
    }

    /// Takes memory for a group that is there.
    pub(super) fn allocate(&mut self, id: GroupId, bytes: Bytes) -> Result<(), SpawnError> {
        let owned = self.groups.get(&id).ok_or(SpawnError::NoGroup(id))?;
        let (process, device) = (owned.process, owned.device);
        let container = self.container(process);
        let taken = self
            .memory
            .allocate(process, (id, device), &container, bytes);
        Ok(taken?)
    }

    fn count_contexts(&mut self, process: ProcId) {
        let Some(container) = self.processes.get(&process).map(|p| p.container.clone()) else {
            return;
        };
        for device in 0..self.devices.len() {
            let here = |o: &&Owned| o.process == process && o.device == device;
            let count = self.groups.values().filter(here).count() as u64;
            self.memory.set_contexts(process, device, count, &container);
        }
    }

    /// Whether a process has a channel group.
    pub(super) fn computes(&self, process: ProcId) -> bool {
        self.groups.values().any(|o| o.process == process)
    }

    pub(super) fn kill(&mut self, process: ProcId) {
        let own = |(&id, o): (&GroupId, &Owned)| (o.process == process).then_some(id);
        let groups: Vec<GroupId> = self.groups.iter().filter_map(own).collect();
        let Some(proc) = self.processes.remove(&process) else {
            return;
        };
        if !groups.is_empty() {
            self.events.push(Event::Exited {
                pid: process.pid,
                container: proc.container,
            });
        }
        groups.into_iter().for_each(|id| self.close(id));
        self.memory.end(process);
    }

    pub(super) fn close(&mut self, id: GroupId) {
        if let Some(gpu) = self.gpu_of(id) {
            gpu.remove(id);
        }
        self.memory.free(id);
        if let Some(owned) = self.groups.remove(&id) {
            self.count_contexts(owned.process);
        }
    }

    /// A group goes; with a process's last one goes the process.
    pub(super) fn leave(&mut self, id: GroupId) {
        let Some(process) = self.groups.get(&id).map(|o| o.process) else {
            return;
        };
        let of_it = self.groups.values().filter(|o| o.process == process);
        if of_it.count() == 1 {
            self.kill(process);
        } else {
            self.close(id);
        }
    }

    pub(super) fn set_load(&mut self, id: GroupId, load: Load) {
        if let Some(gpu) = self.gpu_of(id) {
            gpu.set_load(id, load);
        }
    }

    pub(super) fn tamper(&mut self, id: GroupId, slice: Micros) {
        if let Some(gpu) = self.gpu_of(id) {
            gpu.set_slice(id, slice);
        }
    }

    pub(super) fn set_meter(&mut self, meter: Meter) {
        self.config.meter = meter;
    }

    pub(super) fn set_fault(&mut self, id: GroupId, fault: Option<Fault>) {
        if let Some(owned) = self.groups.get_mut(&id) {
            owned.fault = fault;
        }
        if self.config.meter == Meter::Exact {
            self.measure();
        }
    }

    pub(super) fn group(&self, id: GroupId) -> Option<&Group> {
        let owned = self.groups.get(&id)?;
        self.devices.get(owned.device)?.gpu.group(id)
    }

    fn gpu_of(&mut self, id: GroupId) -> Option<&mut Gpu> {
        let owned = self.groups.get(&id)?;
        Some(&mut self.devices.get_mut(owned.device)?.gpu)
    }

    fn container(&self, process: ProcId) -> Name {
        let proc = self.processes.get(&process);
        proc.map_or_else(Name::system, |p| p.container.clone())
    }

    pub(super) fn set_members(&mut self, members: &Members) {
        self.members = members.clone();
        for (&id, proc) in &mut self.processes {
            if matches!(self.clock, Clock::Monotonic) {
                proc.cgroup = crate::cgroup::path_of(id.pid);
            }
            proc.container = members.container_of(id, proc.cgroup.as_deref());
        }
        let processes: Vec<ProcId> = self.processes.keys().copied().collect();
        processes
            .into_iter()
            .for_each(|process| self.count_contexts(process));
        self.hold();
    }

    pub(super) fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.memory.set_limits(wanted);
    }

    pub(super) fn memory(&self) -> MemorySeen {
        self.memory.seen(self.processes.keys().copied().collect())
    }

    /// Disables the groups of paused containers, and no others.
    fn hold(&mut self) {
        for (&id, owned) in &mut self.groups {
            let Some(device) = self.devices.get_mut(owned.device) else {
                continue;
            };
            let container = self.processes.get(&owned.process).map(|p| &p.container);
            let pause = container.is_some_and(|c| device.paused.contains(c));
            if pause && !owned.paused {
                device.gpu.disable(id);
            } else if !pause && owned.paused {
                device.gpu.enable(id);
            }
            owned.paused = pause;
        }
    }

    pub(super) fn apply(&mut self, action: &Action) -> Result<(), String> {
        let (Action::SetSlice { gpu, .. } | Action::Pause { gpu, .. } | Action::Resume { gpu, .. }) =
            action;
        let index = self.devices.iter().position(|d| d.id == *gpu);
        let Some((index, device)) = index.and_then(|i| Some((i, self.devices.get_mut(i)?))) else {
            return Err(format!(
                "no simulated GPU {gpu}: `ghostctl gpu list` shows those that there are"
            ));
        };
        match action {
            Action::SetSlice { group, slice, .. } => {
                let owned = self.groups.get_mut(group);
                if let Some(owned) = owned.filter(|o| o.device == index) {
                    owned.wanted = Some(*slice);
                    device.gpu.set_slice(*group, *slice);
                }
            }
            Action::Pause { container, .. } => {
                device.paused.insert(container.clone());
            }
            Action::Resume { container, .. } => {
                device.paused.remove(container);
            }
        }
        self.hold();
        Ok(())
    }

    /// Sets back the slices that tenants changed.
    fn reassert(&mut self) {
        for (&id, owned) in &self.groups {
            let (Some(device), Some(wanted)) = (self.devices.get_mut(owned.device), owned.wanted)
            else {
                continue;
            };
            if device.gpu.group(id).is_some_and(|g| g.slice() != wanted) {
                device.gpu.set_slice(id, wanted);
                let proc = self.processes.get(&owned.process);
                self.events.push(Event::Reasserted {
                    pid: owned.process.pid,
                    container: proc.map_or_else(Name::system, |p| p.container.clone()),
                    gpu: device.id.clone(),
                });
            }
        }
    }

    pub(super) fn sample(&mut self) -> Sample {
        self.reassert();
        let at = self.devices.first().map_or(self.now(), |d| d.gpu.now());
        let gpus = self.devices.iter().enumerate().map(|(index, device)| {
            let groups = device.gpu.groups().filter_map(|(id, group)| {
                let owned = self.groups.get(&id).filter(|o| o.device == index)?;
                Some(GroupSample {
                    id,
                    pid: owned.process.pid,
                    container: self.container(owned.process),
                    slice: Reading::Fresh {
                        value: group.slice(),
                        at,
                    },
                    used: owned.reading(|(_, used, _)| used),
                    active: owned.reading(|(_, _, active)| active),
                    paused: owned.paused,
                })
            });
            GpuSample {
                memory: std::collections::BTreeMap::new(),
                gpu: device.id.clone(),
                groups: groups.collect(),
            }
        });
        Sample {
            at,
            gpus: gpus.collect(),
        }
    }

    pub(super) fn gpus(&self) -> Vec<GpuInfo> {
        let info = |(index, device): (usize, &Device)| GpuInfo {
            id: device.id.clone(),
            index: index as u32,
            pci: format!("00000000:{:02X}:00.0", index + 1),
            name: "Ghost simulated GPU".into(),
            memory_total: self.config.memory,
            memory_used: Some(Bytes(
                device
                    .gpu
                    .groups()
                    .map(|(id, _)| self.memory.held_by(id).0)
                    .sum(),
            )),
            state: GpuState::Shared,
        };
        self.devices.iter().enumerate().map(info).collect()
    }

    /// Those that run; in real time also the members that never registered.
    pub(super) fn processes(&mut self) -> Vec<Process> {
        let blank = |pid, command, container| Process {
            pid,
            command,
            container,
            groups: BTreeMap::new(),
            memory: BTreeMap::new(),
            refused: None,
        };
        let mut all: BTreeMap<ProcId, Process> = BTreeMap::new();
        if matches!(self.clock, Clock::Monotonic) {
            let known: BTreeSet<u32> = self.processes.keys().map(|id| id.pid).collect();
            for (id, container) in procs::alive(&self.members, |pid| known.contains(&pid)) {
                let command = procs::command(id.pid).unwrap_or_default();
                all.insert(id, blank(id.pid, command, container));
            }
        }
        for (&id, proc) in &self.processes {
            all.insert(
                id,
                blank(id.pid, proc.command.clone(), proc.container.clone()),
            );
        }
        for (id, owned) in &self.groups {
            let device = self.devices.get(owned.device);
            if let (Some(process), Some(device)) = (all.get_mut(&owned.process), device) {
                *process.groups.entry(device.id.clone()).or_default() += 1;
                let memory = process.memory.entry(device.id.clone()).or_default();
                memory.0 += self.memory.held_by(*id).0;
            }
        }
        all.into_values().collect()
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

impl Owned {
    fn reading<T>(&self, part: impl Fn((Micros, Micros, bool)) -> T) -> Reading<T> {
        let Some(measured) = self.measured else {
            return Reading::Missing;
        };
        let (value, at) = (part(measured), measured.0);
        match self.fault {
            None => Reading::Fresh { value, at },
            Some(Fault::Stale) => Reading::Stale { value, at },
            Some(Fault::Missing) => Reading::Missing,
        }
    }
}
