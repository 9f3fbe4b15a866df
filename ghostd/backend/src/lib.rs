//! The ways to enforce, behind one trait: [`sim`], a GPU made of arithmetic, [`stock`], an unmodified
//! NVIDIA driver, and [`patched`], one with Ghost woven in. A backend sees and does; it never decides.
//!
//! The trait is synchronous because what lies below it is: ioctls that take some 0.2 ms, and
//! deadlines of a millisecond that an executor's timer would blur. ghostd gives a backend a thread.
#![deny(unsafe_code)]

pub mod cgroup;
mod nvidia;
pub mod patched;
mod procs;
pub mod sim;
pub mod stock;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use ghost_model::report::Process;
use ghost_model::{
    Action, Capabilities, GpuId, GpuInfo, Members, MemorySeen, MemoryWanted, Name, Sample, Spec,
};

pub use nvidia::{HostError, Roots, TelemetryError};

/// A way to enforce.
pub trait Backend: Send {
    /// What can be held here, and by whom.
    fn capabilities(&self) -> Capabilities;

    /// The GPUs of this host, those that are refused included.
    fn gpus(&mut self) -> Vec<GpuInfo>;

    /// What every container was asked to be, from now on, before its members and limits are told:
    /// for who holds shares also where nobody is left to plan.
    fn set_containers(&mut self, _specs: &BTreeMap<Name, Spec>) {}

    /// Who belongs where, from now on. Processes move at once; what they used stays counted
    /// where it was used.
    fn set_members(&mut self, members: &Members);

    /// What each container may take of each GPU's memory, from now on.
    fn set_memory(&mut self, _wanted: &MemoryWanted) {}

    /// Who holds what of it; `None` where nobody keeps account, or whoever does is away.
    fn memory(&mut self) -> Option<MemorySeen> {
        None
    }

    /// Whether listeners can be taken here.
    fn takes_listeners(&self) -> bool {
        false
    }

    /// Takes the listener of a seccomp filter: from now on the allocations of the processes under
    /// it are charged to this container, unless they are members of another.
    ///
    /// # Errors
    /// [`AdoptError`]; the listener is closed, and the filtered calls fail.
    fn adopt(&mut self, container: &Name, _listener: OwnedFd) -> Result<(), AdoptError> {
        Err(AdoptError {
            container: container.clone(),
            cause: "this backend holds no memory limits of processes".into(),
        })
    }

    /// Has `wake` called, from whatever thread, when the control loop should take its next turn
    /// at once.
    fn wake_by(&mut self, _wake: Box<dyn Fn() + Send>) {}

    /// What is so now.
    fn sample(&mut self) -> Sample;

    /// Asked between two samples by a daemon that has nothing to watch closely: whether something
    /// happened that it should look at now. If not, what the next sample tells of use may be up
    /// to 60 ms old, where that is cheaper; its readings say so.
    fn stirs(&mut self) -> bool {
        true
    }

    /// Does what can wait: called after each step's actions were done, so that nothing of it
    /// stands between a request and its effect. Also renews the leases of everything that is
    /// paused: a daemon that no longer gets here is taken for dead.
    ///
    /// True if the next sample has something new, and should not wait.
    fn upkeep(&mut self) -> bool {
        false
    }

    /// Does what a plan asks, in order, batched where that is faster. Actions on groups or
    /// containers that are gone meanwhile are done already. One that fails does not keep the
    /// others from being tried.
    fn apply(&mut self, actions: &[Action]) -> Vec<Failure>;

    /// Processes that use a GPU, and members that do not.
    fn processes(&mut self) -> Vec<Process>;

    /// What happened since the last call.
    fn events(&mut self) -> Vec<Event>;
}

/// An action that could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action}: {cause}")]
pub struct Failure {
    /// Which.
    pub action: Action,
    /// Why not, with what to do about it.
    pub cause: String,
}

/// A listener that could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{container}: the seccomp listener cannot be taken: {cause}")]
pub struct AdoptError {
    /// For which container.
    pub container: Name,
    /// Why not, with what to do about it.
    pub cause: String,
}

/// Something that a backend noticed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process made its first channel group on a GPU.
    Appeared {
        /// The process.
        pid: u32,
        /// Its container.
        container: Name,
        /// The GPU.
        gpu: GpuId,
    },
    /// A process that had channel groups ended.
    Exited {
        /// The process.
        pid: u32,
        /// Its container.
        container: Name,
    },
    /// A tenant changed a timeslice, and it was set back.
    Reasserted {
        /// The process.
        pid: u32,
        /// Its container.
        container: Name,
        /// The GPU.
        gpu: GpuId,
    },
    /// A process or GPU that cannot be held, and why: an MPS client, a MIG device, …
    Refused {
        /// The process, if it is one.
        pid: Option<u32>,
        /// Why.
        reason: String,
    },
}
