//! The broker: answers the ioctls by which tenants take GPU memory, so that a container's limit
//! holds at the allocation.
//!
//! ghostd hands over listeners of seccomp filters and says who may take how much ([`wire`],
//! [`door`]). Each listener is served by threads of its own ([`sessions`]); they decide a call and
//! do it for the tenant ([`calls`], [`take`], [`card`]) by the [`books`], which are in a [`journal`]. What
//! died is noticed by [`watch`], and what a broker left that was killed is put in order by
//! [`recover`]. Nothing here needs ghostd to be alive: what it said last stays so.

pub mod books;
mod calls;
mod card;
pub mod client;
pub mod door;
mod driver;
pub mod journal;
mod learn;
mod recover;
mod sessions;
mod state;
mod take;
mod watch;
pub mod wire;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::channels::chain;
use crate::ledger::{BootId, FileStore, LedgerError};
use driver::Driver;
use journal::Keeper;
use sessions::Sessions;
use state::State;
use wire::{Ask, Counts, LISTENERS, MAX_WAIT_MS, Reply, Usage};

/// Why the broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] LedgerError),
    /// The kernel gave no descriptor or thread.
    #[error("the broker cannot have {what}; are there too many descriptors or threads?")]
    System {
        /// What it needs.
        what: &'static str,
        /// errno.
        #[source]
        source: std::io::Error,
    },
}

/// Where things are.
pub struct Settings {
    /// Directory of the NVIDIA nodes.
    pub dev_root: PathBuf,
    /// File with the driver's version.
    pub driver_version: PathBuf,
    /// Says what a person should know, a line at a time.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
    /// The process kills itself after this step of a call.
    #[cfg(debug_assertions)]
    pub die_after: Option<Step>,
}

/// The steps of a call that the broker does for a tenant: between any two of them it may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(clap::ValueEnum))]
pub enum Step {
    /// The notification was taken.
    Received,
    /// The charge, and that the call is about to be done, are written down.
    Begun,
    /// The driver has answered.
    Done,
    /// Its answer is written down.
    Settled,
    /// The answer is in the tenant's memory.
    Written,
    /// The call has returned.
    Answered,
}

/// The broker. Its threads hold it, and run until the process ends: a call that is cut off there
/// is put in order by the next one.
pub struct Broker {
    settings: Settings,
    driver: Driver,
    /// The books with their journal, and what was learnt besides. The broker's one lock for them:
    /// held for the microseconds of a look or a change with its `write`, never while the driver, a
    /// tenant's memory or another lock is waited for.
    state: Mutex<State>,
    sessions: Sessions,
    counts: Counters,
    news: Mutex<u64>,
    newer: Condvar,
    /// What a person should know, by kind.
    notes: Mutex<BTreeMap<String, String>>,
    /// Wakes the thread that watches.
    wake: EventFd,
}

/// [`Counts`], as they are counted.
#[derive(Debug, Default)]
struct Counters {
    notifications: AtomicU64,
    done: AtomicU64,
    refused: AtomicU64,
    undelivered: AtomicU64,
    repeated: AtomicU64,
    late: AtomicU64,
    spent_ns: AtomicU64,
    driver_ns: AtomicU64,
}

/// Kinds of notes that are kept; others are not told.
const MAX_NOTES: usize = 64;

