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
    let of = |node: &Node<'_>, own: u64, sums: (u64, u64)| {
        let got = part(node.memory.window_used.0, MILLION, sums.1);
        (part(own, MILLION, sums.0), got)
    };
    let counts = |node: &Node<'_>| node.memory.backlogged && node.memory.window_used.0 > 0;
    let sum = |nodes: &[Node<'_>], counts: &dyn Fn(&Node<'_>, u64) -> bool| {
        let all = nodes.iter().zip(own).filter(|(n, own)| counts(n, **own));
        all.fold((0, 0), |sum: (u64, u64), (n, own)| {
            (sum.0 + own, sum.1 + n.memory.window_used.0)
        })
    };
    let all = sum(nodes, &|n, _| counts(n));
    let plausible = |node: &Node<'_>, own: u64| {
        let (wanted, got) = of(node, own, all);
        counts(node) && wanted.abs_diff(got) <= part(wanted, FEEDBACK_PLAUSIBLE, MILLION)
    };
    let sums = sum(nodes, &plausible);
    let keep: Vec<bool> = nodes
        .iter()
        .zip(own)
        .map(|(n, own)| plausible(n, *own))
        .collect();
    for ((node, own), _) in nodes
        .iter_mut()
        .zip(own)
        .zip(keep)
        .filter(|(_, keep)| *keep)
    {
        let (wanted, got) = of(node, *own, sums);
        if wanted.abs_diff(got) > FEEDBACK_DEAD_BAND {
            let corrected = part(node.memory.factor, wanted + got, 2 * got);
            node.memory.factor = corrected.clamp(FEEDBACK_RANGE.0, FEEDBACK_RANGE.1);
        }
    }
}
