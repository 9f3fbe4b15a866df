//! An unmodified NVIDIA driver, driven from outside of the processes that use it.
//!
//! | module | what |
//! | --- | --- |
//! | `tenants` | processes, held by pidfds; finding their clients |
//! | `scan` | the objects of a client |
//! | `making` | who is making a context, and is left alone meanwhile |
//! | `discovery` | when to look for what |
//! | `groups` | channel groups and timeslices |
//! | `enforce` | setting timeslices, and reading them back |
//! | `pauses` | what the guardian holds for us |
//! | `memory` | limits of memory, which the guardian's broker holds |
//!
//! # What a sample costs
//! With nothing new: one `poll` of all pidfds, one count of clients (3 us), for each GPU the trace
//! that the driver wrote, and a share of the looks that are due once a second: each process's
//! cgroup (one file) and timeslices (one duplicate, 6 us a group). A trace up to this moment costs
//! what the driver takes to write it: 20 to 50 us with a few processes, 0.4 ms with a hundred.
//! Where something is paused, one message to the guardian. Everything else waits for a sign that
//! it is needed.

mod discovery;
mod enforce;
mod groups;
mod making;
mod memory;
mod pauses;
mod scan;
mod tenants;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use ghost_model::plan::Why;
use ghost_model::report::Process;
use ghost_model::{
    Action, BackendKind, Capabilities, Enforcer, GpuId, GpuInfo, GpuSample, GpuState, GroupSample,
    Key, Members, MemorySeen, MemoryWanted, Micros, Name, Sample,
};
use ghost_rm::{DriverVersion, Session};

use crate::cgroup::Hierarchy;
use crate::nvidia::inventory::Board;
use crate::nvidia::telemetry::{Holdings, Telemetry};
use crate::nvidia::{self, Host, HostError, Roots, clock};
use crate::{AdoptError, Backend, Event, Failure, procs};
use groups::Groups;
use memory::{AWAY, Memory};
use pauses::Pauses;
use tenants::{Tenant, Unclaimed};

/// Our own client, and what is known of others.
struct Rm {
    session: Session,
    unclaimed: Unclaimed,
}

/// The backend for an unmodified driver.
pub struct Stock {
    driver: DriverVersion,
    telemetry: Box<dyn Telemetry>,
    /// `None` where the driver is refused, and not asked anything.
    rm: Option<Rm>,
    boards: Vec<Board>,
    hierarchy: Option<Hierarchy>,
    members: Members,
    tenants: BTreeMap<u32, Tenant>,
    groups: Groups,
    pauses: Pauses,
    memory: Memory,
    wanted_pauses: BTreeMap<(usize, Name), Why>,
    discovery: discovery::State,
    /// Processes that used a GPU by groups that are not known, since discovery last looked.
    unknown: BTreeSet<u32>,
    /// Processes that use a GPU and cannot be held, and why.
    unreachable: BTreeMap<u32, String>,
    events: Vec<Event>,
    reasserted: u64,
    /// Nothing had happened when it was last asked: the next sample need not be of this moment.
    at_rest: bool,
    holdings: Holdings,
}

impl Stock {
    /// Begins to drive what is there. GPUs that cannot be shared are refused one by one, all of
    /// them where the driver's branch is not known.
    ///
    /// # Errors
    /// [`HostError`], if there is no driver at all.
    pub fn open(roots: Roots) -> Result<Self, HostError> {
        let Host {
            driver,
            telemetry,
            session,
            boards,
        } = Host::open(&roots)?;
        let events = boards.iter().filter_map(|board| match &board.info.state {
            GpuState::Shared => None,
            GpuState::Refused(reason) => Some(Event::Refused {
                pid: None,
                reason: format!("{}: {reason}", board.info.id),
            }),
        });
        Ok(Self {
            events: events.collect(),
            driver,
            telemetry,
            rm: session.map(|session| Rm {
                session,
                unclaimed: Unclaimed::default(),
            }),
            boards,
            hierarchy: Hierarchy::find(),
            members: Members::default(),
            tenants: BTreeMap::new(),
            groups: Groups::default(),
            memory: Memory::start(roots.guardian.with_file_name("broker.sock"), AWAY),
            pauses: Pauses::new(roots.guardian),
            wanted_pauses: BTreeMap::new(),
            discovery: discovery::State::default(),
            unknown: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            reasserted: 0,
            at_rest: false,
            holdings: Holdings::default(),
        })
    }

    /// How many timeslices were set back since the start.
    pub fn reasserted(&self) -> u64 {
        self.reasserted
    }

    fn board_of(&self, gpu: &GpuId) -> Option<usize> {
        self.boards.iter().position(|board| board.info.id == *gpu)
    }
}

impl Backend for Stock {
    fn capabilities(&self) -> Capabilities {
        let daemon = [
            Key::Weight,
            Key::Max,
            Key::Idle,
            Key::Latency,
            Key::Freeze,
            Key::Devices,
            Key::Cgroup,
        ];
        let memory = [
            Key::MemoryMax,
            Key::MemoryHigh,
            Key::MemoryLow,
            Key::MemoryMin,
        ];
        let held = memory.iter().filter(|_| self.memory.problem().is_none());
        let mut notes =
            vec!["a tenant may raise its own timeslice; it is set back within a second".to_owned()];
        let (meter, mut problems) = nvidia::meters(&self.boards, self.telemetry.as_ref());
        problems.extend(self.pauses.problem());
        problems.extend(self.memory.problem());
        notes.extend(problems.into_iter().map(str::to_owned));
        notes.extend(self.memory.notes());
        if self.memory.problem().is_none() {
            notes.push(
                "managed memory (UVM) is taken inside the kernel: no limit holds it, and the driver \
                 names no owner of it"
                    .to_owned(),
            );
        }
        if self.hierarchy.is_none() {
            notes.push("no cgroup v2 is mounted: processes can only be attached by pid".to_owned());
        }
        Capabilities {
            backend: BackendKind::Stock,
            driver: Some(self.driver.to_string()),
            patch: None,
            enforced_by: daemon
                .iter()
                .chain(held)
                .map(|key| (*key, Enforcer::Daemon))
                .collect(),
            meter,
            notes,
        }
    }

