//! One thread, instruction by instruction.

use super::{Block, Fault, State, alu};
use crate::ptx::code::{Cmp, Op, Special, mask};
use std::time::{SystemTime, UNIX_EPOCH};

impl Block<'_> {
    /// Runs a thread that is ready until it waits or ends.
    pub(super) fn run_thread(&mut self, t: usize) -> Result<(), Fault> {
        let kernel = self.kernel;
        let Some(thread) = self.threads.get(t) else {
            return Ok(());
        };
        if thread.state != State::Ready {
            return Ok(());
        }
        let mut pc = thread.pc;
        loop {
            let stop = self.step(t, &mut pc, &kernel.code);
            let Some(thread) = self.threads.get_mut(t) else {
                return Ok(());
            };
            match stop {
                Ok(State::Ready) => {}
                Ok(state) => {
                    (thread.pc, thread.state) = (pc, state);
                    return Ok(());
                }
                Err(fault) => {
                    thread.pc = pc;
                    return Err(fault);
                }
            }
        }
    }

    /// One instruction. Where the thread then waits, it stays at it.
    fn step(
        &mut self,
        t: usize,
        pc: &mut usize,
        code: &[crate::ptx::code::Instr],
    ) -> Result<State, Fault> {
        *self.budget = self.budget.checked_sub(1).ok_or(Fault::Budget)?;
        let Some(instr) = code.get(*pc) else {
            return Ok(State::Done);
        };
        if let Some((reg, not)) = instr.guard
            && (self.reg(t, reg) != 0) == not
        {
            *pc += 1;
            return Ok(State::Ready);
        }
        match &instr.op {
            Op::Nop => {}
            Op::Un(op, ty, d, a) => {
                let v = alu::un(*op, *ty, self.get(t, *a));
                self.set(t, *d, v);
            }
            Op::Bin(op, ty, sat, d, a, b) => {
                let v = alu::bin(*op, *ty, *sat, self.get(t, *a), self.get(t, *b));
                self.set(t, *d, v);
            }
            Op::Tri(op, ty, sat, d, abc) => {
                let v = alu::tri(*op, *ty, *sat, abc.map(|o| self.get(t, o)));
                self.set(t, *d, v);
            }
            Op::Bfi(ty, d, abcd) => {
                let v = alu::bfi(*ty, abcd.map(|o| self.get(t, o)));
                self.set(t, *d, v);
            }
            Op::Lop3(table, d, abc) => {
                let v = alu::lop3(*table, abc.map(|o| self.get(t, o)));
                self.set(t, *d, v);
            }
            Op::Pack(bytes, d, parts) => {
                let v = parts.iter().rev().fold(0, |v: u64, part| {
                    v << (u32::from(*bytes) * 8) | self.get(t, *part) & mask(*bytes)
                });
                self.set(t, *d, v);
            }
            Op::Unpack(bytes, parts, a) => {
                let mut v = self.get(t, *a);
                for part in parts {
                    if let Some(d) = part {
                        self.set(t, *d, v & mask(*bytes));
                    }
                    v >>= u32::from(*bytes) * 8;
                }
            }
            Op::Setp {
                cmp,
                ty,
                p,
                q,
                a,
                b,
                with,
            } => {
                let found = alu::compare(*cmp, *ty, self.get(t, *a), self.get(t, *b));
                let combine = |found| match with {
                    Some((how, c, not)) => {
                        alu::boolean(*how, found, (self.get(t, *c) != 0) != *not)
                    }
                    None => found,
                };
                let (yes, no) = (combine(found), combine(!found));
                if let Some(p) = p {
                    self.set(t, *p, u64::from(yes));
                }
                if let Some(q) = q {
                    self.set(t, *q, u64::from(no));
                }
            }
            Op::Selp(d, a, b, p) => {
                let from = if self.get(t, *p) != 0 { a } else { b };
                self.set(t, *d, self.get(t, *from));
            }
            Op::Cvt {
                to,
                from,
                round,
                integral,
                sat,
                d,
                a,
            } => {
                let v = alu::cvt(*to, *from, *round, *integral, *sat, self.get(t, *a));
                self.set(t, d.reg, v & mask(d.bytes));
            }
            Op::Cvta(d, a, add) => self.set(t, *d, self.get(t, *a).wrapping_add(*add)),
            Op::Ld(ty, addr, registers) => {
                let at = self.address(t, *addr);
                for (i, d) in (0..).zip(registers) {
                    let at = at.wrapping_add(i * u64::from(ty.bytes));
                    let v = self.load(t, addr.space, at, ty.bytes)?;
                    if let Some(d) = d {
                        self.set(t, d.reg, alu::extend(*ty, v) & mask(d.bytes));
                    }
                }
            }
            Op::St(ty, addr, values) => {
                let at = self.address(t, *addr);
                for (i, value) in (0..).zip(values) {
                    let at = at.wrapping_add(i * u64::from(ty.bytes));
                    self.store(t, addr.space, at, ty.bytes, self.get(t, *value))?;
                }
            }
            Op::Atom {
                how,
                ty,
                addr,
                d,
                b,
                c,
            } => {
                let at = self.address(t, *addr);
                let (b, c) = (self.get(t, *b), self.get(t, *c));
                let f = |old| alu::atom(*how, *ty, old, b, c);
                let old = self.update(t, addr.space, at, ty.bytes, f)?;
                if let Some(d) = d {
                    self.set(t, *d, old);
                }
            }
            Op::Bra(target) => {
                *pc = *target;
                return Ok(State::Ready);
            }
            Op::Exit => return Ok(State::Done),
            Op::Trap => return Err(Fault::Trap),
            Op::Bar { id, count, waits } => {
                let id = self.get(t, *id) as u32 & 15;
                let count = count.map_or(0, |c| self.get(t, c) as u32);
                if *waits {
                    return Ok(State::Barrier(id, count));
                }
                if let Some(arrived) = self.arrived.get_mut(id as usize) {
                    *arrived = arrived.saturating_add(1);
                }
            }
            Op::Together { .. } => return Ok(State::Warp),
        }
        *pc += 1;
        Ok(State::Ready)
    }

    pub(super) fn special(&self, t: usize, special: Special) -> u64 {
        let [x, y, _] = self.launch.block;
        let axis = |of: [u32; 3], i: u8| of.get(usize::from(i)).copied().unwrap_or(0);
        let t = t as u32;
        let lane = t & 31;
        let v = match special {
            Special::Tid(0) => t % x,
            Special::Tid(1) => t / x % y,
            Special::Tid(_) => t / x / y,
            Special::Ntid(i) => axis(self.launch.block, i),
            Special::Ctaid(i) => axis(self.ctaid, i),
            Special::Nctaid(i) => axis(self.launch.grid, i),
            Special::Lane => lane,
            Special::Warp => t / 32,
            Special::Nwarp => self.threads.len().div_ceil(32) as u32,
            Special::LaneMask(Cmp::Lt) => (1 << lane) - 1,
            Special::LaneMask(Cmp::Le) => u32::MAX >> (31 - lane),
            Special::LaneMask(Cmp::Gt) => !(u32::MAX >> (31 - lane)),
            Special::LaneMask(Cmp::Ge) => u32::MAX << lane,
            Special::LaneMask(_) => 1 << lane,
            Special::Clock => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                return now.map_or(0, |d| d.as_nanos() as u64);
            }
            Special::DynamicShared => self.launch.dynamic_shared as u32,
            Special::Zero => 0,
        };
        u64::from(v)
    }
}
