//! Memory, which the guardian's broker holds: what it is told, what it tells, and the listeners,
//! of which a duplicate is kept here so that a guardian that was killed gets them back.
//!
//! A thread of its own waits for news and, after a new guardian's start, gives it everything
//! again at once: a tenant may be waiting for an answer meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ghost_guardian::ClientError;
use ghost_guardian::broker::books::{Card, CardInfo, Observed, SessionId};
use ghost_guardian::broker::client::Broker;
use ghost_guardian::broker::wire::Usage;
use ghost_model::{Bytes, Members, MemorySeen, MemoryWanted, Micros, Name, ProcId};
use ghost_rm::{Client, Object};

use super::Stock;
use super::making::Making;
use super::scan::Asked;
use crate::AdoptError;
use crate::nvidia::{self, clock};

/// No call on the broker takes longer.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Between tries to connect: tenants may wait for the guardian that is to come.
const RETRY: Duration = Duration::from_millis(20);
/// The longest wait for news, so that the end of this process is noticed.
const WAIT: Duration = Duration::from_secs(1);
/// Between two looks at news: in a storm of allocations there is always some.
const PACE: Duration = Duration::from_millis(20);
/// A listener that the broker does not name, and was given so long ago, has no users any more.
const GONE: Duration = Duration::from_secs(2);
/// The memory that nobody is charged for is told again when it has moved by this much.
const OTHERS_STEP: u64 = 16 << 20;
/// A broker that answered so long ago is being restarted: what is handed over meanwhile is kept for
/// it. One that is away for longer is not waited for.
pub(super) const AWAY: Duration = Duration::from_secs(10);
/// What the driver counts for each process is looked at this often.
const OBSERVE: Micros = Micros(1_000_000);

/// Why the broker did not do what it was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum AskError {
    /// It is away, or does not answer: it may have done it.
    #[error("{0}: try `systemctl start ghost-guardian`")]
    Away(String),
    /// It says no.
    #[error("{0}")]
    Refused(String),
}

/// A listener that is held.
#[derive(Debug)]
struct Held {
    container: Name,
    listener: OwnedFd,
    since: Instant,
}

/// What a new guardian is to be told.
#[derive(Debug, Default)]
struct Told {
    limits: MemoryWanted,
    members: Members,
    cards: Vec<CardInfo>,
    sessions: BTreeMap<SessionId, Held>,
}

/// What was heard last.
#[derive(Default)]
struct Last {
    usage: Usage,
    making: Making,
}

/// What the watching thread and the backend share.
struct Shared {
    path: PathBuf,
    /// Guards what a new guardian is told, so that it is told all of it or is told later. Held
    /// over no call but those of giving it.
    told: Mutex<Told>,
    /// Guards the last that the broker said, and who makes channel groups.
    last: Mutex<Last>,
    /// Guards what a broker wants people to know, each of which it says once.
    notes: Mutex<BTreeSet<String>>,
    /// Called when there is news for the control loop.
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The broker as the backend uses it.
pub(super) struct Memory {
    shared: Arc<Shared>,
    broker: Option<Broker>,
    /// When it answered last.
    answered: Option<Instant>,
    /// One that answered so long ago is not waited for.
    away: Duration,
    problem: Option<String>,
    observed: BTreeMap<(ProcId, Card), (Bytes, Option<Name>)>,
    observe_due: Micros,
}

impl Memory {
    /// Begins to look for the broker at `path`, which is not waited for once it has been away for
    /// so long.
    pub(super) fn start(path: PathBuf, away: Duration) -> Self {
        let shared = Arc::new(Shared {
            path,
            told: Mutex::default(),
            last: Mutex::default(),
            notes: Mutex::default(),
            wake: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let watched = shared.clone();
        let thread = thread::Builder::new()
            .name("broker".into())
            .spawn(move || watched.watch());
        let mut memory = Self {
            shared,
            broker: None,
            answered: None,
            away,
            problem: None,
            observed: BTreeMap::new(),
            observe_due: Micros::ZERO,
        };
        // Says whether it is there.
        memory.usage();
        if let Err(error) = thread {
            memory.problem = Some(format!("no thread for memory: {error}"));
        }
        memory
    }

    /// What keeps memory from being held, if something does.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// What the broker wants people to know.
    pub(super) fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).iter().cloned().collect()
    }

