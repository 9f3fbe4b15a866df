//! `gpu.max` on one GPU: a token bucket. Each period adds `max`, never to more than `max` in all;
//! what was used is taken off, and an overrun is a debt that the next periods pay.
//!
//! Readings of use may lag. Until one arrives the bucket is charged with an estimate, by the time
//! that the container could run and the rate at which it lately used it; the reading then puts
//! the estimate right. Where readings are exact, so is the bucket.

use crate::share::{MILLION, part};
use crate::tuning::QUANTUM;
use ghost_model::{Budget, Micros};
use serde::{Deserialize, Serialize};

/// A reading older than this says nothing of the rate of use: the whole GPU is charged. Without a
/// step for as long, nobody held the budget.
pub(crate) const RATE_LASTS: Micros = Micros(1_000_000);
/// The deepest debt: more can be made only while nobody held the budget, and paying it would
/// starve the container.
const DEEPEST: i64 = 1_000_000;
/// More stretches than this that no reading covered are not told apart: the eldest is final.
const MOST_RUNS: usize = 64;

/// A stretch in which the container could run and that no reading covers yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    from: Micros,
    to: Micros,
    /// What was taken off for it.
    charged: u64,
}

/// The budget of one container on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    max: u64,
    period: Micros,
    /// What may still be used, less the estimates; negative in debt.
    level: i64,
    /// The beginning of this period.
    start: Micros,
    throttled: bool,
    /// The moment up to which the level has been kept.
    at: Micros,
    /// The moment up to which use is known.
    read_at: Micros,
    /// Use that a reading showed and that the level does not know yet.
    measured: u64,
    runs: Vec<Run>,
    /// Use in each unit of time in which it could run, in millionths.
    rate: u64,
    worked: bool,
    ran_out: bool,
}

/// Periods that ended, for `gpu.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Those with work to do.
    pub periods: u64,
    /// Those in which the budget ran out.
    pub throttled: u64,
}

impl Bucket {
    /// A full bucket whose first period begins at `at`; `None` where `budget` limits nothing.
    pub fn new(budget: &Budget, at: Micros) -> Option<Bucket> {
        let max = budget.max.filter(|max| *max < budget.period)?.0;
        Some(Bucket {
            max,
            period: budget.period,
            level: signed(max),
            start: at,
            throttled: false,
            at,
            read_at: at,
            measured: 0,
            runs: Vec::new(),
            rate: MILLION,
            worked: false,
            ran_out: false,
        })
    }

    /// The invariant: no more than one `max` is ever saved and no more than a second owed, the
    /// bucket is throttled where it is empty, and estimates are for stretches after the last reading, in order.
    pub fn is_valid(&self) -> bool {
        let ordered = self
            .runs
            .iter()
            .try_fold(self.read_at, |end, run| {
                (end <= run.from && run.from < run.to).then_some(run.to)
            })
            .is_some_and(|end| end <= self.at.max(self.read_at));
        self.max > 0
            && self.max < self.period.0
            && (-DEEPEST..=signed(self.max)).contains(&self.level)
            && (self.throttled || self.level > 0)
            && self.start <= self.at
            && self.rate <= MILLION
            && ordered
    }

    /// Whether the container must be paused.
    pub fn throttled(&self) -> bool {
        self.throttled
    }

    /// What may still be used, microseconds; negative in debt.
    pub fn level(&self) -> i64 {
        self.level
    }

    /// The budget is another from now on. What was used in this period stays used; `None` where
    /// nothing is limited any more.
    pub fn changed(mut self, budget: &Budget) -> Option<Bucket> {
        let max = budget.max.filter(|max| *max < budget.period)?.0;
        let by = signed(max).saturating_sub(signed(self.max));
        (self.max, self.period) = (max, budget.period);
        self.credit(by);
        Some(self)
    }

