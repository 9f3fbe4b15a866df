//! A GPU as far as Ghost cares: channel groups that take turns on a clock which the caller
//! moves. Nothing is random and nothing is read from outside.
//!
//! The rules are those that were measured on an H200. Groups that have work run in turn, each for
//! its timeslice, preempted in mid-kernel. A context switch takes a fixed time in which nobody
//! computes, and is made only when another group waits: a slice that ends with nobody waiting is
//! simply begun anew. A zero slice computes nothing and yet costs its neighbours switches; a
//! disabled group is not there at all.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use ghost_model::{GroupId, Micros};

/// Latencies that are kept for each group; older ones are dropped.
const LATENCIES: usize = 4096;

/// What the hardware costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Time of a switch from one group to another; at least 1 us.
    pub switch: Micros,
    /// Time from a program's launch of a kernel to when the GPU sees it.
    pub launch: Micros,
}

impl Default for Params {
    /// As measured on an H200: 190 us lies between what throughput (200) and latency (175) say.
    fn default() -> Self {
        Params {
            switch: Micros(190),
            launch: Micros(32),
        }
    }
}

/// The work that a program gives to one channel group. Times are GPU time for kernels, the
/// clock's time for the rest; zeros are taken for 1 us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// None.
    #[default]
    Idle,
    /// Kernels back to back, without end.
    Backlog {
        /// Length of a kernel.
        kernel: Micros,
    },
    /// A kernel each period, the next not before the last is complete: latency mode.
    Periodic {
        /// Length of a kernel.
        kernel: Micros,
        /// From launch to launch.
        period: Micros,
    },
    /// A backlog for a while, then nothing for a while; what was begun is finished.
    Duty {
        /// Length of a kernel.
        kernel: Micros,
        /// Time with a backlog.
        on: Micros,
        /// Time without.
        off: Micros,
    },
    /// A number of kernels, then nothing.
    Finite {
        /// Length of a kernel.
        kernel: Micros,
        /// How many.
        count: u64,
    },
}

impl Load {
    fn kernel(&self) -> u64 {
        match *self {
            Load::Idle => 1,
            Load::Backlog { kernel }
            | Load::Periodic { kernel, .. }
            | Load::Duty { kernel, .. }
            | Load::Finite { kernel, .. } => kernel.0.max(1),
        }
    }
}

/// One channel group.
#[derive(Clone, Debug)]
pub struct Group {
    slice: u64,
    disables: u32,
    load: Load,
    // Whether the program still launches; without, the kernel begun is finished.
    launching: bool,
    has_work: bool,
    // When `has_work` or `launching` changes by the clock alone.
    turn: u64,
    launched: u64,
    // Part of the present kernel that is done.
    partial: u64,
    used: u64,
    completed: u64,
    switches: u64,
    latencies: VecDeque<Micros>,
}

impl Group {
    /// The timeslice in force.
    pub fn slice(&self) -> Micros {
        Micros(self.slice)
    }

    /// Disables that no enable has undone.
    pub fn disables(&self) -> u32 {
        self.disables
    }

    /// Whether the GPU has work of it, running or waiting.
    pub fn has_work(&self) -> bool {
        self.has_work
    }

    /// Time for which its kernels ran; switches are nobody's.
    pub fn used(&self) -> Micros {
        Micros(self.used)
    }

    /// Kernels completed, under all loads.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Times that the GPU switched to it.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Launch to completion of each of the last kernels under [`Load::Periodic`], oldest first.
    pub fn latencies(&self) -> &VecDeque<Micros> {
        &self.latencies
    }

    fn runnable(&self) -> bool {
        self.has_work && self.disables == 0
    }

    /// GPU time until something changes by it.
    fn budget(&self) -> u64 {
        match self.load {
            Load::Finite { count, .. } => count
                .saturating_mul(self.load.kernel())
                .saturating_sub(self.partial),
            Load::Backlog { .. } => u64::MAX,
            _ if self.launching => u64::MAX,
            _ => self.load.kernel() - self.partial,
        }
    }

    fn begin(&mut self, load: Load, now: u64, launch: u64) {
        self.load = load;
        self.partial = 0;
        self.launched = now;
        self.launching = matches!(load, Load::Duty { .. });
        (self.has_work, self.turn) = match load {
            Load::Idle => (false, u64::MAX),
            Load::Backlog { .. } => (true, u64::MAX),
            Load::Finite { count, .. } => (count > 0, u64::MAX),
            Load::Periodic { .. } => (false, now.saturating_add(launch)),
            Load::Duty { on, .. } => (true, now.saturating_add(on.0.max(1))),
        };
    }

    /// What the clock alone brings about at `turn`.
    fn turn(&mut self) {
        match self.load {
            Load::Duty { on, off, .. } => {
                self.launching = !self.launching;
                self.has_work = self.launching || self.partial > 0;
                let next = if self.launching { on } else { off };
                self.turn = self.turn.saturating_add(next.0.max(1));
            }
            _ => {
                self.has_work = true;
                self.turn = u64::MAX;
            }
        }
    }

    /// It ran for `time` up to `now`, no longer than its budget.
    fn run(&mut self, time: u64, now: u64, launch: u64) {
        let kernel = self.load.kernel();
        let done = (self.partial + time) / kernel;
        self.partial = (self.partial + time) % kernel;
        self.used += time;
        self.completed += done;
        match &mut self.load {
            Load::Finite { count, .. } => {
                *count = count.saturating_sub(done);
                self.has_work = *count > 0;
            }
            Load::Periodic { period, .. } if done > 0 => {
                if self.latencies.len() == LATENCIES {
                    self.latencies.pop_front();
                }
                self.latencies.push_back(Micros(now - self.launched));
                let next = self.launched.saturating_add(period.0.max(1));
                self.launched = next.max(now);
                self.turn = self.launched.saturating_add(launch);
                self.has_work = false;
            }
            Load::Duty { .. } => self.has_work = self.launching || self.partial > 0,
            _ => {}
        }
    }
}

