//! The containers that have channel groups on one GPU, with all above them, and the division of
//! a whole among them, level by level, as cgroup v2 does it.

use crate::memory::ContainerMemory;
use crate::share::{self, part};
use crate::step::Desired;
use crate::tuning::OWN_WEIGHT;
use ghost_model::plan::Why;
use ghost_model::value::Devices;
use ghost_model::value::Limit;
use ghost_model::{Budget, Bytes, GpuId, Key, Latency, Micros, Name, Spec, Value};
use std::collections::BTreeMap;

/// What a spec says for one GPU.
pub(crate) struct Settings {
    /// As it counts: see [`share::weight`].
    pub weight: u64,
    pub budget: Budget,
    pub latency: Option<Micros>,
    /// Its own or one above, as the next three.
    pub idle: bool,
    pub frozen: bool,
    pub denied: bool,
}

impl Settings {
    /// One walk over the spec, for its readers by key each make a key.
    fn of(spec: Option<&Spec>, gpu: &GpuId, used: impl Fn() -> Option<Bytes>) -> Settings {
        let mut weight = ghost_model::Weight::DEFAULT.get().into();
        let mut high = Limit::Max;
        let mut set = Settings {
            weight,
            budget: Budget::UNLIMITED,
            latency: None,
            idle: false,
            frozen: false,
            denied: false,
        };
        let values = spec.into_iter().flat_map(Spec::iter);
        // For each key the values of one GPU come after that for all, and replace it.
        for (key, _, value) in values.filter(|(_, on, _)| on.is_none_or(|on| on == gpu)) {
            match (key, value) {
                (Key::Weight, Value::Weight(w)) => weight = w.get().into(),
                (Key::MemoryHigh, Value::Limit(limit)) => high = *limit,
                (Key::Max, Value::Budget(b)) => set.budget = *b,
                (Key::Latency, Value::Latency(Latency::Target(t))) => set.latency = Some(*t),
                (Key::Idle, Value::Flag(on)) => set.idle = *on,
                (Key::Freeze, Value::Flag(on)) => set.frozen = *on,
                (Key::Devices, Value::Devices(Devices::Only(ids))) => {
                    set.denied = !ids.contains(gpu);
                }
                _ => {}
            }
        }
        let beyond = matches!(high, Limit::At(high) if used().is_some_and(|used| used > high));
        set.weight = share::weight(weight, beyond);
        set
    }
}

/// One container on one GPU.
pub(crate) struct Node<'a> {
    pub name: &'a str,
    /// Always before this node.
    pub parent: Option<usize>,
    pub set: Settings,
    pub memory: ContainerMemory,
    /// Its own channel groups, not those of the containers below.
    pub groups: u64,
    /// Those with work, paused or not.
    pub working: u64,
    /// By its own budget or one above.
    pub throttled: bool,
    /// Why it must be paused.
    pub why: Option<Why>,
    /// Its name as memory has it.
    pub key: Option<Name>,
}

impl Node<'_> {
    /// Own groups that have work and may run, unless it is a container of `gpu.idle`.
    pub(crate) fn active(&self) -> u64 {
        if self.why.is_none() && !self.set.idle {
            self.working
        } else {
            0
        }
    }

    /// The same, if it is a container of `gpu.idle`.
    pub(crate) fn active_idle(&self) -> u64 {
        if self.why.is_none() && self.set.idle {
            self.working
        } else {
            0
        }
    }

    /// [`Node::active`], and those that the next period of a budget lets run again.
    pub(crate) fn recurring(&self) -> u64 {
        if matches!(self.why, None | Some(Why::Max)) && !self.set.idle {
            self.working
        } else {
            0
        }
    }
}

/// What each node got of a whole.
pub(crate) struct Division {
    /// With the containers below.
    pub tree: Vec<u64>,
    /// For its own groups together.
    pub own: Vec<u64>,
    /// Whether it or one below takes part.
    pub takes_part: Vec<bool>,
    /// The weights at the top of those that take part.
    pub top_weight: u64,
}

/// The nodes for `names` and all above them, parents first. `memory` is what each uses there.
pub(crate) fn build<'a>(
    names: impl Iterator<Item = &'a str>,
    desired: &Desired,
    gpu: &GpuId,
    memory: &BTreeMap<Name, Bytes>,
) -> Vec<Node<'a>> {
    let above = |name: &&'a str| name.rsplit_once('/').map(|(above, _)| above);
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if all.last() != Some(&name) {
            all.extend(std::iter::successors(Some(name), above));
        }
    }
    all.sort_unstable();
    all.dedup();
    let mut nodes: Vec<Node<'a>> = Vec::with_capacity(all.len());
    for name in &all {
        let parent = above(name).and_then(|above| all.binary_search(&above).ok());
        let used = || memory.get(*name).copied();
        let mut set = Settings::of(desired.containers.get(*name), gpu, used);
        if let Some(above) = parent.and_then(|p| nodes.get(p)) {
            set.idle |= above.set.idle;
            set.frozen |= above.set.frozen;
            set.denied |= above.set.denied;
        }
        nodes.push(Node {
            name,
            parent,
            set,
            memory: ContainerMemory::default(),
            groups: 0,
            working: 0,
            throttled: false,
            why: None,
            key: None,
        });
    }
    nodes
}

/// Divides a whole by weight. `count` is how many groups of a node take part. A node of which
/// none does gets what it would get if it alone joined, which is not taken off the others.
/// `top` gives the part of a container at the top, from its weight, whether it takes part, and
/// the sum of the weights that do.
pub(crate) fn divide<'a>(
    nodes: &[Node<'a>],
    count: impl Fn(&Node<'a>) -> u64,
    top: impl Fn(u64, bool, u64) -> u64,
) -> Division {
    let own_weight = share::weight(OWN_WEIGHT, false);
    let mut takes_part: Vec<bool> = nodes.iter().map(|n| count(n) > 0).collect();
    // The sum at a node's children, its own groups among them.
    let mut sums: Vec<u64> = takes_part
        .iter()
        .map(|own| u64::from(*own) * own_weight)
        .collect();
    let mut top_weight = 0;
    for (i, node) in nodes.iter().enumerate().rev() {
        if !takes_part[i] {
            continue;
        }
        match node.parent {
            Some(p) => {
                takes_part[p] = true;
                sums[p] += node.set.weight;
            }
            None => top_weight += node.set.weight,
        }
    }
    let mut tree = vec![0; nodes.len()];
    let mut own = vec![0; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let weight = node.set.weight;
        tree[i] = match node.parent {
            None => top(weight, takes_part[i], top_weight),
            Some(p) => join(tree[p], weight, takes_part[i], sums[p]),
        };
        own[i] = join(tree[i], own_weight, count(node) > 0, sums[i]);
    }
    Division {
        tree,
        own,
        takes_part,
        top_weight,
    }
}

/// The part of a sibling that takes part, or that would have it if it joined.
pub(crate) fn join(whole: u64, weight: u64, takes_part: bool, sum: u64) -> u64 {
    part(whole, weight, if takes_part { sum } else { sum + weight })
}