    /// Moves to `now`. `running` says whether the container could run since the last step. Where
    /// steps were missed, of the periods between only the first is counted. Where there was none
    /// for a second, ghostd was down: nothing is guessed of that time.
    pub fn advance(&mut self, now: Micros, running: bool) -> Passed {
        let mut passed = Passed::default();
        let running = running && now.since(self.at) <= RATE_LASTS;
        if running && now.since(self.read_at) > RATE_LASTS {
            self.rate = MILLION;
        }
        let elapsed = now.since(self.start).0 / self.period.0.max(1);
        if elapsed > 0 {
            self.start = self.start + Micros(elapsed.saturating_mul(self.period.0));
            self.run_until(self.start, running);
            self.level = refill(self.level, self.max, elapsed);
            passed.periods = u64::from(self.worked || self.ran_out);
            passed.throttled = u64::from(self.ran_out);
            (self.worked, self.ran_out) = (false, false);
        }
        self.run_until(now, running);
        passed
    }

    fn run_until(&mut self, to: Micros, running: bool) {
        let from = self.at;
        self.at = to.max(from);
        if !running || from >= to {
            return;
        }
        let charged = part(to.since(from).0, self.rate, MILLION);
        self.credit(-signed(charged));
        match self.runs.last_mut() {
            Some(last) if last.to == from => {
                last.to = to;
                last.charged = last.charged.saturating_add(charged);
            }
            _ => self.runs.push(Run { from, to, charged }),
        }
        if self.runs.len() > MOST_RUNS {
            let eldest = self.runs.remove(0);
            self.read_at = self.read_at.max(eldest.to);
        }
    }

    /// A reading showed `used` more, and use is now known up to `at`.
    pub fn read(&mut self, used: Micros, at: Micros) {
        self.measured = self.measured.saturating_add(used.0);
        self.worked |= used > Micros::ZERO;
        let at = at.min(self.at);
        if at <= self.read_at {
            return;
        }
        // No reading is right that shows more use than there was time.
        let measured = self.measured.min(at.since(self.read_at).0);
        self.measured = 0;
        self.read_at = at;
        let (mut ran, mut estimated) = (0u64, 0u64);
        self.runs.retain_mut(|run| {
            let covered = run.to.min(at).since(run.from).0;
            let charge = part(run.charged, covered, run.to.since(run.from).0);
            ran = ran.saturating_add(covered);
            estimated = estimated.saturating_add(charge);
            run.charged = run.charged.saturating_sub(charge);
            run.from = run.from.max(at);
            run.from < run.to
        });
        self.credit(signed(estimated).saturating_sub(signed(measured)));
        if ran > 0 {
            let rate = part(measured, MILLION, ran).min(MILLION);
            self.rate = self.rate.midpoint(rate);
        }
    }

    /// A process ended, and what it used since the last reading will never be known: the
    /// estimate stands.
    pub fn settle(&mut self) {
        self.runs.clear();
        self.read_at = self.read_at.max(self.at);
        self.measured = 0;
    }

    /// Decides whether the container may run.
    pub fn judge(&mut self) {
        self.throttled = !may_run(self.level, self.max, self.throttled);
        self.ran_out |= self.throttled;
    }

    /// The moment at which [`Bucket::judge`] may say otherwise, if the container is `running`.
    pub fn wake(&self, running: bool) -> Option<Micros> {
        let end = self.start + self.period;
        if self.throttled {
            return Some(end);
        }
        if !running {
            return None;
        }
        let level = u64::try_from(self.level).unwrap_or(0);
        // Where use is known up to now it is looked after as closely as it can run out; where
        // readings lag, a closer look would show nothing new.
        let rate = if self.at.since(self.read_at) <= QUANTUM {
            MILLION
        } else {
            self.rate
        };
        let lasts = part(level, MILLION, rate.max(1)).max(QUANTUM.0 / 2);
        Some(end.min(self.at + Micros(lasts)))
    }

    fn credit(&mut self, by: i64) {
        let level = self.level.saturating_add(by);
        self.level = level.clamp(-DEEPEST, signed(self.max));
    }
}

/// What may be used after `periods` have begun.
pub fn refill(level: i64, max: u64, periods: u64) -> i64 {
    let full = signed(max);
    level
        .saturating_add(signed(periods.saturating_mul(max)))
        .min(full)
}

