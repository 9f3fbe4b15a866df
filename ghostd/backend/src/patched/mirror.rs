//! The module's tree of containers, kept as ghostd wants it. What is there already when ghostd
//! starts is taken over; what cannot be done now is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ghost_model::value::{Limit, Value};
use ghost_model::{GpuId, Key, Members, MemoryLimits, MemoryWanted, Name, ProcId, Spec};
use ghost_notify::{PidFd, ProcError};
use ghost_uapi::{ContainerId, Device, Error, GpuNumber, Limits, Max};

use crate::cgroup::Hierarchy;

/// A GPU that has limits of its own.
pub(super) type OnGpu = (GpuNumber, GpuId);

/// The limits of a container on each GPU that is known, or on all.
type Told = Vec<(GpuNumber, Limits)>;

#[derive(Default)]
pub(super) struct Mirror {
    /// These are `None` until ghostd said them: what an earlier one asked for stays before.
    specs: Option<BTreeMap<Name, Spec>>,
    memory: Option<MemoryWanted>,
    members: Option<Members>,
    /// Whether `ids` is what the module has.
    is_read: bool,
    ids: BTreeMap<Name, ContainerId>,
    /// The same; those that nobody wants any more and that have clients still are in here alone.
    names: BTreeMap<ContainerId, Name>,
    told: BTreeMap<ContainerId, Told>,
    attached: BTreeMap<ProcId, ContainerId>,
    /// By path, the inode of its directory.
    bound: BTreeMap<String, (u64, ContainerId)>,
    /// What of an earlier ghostd was bound was looked at.
    is_cleared: bool,
    problems: BTreeSet<String>,
}

impl Mirror {
    pub(super) fn set_containers(&mut self, specs: &BTreeMap<Name, Spec>) {
        self.specs = Some(specs.clone());
    }

