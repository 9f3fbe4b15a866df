//! A GPU made of arithmetic, for a first try, for tests and for replay. It needs no GPU, no
//! driver and no root.
//!
//! [`gpu`] is the model of one GPU and knows nothing of Ghost. [`Sim`] holds some of them with
//! the processes on them, on a clock that a test moves or on the host's. [`SimBackend`] is what
//! ghostd sees of it. In real time, programs that stand for CUDA programs register on a socket
//! ([`Server`], [`wire`]).

mod backend;
pub mod gpu;
mod memory;
mod server;
pub mod wire;
mod world;

pub use backend::SimBackend;
pub use server::{Server, ServerError};
pub use world::{Fault, Meter, SpawnError};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ghost_model::{Bytes, GpuId, GroupId, Micros, ProcId};

use gpu::{Group, Load, Params};
use world::{Clock, World};

/// Name of the socket beside ghostd's own on which loads register.
pub const SOCKET: &str = "sim.sock";

/// Environment variable by which a load is told another socket.
pub const SOCKET_ENV: &str = "GHOST_SIM_SOCKET";

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many GPUs.
    pub gpus: u32,
    /// Memory of each.
    pub memory: Bytes,
    /// What their hardware costs.
    pub params: Params,
    /// How they are measured.
    pub meter: Meter,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            gpus: 2,
            memory: Bytes(80 << 30),
            params: Params::default(),
            meter: Meter::Exact,
        }
    }
}

/// Simulated GPUs and the processes on them. A handle: clones are the same GPUs.
#[derive(Clone, Debug)]
pub struct Sim(Arc<Mutex<World>>);

impl Sim {
    /// GPUs on a clock that starts at zero and moves by [`Sim::advance`] only.
    pub fn new(config: Config) -> Self {
        Self::on(Clock::Manual(Micros::ZERO), config)
    }

    /// GPUs on the host's monotonic clock.
    pub fn real_time(config: Config) -> Self {
        Self::on(Clock::Monotonic, config)
    }

    fn on(clock: Clock, config: Config) -> Self {
        Sim(Arc::new(Mutex::new(World::new(clock, config))))
    }

    /// The world at this moment. The lock guards all of it; nobody holds it across a wait.
    fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        world.catch_up();
        world
    }

    /// What ghostd sees of these GPUs.
    pub fn backend(&self) -> SimBackend {
        SimBackend::new(self.clone())
    }

    /// The clock.
    pub fn now(&self) -> Micros {
        self.world().now()
    }

    /// Moves a manual clock on to `to`; the host's clock is not moved.
    pub fn advance(&self, to: Micros) {
        self.world().advance(to);
    }

    /// The UUID of the GPU with this index.
    pub fn gpu(&self, index: u32) -> GpuId {
        world::uuid(index)
    }

    /// Starts a process, or moves one that runs to another cgroup. It needs no GPU yet.
    pub fn start(&self, process: ProcId, command: &str, cgroup: Option<&str>) {
        self.world().start(process, command, cgroup);
    }

    /// Makes a channel group of `process`, which is started where it was not. `None` if there is
    /// no such GPU.
    pub fn spawn(&self, process: ProcId, gpu: u32, load: Load) -> Option<GroupId> {
        self.world().spawn(process, gpu, load, Bytes(0)).ok()
    }

    /// Takes memory for a channel group, beside what its context takes, until the group goes.
    ///
    /// # Errors
    /// A limit's refusal, or there is no such group.
    pub fn allocate(&self, group: GroupId, bytes: Bytes) -> Result<(), SpawnError> {
        self.world().allocate(group, bytes)
    }

    /// Ends a process with all that it has.
    pub fn kill(&self, process: ProcId) {
        self.world().kill(process);
    }

    /// Destroys one channel group, as a program does that goes on without it.
    pub fn close(&self, group: GroupId) {
        self.world().close(group);
    }

    /// Gives a channel group other work.
    pub fn set_load(&self, group: GroupId, load: Load) {
        self.world().set_load(group, load);
    }

    /// Sets a timeslice as a tenant may, behind ghostd's back.
    pub fn tamper(&self, group: GroupId, slice: Micros) {
        self.world().tamper(group, slice);
    }

    /// Changes how GPUs are measured from now on.
    pub fn set_meter(&self, meter: Meter) {
        self.world().set_meter(meter);
    }

    /// Breaks the readings of a group, or mends them.
    pub fn set_fault(&self, group: GroupId, fault: Option<Fault>) {
        self.world().set_fault(group, fault);
    }

    /// What is true of a group, whatever its readings say.
    pub fn group(&self, group: GroupId) -> Option<Group> {
        self.world().group(group).cloned()
    }
}

#[cfg(test)]
mod tests;
