//! Listeners and the threads that serve them.
//!
//! One thread receives for a session, and answers what it received before it receives the next. A
//! thread that is kept longer than [`SLOW`], by the driver or by the tenant's own memory, is
//! replaced as the receiver, and ends when it is done. A call that is kept longer than
//! [`DEADLINE`] is answered `EIO`; what it gets from the driver afterwards is given back.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ghost_model::Name;
use ghost_notify::{Delivered, Listener, Notification, NotifyError, ProcError, Received, Thread};
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use super::books::SessionId;
use super::wire::SessionInfo;
use super::{Broker, calls, chain, count, recover};

/// A receiver that is kept so long is replaced.
const SLOW: Duration = Duration::from_millis(50);

/// A call that is kept so long is answered `EIO`: the longest that a driver call is known to take
/// is the reset of a GPU, some seconds.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Listeners at a time.
const MAX_SESSIONS: usize = 1024;

/// Threads of one session: one receives, the others are kept by something.
const MAX_WORKERS: usize = 16;

/// Tenants' threads that a session holds by descriptors, to know them again at their next call.
const MAX_THREADS: usize = 64;

/// A worker's stack: parameters lie on the heap.
const STACK: usize = 256 << 10;

/// Why a listener is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdoptError {
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error("{MAX_SESSIONS} listeners are served already; end some of the programs")]
    Full,
    #[error("session {session}: cannot have {what}")]
    System {
        session: SessionId,
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// The listeners that are served.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: Mutex<BTreeMap<SessionId, Arc<Session>>>,
}

/// A listener that is served.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Where its processes are charged that are members of no container.
    pub(super) container: Name,
    pub(super) listener: Listener,
    stop: EventFd,
    /// Guards the tenants' threads that are known. Never waited for with a driver call.
    threads: Mutex<HashMap<i32, Arc<Thread>>>,
    workers: Mutex<Vec<Arc<Slot>>>,
    /// Guards which threads have a call that is being done. A call that begins again while the
    /// first is in the driver yet waits for that.
    busy: Mutex<Busy>,
    idle: Condvar,
}

/// The threads that have a call that is being done, and how many calls wait for one of them.
#[derive(Debug, Default)]
struct Busy {
    tids: Vec<i32>,
    waiting: usize,
}

/// The right to do a thread's call.
#[derive(Debug)]
pub(super) struct Alone {
    session: Arc<Session>,
    tid: i32,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut busy = self.session.busy();
        busy.tids.retain(|tid| *tid != self.tid);
        let waited_for = busy.waiting > 0;
        drop(busy);
        // To wake nobody costs a system call.
        if waited_for {
            self.session.idle.notify_all();
        }
    }
}

/// What a worker is doing.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The id of the call that is to be answered; 0: none. Whoever puts 0 here answers.
    call: AtomicU64,
    /// Since when, ns after the epoch of [`clock`].
    since: AtomicU64,
    /// Another worker receives in its place.
    replaced: AtomicBool,
}

impl Slot {
    fn begin(&self, id: u64, now: u64) {
        self.since.store(now, Ordering::Relaxed);
        self.call.store(id, Ordering::Release);
    }

    /// Whether the call is still this worker's to answer, which it does now.
    fn finish(&self, id: u64) -> bool {
        let taken = self
            .call
            .compare_exchange(id, 0, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok()
    }

    /// The call that has been here for longer than `most`.
    fn kept(&self, most: Duration) -> Option<u64> {
        // In this order: a call that begins in between is young.
        let id = self.call.load(Ordering::Acquire);
        let since = self.since.load(Ordering::Relaxed);
        let kept = clock().saturating_sub(since) > nanos(most);
        (id != 0 && kept).then_some(id)
    }
}

/// Nanoseconds since the first call.
fn clock() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    nanos(START.get_or_init(Instant::now).elapsed())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Session>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    pub(super) fn list(&self) -> Vec<Arc<Session>> {
        self.all().values().cloned().collect()
    }