/// A GPU at one moment of its clock.
#[derive(Clone, Debug)]
pub struct Gpu {
    params: Params,
    now: u64,
    groups: BTreeMap<GroupId, Group>,
    // The group whose context is loaded, which may be gone.
    on: Option<GroupId>,
    // Part of its slice that has passed.
    passed: u64,
    // Time until the context of `on` is loaded.
    switching: u64,
    // No group turns before this.
    turn: u64,
}

impl Gpu {
    /// A GPU without groups, whose clock stands at `now`.
    pub fn new(params: Params, now: Micros) -> Self {
        Gpu {
            params,
            now: now.0,
            groups: BTreeMap::new(),
            on: None,
            passed: 0,
            switching: 0,
            turn: u64::MAX,
        }
    }

    /// The moment up to which everything has happened.
    pub fn now(&self) -> Micros {
        Micros(self.now)
    }

    /// Adds an idle group; one with this id that is there already stays as it is.
    pub fn add(&mut self, id: GroupId, slice: Micros) {
        self.groups.entry(id).or_insert_with(|| Group {
            slice: slice.0,
            disables: 0,
            load: Load::Idle,
            launching: false,
            has_work: false,
            turn: u64::MAX,
            launched: self.now,
            partial: 0,
            used: 0,
            completed: 0,
            switches: 0,
            latencies: VecDeque::new(),
        });
    }

    /// Takes a group away, with its work.
    pub fn remove(&mut self, id: GroupId) -> Option<Group> {
        self.groups.remove(&id)
    }

    /// The groups by id.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().map(|(&id, group)| (id, group))
    }

    /// One group.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    /// Replaces a group's load; a kernel that was begun is dropped.
    pub fn set_load(&mut self, id: GroupId, load: Load) {
        let (now, launch) = (self.now, self.params.launch.0);
        if let Some(group) = self.groups.get_mut(&id) {
            group.begin(load, now, launch);
            self.turn = self.turn.min(group.turn);
        }
    }

    /// Sets a timeslice, in force at once; one that runs beyond it is over.
    pub fn set_slice(&mut self, id: GroupId, slice: Micros) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.slice = slice.0;
        }
    }

    /// Takes a group off the hardware and keeps it off. Disables nest.
    pub fn disable(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.disables += 1;
        }
    }

    /// Undoes one disable. False, and nothing done, where there is none.
    pub fn enable(&mut self, id: GroupId) -> bool {
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let disabled = group.disables > 0;
        group.disables = group.disables.saturating_sub(1);
        disabled
    }

    /// Ends the slice that a group is in, if it is in one.
    pub fn preempt(&mut self, id: GroupId) {
        if self.on == Some(id) {
            self.passed = u64::MAX;
        }
    }

    /// Lets time pass up to `to`; a moment that is past changes nothing.
    pub fn advance(&mut self, to: Micros) {
        loop {
            if self.turn <= self.now {
                self.turn = u64::MAX;
                for group in self.groups.values_mut() {
                    while group.turn <= self.now {
                        group.turn();
                    }
                    self.turn = self.turn.min(group.turn);
                }
            }
            if self.now >= to.0 {
                return;
            }
            self.step(self.turn.min(to.0));
        }
    }

    /// The next thing that happens, at `until` at the latest; no group turns before that.
    fn step(&mut self, until: u64) {
        let left = until - self.now;
        if self.switching > 0 {
            let time = left.min(self.switching);
            self.switching -= time;
            self.now += time;
            return;
        }
        let Some(next) = self.next() else {
            self.passed = 0;
            self.now = until;
            return;
        };
        let waiting = self.on != Some(next);
        let current = self
            .on
            .and_then(|on| self.groups.get_mut(&on))
            .filter(|group| group.runnable() && (!waiting || self.passed < group.slice));
        let Some(group) = current else {
            self.switch(next);
            return;
        };
        if group.slice == 0 {
            self.now = until;
            return;
        }
        let mut time = left.min(group.budget());
        if waiting {
            time = time.min(group.slice - self.passed);
        }
        self.now += time;
        group.run(time, self.now, self.params.launch.0);
        self.turn = self.turn.min(group.turn);
        self.passed = self.passed.saturating_add(time);
        if !waiting {
            self.passed %= group.slice;
        }
    }

    /// The group whose turn is next; the present one if no other wants to run.
    fn next(&self) -> Option<GroupId> {
        let runnable = |(&id, group): (&GroupId, &Group)| group.runnable().then_some(id);
        let Some(on) = self.on else {
            return self.groups.iter().find_map(runnable);
        };
        let after = self.groups.range((Excluded(on), Unbounded));
        after.chain(self.groups.range(..=on)).find_map(runnable)
    }

    fn switch(&mut self, to: GroupId) {
        // The first context of all is loaded for nothing: there is none to save.
        if self.on.is_some() {
            self.switching = self.params.switch.0.max(1);
        }
        self.on = Some(to);
        self.passed = 0;
        if let Some(group) = self.groups.get_mut(&to) {
            group.switches += 1;
        }
    }
}

#[cfg(test)]
mod tests;