impl Broker {
    /// Opens the journal in `state`, puts in order what the last broker left, and begins to
    /// watch. Sessions are taken up as they are handed over.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    pub fn start(state: &Path, settings: Settings) -> Result<Arc<Self>, BrokerError> {
        let store = FileStore::open_journal(state)?;
        let (keeper, found) = Keeper::start(store, BootId::current()?)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(|errno| BrokerError::System {
            what: "an eventfd",
            source: errno.into(),
        })?;
        let (dev_root, version) = (settings.dev_root.clone(), settings.driver_version.clone());
        let broker = Arc::new(Self {
            settings,
            driver: Driver::new(dev_root, version),
            state: Mutex::new(State::new(keeper)),
            sessions: Sessions::default(),
            counts: Counters::default(),
            news: Mutex::new(1),
            newer: Condvar::new(),
            notes: Mutex::default(),
            wake,
        });
        if found.damaged > 0 {
            broker.note(
                "journal",
                format!(
                    "the journal of memory is damaged in {} places: what a container holds may \
                     be wrong until its programs end",
                    found.damaged
                ),
            );
        }
        broker.recover();
        watch::spawn(&broker).map_err(|source| BrokerError::System {
            what: "a thread",
            source,
        })?;
        Ok(broker)
    }

    /// Does what is asked; descriptors to send along with the reply.
    pub(crate) fn ask(self: &Arc<Self>, ask: Ask, fds: Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
        let reply = match ask {
            Ask::Adopt { session, container } => match <[OwnedFd; 1]>::try_from(fds) {
                Ok([listener]) => match self.adopt(session, container, listener) {
                    Ok(()) => Reply::Done,
                    Err(error) => refused(&error),
                },
                Err(fds) => Reply::Refused {
                    detail: format!("adopt comes with one descriptor, not {}", fds.len()),
                },
            },
            Ask::Limits(wanted) => self.done(|state| state.keeper.set_limits(wanted)),
            Ask::Cards(cards) => self.done(|state| state.keeper.set_cards(cards)),
            Ask::Members(members) => self.done(|state| {
                state.members = members;
                Ok(())
            }),
            Ask::Usage => Reply::Usage(Box::new(self.usage())),
            Ask::Wait { news, timeout_ms } => {
                self.wait(
                    news,
                    Duration::from_millis(timeout_ms.min(MAX_WAIT_MS).into()),
                );
                Reply::Usage(Box::new(self.usage()))
            }
            Ask::Observed(seen) => {
                let mut counted = 0;
                for one in &seen {
                    // A lock for each: calls must not wait for a long list.
                    let observed = self.state().keeper.observe(one);
                    match observed {
                        Ok(counts) => counted += usize::from(counts),
                        Err(error) => self.note("journal", chain(&error)),
                    }
                }
                Reply::Counted { counted }
            }
            Ask::Listeners { after } => match self.sessions.listeners(after.as_ref(), LISTENERS) {
                Ok(found) => {
                    let (sessions, fds) = found.into_iter().unzip();
                    return (Reply::Listeners { sessions }, fds);
                }
                Err(error) => refused(&error),
            },
            Ask::Forget { session } => {
                self.forget(&session);
                Reply::Done
            }
        };
        (reply, Vec::new())
    }

    fn done(&self, change: impl FnOnce(&mut State) -> Result<(), LedgerError>) -> Reply {
        match change(&mut self.state()) {
            Ok(()) => Reply::Done,
            Err(error) => refused(&error),
        }
    }

    fn usage(&self) -> Usage {
        let counts = &self.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let news = *self.news();
        let mut usage = self.state().usage();
        usage.news = news;
        usage.sessions = self.sessions.infos();
        usage.notes = self.notes().values().cloned().collect();
        usage.counts = Counts {
            notifications: get(&counts.notifications),
            done: get(&counts.done),
            refused: get(&counts.refused),
            undelivered: get(&counts.undelivered),
            repeated: get(&counts.repeated),
            late: get(&counts.late),
            spent_ns: get(&counts.spent_ns),
            driver_ns: get(&counts.driver_ns),
        };
        usage
    }

    /// Until there is news, or for so long.
    fn wait(&self, news: u64, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut guard = self.news();
        while *guard == news {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.newer.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn stir(&self) {
        *self.news() += 1;
        self.newer.notify_all();
    }

    /// Says something once for each `kind`.
    fn note(&self, kind: impl Into<String>, text: impl Into<String>) {
        let text = text.into();
        {
            let mut notes = self.notes();
            let kind = kind.into();
            if notes.len() >= MAX_NOTES || notes.contains_key(&kind) {
                return;
            }
            notes.insert(kind, text.clone());
        }
        (self.settings.report)(&text);
        self.stir();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self) -> MutexGuard<'_, u64> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step of a call is done.
    fn step(&self, _step: Step) {
        #[cfg(debug_assertions)]
        if self.settings.die_after == Some(_step) {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }
}

fn refused(error: &dyn std::error::Error) -> Reply {
    Reply::Refused {
        detail: chain(error),
    }
}

/// Adds to a counter.
fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