    fn gpus(&mut self) -> Vec<GpuInfo> {
        nvidia::read_memory(&mut self.boards, self.telemetry.as_mut());
        self.boards.iter().map(|board| board.info.clone()).collect()
    }

    fn set_members(&mut self, members: &Members) {
        self.members = members.clone();
        for tenant in self.tenants.values_mut() {
            tenant.place(&self.members);
        }
        self.hold_pauses(clock::now());
        self.memory.set_members(members);
    }

    fn stirs(&mut self) -> bool {
        self.at_rest = !self.memory.has_made() && !self.has_stirred(clock::now());
        !self.at_rest
    }

    fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.memory.set_limits(wanted);
    }

    fn memory(&mut self) -> Option<MemorySeen> {
        self.look_at_memory()
    }

    fn takes_listeners(&self) -> bool {
        true
    }

    fn adopt(&mut self, container: &Name, listener: OwnedFd) -> Result<(), AdoptError> {
        self.memory.adopt(container, listener)
    }

    fn wake_by(&mut self, wake: Box<dyn Fn() + Send>) {
        self.memory.wake_by(wake);
    }

    fn sample(&mut self) -> Sample {
        let now = clock::now();
        let haste = !std::mem::take(&mut self.at_rest);
        self.notice_exits();
        self.follow_cgroups(now);
        for board in &mut self.boards {
            if let Some(driven) = &mut board.driven {
                let id = &board.info.id;
                self.unknown
                    .extend(driven.meter.step(now, haste, id, self.telemetry.as_mut()));
            }
        }
        self.hold_pauses(now);
        self.sample_at(clock::now())
    }

    fn upkeep(&mut self) -> bool {
        let now = clock::now();
        let gpus = self.boards.iter().filter_map(|b| b.driven.as_ref());
        self.pauses.connect(gpus.map(|driven| driven.gpu), now);
        self.pauses.renew(now);
        let unknown = std::mem::take(&mut self.unknown);
        let made = self.memory.made();
        let found = self.discover(&unknown, &made, now);
        self.audit(now);
        for board in &mut self.boards {
            if let Some(driven) = &mut board.driven {
                driven.meter.upkeep(now);
            }
        }
        self.hold_pauses(now);
        found
    }

    fn apply(&mut self, actions: &[Action]) -> Vec<Failure> {
        let now = clock::now();
        self.carry_out(actions, now)
    }

    fn processes(&mut self) -> Vec<Process> {
        let mut all: BTreeMap<u32, Process> = BTreeMap::new();
        for tenant in self.tenants.values() {
            let mut groups = BTreeMap::new();
            for (_, group) in self.groups.of(tenant.id.pid).filter(|(_, g)| g.compute) {
                if let Some(board) = self.boards.get(group.gpu) {
                    *groups.entry(board.info.id.clone()).or_default() += 1;
                }
            }
            let process = Process {
                pid: tenant.id.pid,
                command: tenant.command.clone(),
                container: tenant.container.clone(),
                groups,
                memory: BTreeMap::new(),
                refused: tenant.trouble(self.groups.of(tenant.id.pid).next().is_some()),
            };
            all.insert(tenant.id.pid, process);
        }
        for (&pid, reason) in &self.unreachable {
            let mut process = procs::without_gpu(pid, Name::system());
            process.refused = Some(reason.clone());
            all.entry(pid).or_insert(process);
        }
        for (id, container) in procs::alive(&self.members, |pid| all.contains_key(&pid)) {
            let process = procs::without_gpu(id.pid, container);
            all.entry(id.pid).or_insert(process);
        }
        let (now, count) = (clock::now(), self.discovery.count());
        for board in &self.boards {
            let gpu = &board.info.id;
            let telemetry = self.telemetry.as_mut();
            let held = self.holdings.on(gpu, count, None, now, telemetry);
            for (pid, &memory) in held {
                if let (Some(process), Some(memory)) = (all.get_mut(pid), memory) {
                    process.memory.insert(gpu.clone(), memory);
                }
            }
        }
        all.into_values().collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

impl Stock {
    fn sample_at(&self, now: Micros) -> Sample {
        let gpus = self.boards.iter().enumerate().filter_map(|(at, board)| {
            let driven = board.driven.as_ref()?;
            let here = self.groups.iter().filter(|(_, g)| g.gpu == at && g.compute);
            let mut groups = Vec::with_capacity(self.groups.len());
            groups.extend(here.filter_map(|(id, group)| {
                let tenant = self.tenants.get(&group.pid)?;
                let (used, active) = driven.meter.read(id, now);
                Some(GroupSample {
                    id,
                    pid: group.pid,
                    container: tenant.container.clone(),
                    slice: group.reading(now),
                    used,
                    active,
                    paused: self.is_paused(at, tenant),
                })
            }));
            Some(GpuSample {
                memory: std::collections::BTreeMap::new(),
                gpu: board.info.id.clone(),
                groups,
            })
        });
        Sample {
            at: now,
            gpus: gpus.collect(),
        }
    }
}
