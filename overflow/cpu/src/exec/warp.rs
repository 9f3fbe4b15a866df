//! What the threads of a warp do together.

use super::{Block, State};
use crate::ptx::code::{Op, Operand, Shfl, Together, Vote};
use std::ops::Range;

impl Block<'_> {
    fn warps(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let count = self.threads.len();
        (0..count)
            .step_by(32)
            .map(move |at| at..(at + 32).min(count))
    }

    /// What thread `t` waits to do with its warp.
    fn waits_for(&self, t: usize) -> Option<(Together, Operand)> {
        let thread = self.threads.get(t)?;
        match self.op(t) {
            Some(Op::Together { what, mask }) if thread.state == State::Warp => {
                Some((*what, *mask))
            }
            _ => None,
        }
    }

    /// Does what all threads that are named have come to; threads that have ended are not waited
    /// for. Whether anything was done.
    pub(super) fn release_warps(&mut self) -> bool {
        let mut moved = false;
        for warp in self.warps() {
            for t in warp.clone() {
                let Some((what, mask)) = self.waits_for(t) else {
                    continue;
                };
                if matches!(what, Together::ActiveMask { .. }) {
                    continue;
                }
                let pc = self.pc(t);
                let mask = self.get(t, mask) as u32 | 1 << (t & 31);
                let named = warp.clone().filter(|u| mask >> (u & 31) & 1 == 1);
                let live =
                    named.filter(|u| self.threads.get(*u).is_some_and(|t| t.state != State::Done));
                let group: Vec<usize> = live.collect();
                let here = |u: &usize| self.pc(*u) == pc && self.waits_for(*u).is_some();
                if group.iter().all(here) {
                    self.together(&group, what);
                    moved = true;
                }
            }
        }
        moved
    }

    /// Answers `activemask` where nothing else moves: the threads that are at the same one.
    pub(super) fn release_masks(&mut self) -> bool {
        for warp in self.warps() {
            for t in warp.clone() {
                let Some((what @ Together::ActiveMask { .. }, _)) = self.waits_for(t) else {
                    continue;
                };
                let pc = self.pc(t);
                let here = |u: &usize| self.pc(*u) == pc && self.waits_for(*u).is_some();
                let group: Vec<usize> = warp.clone().filter(here).collect();
                self.together(&group, what);
                return true;
            }
        }
        false
    }

    fn pc(&self, t: usize) -> usize {
        self.threads.get(t).map_or(usize::MAX, |t| t.pc)
    }

    fn together(&mut self, group: &[usize], what: Together) {
        let bits = |yes: &dyn Fn(usize) -> bool| {
            let of = group.iter().filter(|t| yes(**t));
            of.fold(0_u32, |m, t| m | 1 << (t & 31))
        };
        let all = bits(&|_| true);
        match what {
            Together::Sync => {}
            Together::ActiveMask { d } => {
                for t in group {
                    self.set(*t, d, u64::from(all));
                }
            }
            Together::Vote { d, how, a, not } => {
                let votes = bits(&|t| (self.get(t, a) != 0) != not);
                let v = match how {
                    Vote::All => u64::from(votes == all),
                    Vote::Any => u64::from(votes != 0),
                    Vote::Uni => u64::from(votes == 0 || votes == all),
                    Vote::Ballot => u64::from(votes),
                };
                for t in group {
                    self.set(*t, d, v);
                }
            }
            Together::Shfl { d, p, how, a, b, c } => {
                let found: Vec<(usize, u64, bool)> = group
                    .iter()
                    .map(|t| {
                        let (b, c) = (self.get(*t, b) as u32, self.get(*t, c) as u32);
                        let lane = *t as u32 & 31;
                        let (from, inside) = source(how, lane, b, c);
                        let from = if inside { from } else { lane };
                        let other = (*t & !31) + from as usize;
                        (*t, self.get(other, a) & 0xffff_ffff, inside)
                    })
                    .collect();
                for (t, v, inside) in found {
                    self.set(t, d, v);
                    if let Some(p) = p {
                        self.set(t, p, u64::from(inside));
                    }
                }
            }
        }
        for t in group {
            if let Some(thread) = self.threads.get_mut(*t) {
                thread.state = State::Ready;
                thread.pc += 1;
            }
        }
    }
}

/// The lane that `shfl` reads from, and whether it is within the segment.
fn source(how: Shfl, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let high = lane & segment | clamp & !segment;
    let low = lane & segment;
    match how {
        Shfl::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= high as i32),
        Shfl::Down => (lane + b, lane + b <= high),
        Shfl::Bfly => (lane ^ b, lane ^ b <= high),
        Shfl::Idx => {
            let from = low | b & !segment;
            (from, from <= high)
        }
    }
}
