//! What every backend must do. A [`World`] makes processes, channel groups and memory happen; each
//! of [`CASES`] tells a backend what ghostd would and looks at what becomes of it. The simulator runs
//! them here, the stock backend on the driver's stand-in, and the program of this crate runs them in a
//! virtual machine on the module with its entry for tests.
#![forbid(unsafe_code)]

mod cases;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ghost_backend::{Backend, Event};
use ghost_model::{
    Bytes, GpuId, GroupSample, Members, Membership, MemoryLimits, MemoryUse, MemoryWanted, Name,
    ProcId, Sample, Spec,
};

pub use cases::CASES;

/// What a world is not made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// Memory that processes take.
    Memory,
    /// Cgroups.
    Cgroups,
    /// An end of ghostd, after which a new one finds what it left.
    Restart,
    /// Limits that hold without ghostd.
    Kernel,
}

/// Where a backend works.
pub trait World {
    /// A backend, new each time: as if ghostd had ended and were started again.
    fn backend(&mut self) -> Box<dyn Backend>;

    /// What does not happen here.
    fn lacks(&self) -> &'static [Lacks];

    /// The GPU that groups and memory are made on.
    fn gpu(&self) -> GpuId;

    /// Starts a process that uses no GPU yet.
    fn start(&mut self) -> ProcId;

    /// Moves a process into a cgroup, made where it is not, a name at the top of the tree.
    fn enter(&mut self, process: ProcId, cgroup: &str);

    /// Makes a channel group of a process.
    fn open(&mut self, process: ProcId);

    /// Takes memory; false if it is refused.
    fn allocate(&mut self, process: ProcId, bytes: Bytes) -> bool;

    /// Gives back all that a process took by [`World::allocate`].
    fn free(&mut self, process: ProcId);

    /// Ends a process with all that it has.
    fn kill(&mut self, process: ProcId);
}

/// One thing that every backend must do.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What its world must not lack.
    pub needs: &'static [Lacks],
    run: fn(&mut Host<'_>),
}

impl Case {
    /// Runs it; false if this world lacks something for it.
    ///
    /// # Panics
    /// If the backend does not do as it must.
    pub fn run(&self, world: &mut dyn World) -> bool {
        if self.needs.iter().any(|need| world.lacks().contains(need)) {
            return false;
        }
        let backend = Some(world.backend());
        let mut host = Host {
            world,
            backend,
            events: Vec::new(),
            specs: BTreeMap::new(),
            memory: BTreeMap::new(),
            members: Members::default(),
            started: Vec::new(),
        };
        (self.run)(&mut host);
        host.clear();
        true
    }
}

/// A world with a backend in it, and what ghostd would have it hold.
struct Host<'a> {
    world: &'a mut dyn World,
    /// None only between two.
    backend: Option<Box<dyn Backend>>,
    events: Vec<Event>,
    specs: BTreeMap<Name, Spec>,
    memory: BTreeMap<Name, MemoryLimits>,
    members: Members,
    started: Vec<ProcId>,
}

impl Host<'_> {
    fn backend(&mut self) -> &mut dyn Backend {
        self.backend.as_mut().expect("a backend").as_mut()
    }

    /// A container.
    fn container(&mut self, name: &str) -> Name {
        let name: Name = name.parse().expect("a name");
        for one in name.lineage() {
            self.specs.entry(one).or_default();
        }
        name
    }

    fn membership(&mut self, name: &Name) -> &mut Membership {
        self.members.0.entry(name.clone()).or_default()
    }

    fn start(&mut self) -> ProcId {
        let process = self.world.start();
        self.started.push(process);
        process
    }

    /// A process in a container.
    fn member(&mut self, name: &Name) -> ProcId {
        let process = self.start();
        self.membership(name).pids.push(process);
        self.tell();
        process
    }

    /// A process with a channel group in a container, as soon as the backend sees it.
    fn busy(&mut self, name: &Name) -> ProcId {
        let process = self.member(name);
        self.world.open(process);
        self.until("a channel group", |_, sample| {
            !groups(sample, process).is_empty()
        });
        process
    }

    fn limit(&mut self, name: &Name, max: u64) {
        let limits = MemoryLimits {
            max: Some(Bytes(max)),
            ..MemoryLimits::default()
        };
        self.memory.insert(name.clone(), limits);
        self.tell();
    }

    /// Tells all of it, in ghostd's order.
    fn tell(&mut self) {
        let gpu = self.world.gpu();
        let limits = |name: &Name| {
            let limits = self.memory.get(name);
            limits
                .map(|limits| (gpu.clone(), *limits))
                .into_iter()
                .collect()
        };
        let memory = self.specs.keys().map(|name| (name.clone(), limits(name)));
        let memory = MemoryWanted(memory.collect());
        let backend = self.backend.as_mut().expect("a backend");
        backend.set_containers(&self.specs);
        backend.set_memory(&memory);
        backend.set_members(&self.members);
    }

    /// Takes turns, as ghostd does, until it is so.
    fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self, &Sample) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let sample = self.turn();
            if so(self, &sample) {
                return;
            }
            assert!(Instant::now() < end, "{what} within a minute: {sample:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn turn(&mut self) -> Sample {
        let sample = self.backend().sample();
        self.backend().upkeep();
        let events = self.backend().events();
        self.events.extend(events);
        sample
    }

    fn apply(&mut self, action: ghost_model::Action) {
        let failures = self.backend().apply(&[action]);
        assert!(failures.is_empty(), "{failures:?}");
    }

    fn used(&mut self, name: &Name) -> MemoryUse {
        let gpu = self.world.gpu();
        let seen = self.backend().memory().expect("an account of memory");
        let on = seen.containers.get(name).and_then(|on| on.get(&gpu));
        on.copied().unwrap_or_default()
    }

    fn kill(&mut self, process: ProcId) {
        self.started.retain(|other| *other != process);
        self.world.kill(process);
    }

    /// As if ghostd had been killed and started again, and had not been told anything yet.
    fn restart(&mut self) {
        self.backend = None;
        self.backend = Some(self.world.backend());
    }

    fn clear(&mut self) {
        for process in std::mem::take(&mut self.started) {
            self.world.kill(process);
        }
        self.specs.clear();
        self.memory.clear();
        self.members = Members::default();
        self.until("the end of all groups", |host, sample| {
            host.tell();
            sample.gpus.iter().all(|gpu| gpu.groups.is_empty())
        });
    }
}

/// The groups of a process.
fn groups(sample: &Sample, process: ProcId) -> Vec<GroupSample> {
    let all = sample.gpus.iter().flat_map(|gpu| &gpu.groups);
    all.filter(|group| group.pid == process.pid)
        .cloned()
        .collect()
}
