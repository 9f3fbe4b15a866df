//! An unmodified NVIDIA driver, driven from outside of the processes that use it.
//!
//! | module | what |
//! | --- | --- |
//! | `inventory` | the GPUs, and why some are refused |
//! | `telemetry` | what NVML is asked for, or the file that stands for it |
//! | `tenants` | processes, held by pidfds; finding their clients |
//! | `scan` | the objects of a client |
//! | `discovery` | when to look for what |
//! | `groups` | channel groups and timeslices |
//! | `enforce` | setting timeslices, and reading them back |
//! | `meter`, `ledger` | who used the GPU |
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

mod clock;
mod discovery;
mod enforce;
mod groups;
mod inventory;
mod ledger;
mod memory;
mod meter;
mod pauses;
mod scan;
mod telemetry;
mod tenants;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ghost_model::plan::Why;
use ghost_model::report::Process;
use ghost_model::{
    Action, BackendKind, Capabilities, Enforcer, GpuId, GpuInfo, GpuSample, GpuState, GroupSample,
    Key, Members, MemorySeen, MemoryWanted, Micros, Name, Sample,
};
use ghost_rm::{AllocForm, BranchError, DriverVersion, Session, SessionError};

use crate::cgroup::Hierarchy;
use crate::{AdoptError, Backend, Event, Failure, procs};
use groups::Groups;
use inventory::Board;
use memory::Memory;
use meter::Meter;
use pauses::Pauses;
use telemetry::{FileTelemetry, Holdings, NvmlTelemetry, Telemetry};
use tenants::{Tenant, Unclaimed};

pub use telemetry::TelemetryError;

/// Where the driver is. A stand-in for it has all of this in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Directory of `nvidiactl` and `nvidia0`…
    pub dev: PathBuf,
    /// Directory of `version` and `gpus`.
    pub proc_nvidia: PathBuf,
    /// File that stands for NVML; `None` for NVML itself.
    pub telemetry: Option<PathBuf>,
    /// Socket of the guardian; that of its broker, `broker.sock`, lies beside it.
    pub guardian: PathBuf,
}

impl Roots {
    /// Those of this host's driver.
    pub fn host() -> Self {
        Self {
            dev: "/dev".into(),
            proc_nvidia: "/proc/driver/nvidia".into(),
            telemetry: None,
            guardian: "/run/ghost/guardian.sock".into(),
        }
    }

    /// Those of a stand-in mounted at `dir`.
    pub fn standin(dir: PathBuf, guardian: PathBuf) -> Self {
        Self {
            proc_nvidia: dir.join("proc/driver/nvidia"),
            telemetry: Some(dir.join("telemetry.json")),
            dev: dir,
            guardian,
        }
    }
}

/// Why there is nothing to drive.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// The driver's version cannot be read.
    #[error("{path}: cannot read the driver's version; is the nvidia driver loaded?")]
    Version {
        /// The file.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The version is none.
    #[error("cannot tell the driver's version")]
    Branch(#[source] BranchError),
    /// NVML cannot be had.
    #[error("cannot list the gpus")]
    Telemetry(#[from] TelemetryError),
    /// The resource manager cannot be had.
    #[error("cannot reach the driver's resource manager")]
    Session(#[from] SessionError),
}

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
    /// [`StockError`], if there is no driver at all.
    pub fn open(roots: Roots) -> Result<Self, StockError> {
        let text = inventory::driver_version(&roots.proc_nvidia).map_err(|source| {
            let path = roots.proc_nvidia.join("version");
            StockError::Version { path, source }
        })?;
        let driver: DriverVersion = text.parse().map_err(StockError::Branch)?;
        let mut telemetry: Box<dyn Telemetry> = match &roots.telemetry {
            Some(path) => Box::new(FileTelemetry::new(path.clone())),
            None => Box::new(NvmlTelemetry::open()?),
        };
        let cards = telemetry.cards()?;
        let (boards, session) = match driver.branch() {
            Ok(branch) => {
                let mut session = Session::open(&roots.dev, branch.alloc)?;
                let boards = open_boards(&roots, branch.alloc, &cards, &mut session);
                (boards, Some(session))
            }
            Err(error) => {
                let refuse = |card| inventory::refused(card, error.to_string());
                (cards.iter().map(refuse).collect(), None)
            }
        };
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
            memory: Memory::start(roots.guardian.with_file_name("broker.sock")),
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

/// The GPUs, in the order of their ids, as samples have them.
fn open_boards(
    roots: &Roots,
    form: AllocForm,
    cards: &[telemetry::Card],
    session: &mut Session,
) -> Vec<Board> {
    let attached = session.attached().unwrap_or_else(|error| {
        tracing::warn!(%error, "the driver does not list its gpus");
        Vec::new()
    });
    let minors = inventory::minors(&roots.proc_nvidia);
    let mut boards: Vec<Board> = cards
        .iter()
        .map(|card| {
            let meter = |gpu| Meter::open(&roots.dev, form, gpu);
            match inventory::drive(card, session, &attached, &minors, meter) {
                Ok(driven) => Board {
                    info: inventory::info_of(card, GpuState::Shared),
                    driven: Some(driven),
                },
                Err(reason) => inventory::refused(card, reason),
            }
        })
        .collect();
    boards.sort_by(|a, b| a.info.id.cmp(&b.info.id));
    boards
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
        let driven = self.boards.iter().filter_map(|board| board.driven.as_ref());
        let meters: BTreeSet<&str> = driven
            .clone()
            .map(|driven| match driven.meter {
                Meter::ContextSwitches(_) => "context switches, exact under contention",
                Meter::Telemetry(_) => self.telemetry.source(),
            })
            .collect();
        let mut problems: BTreeSet<&str> = driven
            .flat_map(|driven| [driven.note.as_deref(), driven.meter.problem()])
            .flatten()
            .collect();
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
            meter: meters.into_iter().collect::<Vec<_>>().join("; "),
            notes,
        }
    }

    fn gpus(&mut self) -> Vec<GpuInfo> {
        self.read_boards();
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
        self.at_rest = !self.memory.has_stirred() && !self.has_stirred(clock::now());
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
        let mut unknown = std::mem::take(&mut self.unknown);
        unknown.extend(self.memory.stirred());
        let found = self.discover(&unknown, now);
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
            let mut process = without_gpu(pid, Name::system());
            process.refused = Some(reason.clone());
            all.entry(pid).or_insert(process);
        }
        for (id, container) in procs::alive(&self.members, |pid| all.contains_key(&pid)) {
            let process = without_gpu(id.pid, container);
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
    /// Asks how much of each GPU's memory is in use.
    fn read_boards(&mut self) {
        match self.telemetry.cards() {
            Ok(cards) => {
                for card in cards {
                    let mut boards = self.boards.iter_mut();
                    if let Some(board) = boards.find(|board| board.info.id == card.uuid) {
                        board.info.memory_used = card.memory_used;
                        board.info.memory_total = card.memory_total;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the gpus' memory is not known");
                for board in &mut self.boards {
                    board.info.memory_used = None;
                }
            }
        }
    }

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

fn without_gpu(pid: u32, container: Name) -> Process {
    Process {
        pid,
        command: procs::command(pid).unwrap_or_default(),
        container,
        groups: BTreeMap::new(),
        memory: BTreeMap::new(),
        refused: None,
    }
}
