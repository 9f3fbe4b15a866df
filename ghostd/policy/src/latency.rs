//! `gpu.latency`: the container gets a long slice and its neighbours short ones, so that its work
//! waits no longer than the target. That is for who needs little: one that uses more than its
//! share while others want theirs is demoted to a slice by weight until it uses less.

use crate::share::{MILLION, ONE, part};
use crate::step::Group;
use crate::tree::Node;
use crate::tuning::{IDLE_AFTER, LATENCY_LINGER, LATENCY_SLICE, LATENCY_TURN, MIN_SLICE};
use ghost_model::Micros;
use ghost_model::plan::Why;

/// Over its share by a tenth and 2 points: demoted.
const DEMOTE: (u64, u64) = (110, 20_000);
/// Below four fifths of it: protected again.
const PROMOTE: u64 = 80;

/// Decides which containers are demoted.
pub(crate) fn demote(nodes: &mut [Node<'_>]) {
    let active: u64 = nodes.iter().map(Node::active).sum();
    for node in nodes.iter_mut().filter(|n| n.set.latency.is_some()) {
        let (Some(used), true) = (node.memory.usage_ratio, node.active() > 0) else {
            continue;
        };
        let share = part(node.memory.share, MILLION, ONE);
        if used > share * DEMOTE.0 / 100 + DEMOTE.1 && active > node.active() {
            node.memory.demoted = true;
        } else if used < share * PROMOTE / 100 {
            node.memory.demoted = false;
        }
    }
}

/// The target of a container that is protected. It stays so while its budget holds it back, for
/// else its neighbours' slices would change twice a period.
fn target(node: &Node<'_>) -> Option<Micros> {
    let may_run = matches!(node.why, None | Some(Why::Max)) && !node.set.idle;
    node.set
        .latency
        .filter(|_| node.groups > 0 && may_run && !node.memory.demoted)
}

/// Whether a container is protected: slices are then not by weight alone.
pub(crate) fn protects(nodes: &[Node<'_>]) -> bool {
    nodes.iter().any(|node| target(node).is_some())
}

/// Shortens the wanted slices of the neighbours where a container is protected.
pub(crate) fn protect(nodes: &[Node<'_>], groups: &mut [Group<'_>]) {
    let Some(least) = nodes.iter().filter_map(target).min() else {
        return;
    };
    let protected = |g: &Group<'_>| target(&nodes[g.node]).is_some();
    let neighbour = |g: &&Group<'_>| !protected(g) && nodes[g.node].why.is_none();
    let (mut n, mut sum, mut min) = (0, 0, u64::MAX);
    for g in groups
        .iter()
        .filter(neighbour)
        .filter(|g| g.memory.active())
    {
        n += 1;
        sum += g.wanted.0;
        min = min.min(g.wanted.0);
    }
    let lingers = |g: &Group<'_>| protected(g) && g.memory.idle_for < LATENCY_LINGER;
    if n > 1 && !groups.iter().any(lingers) {
        return;
    }
    let total = short(least, n, sum, min);
    for g in groups.iter_mut() {
        g.wanted = if protected(g) {
            LATENCY_SLICE
        } else if n == 0 {
            g.wanted.min(total)
        } else {
            Micros(part(g.wanted.0, total.0, sum).clamp(MIN_SLICE.0, total.0))
        };
    }
}

/// What `n` neighbours may take together before it is the protected one's turn, given the sum
/// and the least of their slices by weight. Their ratio is kept if that costs at most another
/// target; else the least get more than their part.
fn short(target: Micros, n: u64, sum: u64, least: u64) -> Micros {
    let n = n.max(1);
    let total = target
        .since(Micros(n * LATENCY_TURN.0))
        .0
        .max(n * MIN_SLICE.0);
    let kept = part(sum, MIN_SLICE.0, least.max(1)).min(2 * target.0);
    let total = total.max(kept);
    Micros(if sum > 0 { total.min(sum) } else { total })
}

const _: () = assert!(LATENCY_LINGER.0 > IDLE_AFTER.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_neighbours_follow_from_the_target() {
        assert_eq!(short(Micros(400), 1, 30_000, 30_000), Micros(200));
        assert_eq!(short(Micros(300), 1, 30_000, 30_000), Micros(100));
        assert_eq!(short(Micros(100), 1, 30_000, 30_000), Micros(100));
        assert_eq!(short(Micros(100), 3, 30_000, 10_000), Micros(300));
        assert_eq!(
            short(Micros(400), 2, 30_000, 10_000),
            Micros(300),
            "1:2 is kept, 100 and 200"
        );
        assert_eq!(
            short(Micros(400), 2, 30_000, 300),
            Micros(800),
            "1:99 is not"
        );
        assert_eq!(
            short(Micros(100_000), 1, 30_000, 30_000),
            Micros(30_000),
            "nothing is made longer"
        );
    }
}
