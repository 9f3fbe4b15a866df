//! Streams: queues of work, done by one thread in an order that CUDA allows, and callbacks on
//! another.

use crate::context::Context;
use crate::result::{CuResult, LAUNCH_FAILED};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A point in a stream: when what was before it was done.
#[derive(Debug, Default)]
pub(crate) struct Marker(OnceLock<Instant>);

impl Marker {
    /// When it was reached, if it was.
    pub(crate) fn reached(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    /// It is reached now.
    fn reach(&self) {
        // It is in one stream, once.
        let _ = self.0.set(Instant::now());
    }
}

type Work = Box<dyn FnOnce() -> Result<(), CuResult> + Send>;
type Call = Box<dyn FnOnce(CuResult) + Send>;

/// What a stream does.
pub(crate) enum Op {
    /// Not done once its context has failed. Takes at least this long.
    Work(Work, Duration),
    Mark(Arc<Marker>),
    Wait(Arc<Marker>),
    /// Until it says so. It is asked whenever a stream has got on, and now and then.
    Until(Box<dyn Fn() -> bool + Send>),
    /// A function of the program's, told the context's state.
    Call(Call),
}

/// How a stream is ordered with the legacy default stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is that stream.
    Legacy,
    Blocking,
    NonBlocking,
}

struct Queue {
    context: Arc<Context>,
    order: Order,
    /// By place in the order of submission. What runs stays in front, without its payload.
    ops: VecDeque<(u64, Option<Op>)>,
    not_before: Option<Instant>,
    closing: bool,
}

impl Queue {
    fn front(&self) -> u64 {
        self.ops.front().map_or(u64::MAX, |(seq, _)| *seq)
    }
}

#[derive(Default)]
struct State {
    next: u64,
    queues: BTreeMap<u64, Queue>,
}

/// The thread that works, and what it shares with the callers.
pub(crate) struct Engine {
    /// All queues.
    state: Mutex<State>,
    changed: Condvar,
    ids: AtomicU64,
    /// Held while work runs: what is unmapped is unmapped while none does.
    running: Mutex<()>,
}

static ENGINE: LazyLock<&'static Engine> = LazyLock::new(|| {
    let engine: &'static Engine = Box::leak(Box::new(Engine {
        state: Mutex::default(),
        changed: Condvar::new(),
        ids: AtomicU64::new(1),
        running: Mutex::default(),
    }));
    let (send, calls) = mpsc::channel::<(u64, CuResult, Call)>();
    // The threads get no signal of the program's: they begin with all blocked.
    // SAFETY: a set of no signals is all zeroes.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are this function's own.
    unsafe {
        let mut all = before;
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    std::thread::spawn(move || {
        for (stream, status, call) in calls {
            IN_CALLBACK.set(true);
            call(status);
            engine.finish(stream, Duration::ZERO);
        }
    });
    std::thread::spawn(move || engine.work(&send));
    // SAFETY: the set that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    engine
});

thread_local! {
    /// Whether this thread runs the program's callbacks, which may not call the driver.
    static IN_CALLBACK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether this thread runs the program's callbacks.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

pub(crate) fn engine() -> &'static Engine {
    *ENGINE
}

