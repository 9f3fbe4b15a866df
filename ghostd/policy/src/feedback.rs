//! Feedback: where measured shares of containers that had work all the time differ from the
//! wanted ones, their slices are corrected, slowly and within bounds. A steady load is left alone.

use crate::share::{MILLION, part};
use crate::tree::Node;
use crate::tuning::{
    FEEDBACK_DEAD_BAND, FEEDBACK_PLAUSIBLE, FEEDBACK_RANGE, FEEDBACK_ROUNDS, FEEDBACK_WINDOW,
};
use ghost_model::Micros;

/// One step. `window` is where the present one began, `round` the length of a round, `own` the
/// wanted part of each node's own groups, `seen` what they used since the last step and whether
/// they surely had work. Anything that changes who should get what, or a slice, begins a new one.
pub(crate) fn step(
    nodes: &mut [Node<'_>],
    own: &[u64],
    seen: impl Iterator<Item = (Micros, bool)>,
    changed: bool,
    window: &mut Option<Micros>,
    round: Micros,
    now: Micros,
) {
    let long = FEEDBACK_WINDOW.max(Micros(round.0 * FEEDBACK_ROUNDS));
    let over = window.is_some_and(|from| now.since(from) >= long);
    for (node, (used, backlogged)) in nodes.iter_mut().zip(seen) {
        node.memory.window_used = node.memory.window_used + used;
        node.memory.backlogged &= backlogged;
        if node.working == 0 {
            node.memory.factor = MILLION;
        }
    }
    if over && !changed {
        correct(nodes, own);
    }
    if over || changed || window.is_none() {
        *window = Some(now);
        for node in nodes {
            node.memory.window_used = Micros::ZERO;
            node.memory.backlogged = true;
        }
    }
}

/// A container whose measured part of what the backlogged ones used is off goes half the way.
fn correct(nodes: &mut [Node<'_>], own: &[u64]) {
    // (node, wanted, got), in millionths of all that `members` should get and got.
    let parts = |nodes: &[Node<'_>], members: &[usize]| -> Vec<(usize, u64, u64)> {
        let used = |i: usize| nodes[i].memory.window_used.0;
        let wanted_sum = members.iter().map(|i| own[*i]).sum();
        let used_sum = members.iter().map(|i| used(*i)).sum();
        let part_of = |i: &usize| {
            let wanted = part(own[*i], MILLION, wanted_sum);
            (*i, wanted, part(used(*i), MILLION, used_sum))
        };
        members.iter().map(part_of).collect()
    };
    let backlogged = |i: &usize| nodes[*i].memory.backlogged && nodes[*i].groups > 0;
    let members: Vec<usize> = (0..nodes.len()).filter(backlogged).collect();
    let plausible = |(i, wanted, got): (usize, u64, u64)| {
        let off = part(wanted, FEEDBACK_PLAUSIBLE, MILLION);
        (wanted.abs_diff(got) <= off).then_some(i)
    };
    let all = parts(nodes, &members).into_iter();
    let members: Vec<usize> = all.filter_map(plausible).collect();
    for (i, wanted, got) in parts(nodes, &members) {
        if wanted.abs_diff(got) > FEEDBACK_DEAD_BAND {
            let factor = &mut nodes[i].memory.factor;
            let corrected = part(*factor, wanted + got, 2 * got);
            *factor = corrected.clamp(FEEDBACK_RANGE.0, FEEDBACK_RANGE.1);
        }
    }
}
