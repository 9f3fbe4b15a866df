//! A thread that notices what died, and who is kept too long.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ghost_model::{Name, ProcId};
use ghost_notify::PidFd;
use ghost_rm::{Client, Object};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Broker;
use super::books::{SessionId, Ticket};

/// How often calls that wait are looked at.
const TICK: Duration = Duration::from_millis(100);

/// How often everything is looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// So long a client is looked at at each tick that may have lost something: the kernel does the
/// call that we let through a little later.
const SUSPECT: Duration = Duration::from_secs(3);

const STACK: usize = 256 << 10;

/// The epoll data of the wake.
const WAKE: u64 = u64::MAX;

/// Starts the thread.
pub(super) fn spawn(broker: &Arc<Broker>) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&broker.wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    let watch = Watch {
        broker: broker.clone(),
        epoll,
        held: BTreeMap::new(),
        next: 0,
        swept: Instant::now(),
        version: 0,
    };
    let thread = std::thread::Builder::new().name("watch".into());
    thread.stack_size(STACK).spawn(move || watch.run())?;
    Ok(())
}

struct Watch {
    broker: Arc<Broker>,
    epoll: Epoll,
    /// The processes that have clients, by the epoll's data.
    held: BTreeMap<u64, PidFd>,
    next: u64,
    swept: Instant,
    version: u64,
}

impl Watch {
    fn run(mut self) {
        loop {
            let mut events = [EpollEvent::empty(); 32];
            let ready = self.epoll.wait(&mut events, self.timeout()).unwrap_or(0);
            for event in events.iter().take(ready) {
                match event.data() {
                    WAKE => _ = self.broker.wake.read(),
                    number => self.exited(number),
                }
            }
            self.hold();
            self.broker.look_after();
            self.suspects();
            let flushed = self.broker.state().keeper.flush();
            self.broker.written(flushed);
            if self.swept.elapsed() >= SWEEP {
                self.sweep();
                self.swept = Instant::now();
            }
            self.tell();
        }
    }

    fn timeout(&self) -> EpollTimeout {
        // A client may outlive its process, and its session: somebody else has its file open, and be
        // it the broker for the length of a call.
        let tenants = || {
            self.broker
                .state()
                .keeper
                .books()
                .tenants()
                .next()
                .is_some()
        };
        let idle = self.broker.sessions.is_empty() && !tenants();
        let timeout = if idle { SWEEP * 60 } else { TICK };
        EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::NONE)
    }

    /// Holds the processes that got a client.
    fn hold(&mut self) {
        let fresh = std::mem::take(&mut self.broker.state().fresh);
        for process in fresh {
            let id = ghost_notify::ProcId {
                pid: process.pid.cast_signed(),
                start_ticks: process.start,
            };
            if self.held.values().any(|held| held.id() == id) {
                continue;
            }
            let Ok(held) = PidFd::open(id) else {
                self.broker.process_gone(process);
                continue;
            };
            let event = EpollEvent::new(EpollFlags::EPOLLIN, self.next);
            // Without it, the sweep notices.
            if self.epoll.add(held.as_fd(), event).is_ok() {
                self.held.insert(self.next, held);
                self.next += 1;
            }
        }
    }

    fn exited(&mut self, number: u64) {
        let Some(held) = self.held.remove(&number) else {
            return;
        };
        let _ = self.epoll.delete(held.as_fd());
        let id = held.id();
        drop(held);
        self.broker.process_gone(ProcId {
            pid: id.pid.cast_unsigned(),
            start: id.start_ticks,
        });
    }

    fn suspects(&self) {
        let now = Instant::now();
        let suspects: Vec<Client> = {
            let mut state = self.broker.state();
            let suspects = state.suspects.keys().copied().collect();
            state.suspects.retain(|_, until| *until > now);
            suspects
        };
        self.broker.check_clients(&suspects);
        suspects
            .iter()
            .for_each(|client| self.broker.check_memories(*client));
    }

    fn sweep(&self) {
        let (clients, calls): (Vec<Client>, Vec<(SessionId, i32)>) = {
            let state = self.broker.state();
            let books = state.keeper.books();
            let calls = books.calls().map(|(id, tid, _)| (id.clone(), tid));
            (books.tenants().map(|t| t.client).collect(), calls.collect())
        };
        self.broker.check_clients(&clients);
        for (session, tid) in calls {
            // One that took its number makes another call, or the same, and then it is fine too.
            if !Path::new(&format!("/proc/{tid}")).exists() {
                let ended = self.broker.state().keeper.end(&session, tid);
                self.broker.written(ended);
            }
        }
        if clients.is_empty() && self.broker.sessions.is_empty() {
            self.broker.driver.rest();
        }
    }

    /// Wakes those who wait for news, once for all changes of a tick.
    fn tell(&mut self) {
        let version = self.broker.state().keeper.books().version();
        if std::mem::replace(&mut self.version, version) != version {
            self.broker.stir();
        }
    }
}

