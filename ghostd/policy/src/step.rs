//! One step: what is wanted, what was seen and what is remembered become what to do.

use crate::budget::Bucket;
use crate::memory::{Asked, ContainerMemory, GpuMemory, GroupMemory, Memory, Round};
use crate::share::{self, LENGTH_SHIFT, ONE, slice};
use crate::tree::{self, Node};
use crate::tuning::{ROUND, SLICE_RETRY, SLICE_ROUNDING};
use crate::{feedback, idle, latency, round};
use ghost_model::plan::Why;
use ghost_model::{
    Action, GpuId, GpuSample, GroupId, GroupSample, Micros, Name, Plan, Reading, Sample, Spec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What people want: every container with its spec, GPUs by whole UUID. A container above
/// another that is not in here has the defaults, and so has `system`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// By name.
    pub containers: BTreeMap<Name, Spec>,
}

/// One channel group of the sample.
pub(crate) struct Group<'a> {
    pub seen: &'a GroupSample,
    /// Its container.
    pub node: usize,
    pub memory: GroupMemory,
    pub wanted: Micros,
}

/// Decides. The moment is `sample.at`; the same arguments always give the same result, and any
/// arguments give one.
///
/// A group that is not in the sample is taken to be gone; what it used stays counted. Of a GPU
/// or group that is in it twice, the first counts. Where the clock went back the host was started
/// anew, and of the memory only the counters are kept.
pub fn step(memory: Memory, desired: &Desired, sample: &Sample) -> (Memory, Plan) {
    let now = sample.at;
    let mut memory = match memory.at {
        Some(last) if last > now => memory.counters(),
        _ => memory,
    };
    let last = memory.at;
    let mut parts = Parts::default();
    for (i, seen) in sample.gpus.iter().enumerate() {
        if sample.gpus.iter().take(i).all(|g| g.gpu != seen.gpu) {
            let gpu = memory.gpus.entry(seen.gpu.clone()).or_default();
            step_gpu(gpu, desired, seen, last, now, &mut parts);
        }
    }
    memory.at = Some(now);
    let actions = [parts.pauses, parts.slices, parts.resumes].concat();
    let wake = parts.wake;
    (memory, Plan { actions, wake })
}

#[derive(Default)]
struct Parts {
    pauses: Vec<Action>,
    slices: Vec<Action>,
    resumes: Vec<Action>,
    wake: Option<Micros>,
}

/// Sums over a node, with the containers below it unless they are its `own`.
#[derive(Clone, Copy)]
struct Seen {
    own_used: Micros,
    own_has_work: bool,
    own_used_known: bool,
    own_read_at: Micros,
    own_paused: bool,
    own_unpaused: bool,
    used: Micros,
    /// The moment up to which all use is known.
    read_at: Micros,
    runs: bool,
    ended: bool,
}

fn step_gpu(
    memory: &mut GpuMemory,
    desired: &Desired,
    sample: &GpuSample,
    last: Option<Micros>,
    now: Micros,
    parts: &mut Parts,
) {
    let names = sample.groups.iter().map(|g| g.container.as_str());
    let mut nodes = tree::build(names, desired, &sample.gpu, &sample.memory);
    let old = std::mem::take(&mut memory.containers);
    let absent = recall(&mut nodes, old, desired, last, now);
    let old = std::mem::take(&mut memory.groups);
    let (mut groups, seen) = see(&mut nodes, sample, old, now);

    charge(&mut nodes, &seen, last, now);
    hold(&mut nodes);
    idle::pause(&mut nodes, &groups);
    set_shares(&mut nodes, &seen, memory, now);
    memory.round = want_slices(&nodes, &mut groups, memory.round);
    latency::protect(&nodes, &mut groups);

    if ask_slices(&nodes, &mut groups, &sample.gpu, now, parts) {
        memory.window = None;
    }
    ask_pauses(&mut nodes, &seen, &sample.gpu, last == Some(now), parts);
    watch(&mut nodes, parts);

    memory.groups = groups.into_iter().map(|g| (g.seen.id, g.memory)).collect();
    let present = nodes.into_iter().filter_map(|n| {
        let name = n.key.or_else(|| n.name.parse().ok())?;
        Some((name, n.memory))
    });
    memory.containers = present.chain(absent).collect();
}

