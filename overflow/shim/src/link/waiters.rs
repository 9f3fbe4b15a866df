//! Threads that wait for an answer.

use ghost_wire::result::Code;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: Code,
    /// Frames on `down` that had been sent before.
    pub(super) delivered: u64,
    pub(super) body: Vec<u8>,
}

/// Where one thread waits.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Guards the answer until it is taken.
    answer: Mutex<Option<Answer>>,
    came: Condvar,
}

thread_local! {
    /// A thread waits for one answer at a time.
    static SLOT: Arc<Slot> = Arc::default();
}

/// The waiting threads, by the number of their command.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Guards who waits. Held for moments only.
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
}

impl Waiters {
    /// The calling thread's slot.
    pub(super) fn slot() -> Arc<Slot> {
        SLOT.try_with(Arc::clone).unwrap_or_default()
    }

    /// The slot waits for the answer to command `seq`.
    pub(super) fn register(&self, seq: u64, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.insert(seq, Arc::clone(slot));
    }

    /// Hands the answer to who waits for it.
    pub(super) fn answer(&self, seq: u64, answer: Answer) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.remove(&seq) {
            drop(slots);
            slot.put(answer);
        }
    }

    /// Answers all that wait with `code`.
    pub(super) fn answer_all(&self, code: Code) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in slots.drain() {
            slot.put(Answer {
                code,
                delivered: 0,
                body: Vec::new(),
            });
        }
    }
}

impl Slot {
    fn put(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.came.notify_one();
    }

    /// Waits for the answer.
    pub(super) fn take(&self) -> Answer {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match answer.take() {
                Some(answer) => return answer,
                None => {
                    answer = self
                        .came
                        .wait(answer)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