    /// Has `wake` called when processes appeared that the control loop should look at.
    pub(super) fn wake_by(&mut self, wake: Box<dyn Fn() + Send>) {
        *lock(&self.shared.wake) = Some(wake);
    }

    /// Whether a process made channel groups since [`Memory::made`], and is quiet since.
    pub(super) fn has_made(&self) -> bool {
        self.shared.due_in().is_some_and(|due| due.is_zero())
    }

    /// Processes that made channel groups and are quiet since.
    pub(super) fn made(&mut self) -> BTreeSet<u32> {
        lock(&self.shared.last).making.take(Instant::now())
    }

    /// Those that are to be left alone meanwhile.
    pub(super) fn making(&self) -> BTreeSet<u32> {
        lock(&self.shared.last).making.pids()
    }

    /// The channel groups that a process asked for, whether or not it got them, of each client.
    pub(super) fn told_of(&self, process: ProcId) -> BTreeMap<Client, Vec<Asked>> {
        let last = lock(&self.shared.last);
        let tenants = last.usage.tenants.iter().filter(|t| t.owner == process);
        let clients = tenants.flat_map(|tenant| &tenant.clients);
        let told = clients.filter(|client| !client.computing.is_empty());
        let groups = told.map(|client| {
            let of = client.groups.iter().map(|(_, group)| Asked {
                group: Object(*group),
                computes: client.computing.contains(group),
            });
            (Client(client.client), of.collect())
        });
        groups.collect()
    }

    pub(super) fn set_limits(&mut self, wanted: &MemoryWanted) {
        lock(&self.shared.told).limits = wanted.clone();
        self.ask(|broker| broker.set_limits(wanted.clone())).ok();
    }

    pub(super) fn set_members(&mut self, members: &Members) {
        lock(&self.shared.told).members = members.clone();
        self.ask(|broker| broker.set_members(members.clone())).ok();
    }

    /// Says what the cards are, where that has changed enough.
    fn set_cards(&mut self, cards: Vec<CardInfo>) {
        {
            let mut told = lock(&self.shared.told);
            let same = told.cards.len() == cards.len()
                && told.cards.iter().zip(&cards).all(|(old, new)| {
                    let moved = old.others.0.abs_diff(new.others.0);
                    (old.card, &old.id, old.total) == (new.card, &new.id, new.total)
                        && moved < OTHERS_STEP
                });
            if same {
                return;
            }
            told.cards = cards.clone();
        }
        self.ask(|broker| broker.set_cards(cards)).ok();
    }

    /// Hands over a listener. While the broker is being restarted its listeners wait here: the
    /// watching thread tries until it is back, and the calls under the filter wait meanwhile, as
    /// those of programs do that ran before.
    pub(super) fn adopt(&mut self, container: &Name, listener: OwnedFd) -> Result<(), AdoptError> {
        let refused = |cause: String| AdoptError {
            container: container.clone(),
            cause,
        };
        let session = new_session().map_err(|e| refused(format!("no name for it: {e}")))?;
        let own = listener
            .try_clone()
            .map_err(|e| refused(format!("it cannot be duplicated: {e}")))?;
        let held = Held {
            container: container.clone(),
            listener: own,
            since: Instant::now(),
        };
        lock(&self.shared.told)
            .sessions
            .insert(session.clone(), held);
        let mut ask = || self.ask(|broker| broker.adopt(&session, container, &listener));
        // Another one may be there already, to which the watching thread has told all.
        let asked = ask().or_else(|error| match error {
            AskError::Away(_) => ask(),
            error => Err(error),
        });
        let is_restarted = self.answered.is_some_and(|at| at.elapsed() < self.away);
        match asked {
            // Under the same name: one that was taken is not taken twice.
            Err(AskError::Away(_)) if is_restarted => Ok(()),
            other => other.map_err(|error| {
                lock(&self.shared.told).sessions.remove(&session);
                refused(error.to_string())
            }),
        }
    }

    /// Asks for what is so now.
    fn usage(&mut self) -> Option<Usage> {
        let usage = self.ask(Broker::usage).ok()?;
        self.shared.note(&usage);
        Some(usage)
    }