/// Gives each node its memory; returns that of containers that have no group here but are wanted.
fn recall(
    nodes: &mut [Node<'_>],
    old: BTreeMap<Name, ContainerMemory>,
    desired: &Desired,
    last: Option<Micros>,
    now: Micros,
) -> Vec<(Name, ContainerMemory)> {
    let mut absent = Vec::new();
    let mut nodes = nodes.iter_mut().peekable();
    for (name, mut memory) in old {
        while nodes.next_if(|n| n.name < name.as_str()).is_some() {}
        if let Some(node) = nodes.next_if(|n| n.name == name.as_str()) {
            node.memory = memory;
            node.key = Some(name);
        } else if name.is_system() || desired.containers.contains_key(&name) {
            memory.rest(last, now);
            absent.push((name, memory));
        }
    }
    absent
}

/// Joins the groups of the sample with what is remembered of them, and sums up.
fn see<'a>(
    nodes: &mut [Node<'a>],
    sample: &'a GpuSample,
    mut old: BTreeMap<GroupId, GroupMemory>,
    now: Micros,
) -> (Vec<Group<'a>>, Vec<Seen>) {
    let mut all: Vec<&GroupSample> = sample.groups.iter().collect();
    if !all.is_sorted_by(|a, b| a.id < b.id) {
        all.sort_by_key(|g| g.id);
        all.dedup_by_key(|g| g.id);
    }
    let nothing = Seen {
        own_used: Micros::ZERO,
        own_has_work: false,
        own_used_known: true,
        own_read_at: now,
        own_paused: false,
        own_unpaused: false,
        used: Micros::ZERO,
        read_at: now,
        runs: false,
        ended: false,
    };
    let mut seen = vec![nothing; nodes.len()];
    let find = |nodes: &[Node<'_>], name: &Name| {
        let name = name.as_str();
        nodes.binary_search_by(|n| n.name.cmp(name)).ok()
    };
    let mut groups: Vec<Group<'a>> = Vec::with_capacity(all.len());
    for group in all {
        let Some(i) = find(nodes, &group.container) else {
            continue;
        };
        let mut memory = old
            .remove(&group.id)
            .unwrap_or_else(|| GroupMemory::new(&group.container, now));
        let used = memory.see(group, now);
        let (node, sum) = (&mut nodes[i], &mut seen[i]);
        node.groups += 1;
        node.working += u64::from(memory.active());
        sum.own_used = sum.own_used + used;
        sum.own_has_work |= group.active.fresh() == Some(true);
        sum.own_used_known &= group.used.fresh().is_some();
        sum.own_paused |= group.paused;
        sum.own_unpaused |= !group.paused;
        sum.own_read_at = sum.own_read_at.min(memory.used_at);
        sum.read_at = sum.own_read_at;
        groups.push(Group {
            seen: group,
            node: i,
            memory,
            wanted: Micros::ZERO,
        });
    }
    for gone in old.values() {
        if let Some(i) = find(nodes, &gone.container) {
            seen[i].ended = true;
        }
    }
    for (i, node) in nodes.iter().enumerate().rev() {
        let mut below = seen[i];
        below.used = below.used + below.own_used;
        below.runs |= below.own_unpaused;
        seen[i] = below;
        if let Some(above) = node.parent.and_then(|p| seen.get_mut(p)) {
            above.used = above.used + below.used;
            above.read_at = above.read_at.min(below.read_at);
            above.runs |= below.runs;
            above.ended |= below.ended;
        }
    }
    (groups, seen)
}

/// Counts what was used, and keeps the budgets.
fn charge(nodes: &mut [Node<'_>], seen: &[Seen], last: Option<Micros>, now: Micros) {
    for (node, seen) in nodes.iter_mut().zip(seen) {
        let memory = &mut node.memory;
        memory.usage = memory.usage + seen.used;
        memory.mark(seen.read_at, now);
        let budget = &node.set.budget;
        memory.bucket = match memory.bucket.take() {
            Some(bucket) => bucket.changed(budget),
            None => Bucket::new(budget, now),
        };
        memory.pass(last, now, memory.running || seen.runs);
        if let Some(bucket) = &mut memory.bucket {
            if seen.ended {
                bucket.settle();
            }
            bucket.read(seen.used, seen.read_at);
            bucket.judge();
        }
    }
}

/// Decides who is to be paused, but for `gpu.idle`.
fn hold(nodes: &mut [Node<'_>]) {
    for i in 0..nodes.len() {
        let (above, rest) = nodes.split_at_mut(i);
        let Some(node) = rest.first_mut() else { return };
        let throttled = |n: &Node<'_>| n.memory.bucket.as_ref().is_some_and(Bucket::throttled);
        let above = node.parent.and_then(|p| above.get(p));
        node.throttled = throttled(node) || above.is_some_and(|above| above.throttled);
        node.why = if node.set.frozen {
            Some(Why::Freeze)
        } else if node.set.denied {
            Some(Why::Devices)
        } else {
            node.throttled.then_some(Why::Max)
        };
    }
}

/// Divides the GPU among those that have work and may run, and compares that with what they got.
fn set_shares(nodes: &mut [Node<'_>], seen: &[Seen], memory: &mut GpuMemory, now: Micros) {
    let top = |weight, active, sum| tree::join(ONE, weight, active, sum);
    let mut shares = tree::divide(nodes, Node::active, top);
    if shares.top_weight == 0 {
        shares = tree::divide(nodes, Node::active_idle, top);
    }
    let mut changed = latency::protects(nodes);
    for (i, node) in nodes.iter_mut().enumerate() {
        let share = if shares.takes_part[i] {
            shares.tree[i]
        } else {
            0
        };
        changed |= share != node.memory.share;
        node.memory.share = share;
    }
    latency::demote(nodes);
    let seen = seen.iter().map(|s| feedback::Own {
        used: s.own_used,
        read_at: s.own_read_at,
        backlogged: s.own_has_work && s.own_used_known,
    });
    let top_weight = shares.top_weight;
    let length = |r: Round| share::part(r.length.0, top_weight, r.weight);
    let round = Micros(memory.round.map_or(0, length));
    let window = &mut memory.window;
    feedback::step(nodes, &shares.own, seen, changed, window, round, now);
}

/// Sets the slice that each group should have; returns the round that they follow from.
fn want_slices(nodes: &[Node<'_>], groups: &mut [Group<'_>], last: Option<Round>) -> Option<Round> {
    let whole = |weight, active, sum| tree::join(ONE, weight, active, sum);
    let shares = tree::divide(nodes, Node::recurring, whole);
    let each = nodes
        .iter()
        .zip(&shares.own)
        .filter_map(|(n, own)| own.checked_div(n.recurring()));
    let least = each.min().unwrap_or(ONE);
    let count = nodes.iter().map(Node::recurring).sum();
    let round = round::choose(last, count, least, shares.top_weight);

    let lengths = tree::divide(nodes, Node::active, |weight, active, _| {
        round.map_or(ROUND.0 << LENGTH_SHIFT, |r| r.top(weight, active))
    });
    let idle = nodes.iter().any(|n| n.set.idle).then(|| {
        let count = nodes.iter().map(Node::active_idle).sum();
        tree::divide(nodes, Node::active_idle, |weight, active, sum| {
            idle::top(count, weight, active, sum)
        })
    });
    for group in groups {
        let node = &nodes[group.node];
        let lengths = idle.as_ref().filter(|_| node.set.idle).unwrap_or(&lengths);
        // A group without work gets what it would have if it were the next to get some.
        let sharers = node.working + u64::from(!group.memory.active());
        group.wanted = slice(lengths.own[group.node], node.memory.factor, sharers);
    }
    round
}

/// Asks for slices where they differ, and says whether any does. A paused group's slice is
/// nothing to anybody.
fn ask_slices(
    nodes: &[Node<'_>],
    groups: &mut [Group<'_>],
    gpu: &GpuId,
    now: Micros,
    parts: &mut Parts,
) -> bool {
    let before = parts.slices.len();
    for group in groups.iter_mut().filter(|g| nodes[g.node].why.is_none()) {
        let wanted = group.wanted;
        let rounding = wanted.0 / SLICE_ROUNDING;
        let same = |slice: Micros| slice.0.abs_diff(wanted.0) <= rounding;
        if !in_force(&group.seen.slice, group.memory.asked, now).is_some_and(same) {
            group.memory.asked = Some(Asked {
                slice: wanted,
                at: now,
            });
            parts.slices.push(Action::SetSlice {
                gpu: gpu.clone(),
                group: group.seen.id,
                slice: wanted,
            });
        }
    }
    parts.slices.len() > before
}

/// The slice that a group has as far as is known: what was read, unless it is older than what
/// was asked for, which is believed for a while.
fn in_force(read: &Reading<Micros>, asked: Option<Asked>, now: Micros) -> Option<Micros> {
    match asked {
        Some(asked) if read.at().is_none_or(|at| at <= asked.at) => {
            (now.since(asked.at) < SLICE_RETRY).then_some(asked.slice)
        }
        _ => read.last(),
    }
}

/// Asks for pauses and resumes where they differ. `again` says that the sample is not newer than
/// the last, so that it cannot show what was asked for then.
fn ask_pauses(nodes: &mut [Node<'_>], seen: &[Seen], gpu: &GpuId, again: bool, parts: &mut Parts) {
    for (node, seen) in nodes.iter_mut().zip(seen) {
        let before = std::mem::replace(&mut node.memory.paused, node.why);
        if node.groups == 0 || (again && before.is_some() == node.why.is_some()) {
            continue;
        }
        let why = match node.why {
            Some(why) if seen.own_unpaused => Some(why),
            None if seen.own_paused => None,
            _ => continue,
        };
        let Ok(container) = node.name.parse() else {
            continue;
        };
        let gpu = gpu.clone();
        match why {
            Some(why) => parts.pauses.push(Action::Pause {
                gpu,
                container,
                why,
            }),
            None => parts.resumes.push(Action::Resume { gpu, container }),
        }
    }
}

/// Notes who runs until the next step, and when the next must be.
fn watch(nodes: &mut [Node<'_>], parts: &mut Parts) {
    let mut runs: Vec<(bool, bool)> = nodes
        .iter()
        .map(|n| {
            (
                n.groups > 0 && n.why.is_none(),
                n.why.is_none() && n.working > 0,
            )
        })
        .collect();
    for (i, node) in nodes.iter_mut().enumerate().rev() {
        let (running, active) = runs[i];
        if let Some(above) = node.parent.and_then(|p| runs.get_mut(p)) {
            above.0 |= running;
            above.1 |= active;
        }
        node.memory.running = running;
        let wake = node.memory.bucket.as_ref().and_then(|b| b.wake(active));
        parts.wake = [parts.wake, wake].into_iter().flatten().min();
    }
}
