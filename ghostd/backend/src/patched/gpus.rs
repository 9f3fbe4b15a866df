//! GPUs: the module numbers them as the resource manager does; NVML, where it is there, gives them
//! their names, and the driver's trace says who used them.

use std::collections::{BTreeMap, BTreeSet};

use ghost_model::report::Process;
use ghost_model::sample::{GroupId, Reading};
use ghost_model::{Bytes, GpuId, GpuInfo, GpuState, Micros};
use ghost_rm::{Client, Object};
use ghost_uapi::{Device, Gpu, GpuNumber, Group};

use crate::Event;
use crate::nvidia::inventory::{Board, Driven};
use crate::nvidia::telemetry::Holdings;
use crate::nvidia::{self, Host, Roots};

pub(super) struct Gpus {
    /// The driver as user space sees it, or why it cannot be asked. Without it GPUs have no other
    /// names than their numbers, and nobody measures GPU time.
    host: Result<Host, String>,
    listed: Vec<Gpu>,
    holdings: Holdings,
    /// Processes that used a GPU by contexts that are not known.
    unknown: BTreeSet<u32>,
}

impl Gpus {
    pub(super) fn open(roots: &Roots, device: &Device) -> Self {
        let host = Host::open(roots).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        });
        let mut gpus = Self {
            host,
            listed: Vec::new(),
            holdings: Holdings::default(),
            unknown: BTreeSet::new(),
        };
        gpus.list(device);
        gpus
    }

    fn list(&mut self, device: &Device) {
        match device.gpus() {
            Ok(listed) => self.listed = listed,
            Err(error) => tracing::warn!(%error, "the module does not list its gpus"),
        }
    }

    /// Looks again at which there are, and at what of their memory is in use.
    pub(super) fn read(&mut self, device: &Device) {
        self.list(device);
        if let Ok(host) = &mut self.host {
            nvidia::read_memory(&mut host.boards, host.telemetry.as_mut());
        }
    }

    fn boards(&self) -> &[Board] {
        self.host.as_ref().map_or(&[], |host| &host.boards)
    }

    /// GPUs that cannot be shared.
    pub(super) fn refused(&self) -> impl Iterator<Item = Event> {
        self.boards()
            .iter()
            .filter_map(|board| match &board.info.state {
                GpuState::Shared => None,
                GpuState::Refused(reason) => Some(Event::Refused {
                    pid: None,
                    reason: format!("{}: {reason}", board.info.id),
                }),
            })
    }

    /// The GPUs that are shared and that the module knows, in the order of their ids.
    pub(super) fn numbers(&self) -> Vec<(GpuNumber, GpuId)> {
        let known = self.listed.iter();
        let known = known.filter_map(|gpu| Some((gpu.number, self.id(gpu.number)?)));
        let mut all: Vec<_> = known.collect();
        all.sort_by(|a, b| a.1.cmp(&b.1));
        all
    }

    pub(super) fn id(&self, number: GpuNumber) -> Option<GpuId> {
        if self.host.is_err() {
            return nameless(number);
        }
        let mut boards = self.boards().iter();
        let board = boards.find(|board| is(board, number))?;
        Some(board.info.id.clone())
    }

    pub(super) fn number(&self, gpu: &GpuId) -> Option<GpuNumber> {
        let numbers = self.numbers();
        let found = numbers.iter().find(|(_, id)| id == gpu);
        found.map(|(number, _)| *number)
    }

    pub(super) fn infos(&self) -> Vec<GpuInfo> {
        if self.host.is_ok() {
            return self.boards().iter().map(|b| b.info.clone()).collect();
        }
        let infos = self.listed.iter().zip(0..).filter_map(|(gpu, index)| {
            Some(GpuInfo {
                id: nameless(gpu.number)?,
                index,
                pci: String::new(),
                name: "GPU".into(),
                memory_total: Bytes(gpu.memory_total.unwrap_or_default()),
                memory_used: Some(Bytes(gpu.memory_charged)),
                state: GpuState::Shared,
            })
        });
        infos.collect()
    }

    /// How GPU time is measured, and what a user should know of it.
    pub(super) fn meters(&self) -> (String, Vec<String>) {
        match &self.host {
            Ok(host) => {
                let (meter, problems) = nvidia::meters(&host.boards, host.telemetry.as_ref());
                (meter, problems.into_iter().map(str::to_owned).collect())
            }
            Err(error) => (
                "none".to_owned(),
                vec![format!("gpu time is not measured: {error}")],
            ),
        }
    }

    fn driven(&mut self, number: GpuNumber) -> Option<&mut Driven> {
        let boards = &mut self.host.as_mut().ok()?.boards;
        let board = boards.iter_mut().find(|board| is(board, number))?;
        board.driven.as_mut()
    }

    /// Tells the meters what changed between two lists of groups.
    pub(super) fn follow(&mut self, before: &[Group], now: &[Group]) {
        let unknown = std::mem::take(&mut self.unknown);
        let old: BTreeMap<_, _> = before.iter().map(|group| (group.id, group)).collect();
        let new: BTreeSet<_> = now.iter().map(|group| group.id).collect();
        for group in before.iter().filter(|group| !new.contains(&group.id)) {
            if let Some(driven) = self.driven(group.gpu) {
                driven.meter.remove(GroupId(group.id.0));
            }
        }
        for group in now {
            let last = old.get(&group.id);
            // One that is new may not have all its channels yet.
            if last.is_none() || unknown.contains(&group.pid) {
                self.look(group);
            }
            let Some(driven) = self.driven(group.gpu) else {
                continue;
            };
            let id = GroupId(group.id.0);
            if last.is_none_or(|last| last.slice_us != group.slice_us) {
                driven.meter.set_slice(id, group.slice_us);
            }
            if last.is_none_or(|last| last.paused != group.paused) {
                driven.meter.set_paused(id, group.paused);
            }
        }
    }

    /// Learns by which contexts a group is known in the driver's trace.
    fn look(&mut self, group: &Group) {
        let Ok(host) = &mut self.host else {
            return;
        };
        let mut boards = host.boards.iter_mut();
        let board = boards.find(|board| is(board, group.gpu));
        let driven = board.and_then(|board| board.driven.as_mut());
        let (Some(driven), Some(session)) = (driven, &host.session) else {
            return;
        };
        let (client, object) = (Client(group.client), Object(group.handle));
        match session.group_ids(driven.subdevice, client, object) {
            Ok(ids) => {
                let id = GroupId(group.id.0);
                driven.meter.add(id, group.pid, &ids.contexts);
            }
            Err(error) => tracing::debug!(pid = group.pid, %error, "no contexts of a group"),
        }
    }

    /// Takes in who used the GPUs up to now.
    pub(super) fn step(&mut self, now: Micros) {
        let Ok(host) = &mut self.host else {
            return;
        };
        for board in &mut host.boards {
            if let Some(driven) = &mut board.driven {
                let (gpu, telemetry) = (&board.info.id, host.telemetry.as_mut());
                let unknown = driven.meter.step(now, true, gpu, telemetry);
                self.unknown.extend(unknown);
            }
        }
    }

    pub(super) fn upkeep(&mut self, now: Micros) {
        for board in self.host.iter_mut().flat_map(|host| &mut host.boards) {
            if let Some(driven) = &mut board.driven {
                driven.meter.upkeep(now);
            }
        }
    }

    /// GPU time that a group used, and whether it has work.
    pub(super) fn read_meter(
        &self,
        number: GpuNumber,
        group: GroupId,
        now: Micros,
    ) -> (Reading<Micros>, Reading<bool>) {
        let board = self.boards().iter().find(|board| is(board, number));
        let driven = board.and_then(|board| board.driven.as_ref());
        driven.map_or((Reading::Missing, Reading::Missing), |driven| {
            driven.meter.read(group, now)
        })
    }

    /// Adds what processes hold of each GPU. The module counts it for all GPUs together.
    pub(super) fn fill(
        &mut self,
        all: &mut BTreeMap<u32, Process>,
        clients: &[ghost_uapi::Client],
    ) {
        let now = nvidia::clock::now();
        match &mut self.host {
            Ok(host) => {
                let session = host.session.as_ref();
                let count = session.and_then(|session| session.clients().ok());
                for board in &host.boards {
                    let (gpu, telemetry) = (&board.info.id, host.telemetry.as_mut());
                    let held = self.holdings.on(gpu, count, None, now, telemetry);
                    for (pid, &memory) in held {
                        if let (Some(process), Some(memory)) = (all.get_mut(pid), memory) {
                            process.memory.insert(gpu.clone(), memory);
                        }
                    }
                }
            }
            Err(_) => {
                let numbers = self.numbers();
                let [(_, gpu)] = numbers.as_slice() else {
                    return;
                };
                for client in clients {
                    if let Some(process) = all.get_mut(&client.pid) {
                        let held = process.memory.entry(gpu.clone()).or_default();
                        held.0 = held.0.saturating_add(client.memory);
                    }
                }
            }
        }
    }
}

fn is(board: &Board, number: GpuNumber) -> bool {
    let driven = board.driven.as_ref();
    driven.is_some_and(|driven| driven.rm_id == number.0)
}

/// What a GPU is called that NVML does not name.
fn nameless(number: GpuNumber) -> Option<GpuId> {
    format!("GPU-{:08x}", number.0).parse().ok()
}
