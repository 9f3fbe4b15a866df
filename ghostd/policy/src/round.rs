//! The length of a round. Long ones waste less on switches, short ones give an idle container's
//! share back sooner.
//!
//! A round is kept as slice per weight, so that no slice changes where a container at the top
//! goes idle or wakes: the hardware skips who has no work, and the ratio of the others is the
//! same. Only where the rounds that result are much too short or long is another chosen.

use crate::memory::Round;
use crate::share::{LENGTH_SHIFT, ONE, part};
use crate::tuning::{GOOD_SLICE, ROUND, ROUND_FEW, ROUND_MAX, SWITCH, SWITCH_LOSS_PERMILLE};
use ghost_model::Micros;

/// The best length for `groups` groups with work, the least of which has the share `least`.
pub fn best(groups: u64, least: u64) -> Micros {
    let switches = part(groups.saturating_mul(SWITCH.0), 1000, SWITCH_LOSS_PERMILLE);
    let good = part(GOOD_SLICE.0, ONE, least.max(1)).min(ROUND_FEW.0);
    Micros(switches.max(good).clamp(ROUND.0, ROUND_MAX.0))
}

/// The round to use where `weight` has work at the top: the `last` one if it will do.
pub(crate) fn choose(last: Option<Round>, groups: u64, least: u64, weight: u64) -> Option<Round> {
    let best = best(groups, least);
    let will_do = |round: &Round| {
        let length = part(round.length.0, weight, round.weight);
        let longest = ROUND_FEW.0.max(best.0 * 6 / 5);
        groups <= 1 || (best.0 * 2 / 3..=longest).contains(&length)
    };
    match last.filter(will_do) {
        None if weight > 0 => Some(Round {
            length: best,
            weight,
        }),
        kept => kept,
    }
}

impl Round {
    /// The part of a container at the top, with [`LENGTH_SHIFT`] binary places. One that has no
    /// work has it when it wakes, but no more than a round of few groups at once.
    pub(crate) fn top(&self, weight: u64, active: bool) -> u64 {
        let length = part(self.length.0 << LENGTH_SHIFT, weight, self.weight);
        if active {
            length
        } else {
            length.min(ROUND_FEW.0 << LENGTH_SHIFT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_groups_lose_little_and_wait_little() {
        assert_eq!(best(2, ONE / 2), Micros(30_000));
        assert_eq!(best(4, ONE / 4), Micros(35_000));
        assert_eq!(
            best(2, ONE * 3 / 100).0 / 1000,
            33,
            "the 3 % of 97/3 get 1 ms"
        );
        assert_eq!(best(2, 1), ROUND_FEW);
        assert_eq!(best(100, ONE / 100), ROUND_MAX);
    }

    #[test]
    fn a_round_is_kept_while_it_will_do() {
        let r = choose(None, 2, ONE / 2, 200);
        assert_eq!(
            r,
            Some(Round {
                length: Micros(30_000),
                weight: 200
            })
        );
        assert_eq!(choose(r, 1, ONE, 100), r, "alone, slices are nothing");
        assert_eq!(choose(r, 3, ONE / 3, 300), r, "45 ms will do");
        let longer = choose(r, 4, ONE / 100, 900).unwrap();
        assert_eq!(longer.weight, 900, "135 ms will not");
        assert_eq!(choose(None, 0, ONE, 0), None);
    }
}
