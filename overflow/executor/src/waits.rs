//! Threads that wait for the device, so that nobody else's commands do.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most threads; what is beyond waits for one. A client has as many waits as threads.
const MOST: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Inner {
    /// Guards jobs and counts. Never held while a job runs.
    state: Mutex<State>,
    more: Condvar,
}

/// The threads.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Inner>);

impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiters({})", self.lock().threads)
    }
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `job` on one of them, a new one if all are busy.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= MOST {
            drop(state);
            self.0.more.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let all = self.clone();
        let named = std::thread::Builder::new().name("waiter".into());
        if named.spawn(move || all.work()).is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            let job = if state.threads == 0 {
                state.jobs.pop_back()
            } else {
                None
            };
            drop(state);
            if let Some(job) = job {
                job();
            }
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let woken = self.0.more.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_job_that_waits_holds_up_no_other() {
        let waiters = Waiters::default();
        let (go, gone) = channel::<()>();
        let (done, all) = channel();
        let first = done.clone();
        waiters.run(move || {
            let _ = gone.recv();
            let _ = first.send(1);
        });
        for n in 2..5 {
            let done = done.clone();
            waiters.run(move || assert!(done.send(n).is_ok()));
        }
        let next = || all.recv_timeout(Duration::from_secs(20)).ok();
        let mut others = [next(), next(), next()];
        others.sort();
        assert_eq!(others, [Some(2), Some(3), Some(4)]);
        assert!(go.send(()).is_ok());
        assert_eq!(next(), Some(1));
    }
}