    pub(super) fn infos(&self) -> Vec<SessionInfo> {
        let info = |session: &Arc<Session>| SessionInfo {
            session: session.id.clone(),
            container: session.container.clone(),
            sync: session.listener.is_sync(),
        };
        self.all().values().map(info).collect()
    }

    /// Duplicates of some listeners.
    pub(super) fn listeners(
        &self,
        after: Option<&SessionId>,
        most: usize,
    ) -> io::Result<Vec<((SessionId, Name), OwnedFd)>> {
        let all = self.all();
        let later = all.values().filter(|s| after.is_none_or(|id| s.id > *id));
        let duplicate = |session: &Arc<Session>| {
            let fd = session.listener.as_fd().try_clone_to_owned()?;
            Ok(((session.id.clone(), session.container.clone()), fd))
        };
        later.take(most).map(duplicate).collect()
    }
}

impl Session {
    /// The thread that had a number when its last call was done. It may be gone.
    pub(super) fn known(&self, tid: i32) -> Option<Arc<Thread>> {
        self.threads().get(&tid).cloned()
    }

    /// The thread that makes a call, while the call waits: look whether it does afterwards.
    pub(super) fn thread(&self, tid: i32) -> Result<Arc<Thread>, ProcError> {
        let thread = Arc::new(Thread::open(tid)?);
        let mut threads = self.threads();
        if threads.len() >= MAX_THREADS {
            threads.clear();
        }
        threads.insert(tid, thread.clone());
        Ok(thread)
    }

    /// A thread is to be opened anew at its next call.
    pub(super) fn forget_thread(&self, tid: i32) {
        self.threads().remove(&tid);
    }

