//! Feedback: where measured shares of containers that had work all the time differ from the
//! wanted ones, their slices are corrected, slowly and within bounds. A steady load is left alone.

use crate::share::{MILLION, part};
use crate::tree::Node;
use crate::tuning::{
    FEEDBACK_DEAD_BAND, FEEDBACK_PLAUSIBLE, FEEDBACK_RANGE, FEEDBACK_ROUNDS, FEEDBACK_WINDOW,
};
use ghost_model::Micros;

/// What a node's own groups did since the last step.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    /// Time that they used,
    pub used: Micros,
    /// and the moment up to which that is known.
    pub read_at: Micros,
    /// Whether they surely had work.
    pub backlogged: bool,
}

/// One step. `window` is where the present one began, `round` the length of a round, `own` the
/// wanted part of each node's own groups, `seen` what they did. Anything that changes who should
/// get what, or a slice, begins a new one.
///
/// Readings lag, and what they tell late may have been used before the window began. So each node
/// is measured from its first reading in the window to its last, by the time between the two.
pub(crate) fn step(
    nodes: &mut [Node<'_>],
    own: &[u64],
    seen: impl Iterator<Item = Own>,
    changed: bool,
    window: &mut Option<Micros>,
    round: Micros,
    now: Micros,
) {
    let long = FEEDBACK_WINDOW.max(Micros(round.0 * FEEDBACK_ROUNDS));
    let over = window.is_some_and(|from| now.since(from) >= long);
    for (node, seen) in nodes.iter_mut().zip(seen) {
        let memory = &mut node.memory;
        match memory.window_from {
            Some(_) => {
                memory.window_used = memory.window_used + seen.used;
                memory.window_to = seen.read_at;
            }
            None if window.is_some_and(|from| seen.read_at >= from) => {
                memory.window_from = Some(seen.read_at);
                memory.window_to = seen.read_at;
            }
            None => {}
        }
        memory.backlogged &= seen.backlogged;
        if node.working == 0 {
            memory.factor = MILLION;
        }
    }
    if changed {
        for node in nodes.iter_mut() {
            node.memory.window_off = 0;
        }
    }
    if over && !changed {
        correct(nodes, own, Micros(long.0 / 2));
    }
    if over || changed || window.is_none() {
        *window = Some(now);
        for node in nodes {
            node.memory.window_used = Micros::ZERO;
            node.memory.window_from = None;
            node.memory.backlogged = true;
        }
    }
}

/// Millionths of the time between its first and its last reading that a node used, if that is
/// at least `least`.
fn rate(node: &Node<'_>, least: Micros) -> Option<u64> {
    let memory = &node.memory;
    let span = memory.window_to.since(memory.window_from?);
    (span >= least).then(|| part(memory.window_used.0, MILLION, span.0))
}

/// A container whose measured part of what the backlogged ones used is off goes half the way, by
/// what two windows running agree on: in one alone somebody may just have begun, or ended.
fn correct(nodes: &mut [Node<'_>], own: &[u64], least: Micros) {
    // (node, wanted, got), in millionths of all that `members` should get and got.
    let parts = |nodes: &[Node<'_>], members: &[usize]| -> Vec<(usize, u64, u64)> {
        let used = |i: usize| rate(&nodes[i], least).unwrap_or(0);
        let wanted_sum = members.iter().map(|i| own[*i]).sum();
        let used_sum = members.iter().map(|i| used(*i)).sum();
        let part_of = |i: &usize| {
            let wanted = part(own[*i], MILLION, wanted_sum);
            (*i, wanted, part(used(*i), MILLION, used_sum))
        };
        members.iter().map(part_of).collect()
    };
    let backlogged = |i: &usize| {
        let node = &nodes[*i];
        node.memory.backlogged && node.groups > 0 && rate(node, least).is_some()
    };
    let members: Vec<usize> = (0..nodes.len()).filter(backlogged).collect();
    let plausible = |(i, wanted, got): (usize, u64, u64)| {
        let off = part(wanted, FEEDBACK_PLAUSIBLE, MILLION);
        (wanted.abs_diff(got) <= off).then_some(i)
    };
    let all = parts(nodes, &members).into_iter();
    let members: Vec<usize> = all.filter_map(plausible).collect();
    let parts = parts(nodes, &members);
    let mut before: Vec<i64> = Vec::with_capacity(nodes.len());
    before.extend(
        nodes
            .iter_mut()
            .map(|n| std::mem::take(&mut n.memory.window_off)),
    );
    for (i, wanted, got) in parts {
        let memory = &mut nodes[i].memory;
        let off = got.cast_signed() - wanted.cast_signed();
        let agreed = if off.signum() == before[i].signum() {
            off.unsigned_abs().min(before[i].unsigned_abs())
        } else {
            0
        };
        if agreed <= FEEDBACK_DEAD_BAND {
            memory.window_off = off;
            continue;
        }
        let got = if off > 0 {
            wanted + agreed
        } else {
            wanted - agreed
        };
        let corrected = part(memory.factor, wanted + got, 2 * got);
        memory.factor = corrected.clamp(FEEDBACK_RANGE.0, FEEDBACK_RANGE.1);
    }
}
