//! Who has work. A group that shows any use has work at once; one that shows none has work for
//! [`IDLE_AFTER`] more, by the readings' own time. Where nothing can be read it may have work.

use crate::memory::GroupMemory;
use crate::tuning::IDLE_AFTER;
use ghost_model::{GroupSample, Micros, Name, Reading};

impl GroupMemory {
    /// A group that was not there before.
    pub(crate) fn new(container: &Name, now: Micros) -> GroupMemory {
        GroupMemory {
            container: container.clone(),
            used: Micros::ZERO,
            used_at: now,
            active_at: now,
            idle_for: Micros::ZERO,
            paused: false,
            asked: None,
        }
    }

    /// Takes in what was seen; returns what it used since the last reading.
    pub(crate) fn see(&mut self, seen: &GroupSample, now: Micros) -> Micros {
        if self.container != seen.container {
            self.container.clone_from(&seen.container);
        }
        let mut delta = Micros::ZERO;
        if let Reading::Fresh { value, at } | Reading::Stale { value, at } = seen.used
            && at >= self.used_at
        {
            // A counter that shrank belongs to another group: the backend was started anew.
            let before = if value < self.used {
                Micros::ZERO
            } else {
                self.used
            };
            delta = value.since(before);
            self.used = value;
            self.used_at = at.min(now);
        }
        if seen.paused || self.paused {
            // A paused group shows no use, whatever it has to do.
            self.active_at = now;
            self.paused = seen.paused;
            return delta;
        }
        let no_work = |reading: Option<Micros>| reading.filter(|at| *at <= now);
        let used_none = no_work(seen.used.fresh().and(seen.used.at()));
        let had_none = match seen.active {
            Reading::Fresh { value: false, at } => no_work(Some(at)),
            _ => None,
        };
        let has_work = seen.active.fresh() == Some(true);
        match had_none.or(used_none) {
            Some(at) if delta == Micros::ZERO && !has_work => {
                self.idle_for = self.idle_for.max(at.since(self.active_at));
            }
            _ => {
                self.active_at = now;
                self.idle_for = Micros::ZERO;
            }
        }
        delta
    }

    /// Whether it counts as one that has work.
    pub(crate) fn active(&self) -> bool {
        self.idle_for < IDLE_AFTER
    }
}