    /// Calls the broker, connecting anew where need be.
    fn ask<R>(
        &mut self,
        call: impl FnOnce(&mut Broker) -> Result<R, ClientError>,
    ) -> Result<R, AskError> {
        let connected = match self.broker.take() {
            Some(broker) => Ok(broker),
            None => Broker::connect(&self.shared.path, TIMEOUT),
        };
        let asked = connected.map(|mut broker| (call(&mut broker), broker));
        let error = match asked {
            Ok((Ok(answer), broker)) => {
                self.broker = Some(broker);
                self.answered = Some(Instant::now());
                self.problem = None;
                return Ok(answer);
            }
            Ok((Err(error @ ClientError::Refused { .. }), broker)) => {
                self.broker = Some(broker);
                return Err(AskError::Refused(said(&error)));
            }
            Ok((Err(error), _)) | Err(error) => error,
        };
        let away = AskError::Away(said(&error));
        self.problem = Some(format!("memory limits are not held: {away}"));
        Err(away)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

fn said(error: &ClientError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}

/// A name that no session of this host had or will have.
fn new_session() -> io::Result<SessionId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    text.trim().parse().map_err(io::Error::other)
}

impl Shared {
    fn watch(&self) {
        let mut warned = false;
        while !self.ended.load(Ordering::Relaxed) {
            match self.follow() {
                Ok(()) => return,
                Err(error) if !warned => {
                    warned = true;
                    tracing::debug!(error = said(&error), "the broker is away");
                }
                Err(_) => {}
            }
            thread::sleep(RETRY);
        }
    }

    /// Tells a broker everything, and listens to it until it is gone.
    fn follow(&self) -> Result<(), ClientError> {
        let mut broker = Broker::connect(&self.path, TIMEOUT)?;
        self.tell(&mut broker)?;
        let mut news = 0;
        while !self.ended.load(Ordering::Relaxed) {
            let wait = self.due_in().map_or(WAIT, |due| due.min(WAIT));
            let usage = broker.wait(news, wait)?;
            news = usage.news;
            self.heard(usage);
            thread::sleep(PACE);
        }
        Ok(())
    }

    fn tell(&self, broker: &mut Broker) -> Result<(), ClientError> {
        lock(&self.notes).clear();
        // A ghostd that was restarted has none of them, a guardian that was, only those that
        // systemd kept.
        let theirs = broker.listeners()?;
        let mut told = lock(&self.told);
        for (session, container, listener) in theirs {
            told.sessions.entry(session).or_insert_with(|| Held {
                container,
                listener,
                since: Instant::now(),
            });
        }
        for (session, held) in &told.sessions {
            match broker.adopt(session, &held.container, &held.listener) {
                Err(ClientError::Refused { detail, .. }) => {
                    tracing::error!(container = %held.container, "a listener is not taken: {detail}");
                }
                other => other?,
            }
        }
        if !told.cards.is_empty() {
            broker.set_cards(told.cards.clone())?;
        }
        if !told.limits.0.is_empty() {
            broker.set_limits(told.limits.clone())?;
        }
        broker.set_members(told.members.clone())
    }

    /// Keeps what is for people.
    fn note(&self, usage: &Usage) {
        lock(&self.notes).extend(usage.notes.iter().cloned());
    }

    fn heard(&self, usage: Usage) {
        self.note(&usage);
        let serves: BTreeSet<&SessionId> = usage.sessions.iter().map(|s| &s.session).collect();
        lock(&self.told)
            .sessions
            .retain(|session, held| serves.contains(session) || held.since.elapsed() < GONE);
        let groups = |usage: &Usage| -> BTreeMap<u32, (usize, usize)> {
            let mut all = BTreeMap::new();
            for tenant in &usage.tenants {
                let count: &mut (usize, usize) = all.entry(tenant.owner.pid).or_default();
                for client in &tenant.clients {
                    count.0 += client.groups.len();
                    count.1 += client.computing.len();
                }
            }
            all
        };
        let mut last = lock(&self.last);
        let (before, now) = (groups(&last.usage), groups(&usage));
        for (pid, count) in now {
            if before.get(&pid).copied().unwrap_or_default() != count {
                last.making.sign(pid, Instant::now());
            }
        }
        last.usage = usage;
        drop(last);
        if let (Some(Duration::ZERO), Some(wake)) = (self.due_in(), lock(&self.wake).as_ref()) {
            wake();
        }
    }