impl Engine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let woken = self.changed.wait_timeout(state, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A new stream.
    pub(crate) fn open(&self, context: Arc<Context>, order: Order) -> u64 {
        let id = self.ids.fetch_add(1, Relaxed);
        let queue = Queue {
            context,
            order,
            ops: VecDeque::new(),
            not_before: None,
            closing: false,
        };
        self.lock().queues.insert(id, queue);
        id
    }

    /// Ends a stream once its work is done.
    pub(crate) fn close(&self, stream: u64) {
        let mut state = self.lock();
        if let Some(queue) = state.queues.get_mut(&stream) {
            queue.closing = true;
            if queue.ops.is_empty() {
                state.queues.remove(&stream);
            }
        }
    }

    /// Adds to the end of a stream.
    pub(crate) fn submit(&self, stream: u64, op: Op) {
        let mut state = self.lock();
        let seq = state.next;
        state.next += 1;
        match (state.queues.get_mut(&stream), op) {
            (Some(queue), op) => queue.ops.push_back((seq, Some(op))),
            // Another thread destroyed the stream meanwhile: nothing is before the marker.
            (None, Op::Mark(marker)) => marker.reach(),
            (None, _) => {}
        }
        self.changed.notify_all();
    }

    /// Waits for all that is in a stream, and that it waits for.
    pub(crate) fn drain(&self, stream: u64) {
        let marker = Arc::new(Marker::default());
        self.submit(stream, Op::Mark(marker.clone()));
        let mut state = self.lock();
        while marker.reached().is_none() && state.queues.contains_key(&stream) {
            state = self.wait(state, Duration::from_secs(1));
        }
    }

    /// Waits for a marker that is in a stream.
    pub(crate) fn reach(&self, marker: &Marker) {
        let mut state = self.lock();
        while marker.reached().is_none() {
            state = self.wait(state, Duration::from_secs(1));
        }
    }

    /// Waits for all that was submitted so far in streams for which `which` holds.
    fn settle(&self, which: impl Fn(&Queue) -> bool) {
        let mut state = self.lock();
        let until = state.next;
        let busy = |q: &Queue| which(q) && q.front() < until;
        while state.queues.values().any(busy) {
            state = self.wait(state, Duration::from_secs(1));
        }
    }

    /// Waits for all of a context.
    pub(crate) fn settle_context(&self, context: usize) {
        self.settle(|q| q.context.handle == context);
    }

    /// Waits for everything, of all devices; then does `f` while no work runs.
    pub(crate) fn still<T>(&self, f: impl FnOnce() -> T) -> T {
        self.settle(|_| true);
        let _running = self.running.lock();
        f()
    }

    /// Whether a stream has nothing to do; the legacy stream waits for the others of its context.
    pub(crate) fn idle(&self, stream: u64) -> bool {
        let state = self.lock();
        let Some(queue) = state.queues.get(&stream) else {
            return true;
        };
        let mut others = state.queues.values();
        queue.ops.is_empty()
            && (queue.order != Order::Legacy
                || others.all(|q| {
                    q.context.handle != queue.context.handle
                        || q.order == Order::NonBlocking
                        || q.ops.is_empty()
                }))
    }

    fn finish(&self, stream: u64, wait: Duration) {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(&stream) else {
            return;
        };
        if wait.is_zero() {
            queue.ops.pop_front();
            if queue.ops.is_empty() && queue.closing {
                state.queues.remove(&stream);
            }
        } else {
            queue.not_before = Some(Instant::now() + wait);
        }
        self.changed.notify_all();
    }

    fn work(&self, calls: &mpsc::Sender<(u64, CuResult, Call)>) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let over = |q: &&mut Queue| q.not_before.is_some_and(|at| at <= now);
            let mut ended = false;
            for queue in state.queues.values_mut().filter(over) {
                queue.not_before = None;
                queue.ops.pop_front();
                ended = true;
            }
            if ended {
                state.queues.retain(|_, q| !(q.closing && q.ops.is_empty()));
                self.changed.notify_all();
            }
            let Some(stream) = state.runnable() else {
                let asks = |q: &Queue| matches!(q.ops.front(), Some((_, Some(Op::Until(_)))));
                let most = match state.queues.values().any(asks) {
                    true => Duration::from_millis(1),
                    false => Duration::from_secs(1),
                };
                let next = state.queues.values().filter_map(|q| q.not_before).min();
                let limit = next.map_or(most, |at| most.min(at - now));
                state = self.wait(state, limit);
                continue;
            };
            let Some(queue) = state.queues.get_mut(&stream) else {
                continue;
            };
            let context = queue.context.clone();
            let op = queue.ops.front_mut().and_then(|(_, op)| op.take());
            drop(state);
            let mut wait = Duration::ZERO;
            match op {
                Some(Op::Work(work, at_least)) if context.error().is_ok() => {
                    let start = Instant::now();
                    let running = self.running.lock();
                    // The thread serves all streams: it outlives a fault of ours.
                    match catch_unwind(AssertUnwindSafe(work)) {
                        Ok(Ok(())) => {}
                        Ok(Err(code)) => context.fail(code),
                        Err(_) => context.fail(LAUNCH_FAILED),
                    }
                    drop(running);
                    wait = at_least.saturating_sub(start.elapsed());
                }
                Some(Op::Mark(marker)) => marker.reach(),
                Some(Op::Call(call)) => {
                    let status = context.error().err().unwrap_or(0);
                    // The other thread finishes the operation. It lives as long as this one.
                    let _ = calls.send((stream, status, call));
                    state = self.lock();
                    continue;
                }
                Some(Op::Work(..) | Op::Wait(_) | Op::Until(_)) | None => {}
            }
            self.finish(stream, wait);
            state = self.lock();
        }
    }
}

impl State {
    /// The stream whose front was submitted first among those that may be done now.
    fn runnable(&self) -> Option<u64> {
        let may = |queue: &&Queue| {
            let Some((seq, Some(op))) = queue.ops.front() else {
                return false;
            };
            if let Op::Wait(marker) = op
                && marker.reached().is_none()
            {
                return false;
            }
            if let Op::Until(is) = op
                && queue.context.error().is_ok()
                && !is()
            {
                return false;
            }
            let ordered = |other: &Queue| match (queue.order, other.order) {
                (Order::Legacy, Order::Blocking) | (Order::Blocking, Order::Legacy) => {
                    other.context.handle != queue.context.handle || other.front() > *seq
                }
                _ => true,
            };
            self.queues.values().all(ordered)
        };
        let found = self.queues.iter().filter(|(_, q)| may(q));
        found.min_by_key(|(_, q)| q.front()).map(|(id, _)| *id)
    }
}
