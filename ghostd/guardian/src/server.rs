//! The guardian's loop: one thread, one `ppoll`, sockets on one side and
//! [`Pauses`] on the other.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ghost_notify::ProcId;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::sys::time::TimeSpec;

use crate::channels::{Channels, chain};
use crate::ledger::Store;
use crate::pauses::{ClientId, Pauses};
use crate::protocol::{self, Answer, MAX_BODY, Request};

/// Connections at a time: ghostd's, and a few for people who look.
const MAX_CLIENTS: usize = 16;

/// What is read of a connection before the others have their turn.
const READ: usize = 64 << 10;

/// Why the loop cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket cannot be made.
    #[error("{path}: cannot listen; does the directory exist, and is it writable?")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// Waiting failed.
    #[error("ppoll failed")]
    Poll(#[source] io::Error),
}

/// Makes the listening socket at `path`, for its owner only, in place of one
/// that a dead guardian left.
///
/// # Errors
///
/// [`ServerError::Listen`].
pub fn listen(path: &Path) -> Result<UnixListener, ServerError> {
    let listen = || {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| ServerError::Listen {
        path: path.to_owned(),
        source,
    })
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    // Nothing more is read; ends when the output is written.
    last_words: bool,
}

/// What has become readable.
enum Ready {
    Stop,
    Listener,
    Client(ClientId),
    Owner(ProcId),
}

/// The loop and what it serves.
pub struct Server<C, S> {
    listener: UnixListener,
    uids: Vec<u32>,
    pauses: Pauses<C, S>,
    clients: BTreeMap<ClientId, Connection>,
    next_client: ClientId,
    report: Box<dyn FnMut(&str)>,
}

impl<C: Channels, S: Store> Server<C, S> {
    /// Serves `pauses` on `listener` (see [`listen`]) to callers whose uid is
    /// in `uids`; says what happens through `report`, a line at a time.
    pub fn new(
        listener: UnixListener,
        uids: Vec<u32>,
        pauses: Pauses<C, S>,
        report: Box<dyn FnMut(&str)>,
    ) -> Self {
        Self {
            listener,
            uids,
            pauses,
            clients: BTreeMap::new(),
            next_client: 1,
            report,
        }
    }

