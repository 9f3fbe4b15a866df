//! Functions of the program's in a stream's order: the driver calls one of these here, which waits
//! until the program's own has returned over there.

use ghost_wire::result::{Code, SUCCESS};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The process has one session; the driver's threads find it here.
static CALLS: OnceLock<Calls> = OnceLock::new();

#[derive(Debug, Default)]
struct State {
    /// Not sent yet.
    due: VecDeque<(u64, Code)>,
    /// How many wait for each token.
    waiting: HashMap<u64, u32>,
    /// How many of those may go on.
    done: HashMap<u64, u32>,
    /// Whether there is something to look after: copies that are underway.
    busy: bool,
}

/// Calls that are underway.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Guards the state. Held for short.
    state: Mutex<State>,
    /// Told when a function has returned.
    returned: Condvar,
    /// Told when there is something to do for the thread that looks after copies and calls.
    work: Condvar,
}

/// The session's.
pub(crate) fn calls() -> &'static Calls {
    CALLS.get_or_init(Calls::default)
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a thread of the driver's: has the function called and waits for its return.
    fn call(&self, token: u64, code: Code) {
        let mut state = self.lock();
        state.due.push_back((token, code));
        *state.waiting.entry(token).or_default() += 1;
        self.work.notify_all();
        loop {
            if let Some(done) = state.done.get_mut(&token).filter(|done| **done > 0) {
                *done -= 1;
                state.done.retain(|_, done| *done > 0);
                if let Some(waiting) = state.waiting.get_mut(&token) {
                    *waiting -= 1;
                }
                state.waiting.retain(|_, waiting| *waiting > 0);
                return;
            }
            let woken = self.returned.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The function of this token has returned.
    pub(crate) fn done(&self, token: u64) {
        let mut state = self.lock();
        let waiting = state.waiting.get(&token).copied().unwrap_or(0);
        let done = state.done.entry(token).or_default();
        // A token that nobody waits for says nothing.
        *done = (*done + 1).min(waiting);
        drop(state);
        self.returned.notify_all();
    }

    /// Whether a function of the program's is running.
    pub(crate) fn any(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// There is a copy to look after.
    pub(crate) fn busy(&self) {
        let mut state = self.lock();
        if !state.busy {
            state.busy = true;
            self.work.notify_all();
        }
    }

    /// The calls that are due. Waits for one, or for copies to look after, no longer than `most`;
    /// not at all unless `idle`.
    pub(crate) fn wait(&self, idle: impl FnOnce() -> bool, most: Duration) -> Vec<(u64, Code)> {
        // In this order: a copy that `idle` does not see any more is told by `busy`.
        self.lock().busy = false;
        let idle = idle();
        let mut state = self.lock();
        if idle && state.due.is_empty() && !state.busy {
            let (woken, _) = self
                .work
                .wait_timeout(state, most)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
        }
        state.due.drain(..).collect()
    }
}

/// For `cuLaunchHostFunc` and graphs; the data is the token.
pub(crate) unsafe extern "C" fn host(data: *mut c_void) {
    calls().call(data as u64, SUCCESS);
}

/// For `cuStreamAddCallback`.
pub(crate) unsafe extern "C" fn callback(_: u64, status: Code, data: *mut c_void) {
    calls().call(data as u64, status);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_call_returns_when_its_token_is_done() {
        let calls = Arc::new(Calls::default());
        calls.done(7);
        let caller = {
            let calls = Arc::clone(&calls);
            std::thread::spawn(move || calls.call(7, 0))
        };
        let mut due = vec![];
        while due.is_empty() {
            due = calls.wait(|| true, Duration::from_secs(10));
        }
        assert_eq!(due, [(7, 0)]);
        assert!(calls.any() && !caller.is_finished());
        calls.done(8);
        calls.done(7);
        assert!(caller.join().is_ok() && !calls.any());
    }
}
