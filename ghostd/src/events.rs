//! What happened, in a ring: numbered, so that a reader who comes back sees what it missed, and
//! that it missed something.

use ghost_model::Name;
use ghost_model::report::Event;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;

/// Events that are kept for readers who come later.
const KEPT: usize = 4096;

/// The ring; clones are the same ring.
#[derive(Clone, Debug)]
pub struct Events {
    /// Guards the ring only; held for a push or a copy.
    ring: Arc<Mutex<Ring>>,
    last: watch::Sender<u64>,
}

#[derive(Debug)]
struct Ring {
    next: u64,
    kept: VecDeque<Event>,
}

impl Events {
    /// An empty ring. Ids go on after a restart, for they begin at the time of day in
    /// milliseconds: a reader that resumes with an id of the last run sees a gap, never a
    /// repetition.
    pub fn new() -> Self {
        let now = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
        let next = u64::try_from(now).unwrap_or(0).max(1);
        Events {
            ring: Arc::new(Mutex::new(Ring {
                next,
                kept: VecDeque::new(),
            })),
            last: watch::Sender::new(next - 1),
        }
    }

    /// Adds one. `what` is of the list in [`Event::what`].
    pub fn push(&self, what: &str, container: Option<&Name>, detail: impl Into<String>) {
        let mut ring = self.ring();
        let id = ring.next;
        ring.next += 1;
        if ring.kept.len() == KEPT {
            ring.kept.pop_front();
        }
        ring.kept.push_back(Event {
            id,
            at: now(),
            what: what.to_owned(),
            container: container.cloned(),
            detail: detail.into(),
        });
        self.last.send_replace(id);
    }

    /// At most `limit` events after `id`, oldest first.
    pub fn after(&self, id: u64, limit: usize) -> Vec<Event> {
        let ring = self.ring();
        let from = ring.kept.partition_point(|e| e.id <= id);
        ring.kept.iter().skip(from).take(limit).cloned().collect()
    }

    /// Watches the id of the latest.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Events {
    fn default() -> Self {
        Events::new()
    }
}

/// The time of day, RFC 3339.
pub fn now() -> String {
    OffsetDateTime::now_utc()
        .format(&Rfc3339)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_resume_and_see_gaps() {
        let events = Events::new();
        for i in 0..KEPT + 10 {
            events.push("changed", None, i.to_string());
        }
        let all = events.after(0, usize::MAX);
        assert_eq!(all.len(), KEPT);
        assert_eq!(all[0].detail, "10");
        assert!(all.windows(2).all(|w| w[1].id == w[0].id + 1));
        let last = all[KEPT - 1].id;
        assert!(events.after(last, 10).is_empty());
        events.push("changed", None, "more");
        assert_eq!(events.after(last, 10)[0].detail, "more");
        assert_eq!(*events.subscribe().borrow(), last + 1);
    }
}