    pub(super) fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.memory = Some(wanted.clone());
    }

    pub(super) fn set_members(&mut self, members: &Members) {
        self.members = Some(members.clone());
    }

    pub(super) fn members(&self) -> Option<&Members> {
        self.members.as_ref()
    }

    /// What keeps the module from being as it should.
    pub(super) fn problems(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(String::as_str)
    }

    pub(super) fn id(&self, name: &Name) -> Option<ContainerId> {
        self.ids.get(name).copied()
    }

    /// The containers that somebody wants.
    pub(super) fn containers(&self) -> impl Iterator<Item = (&Name, ContainerId)> {
        self.ids.iter().map(|(name, id)| (name, *id))
    }

    /// The container with this number, `system` for one that nobody wants any more.
    pub(super) fn name(&self, id: ContainerId) -> Name {
        let name = self.names.get(&id);
        name.filter(|name| self.ids.contains_key(*name))
            .cloned()
            .unwrap_or_else(Name::system)
    }

    /// Makes the module what it should be.
    pub(super) fn keep(&mut self, device: &Device, gpus: &[OnGpu], cgroups: Option<&Hierarchy>) {
        let before = std::mem::take(&mut self.problems);
        let wanted = self.wanted();
        if !self.is_read {
            match device.containers() {
                Ok(listed) => self.read(listed),
                Err(error) => return self.note(error),
            }
        }
        self.make(device, &wanted);
        self.limit(device, gpus);
        self.attach(device);
        self.bind(device, cgroups);
        self.remove(device, &wanted);
        for problem in self.problems.difference(&before) {
            tracing::warn!("{problem}");
        }
    }

    fn note(&mut self, error: Error) {
        // Somebody else changed the tree.
        self.is_read &= !error.is_gone();
        let source = std::error::Error::source(&error);
        let source = source.map_or_else(String::new, |source| format!(": {source}"));
        self.problems.insert(format!("{error}{source}"));
    }

    fn wanted(&self) -> BTreeSet<Name> {
        let specs = self.specs.iter().flat_map(BTreeMap::keys);
        let limited = self.memory.iter().flat_map(|memory| memory.0.keys());
        let members = self.members.iter().flat_map(|members| members.0.keys());
        let names = specs.chain(limited).chain(members);
        let all = names.flat_map(Name::lineage);
        all.chain([Name::system()]).collect()
    }

    fn read(&mut self, listed: Vec<ghost_uapi::Container>) {
        self.names = BTreeMap::new();
        for one in listed {
            let name = if one.id == ContainerId::SYSTEM {
                Some(Name::system())
            } else if one.parent == ContainerId::NONE {
                one.name.parse().ok()
            } else {
                // Who is above is listed before.
                let above = self.names.get(&one.parent);
                above.and_then(|above| format!("{above}/{}", one.name).parse().ok())
            };
            if let Some(name) = name {
                self.names.insert(one.id, name);
            }
        }
        self.ids = self.names.iter().map(|(id, n)| (n.clone(), *id)).collect();
        let there = |id: &ContainerId| self.names.contains_key(id);
        self.told.retain(|id, _| there(id));
        self.attached.retain(|_, id| there(id));
        self.bound.retain(|_, (_, id)| there(id));
        self.is_read = true;
    }

    /// Makes those that are missing. One that was to be removed and had clients still is wanted
    /// again as it is.
    fn make(&mut self, device: &Device, wanted: &BTreeSet<Name>) {
        let by_name: BTreeMap<&Name, ContainerId> =
            self.names.iter().map(|(id, name)| (name, *id)).collect();
        let again = wanted
            .iter()
            .filter_map(|name| Some((name.clone(), *by_name.get(name)?)));
        let again: Vec<_> = again.collect();
        self.ids.extend(again);
        for name in wanted {
            if self.ids.contains_key(name) {
                continue;
            }
            let parent = match name.parent() {
                None => ContainerId::NONE,
                Some(above) => match self.ids.get(&above) {
                    Some(id) => *id,
                    // Said already.
                    None => continue,
                },
            };
            match device.create(parent, name.leaf()) {
                Ok(id) => {
                    self.ids.insert(name.clone(), id);
                    self.names.insert(id, name.clone());
                }
                Err(error) => {
                    self.is_read = false;
                    self.note(error);
                }
            }
        }
    }

    fn limit(&mut self, device: &Device, gpus: &[OnGpu]) {
        let (Some(specs), Some(memory)) = (&self.specs, &self.memory) else {
            return;
        };
        let none = BTreeMap::new();
        let mut all = Vec::new();
        for (name, id) in &self.ids {
            let spec = specs.get(name);
            let memory = memory.0.get(name).unwrap_or(&none);
            let on = |(number, gpu): &OnGpu| {
                (
                    *number,
                    limits(
                        spec,
                        Some(gpu),
                        memory.get(gpu).copied().unwrap_or_default(),
                    ),
                )
            };
            let limits = match gpus {
                [] => vec![(GpuNumber::ALL, limits(spec, None, MemoryLimits::default()))],
                _ => gpus.iter().map(on).collect(),
            };
            all.push((*id, limits));
        }
        for (id, limits) in all {
            self.tell(device, id, limits);
        }
    }

    /// Sets limits that are others than before. Those that are the same on each GPU are set for
    /// all at once, also for GPUs that are found later.
    fn tell(&mut self, device: &Device, id: ContainerId, limits: Told) {
        if self.told.get(&id) == Some(&limits) {
            return;
        }
        let first = limits.first().map(|(_, limits)| *limits);
        let same = first.filter(|first| limits.iter().all(|(_, other)| other == first));
        let done = match same {
            Some(limits) => device.set_limits(id, GpuNumber::ALL, &limits),
            None => limits
                .iter()
                .try_for_each(|(gpu, limits)| device.set_limits(id, *gpu, limits)),
        };
        match done {
            Ok(()) => {
                self.told.insert(id, limits);
            }
            Err(error) => self.note(error),
        }
    }

    fn attach(&mut self, device: &Device) {
        let Some(members) = &self.members else {
            return;
        };
        let all = members.0.iter();
        let all = all.flat_map(|(name, m)| m.pids.iter().map(move |process| (name, *process)));
        let wanted: BTreeMap<ProcId, ContainerId> = all
            .filter_map(|(name, process)| Some((process, *self.ids.get(name)?)))
            .collect();
        let stale = self
            .attached
            .keys()
            .filter(|process| !wanted.contains_key(*process))
            .map(|process| (*process, ContainerId::NONE));
        let new = wanted
            .iter()
            .filter(|(process, id)| self.attached.get(*process) != Some(*id))
            .map(|(process, id)| (*process, *id));
        for (process, id) in stale.chain(new).collect::<Vec<_>>() {
            match put(device, id, process) {
                Ok(()) if id == ContainerId::NONE => {
                    self.attached.remove(&process);
                }
                // Who has exited is where it was to be.
                Ok(()) => {
                    self.attached.insert(process, id);
                }
                Err(problem) => {
                    self.problems.insert(problem);
                }
            }
        }
    }

    fn bind(&mut self, device: &Device, cgroups: Option<&Hierarchy>) {
        let (Some(cgroups), Some(members)) = (cgroups, &self.members) else {
            return;
        };
        let all = members.0.iter();
        let all = all.flat_map(|(name, m)| m.cgroups.iter().map(move |path| (name, path.as_str())));
        let wanted: BTreeMap<String, ContainerId> = all
            .filter_map(|(name, path)| Some((path.to_owned(), *self.ids.get(name)?)))
            .collect();
        let mut inodes = BTreeSet::new();
        for (path, id) in &wanted {
            // One that is not there yet is looked for again.
            let found = cgroups.directory(path).and_then(|path| open(&path));
            let Some((directory, inode)) = found else {
                continue;
            };
            inodes.insert(inode);
            if self.bound.get(path) == Some(&(inode, *id)) {
                continue;
            }
            match device.bind(*id, directory.as_fd()) {
                Ok(()) => {
                    self.bound.insert(path.clone(), (inode, *id));
                }
                Err(error) => self.note(error),
            }
        }
        let mut stale: BTreeSet<u64> = self
            .bound
            .iter()
            .filter(|(path, _)| !wanted.contains_key(*path))
            .map(|(_, (inode, _))| *inode)
            .collect();
        self.bound.retain(|path, _| wanted.contains_key(path));
        if !self.is_cleared {
            match device.cgroups() {
                Ok(listed) => {
                    stale.extend(listed.into_iter().map(|cgroup| cgroup.id));
                    self.is_cleared = true;
                }
                Err(error) => self.note(error),
            }
        }
        stale.retain(|inode| !inodes.contains(inode));
        for path in cgroups.with_inodes(&stale) {
            if let Some((directory, _)) = open(&path)
                && let Err(error) = device.bind(ContainerId::NONE, directory.as_fd())
            {
                self.note(error);
            }
        }
    }

    /// Removes those that nobody wants. Who has clients still limits nothing meanwhile.
    fn remove(&mut self, device: &Device, wanted: &BTreeSet<Name>) {
        if self.specs.is_none() || self.memory.is_none() {
            return;
        }
        self.ids.retain(|name, _| wanted.contains(name));
        let kept: BTreeSet<ContainerId> = self.ids.values().copied().collect();
        let unwanted = self.names.keys().filter(|id| !kept.contains(id)).rev();
        for id in unwanted.copied().collect::<Vec<_>>() {
            match device.delete(id) {
                Err(error) if !error.is_gone() => {
                    let free = limits(None, None, MemoryLimits::default());
                    self.tell(device, id, vec![(GpuNumber::ALL, free)]);
                    if !matches!(error.errno(), Some(libc::EBUSY | libc::ENOTEMPTY)) {
                        self.note(error);
                    }
                }
                _ => {
                    self.names.remove(&id);
                    self.told.remove(&id);
                    self.attached.retain(|_, of| *of != id);
                    self.bound.retain(|_, (_, of)| *of != id);
                }
            }
        }
    }
}

