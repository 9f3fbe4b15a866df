//! ghostd's view of a simulation.

use std::collections::BTreeMap;
use std::path::Path;

use ghost_model::report::Process;
use ghost_model::{
    Action, BackendKind, Capabilities, Enforcer, GpuInfo, Key, Members, MemorySeen, MemoryWanted,
    Sample,
};

use super::{Config, Server, ServerError, Sim};
use crate::{Backend, Event, Failure};

/// The keys that are held; work does not leave the host.
const HELD: [Key; 11] = [
    Key::Weight,
    Key::Max,
    Key::Idle,
    Key::Latency,
    Key::Devices,
    Key::Cgroup,
    Key::Freeze,
    Key::MemoryMax,
    Key::MemoryHigh,
    Key::MemoryLow,
    Key::MemoryMin,
];

/// A [`Backend`] over simulated GPUs. What it paused ends with the process that it runs in.
#[derive(Debug)]
pub struct SimBackend {
    sim: Sim,
    server: Option<Server>,
}

impl SimBackend {
    pub(super) fn new(sim: Sim) -> Self {
        SimBackend { sim, server: None }
    }

    /// GPUs on the host's clock, for loads that register at `socket`.
    ///
    /// # Errors
    /// [`ServerError`]: the socket cannot be had.
    pub fn real_time(config: Config, socket: &Path) -> Result<Self, ServerError> {
        let sim = Sim::real_time(config);
        let server = Server::start(sim.clone(), socket)?;
        Ok(SimBackend {
            sim,
            server: Some(server),
        })
    }
}

impl Backend for SimBackend {
    fn capabilities(&self) -> Capabilities {
        let mut notes = vec!["nothing here touches a real GPU".to_owned()];
        if let Some(server) = &self.server {
            notes.push(format!("loads register at {}", server.path().display()));
        }
        Capabilities {
            backend: BackendKind::Sim,
            driver: None,
            patch: None,
            enforced_by: BTreeMap::from(HELD.map(|key| (key, Enforcer::Daemon))),
            meter: "exact, simulated".into(),
            notes,
        }
    }

    fn gpus(&mut self) -> Vec<GpuInfo> {
        self.sim.world().gpus()
    }

    fn set_members(&mut self, members: &Members) {
        self.sim.world().set_members(members);
    }

    fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.sim.world().set_memory(wanted);
    }

    fn memory(&mut self) -> Option<MemorySeen> {
        Some(self.sim.world().memory())
    }

    fn sample(&mut self) -> Sample {
        self.sim.world().sample()
    }

    fn apply(&mut self, actions: &[Action]) -> Vec<Failure> {
        let mut world = self.sim.world();
        let failures = actions.iter().filter_map(|action| {
            let cause = world.apply(action).err()?;
            Some(Failure {
                action: action.clone(),
                cause,
            })
        });
        failures.collect()
    }

    fn processes(&mut self) -> Vec<Process> {
        self.sim.world().processes()
    }

    fn events(&mut self) -> Vec<Event> {
        self.sim.world().events()
    }
}