    /// Waits until no other call of the thread is being done.
    pub(super) fn alone(self: &Arc<Self>, tid: i32) -> Alone {
        let mut busy = self.busy();
        while busy.tids.contains(&tid) {
            busy.waiting += 1;
            busy = self.idle.wait(busy).unwrap_or_else(PoisonError::into_inner);
            busy.waiting -= 1;
        }
        busy.tids.push(tid);
        drop(busy);
        let session = self.clone();
        Alone { session, tid }
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<i32, Arc<Thread>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Broker {
    /// Serves a listener. A session that is served already stays as it is.
    pub(super) fn adopt(
        self: &Arc<Self>,
        id: SessionId,
        container: Name,
        listener: OwnedFd,
    ) -> Result<(), AdoptError> {
        if self.sessions.all().contains_key(&id) {
            return Ok(());
        }
        let session = Arc::new(Session {
            listener: Listener::new(listener)?,
            stop: EventFd::new().map_err(|errno| AdoptError::System {
                session: id.clone(),
                what: "an eventfd",
                source: errno.into(),
            })?,
            container,
            threads: Mutex::default(),
            workers: Mutex::default(),
            busy: Mutex::default(),
            idle: Condvar::new(),
            id,
        });
        {
            let mut all = self.sessions.all();
            if all.len() >= MAX_SESSIONS {
                return Err(AdoptError::Full);
            }
            if all.contains_key(&session.id) {
                return Ok(());
            }
            all.insert(session.id.clone(), session.clone());
        }
        if let Err(source) = self.work(&session) {
            self.sessions.all().remove(&session.id);
            return Err(AdoptError::System {
                session: session.id.clone(),
                what: "a thread",
                source,
            });
        }
        recover::keep(self, &session);
        self.watch();
        self.stir();
        Ok(())
    }

    /// Serves a session no longer.
    pub(super) fn forget(&self, id: &SessionId) {
        let session = self.sessions.all().remove(id);
        if let Some(session) = session {
            let _ = session.stop.write(1);
            self.ended(&session);
        }
    }

    fn ended(&self, session: &Arc<Session>) {
        {
            let mut all = self.sessions.all();
            let same = all
                .get(&session.id)
                .is_some_and(|s| Arc::ptr_eq(s, session));
            if same {
                all.remove(&session.id);
            }
        }
        recover::unkeep(session);
        let mut state = self.state();
        let calls = state.keeper.books().calls();
        let begun: Vec<i32> = calls
            .filter(|(id, ..)| **id == session.id)
            .map(|(_, tid, _)| tid)
            .collect();
        let ended = begun
            .into_iter()
            .try_for_each(|tid| state.keeper.end(&session.id, tid));
        drop(state);
        self.written(ended);
        self.watch();
        self.stir();
    }

    /// Starts a worker that receives.
    fn work(self: &Arc<Self>, session: &Arc<Session>) -> io::Result<()> {
        let slot = Arc::new(Slot::default());
        session.workers().push(slot.clone());
        let (broker, of) = (self.clone(), session.clone());
        let spawned = std::thread::Builder::new()
            .name("session".into())
            .stack_size(STACK)
            .spawn({
                let slot = slot.clone();
                move || broker.serve(&of, &slot)
            });
        if let Err(error) = spawned {
            session.workers().retain(|other| !Arc::ptr_eq(other, &slot));
            return Err(error);
        }
        Ok(())
    }

    fn serve(self: &Arc<Self>, session: &Arc<Session>, slot: &Arc<Slot>) {
        loop {
            match session.listener.receive(session.stop.as_fd()) {
                Ok(Received::Call(call)) => self.call(session, slot, &call),
                Ok(Received::Stopped) => break,
                Ok(Received::Ended) => {
                    self.ended(session);
                    break;
                }
                Err(error) => {
                    self.note(
                        "receive",
                        format!("session {}: {}", session.id, chain(&error)),
                    );
                    self.ended(session);
                    break;
                }
            }
            if slot.replaced.load(Ordering::Relaxed) {
                break;
            }
        }
        session.workers().retain(|other| !Arc::ptr_eq(other, slot));
    }

    fn call(&self, session: &Arc<Session>, slot: &Slot, call: &Notification) {
        let begin = clock();
        slot.begin(call.id, begin);
        count(&self.counts.notifications, 1);
        self.step(super::Step::Received);
        let outcome = calls::decide(self, session, call);
        if slot.finish(call.id) {
            let delivered = match outcome.answer {
                calls::Answer::Gone => Ok(Delivered::No),
                calls::Answer::Allow => session.listener.allow(call.id),
                calls::Answer::Return(result) => session.listener.answer(call.id, result),
            };
            self.step(super::Step::Answered);
            match delivered {
                Ok(Delivered::Yes) => {}
                Ok(Delivered::No) => {
                    count(&self.counts.undelivered, 1);
                    calls::give_back(self, &outcome);
                }
                Err(error) => {
                    let text = format!("session {}: an answer: {}", session.id, chain(&error));
                    self.note("answer", text);
                }
            }
        } else {
            calls::give_back(self, &outcome);
        }
        count(&self.counts.spent_ns, clock().saturating_sub(begin));
    }

    /// Replaces receivers that are kept, and answers for those that are kept too long.
    pub(super) fn look_after(self: &Arc<Self>) {
        for session in self.sessions.list() {
            let slots = session.workers().clone();
            for slot in &slots {
                if let Some(id) = slot.kept(DEADLINE)
                    && slot.finish(id)
                {
                    let answered = session.listener.answer(id, Err(Errno::EIO as i32));
                    // A call that a signal has ended waits no more, however long its worker does.
                    if !matches!(answered, Ok(Delivered::Yes)) {
                        continue;
                    }
                    count(&self.counts.late, 1);
                    self.note(
                        "late",
                        format!(
                            "session {}: a call took longer than {} s and was answered EIO: is \
                             the GPU, or the program's memory, stuck?",
                            session.id,
                            DEADLINE.as_secs()
                        ),
                    );
                }
            }
            let receives = |slot: &&Arc<Slot>| !slot.replaced.load(Ordering::Relaxed);
            let receiver = slots.iter().find(receives);
            let Some(slow) = receiver.filter(|slot| slot.kept(SLOW).is_some()) else {
                continue;
            };
            if slots.len() < MAX_WORKERS && self.work(&session).is_ok() {
                slow.replaced.store(true, Ordering::Relaxed);
            }
        }
    }
}
