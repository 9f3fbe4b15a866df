//! `gpu.idle`: runs only when nobody else wants to, and then with slices so short that who wakes
//! gets nearly everything before the pause comes.

use crate::share::{LENGTH_SHIFT, part};
use crate::step::Group;
use crate::tree::Node;
use crate::tuning::{IDLE_GRACE, IDLE_SLICE, IDLE_SLICE_MANY};
use ghost_model::plan::Why;

/// Pauses the idle containers while a group of another, not paused itself, had work lately.
pub(crate) fn pause(nodes: &mut [Node<'_>], groups: &[Group<'_>]) {
    let wants = |g: &Group<'_>| {
        let node = &nodes[g.node];
        !node.set.idle && node.why.is_none() && g.memory.idle_for < IDLE_GRACE
    };
    if groups.iter().any(wants) {
        for node in nodes.iter_mut().filter(|n| n.set.idle) {
            node.why = node.why.or(Some(Why::Idle));
        }
    }
}

/// The part of an idle container at the top where `groups` groups of such containers have work,
/// with [`LENGTH_SHIFT`] binary places.
pub(crate) fn top(groups: u64, weight: u64, active: bool, sum: u64) -> u64 {
    let round = if groups > 1 {
        IDLE_SLICE_MANY.0 * groups
    } else {
        IDLE_SLICE.0
    };
    let sum = if active { sum } else { sum + weight };
    part(round << LENGTH_SHIFT, weight, sum)
}