/// Whether what may be used is worth to run for; to begin again it must be more.
pub fn may_run(level: i64, max: u64, throttled: bool) -> bool {
    let worth = if throttled {
        QUANTUM.0.min(max / 2)
    } else {
        QUANTUM.0.min(max) / 2
    };
    level >= signed(worth).max(1)
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(max: u64, period: u64) -> Budget {
        Budget {
            max: Some(Micros(max)),
            period: Micros(period),
        }
    }

    fn ms(n: u64) -> Micros {
        Micros::from_millis(n)
    }

    fn full() -> Bucket {
        Bucket::new(&budget(30_000, 100_000), Micros::ZERO).unwrap()
    }

    #[test]
    fn a_whole_gpu_is_no_limit() {
        assert_eq!(Bucket::new(&Budget::UNLIMITED, Micros::ZERO), None);
        assert_eq!(Bucket::new(&budget(100_000, 100_000), Micros::ZERO), None);
    }

    #[test]
    fn an_overrun_is_paid_by_the_next_periods() {
        let mut b = full();
        assert_eq!(b.wake(true), Some(ms(30)));
        b.advance(ms(95), true);
        b.read(ms(95), ms(95));
        b.judge();
        assert_eq!((b.level(), b.throttled()), (-65_000, true));
        let mut passed = [Passed::default(); 3];
        for (i, passed) in passed.iter_mut().enumerate() {
            *passed = b.advance(ms(100 * (i as u64 + 1)), false);
            b.judge();
        }
        assert_eq!(passed.map(|p| (p.periods, p.throttled)), [(1, 1); 3]);
        assert_eq!((b.level(), b.throttled()), (25_000, false));
        assert_eq!(b.wake(true), Some(ms(325)));
    }

    #[test]
    fn nothing_is_saved_and_nothing_counted_while_idle() {
        let mut b = full();
        assert_eq!(b.advance(ms(1_050), true), Passed::default());
        b.read(Micros::ZERO, ms(1_050));
        assert_eq!(b.level(), 30_000);
        assert_eq!(b.wake(false), None);
        assert_eq!(b.wake(true), Some(ms(1_080)));
    }

    #[test]
    fn an_estimate_is_put_right_by_the_reading_and_stands_where_none_can_come() {
        let mut b = full();
        b.advance(ms(20), true);
        assert_eq!(b.level(), 10_000, "the whole GPU until it is known better");
        b.read(ms(5), ms(10));
        assert_eq!(b.level(), 15_000, "5 used of 10, and 10 more are not known");
        b.settle();
        assert_eq!(b.level(), 15_000);
        b.read(ms(900), ms(20));
        b.advance(ms(30), false);
        b.read(ms(900), ms(30));
        assert_eq!(b.level(), 5_000, "there were no 900 ms to use");
        b.judge();
        assert!(b.is_valid() && !b.throttled());
    }

    #[test]
    fn what_nobody_held_is_a_short_debt_if_it_was_read_and_none_else() {
        let hour = ms(3_600_000);
        let mut b = full();
        b.advance(hour, true);
        b.settle();
        b.judge();
        assert_eq!((b.level(), b.throttled()), (30_000, false));
        b.read(ms(1), hour);
        b.advance(hour + hour, true);
        b.read(hour, hour + hour);
        assert_eq!(b.level(), -DEEPEST);
    }

    #[test]
    fn a_change_keeps_what_was_used() {
        let mut b = full();
        b.advance(ms(20), true);
        b.read(ms(20), ms(20));
        let b = b.changed(&budget(50_000, 100_000)).unwrap();
        assert_eq!(b.level(), 30_000);
        let b = b.changed(&budget(10_000, 50_000)).unwrap();
        assert_eq!(b.level(), -10_000);
        assert_eq!(b.changed(&Budget::UNLIMITED), None);
    }

    proptest! {
        #[test]
        fn always_valid(
            max in 1u64..100_000,
            period in 1u64..100_000,
            steps in prop::collection::vec(
                (0u64..300_000, any::<bool>(), 0u64..200_000, 0u64..400_000, any::<bool>()), 1..40),
        ) {
            let Some(mut b) = Bucket::new(&budget(max, period), Micros::ZERO) else {
                return Ok(());
            };
            let mut now = Micros::ZERO;
            for (span, running, used, lag, ended) in steps {
                now = now + Micros(span);
                b.advance(now, running);
                if ended {
                    b.settle();
                }
                b.read(Micros(used), Micros(now.0.saturating_sub(lag)));
                b.judge();
                prop_assert!(b.is_valid(), "{b:?}");
                prop_assert!(b.wake(true).is_some_and(|wake| wake > now));
            }
        }
    }
}