    /// How long it is until a process that made channel groups is to be looked at.
    fn due_in(&self) -> Option<Duration> {
        lock(&self.last).making.due_in(Instant::now())
    }
}

impl Stock {
    /// Tells the broker what the driver counts, and asks it what containers hold.
    pub(super) fn look_at_memory(&mut self) -> Option<MemorySeen> {
        let now = clock::now();
        let due = now >= self.memory.observe_due;
        if due {
            // Before the books are: what is taken in between is then nobody's for a moment, not
            // somebody's twice.
            nvidia::read_memory(&mut self.boards, self.telemetry.as_mut());
        }
        let usage = self.memory.usage()?;
        if due {
            self.memory.observe_due = now + OBSERVE;
            self.tell_cards(&usage);
            self.observe(&usage, now);
        }
        Some(usage.seen)
    }

    fn tell_cards(&mut self, usage: &Usage) {
        let cards = self.boards.iter().filter_map(|board| {
            let (id, driven) = (&board.info.id, board.driven.as_ref()?);
            let tops = usage.seen.containers.iter();
            let tops = tops.filter(|(name, _)| name.parent().is_none());
            let known: u64 = tops
                .filter_map(|(_, on)| on.get(id))
                .map(|u| u.current.0)
                .sum();
            let used = board.info.memory_used.unwrap_or_default().0;
            Some(CardInfo {
                card: Card(driven.rm_id),
                id: id.clone(),
                total: board.info.memory_total,
                others: Bytes(used.saturating_sub(known)),
            })
        });
        let cards = cards.collect();
        self.memory.set_cards(cards);
    }

    /// Hands on what the driver counts for each process. Processes without a filter are charged
    /// by that alone.
    fn observe(&mut self, usage: &Usage, now: Micros) {
        let count = self.rm.as_ref().and_then(|rm| rm.session.clients().ok());
        let mut holds: BTreeMap<(ProcId, Card), (Bytes, Option<Name>)> = BTreeMap::new();
        for board in &self.boards {
            let Some(driven) = &board.driven else {
                continue;
            };
            let card = Card(driven.rm_id);
            let telemetry = self.telemetry.as_mut();
            let (gpu, version) = (&board.info.id, Some(usage.version));
            for (pid, bytes) in self.holdings.on(gpu, count, version, now, telemetry) {
                if let (Some(tenant), Some(bytes)) = (self.tenants.get(pid), bytes) {
                    let member = !tenant.container.is_system();
                    let container = member.then(|| tenant.container.clone());
                    holds.insert((tenant.id, card), (*bytes, container));
                }
            }
        }
        let gone = self
            .memory
            .observed
            .keys()
            .filter(|key| !holds.contains_key(key));
        let gone: Vec<(ProcId, Card)> = gone.copied().collect();
        let changed = holds
            .iter()
            .any(|(key, held)| self.memory.observed.get(key) != Some(held));
        if !changed && gone.is_empty() {
            return;
        }
        let observed = |((owner, card), (bytes, container))| Observed {
            owner,
            card,
            bytes,
            version: usage.version,
            container,
        };
        let all: Vec<Observed> = holds
            .clone()
            .into_iter()
            .chain(gone.into_iter().map(|key| (key, (Bytes(0), None))))
            .map(observed)
            .collect();
        let told = all.len();
        // What was not counted, because something moved meanwhile, is told again next time.
        if self.memory.ask(|broker| broker.observe(all)) == Ok(told) {
            self.memory.observed = holds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_listener_is_kept_for_a_broker_that_was_there_lately_and_for_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        for (answered, away, is_kept) in [
            (Some(Instant::now()), hour, true),
            (Some(Instant::now()), Duration::ZERO, false),
            (None, hour, false),
        ] {
            let mut memory = Memory::start(dir.path().join("broker.sock"), away);
            memory.answered = answered;
            let listener = File::open("/dev/null").unwrap();
            let taken = memory.adopt(&"a".parse().unwrap(), listener.into());
            assert_eq!(taken.is_ok(), is_kept, "{answered:?} {away:?}: {taken:?}");
            let held = lock(&memory.shared.told).sessions.len();
            assert_eq!(held, usize::from(is_kept), "what is refused is let go");
        }
    }
}