impl Broker {
    /// Wakes the thread that watches.
    pub(super) fn watch(&self) {
        let _ = self.wake.write(1);
    }

    /// A process has got a client: its end is waited for.
    pub(super) fn hold(&self, process: ProcId) {
        self.state().fresh.push(process);
        self.watch();
    }

    /// A client, or something of it, may be gone soon.
    pub(super) fn suspect(&self, client: Client) {
        {
            let mut state = self.state();
            if state.keeper.books().tenant(client).is_none() {
                return;
            }
            state.suspects.insert(client, Instant::now() + SUSPECT);
        }
        self.watch();
    }

    /// Before an allocation is refused: whether all of a container, or all at all, is still there.
    pub(super) fn look_for_gone(&self, container: Option<&Name>) {
        let (clients, suspects): (Vec<Client>, Vec<Client>) = {
            let state = self.state();
            let books = state.keeper.books();
            let clients = match container {
                Some(container) => books.clients_of(container).collect(),
                None => books.tenants().map(|tenant| tenant.client).collect(),
            };
            (clients, state.suspects.keys().copied().collect())
        };
        self.check_clients(&clients);
        suspects
            .iter()
            .for_each(|client| self.check_memories(*client));
    }

    /// Closes those of these clients that the driver no longer has.
    pub(super) fn check_clients(&self, clients: &[Client]) {
        for &client in clients {
            let owner = self.state().keeper.books().tenant(client).map(|t| t.owner);
            let gone = self.driver.exists(client, client.as_object()) == Some(false);
            if let Some(owner) = owner.filter(|_| gone) {
                self.close(client, owner);
            }
        }
    }

    /// Frees those memories of a client that the driver no longer has.
    pub(super) fn check_memories(&self, client: Client) {
        let names: Vec<(Object, Ticket)> = {
            let state = self.state();
            let books = state.keeper.books();
            let ticket = |object| Some((object, books.ticket((client, object))?));
            books.memories_of(client).filter_map(ticket).collect()
        };
        for (object, ticket) in names {
            if self.driver.exists(client, object) == Some(false) {
                self.forget_memory((client, object), ticket);
            }
        }
    }

    /// Whether the client that is on a caller's file is another than the one that `owner` made
    /// under this handle: handles are used again. It is not known any more then.
    pub(super) fn is_another(&self, client: Client, owner: ProcId) -> bool {
        let alive = ghost_notify::ProcId::of_pid(owner.pid.cast_signed());
        if alive.is_ok_and(|alive| alive.start_ticks == owner.start) {
            return false;
        }
        self.check_memories(client);
        let state = self.state();
        let empty = state.keeper.books().memories_of(client).next().is_none();
        drop(state);
        if empty {
            self.close(client, owner);
        }
        empty
    }

    /// A client is gone, unless it is another process's by now.
    fn close(&self, client: Client, owner: ProcId) {
        let mut state = self.state();
        let tenant = state.keeper.books().tenant(client);
        if tenant.is_none_or(|tenant| tenant.owner != owner) {
            return;
        }
        let closed = state.keeper.close(client);
        state.unlearn_client(client);
        state.suspects.remove(&client);
        drop(state);
        self.written(closed);
        self.stir();
    }

    /// A process has ended. Its clients may live on in files that others have open.
    pub(super) fn process_gone(&self, process: ProcId) {
        let clients: Vec<Client> = {
            let mut state = self.state();
            let gone = state.keeper.gone(process);
            let books = state.keeper.books();
            let own = books.tenants().filter(|t| t.owner == process);
            let own = own.map(|tenant| tenant.client).collect();
            drop(state);
            self.written(gone);
            own
        };
        self.check_clients(&clients);
    }
}
