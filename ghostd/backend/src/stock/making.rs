//! Processes that are making a context, by what the broker hears of it. A context is thousands of
//! calls of the driver, each of which takes its locks; whoever asks it something meanwhile makes
//! the process wait. So such a process is left alone until it has been quiet for a while, though
//! not for long: it may be at work by then, with no share that it is held to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// So long after the last sign a context is taken for made.
const QUIET: Duration = Duration::from_millis(50);
/// And so long after the first, whatever follows.
const LONGEST: Duration = Duration::from_millis(100);

/// The processes, with the first and the last sign of each that was not looked at since.
#[derive(Debug, Default)]
pub(super) struct Making(BTreeMap<u32, (Instant, Instant)>);

impl Making {
    /// A process made a channel group, or something of one.
    pub(super) fn sign(&mut self, pid: u32, now: Instant) {
        self.0.entry(pid).or_insert((now, now)).1 = now;
    }

    /// How long it is until one is to be looked at; zero if it is so now, `None` without any.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        let due = self.0.values().map(due).min()?;
        Some(due.saturating_duration_since(now))
    }

    /// Takes those that are to be looked at now.
    pub(super) fn take(&mut self, now: Instant) -> BTreeSet<u32> {
        let taken = self.0.extract_if(.., |_, signs| due(signs) <= now);
        taken.map(|(pid, _)| pid).collect()
    }

    /// Those that are to be left alone still.
    pub(super) fn pids(&self) -> BTreeSet<u32> {
        self.0.keys().copied().collect()
    }
}

fn due((first, last): &(Instant, Instant)) -> Instant {
    (*first + LONGEST).min(*last + QUIET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_due_when_it_is_quiet_and_at_the_latest_in_a_tenth_of_a_second() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut making = Making::default();
        assert_eq!(making.due_in(begin), None);
        making.sign(1, at(0));
        making.sign(2, at(10));
        making.sign(1, at(30));
        assert_eq!(making.due_in(at(30)), Some(Duration::from_millis(30)));
        assert!(making.take(at(59)).is_empty());
        assert_eq!(making.pids(), [1, 2].into());
        assert_eq!(making.take(at(60)), [2].into());
        // One that never is quiet.
        making.sign(1, at(70));
        making.sign(1, at(95));
        assert!(making.take(at(99)).is_empty());
        assert_eq!(making.due_in(at(200)), Some(Duration::ZERO));
        assert_eq!(making.take(at(100)), [1].into());
        assert!(making.pids().is_empty());
        // What it makes then is new.
        making.sign(1, at(101));
        assert!(making.take(at(150)).is_empty());
        assert_eq!(making.take(at(151)), [1].into());
    }
}
