//! A little exact GPU: groups with work get their timeslice in turn, switches cost nothing, and
//! every reading is of the sample's own moment. It checks the invariants at each step.
#![allow(dead_code, reason = "each test file uses its part of it")]

use ghost_model::plan::Why;
use ghost_model::{
    Action, Bytes, GpuId, GpuSample, GroupId, GroupSample, Micros, Name, Plan, Reading, Sample,
    Spec,
};
use ghost_policy::{ContainerStat, Desired, Memory, invariant, step};
use std::collections::BTreeMap;

/// The loop's own period.
pub(crate) const TICK: u64 = 50_000;

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) container: Name,
    pub(crate) slice: u64,
    pub(crate) used: u64,
    pub(crate) paused: bool,
    pub(crate) work: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Little {
    pub(crate) at: u64,
    pub(crate) groups: Vec<Group>,
    pub(crate) desired: Desired,
    pub(crate) memory: Memory,
    pub(crate) actions: u64,
    /// Bytes that containers use.
    pub(crate) memory_use: BTreeMap<Name, Bytes>,
    turn: usize,
    left: u64,
    wake: u64,
}

pub(crate) fn gpu() -> GpuId {
    "GPU-little".parse().unwrap()
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// `key=value` words.
pub(crate) fn spec(text: &str) -> Spec {
    let mut spec = Spec::default();
    for word in text.split(';').filter(|w| !w.is_empty()) {
        let (key, value) = word.split_once('=').unwrap();
        spec.set_text(key, None, value).unwrap();
    }
    spec
}

pub(crate) fn group_sample(id: u64, container: &Name, at: u64) -> GroupSample {
    GroupSample {
        id: GroupId(id),
        pid: 1000 + id as u32,
        container: container.clone(),
        slice: fresh(Micros(2048), at),
        used: fresh(Micros(0), at),
        active: fresh(true, at),
        paused: false,
    }
}

pub(crate) fn fresh<T>(value: T, at: u64) -> Reading<T> {
    Reading::Fresh {
        value,
        at: Micros(at),
    }
}

impl Little {
    /// Containers with their specs, and for each group of theirs whether it has work.
    pub(crate) fn new(containers: &[(&str, &str, &[bool])]) -> Little {
        let mut little = Little {
            at: 0,
            groups: Vec::new(),
            desired: Desired::default(),
            memory: Memory::default(),
            actions: 0,
            memory_use: BTreeMap::new(),
            turn: 0,
            left: 0,
            wake: 0,
        };
        for (container, text, groups) in containers {
            little.set(container, text);
            for work in *groups {
                little.add(container, *work);
            }
        }
        little
    }

    pub(crate) fn set(&mut self, container: &str, text: &str) {
        self.desired.containers.insert(name(container), spec(text));
        self.wake = self.at;
    }

    pub(crate) fn add(&mut self, container: &str, work: bool) -> usize {
        self.groups.push(Group {
            container: name(container),
            slice: 2048,
            used: 0,
            paused: false,
            work,
        });
        self.wake = self.at;
        self.groups.len() - 1
    }

    /// From now on a container uses so many bytes of the GPU's memory.
    pub(crate) fn uses(&mut self, container: &str, bytes: u64) {
        self.memory_use.insert(name(container), Bytes(bytes));
        self.wake = self.at;
    }

    pub(crate) fn sample(&self) -> Sample {
        let groups = self.groups.iter().enumerate().map(|(i, g)| GroupSample {
            slice: fresh(Micros(g.slice), self.at),
            used: fresh(Micros(g.used), self.at),
            active: fresh(g.work && !g.paused, self.at),
            paused: g.paused,
            ..group_sample(i as u64, &g.container, self.at)
        });
        Sample {
            at: Micros(self.at),
            gpus: vec![GpuSample {
                memory: self.memory_use.clone(),
                gpu: gpu(),
                groups: groups.collect(),
            }],
        }
    }

    pub(crate) fn step(&mut self) -> Plan {
        let sample = self.sample();
        let (memory, plan) = step(self.memory.clone(), &self.desired, &sample);
        invariant::plan(&sample, &plan).unwrap();
        invariant::memory(&memory).unwrap();
        let (_, nothing) = step(memory.clone(), &self.desired, &sample);
        assert_eq!(nothing.actions, [], "a second step on the same sample");
        self.memory = memory;
        self.actions += plan.actions.len() as u64;
        for action in &plan.actions {
            self.apply(action);
        }
        let (_, nothing) = step(self.memory.clone(), &self.desired, &self.sample());
        assert_eq!(nothing.actions, [], "a step after the plan was carried out");
        self.wake = plan.wake.map_or(u64::MAX, |w| w.0).min(self.at + TICK);
        plan
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::SetSlice { group, slice, .. } => self.groups[group.0 as usize].slice = slice.0,
            Action::Pause { container, .. } => self.set_paused(container, true),
            Action::Resume { container, .. } => self.set_paused(container, false),
        }
    }

    fn set_paused(&mut self, container: &Name, paused: bool) {
        let of = |g: &&mut Group| g.container == *container;
        self.groups
            .iter_mut()
            .filter(of)
            .for_each(|g| g.paused = paused);
    }

    /// Lets time pass, with a step at each tick and whenever a plan asked for one.
    pub(crate) fn run(&mut self, us: u64) {
        let end = self.at + us;
        loop {
            if self.wake <= self.at {
                self.step();
            }
            if self.at >= end {
                return;
            }
            self.pass(self.wake.min(end));
        }
    }

    fn pass(&mut self, to: u64) {
        while self.at < to {
            let runnable = |g: &Group| g.work && !g.paused;
            if self.left == 0 || !self.groups.get(self.turn).is_some_and(runnable) {
                let n = self.groups.len();
                let next = (1..=n).map(|i| (self.turn + i) % n);
                let Some(next) = next.into_iter().find(|i| runnable(&self.groups[*i])) else {
                    self.at = to;
                    return;
                };
                self.turn = next;
                self.left = self.groups[next].slice;
            }
            let span = self.left.min(to - self.at);
            self.groups[self.turn].used += span;
            self.left -= span;
            self.at += span;
        }
    }

    pub(crate) fn used(&self, container: &str) -> u64 {
        let of = self
            .groups
            .iter()
            .filter(|g| g.container.is_within(&name(container)));
        of.map(|g| g.used).sum()
    }

    /// Parts of the time that containers get over the next `us`, in percent.
    pub(crate) fn shares<const N: usize>(&mut self, us: u64, containers: [&str; N]) -> [f64; N] {
        let before = containers.map(|c| self.used(c));
        self.run(us);
        let mut i = 0;
        containers.map(|c| {
            i += 1;
            (self.used(c) - before[i - 1]) as f64 * 100.0 / us as f64
        })
    }

    pub(crate) fn slices(&self) -> Vec<u64> {
        self.groups.iter().map(|g| g.slice).collect()
    }

    pub(crate) fn stat(&self, container: &str) -> ContainerStat {
        self.memory.stats()[&(name(container), gpu())]
    }

    pub(crate) fn why(&self, container: &str) -> Option<Why> {
        self.stat(container).paused
    }
}

#[track_caller]
pub(crate) fn assert_near<const N: usize>(got: [f64; N], wanted: [f64; N], tolerance: f64) {
    for (got_one, wanted_one) in got.iter().zip(wanted) {
        let off = (got_one - wanted_one).abs();
        assert!(
            off <= tolerance,
            "{got:?} is not {wanted:?} within {tolerance}"
        );
    }
}
