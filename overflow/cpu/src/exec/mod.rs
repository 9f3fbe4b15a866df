//! Runs kernels: blocks one after another, the threads of a block as coroutines in one OS thread.
//! A thread runs until it waits at a barrier or for its warp, or ends.

mod alu;
mod space;
mod step;
mod warp;

use crate::memory::View;
use crate::ptx::code::{Kernel, Op, Operand};
use crate::result::{CuResult, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS};
use std::sync::Arc;

/// A kernel that is launched.
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    /// Addresses of the module's variables.
    pub(crate) globals: Arc<[u64]>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: usize,
    pub(crate) params: Vec<u8>,
    /// Instructions that all threads together may run.
    pub(crate) budget: u64,
}

/// Why a kernel was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("an access to {0:#x}, which is not allocated")]
    Address(u64),
    #[error("a misaligned access to {0:#x}")]
    Misaligned(u64),
    #[error("more instructions than a launch may run (GHOST_CPU_INSTRUCTIONS)")]
    Budget,
    #[error("threads that wait for each other for ever")]
    Deadlock,
    #[error("a trap")]
    Trap,
}

impl Fault {
    pub(crate) fn code(self) -> CuResult {
        match self {
            Fault::Address(_) => ILLEGAL_ADDRESS,
            Fault::Misaligned(_) => MISALIGNED_ADDRESS,
            Fault::Budget | Fault::Deadlock => LAUNCH_TIMEOUT,
            Fault::Trap => LAUNCH_FAILED,
        }
    }
}

/// A fault, and the line of the PTX.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("line {line}: {fault}")]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    line: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// At a barrier, by number and by how many it waits for.
    Barrier(u32, u32),
    /// At what a warp does together.
    Warp,
    Done,
}

struct Thread {
    pc: usize,
    state: State,
}

/// A block that runs.
struct Block<'a> {
    launch: &'a Launch,
    kernel: &'a Kernel,
    view: &'a View,
    ctaid: [u32; 3],
    threads: Vec<Thread>,
    /// Those of thread 0, then those of thread 1.
    registers: Vec<u64>,
    shared: Vec<u8>,
    local: Vec<u8>,
    /// Threads that arrived at a barrier without waiting there.
    arrived: [u32; 16],
    budget: &'a mut u64,
}

/// Runs a launch to its end.
///
/// # Errors
/// The first fault of any thread.
pub(crate) fn run(launch: &Launch, view: &View) -> Result<(), Failure> {
    let mut budget = launch.budget;
    let [gx, gy, gz] = launch.grid;
    let count = launch.block.iter().map(|n| *n as usize).product::<usize>();
    let kernel = &*launch.kernel;
    for z in 0..gz {
        for y in 0..gy {
            for x in 0..gx {
                let threads = (0..count).map(|_| Thread {
                    pc: 0,
                    state: State::Ready,
                });
                let mut block = Block {
                    launch,
                    kernel,
                    view,
                    ctaid: [x, y, z],
                    threads: threads.collect(),
                    registers: vec![0; count * kernel.registers as usize],
                    shared: vec![0; kernel.shared + launch.dynamic_shared],
                    local: vec![0; count * kernel.local],
                    arrived: [0; 16],
                    budget: &mut budget,
                };
                // Blocks that do nothing cost time too.
                block
                    .charge(block.registers.len() + (block.shared.len() + block.local.len()) / 8)?;
                block.run()?;
            }
        }
    }
    Ok(())
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        loop {
            for t in 0..self.threads.len() {
                self.run_thread(t).map_err(|fault| self.failure(t, fault))?;
            }
            self.charge(self.threads.len())?;
            let waiting = self.threads.iter().position(|t| t.state != State::Done);
            let Some(first) = waiting else {
                return Ok(());
            };
            let moved = self.release_warps();
            if !self.release_barriers() && !moved && !self.release_masks() {
                return Err(self.failure(first, Fault::Deadlock));
            }
        }
    }

    /// Takes what is no instruction from the budget.
    fn charge(&mut self, cost: usize) -> Result<(), Failure> {
        let left = self.budget.checked_sub(cost as u64);
        *self.budget = left.ok_or_else(|| self.failure(0, Fault::Budget))?;
        Ok(())
    }

    fn failure(&self, t: usize, fault: Fault) -> Failure {
        let pc = self.threads.get(t).map_or(0, |t| t.pc);
        let line = self.kernel.code.get(pc).map_or(0, |i| i.line);
        Failure { fault, line }
    }

    /// Lets the threads at a barrier go on where all that it waits for are there.
    fn release_barriers(&mut self) -> bool {
        let mut moved = false;
        let live = self.threads.iter().filter(|t| t.state != State::Done);
        let live = live.count() as u32;
        for id in 0..16_u32 {
            let at = |t: &&mut Thread| matches!(t.state, State::Barrier(n, _) if n == id);
            let mut here = self.threads.iter_mut().filter(at).collect::<Vec<_>>();
            let Some(State::Barrier(_, count)) = here.first().map(|t| t.state) else {
                continue;
            };
            let Some(arrived) = self.arrived.get_mut(id as usize) else {
                continue;
            };
            // Threads that have ended are not waited for.
            let wanted = if count == 0 { live } else { count.min(live) };
            if here.len() as u32 + *arrived >= wanted {
                *arrived = 0;
                for thread in &mut here {
                    thread.state = State::Ready;
                    thread.pc += 1;
                }
                moved = true;
            }
        }
        moved
    }

    fn reg(&self, t: usize, reg: u32) -> u64 {
        let at = t * self.kernel.registers as usize + reg as usize;
        self.registers.get(at).copied().unwrap_or(0)
    }

    fn set(&mut self, t: usize, reg: u32, value: u64) {
        let at = t * self.kernel.registers as usize + reg as usize;
        if let Some(register) = self.registers.get_mut(at) {
            *register = value;
        }
    }

    fn get(&self, t: usize, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.reg(t, reg),
            Operand::Imm(value) => value,
            Operand::Global(index, offset) => {
                let base = self.launch.globals.get(index as usize).copied();
                base.unwrap_or(0).wrapping_add_signed(offset)
            }
            Operand::Special(special) => self.special(t, special),
        }
    }

    /// The operation that a thread is at.
    fn op(&self, t: usize) -> Option<&Op> {
        let thread = self.threads.get(t)?;
        self.kernel.code.get(thread.pc).map(|i| &i.op)
    }
}