    /// Serves until `stop` is readable, then resumes everything. Calls `beat`
    /// at least once every `every`.
    ///
    /// # Errors
    ///
    /// [`ServerError::Poll`]; everything is resumed then too.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        every: Option<Duration>,
        mut beat: impl FnMut(),
    ) -> Result<(), ServerError> {
        let mut next_beat = every.map(|_| Instant::now());
        let ended = loop {
            if let (Some(due), Some(every)) = (next_beat, every)
                && due <= Instant::now()
            {
                beat();
                next_beat = Some(Instant::now() + every);
            }
            let due = self.pauses.next_due().into_iter().chain(next_beat).min();
            let ready = match self.wait(stop, due) {
                Ok(ready) => ready,
                Err(error) => break Err(error),
            };
            if self.serve(ready) {
                break Ok(());
            }
        };
        self.pauses.resume_all(Instant::now());
        self.flush_notes();
        ended
    }

    /// One round; `true` if told to stop.
    fn serve(&mut self, ready: Vec<Ready>) -> bool {
        let mut stop = false;
        let had_clients = !self.clients.is_empty();
        for ready in ready {
            match ready {
                Ready::Stop => stop = true,
                Ready::Listener => self.accept(),
                Ready::Client(id) => self.client(id),
                Ready::Owner(owner) => self.pauses.owner_exited(owner),
            }
        }
        self.pauses.tick(Instant::now());
        if had_clients && self.clients.is_empty() {
            self.pauses.rest();
        }
        self.flush_notes();
        stop
    }

    fn wait(&self, stop: BorrowedFd<'_>, due: Option<Instant>) -> Result<Vec<Ready>, ServerError> {
        let mut fds = vec![
            PollFd::new(stop, PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        let mut what = vec![Ready::Stop, Ready::Listener];
        for (&id, client) in &self.clients {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, !client.last_words);
            events.set(PollFlags::POLLOUT, !client.output.is_empty());
            fds.push(PollFd::new(client.stream.as_fd(), events));
            what.push(Ready::Client(id));
        }
        for owner in self.pauses.owners() {
            fds.push(PollFd::new(owner.as_fd(), PollFlags::POLLIN));
            what.push(Ready::Owner(owner.id()));
        }
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        match ppoll(&mut fds, left.map(TimeSpec::from), None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(errno) => return Err(ServerError::Poll(errno.into())),
        }
        let pairs = fds.iter().zip(what);
        Ok(pairs
            .filter(|(fd, _)| fd.any() != Some(false))
            .map(|(_, what)| what)
            .collect())
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    (self.report)(&format!("accept failed: {error}"));
                }
                return;
            }
        };
        let uid = getsockopt(&stream, PeerCredentials).map(|peer| peer.uid());
        let refusal = match uid {
            Ok(uid) if self.uids.contains(&uid) => None,
            Ok(uid) => Some(format!("uid {uid} may not speak to the guardian")),
            Err(errno) => Some(format!("who calls is not known: {errno}")),
        };
        let full = self.clients.len() >= MAX_CLIENTS;
        let refusal = refusal.or_else(|| full.then(|| format!("{MAX_CLIENTS} clients already")));
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut client = Connection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            last_words: false,
        };
        if let Some(detail) = refusal {
            (self.report)(&format!("refused a client: {detail}"));
            // Once, without waiting: a stranger gets no memory of ours.
            client.say(&Answer::Refused { detail });
            let _ = client.write();
            return;
        }
        self.clients.insert(self.next_client, client);
        self.next_client += 1;
    }

    fn client(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else {
            return;
        };
        match self.converse(id, &mut client) {
            Ok(true) => _ = self.clients.insert(id, client),
            Ok(false) => self.pauses.drop_client(id, Instant::now()),
            Err(error) => {
                (self.report)(&format!("client {id}: {}", chain(&error)));
                self.pauses.drop_client(id, Instant::now());
            }
        }
    }

    /// Reads, answers, writes; `false` when the connection is over.
    fn converse(&mut self, id: ClientId, client: &mut Connection) -> io::Result<bool> {
        let open = client.last_words || client.read()?;
        while !client.last_words {
            match protocol::decode::<Request>(&client.input) {
                Ok(None) => break,
                Ok(Some((request, taken))) => {
                    client.input.drain(..taken);
                    let answer = self.answer(id, request);
                    client.say(&answer);
                }
                Err(error) => {
                    let detail = chain(&error);
                    (self.report)(&format!("client {id}: {detail}"));
                    client.say(&Answer::Refused { detail });
                    client.last_words = true;
                }
            }
        }
        client.write()?;
        if client.output.len() > 2 * MAX_BODY {
            let problem = "does not read its answers";
            return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
        }
        Ok(open && !(client.last_words && client.output.is_empty()))
    }

    fn answer(&mut self, id: ClientId, request: Request) -> Answer {
        let now = Instant::now();
        match request {
            Request::Pause(wanted) => Answer::Done(self.pauses.pause(id, &wanted, now)),
            Request::Resume(keys) => Answer::Done(self.pauses.resume(id, &keys, now)),
            Request::Renew { keys, lease_us } => {
                Answer::Done(self.pauses.renew(id, &keys, lease_us, now))
            }
            Request::List => Answer::Listing(self.pauses.list(id, now)),
            Request::Ready { gpu } => {
                self.pauses.ready(gpu);
                pong()
            }
            Request::Ping => pong(),
        }
    }

    fn flush_notes(&mut self) {
        for note in self.pauses.take_notes() {
            (self.report)(&note);
        }
    }
}

fn pong() -> Answer {
    Answer::Pong {
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

impl Connection {
    /// Takes in what is there, up to a turn's worth; `false` at the end.
    fn read(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        self.input.resize(before + READ, 0);
        let room = self.input.get_mut(before..).unwrap_or_default();
        let read = loop {
            match self.stream.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let got = read.as_ref().copied().unwrap_or(0);
        self.input.truncate(before + got);
        match read {
            Ok(got) => Ok(got > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn say(&mut self, answer: &Answer) {
        let frame = protocol::encode(answer).or_else(|error| {
            let detail = chain(&error);
            protocol::encode(&Answer::Refused { detail })
        });
        match frame {
            Ok(frame) => self.output.extend(frame),
            Err(_) => self.last_words = true,
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(written) => _ = self.output.drain(..written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