fn put(device: &Device, id: ContainerId, process: ProcId) -> Result<(), String> {
    let Ok(pid) = i32::try_from(process.pid) else {
        return Ok(());
    };
    let named = ghost_notify::ProcId {
        pid,
        start_ticks: process.start,
    };
    let held = match PidFd::open(named) {
        Ok(held) => held,
        Err(ProcError::Gone { .. } | ProcError::Reused { .. }) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    match device.attach(id, held.as_fd()) {
        Err(error) if !error.is_gone() => Err(format!("process {pid}: {error}")),
        _ => Ok(()),
    }
}

fn open(directory: &Path) -> Option<(File, u64)> {
    let file = File::open(directory).ok()?;
    let inode = file.metadata().ok()?.ino();
    Some((file, inode))
}

/// What a container has of one GPU, or without one of all.
fn limits(spec: Option<&Spec>, gpu: Option<&GpuId>, memory: MemoryLimits) -> Limits {
    let default = Spec::default();
    let of = |key| spec.unwrap_or(&default).effective(key, gpu);
    let weight = match of(Key::Weight) {
        Some(Value::Weight(weight)) => Some(weight.get().into()),
        _ => None,
    };
    let max = match of(Key::Max) {
        Some(Value::Budget(budget)) => Some(Max {
            max_us: budget.max.filter(|max| *max < budget.period).map(|m| m.0),
            period_us: budget.period.0,
        }),
        _ => None,
    };
    // Before GPUs are known, what is asked of all of them is known from the spec alone.
    let all = |key| match of(key) {
        Some(Value::Limit(Limit::At(n)) | Value::Protection(Limit::At(n))) => n.0,
        Some(Value::Limit(Limit::Max) | Value::Protection(Limit::Max)) => u64::MAX,
        _ => 0,
    };
    let (min, low, high, most) = match gpu {
        Some(_) => (
            memory.min.0,
            memory.low.0,
            memory.high.map_or(u64::MAX, |n| n.0),
            memory.max.map_or(u64::MAX, |n| n.0),
        ),
        None => (
            all(Key::MemoryMin),
            all(Key::MemoryLow),
            all(Key::MemoryHigh),
            all(Key::MemoryMax),
        ),
    };
    Limits {
        weight,
        max,
        memory_min: Some(min),
        memory_low: Some(low),
        memory_high: Some(high),
        memory_max: Some(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_model::Bytes;

    fn listed(id: u64, parent: u64, name: &str) -> ghost_uapi::Container {
        ghost_uapi::Container {
            id: ContainerId(id),
            parent: ContainerId(parent),
            name: name.into(),
        }
    }

    #[test]
    fn containers_that_are_there_are_taken_over_by_their_whole_names() {
        let mut mirror = Mirror::default();
        mirror.read(vec![
            listed(1, 0, "system"),
            listed(2, 0, "team"),
            listed(5, 2, "job"),
            listed(6, 5, "job"),
            listed(7, 99, "orphan"),
        ]);
        let job: Name = "team/job/job".parse().unwrap();
        assert_eq!(mirror.id(&job), Some(ContainerId(6)));
        assert_eq!(mirror.name(ContainerId(5)).as_str(), "team/job");
        assert_eq!(mirror.name(ContainerId(7)), Name::system());
        assert_eq!(mirror.id(&Name::system()), Some(ContainerId::SYSTEM));
        assert_eq!(mirror.containers().count(), 4);
    }

    #[test]
    fn limits_are_those_of_the_gpu_or_of_all() {
        let gpu: GpuId = "GPU-57a4d000".parse().unwrap();
        let mut spec = Spec::default();
        spec.set_text("gpu.weight", None, "300").unwrap();
        spec.set_text("gpu.max", Some(gpu.clone()), "20000 100000")
            .unwrap();
        spec.set_text("gpu.memory.max", None, "4096").unwrap();
        let memory = MemoryLimits {
            min: Bytes(7),
            max: Some(Bytes(1024)),
            ..MemoryLimits::default()
        };
        let on = limits(Some(&spec), Some(&gpu), memory);
        assert_eq!(on.weight, Some(300));
        let (max_us, period_us) = (Some(20_000), 100_000);
        assert_eq!(on.max, Some(Max { max_us, period_us }));
        assert_eq!((on.memory_min, on.memory_max), (Some(7), Some(1024)));
        assert_eq!((on.memory_low, on.memory_high), (Some(0), Some(u64::MAX)));
        let all = limits(Some(&spec), None, MemoryLimits::default());
        assert_eq!(all.max.unwrap().max_us, None);
        assert_eq!((all.memory_min, all.memory_max), (Some(0), Some(4096)));
        let none = limits(None, None, MemoryLimits::default());
        assert_eq!(none.weight, Some(100));
        assert_eq!(none.memory_max, Some(u64::MAX));
    }
}
