//! What the module says by itself: a thread reads it, so that the control loop is woken at once.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ghost_uapi::{Device, Error, Event, Kind};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The longest wait, so that the end of this process is noticed.
const WAIT_MS: u16 = 1000;
/// Between two looks: in a storm of events there is always one.
const PACE: Duration = Duration::from_millis(20);
/// More than this that nobody took are not kept: lists say what is so.
const MOST: usize = 4096;

#[derive(Default)]
struct Shared {
    /// Guards what was read and not taken yet.
    events: Mutex<Vec<Event>>,
    /// Called when there is something for the control loop. Guards itself.
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that reads.
pub(super) struct Watch(Arc<Shared>);

impl Watch {
    /// Reads from now on, on a file of its own.
    ///
    /// # Errors
    /// [`Error::Open`]
    pub(super) fn start(path: &Path) -> Result<Self, Error> {
        let device = Device::open(path)?;
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let started = thread::Builder::new()
            .name("events".into())
            .spawn(move || of_thread.follow(&device));
        started.map_err(|source| Error::Refused {
            asked: "start the thread for events".into(),
            source,
        })?;
        Ok(Self(shared))
    }

    /// Has `wake` called when there is news.
    pub(super) fn wake_by(&self, wake: Box<dyn Fn() + Send>) {
        *lock(&self.0.wake) = Some(wake);
    }

    /// Whether something was not taken yet.
    pub(super) fn has_news(&self) -> bool {
        !lock(&self.0.events).is_empty()
    }

    /// What happened since the last call.
    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.0.events))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn follow(&self, device: &Device) {
        while !self.ended.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
            if matches!(poll(&mut fds, PollTimeout::from(WAIT_MS)), Ok(0)) {
                continue;
            }
            match device.events() {
                Ok(events) => self.hear(events),
                Err(error) => tracing::warn!(%error, "events are not read"),
            }
            thread::sleep(PACE);
        }
    }

    fn hear(&self, new: Vec<Event>) {
        let groups = |event: &Event| !matches!(event.kind, Kind::Client | Kind::ClientGone);
        let stirs = new.iter().any(groups);
        {
            let mut events = lock(&self.events);
            let room = MOST.saturating_sub(events.len());
            events.extend(new.into_iter().take(room));
        }
        if let (true, Some(wake)) = (stirs, lock(&self.wake).as_ref()) {
            wake();
        }
    }
}
