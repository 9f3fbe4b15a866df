//! The broker as ghostd's stock backend sees it: a connection with blocking calls. What was asked
//! for stays so when the connection ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ghost_model::{Members, MemoryWanted, Name};
use ghost_notify::pass;

use super::books::{CardInfo, Observed, SessionId};
use super::wire::{Ask, MAX_BODY, MAX_WAIT_MS, Reply, Usage};
use crate::client::{ClientError, connect};
use crate::protocol;

/// A connection to the broker. After any error but [`ClientError::Refused`] connect anew, and give
/// it everything again: listeners, members, cards and limits.
///
/// ```no_run
/// # use ghost_guardian::broker::client::Broker;
/// # use std::time::Duration;
/// # fn f(listener: std::os::fd::OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
/// let path = "/run/ghost/broker.sock".as_ref();
/// let mut broker = Broker::connect(path, Duration::from_millis(500))?;
/// broker.adopt(&"run-1".parse()?, &"trainer".parse()?, &listener)?;
/// println!("{:?}", broker.usage()?.seen);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Broker {
    path: PathBuf,
    timeout: Duration,
    stream: UnixStream,
    input: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Broker {
    /// Connects to the socket at `path`; no later call but [`Broker::wait`] takes much longer than
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            path: path.to_owned(),
            timeout,
            stream: connect(path, timeout)?,
            input: Vec::new(),
            fds: Vec::new(),
        })
    }

    /// Has the broker answer for `listener`, whose processes are charged to `container` where the
    /// members do not say otherwise. A session that it serves already stays as it is. Keep the
    /// listener too: a broker that is killed must be given it again.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`]; [`ClientError::Refused`] if it is no listener, or there are too many.
    pub fn adopt(
        &mut self,
        session: &SessionId,
        container: &Name,
        listener: &impl AsFd,
    ) -> Result<(), ClientError> {
        let ask = Ask::Adopt {
            session: session.clone(),
            container: container.clone(),
        };
        self.done(&ask, &[listener.as_fd()])
    }

    /// Gives the limits of all containers, those without limits included.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn set_limits(&mut self, wanted: MemoryWanted) -> Result<(), ClientError> {
        self.done(&Ask::Limits(wanted), &[])
    }

    /// Gives all cards.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn set_cards(&mut self, cards: Vec<CardInfo>) -> Result<(), ClientError> {
        self.done(&Ask::Cards(cards), &[])
    }

    /// Says who belongs where.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn set_members(&mut self, members: Members) -> Result<(), ClientError> {
        self.done(&Ask::Members(members), &[])
    }

    /// What is so now.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn usage(&mut self) -> Result<Usage, ClientError> {
        self.usage_by(&Ask::Usage)
    }

    /// What is so as soon as [`Usage::news`] is no longer `news`, or after `timeout`, a minute at
    /// most.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn wait(&mut self, news: u64, timeout: Duration) -> Result<Usage, ClientError> {
        let timeout = timeout.min(Duration::from_millis(MAX_WAIT_MS.into()));
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(MAX_WAIT_MS);
        let patience = |stream: &UnixStream, patience| stream.set_read_timeout(Some(patience));
        let lost = |source| ClientError::Lost {
            path: self.path.clone(),
            source,
        };
        patience(&self.stream, self.timeout + timeout).map_err(lost)?;
        let usage = self.usage_by(&Ask::Wait { news, timeout_ms })?;
        let lost = |source| ClientError::Lost {
            path: self.path.clone(),
            source,
        };
        patience(&self.stream, self.timeout).map_err(lost)?;
        Ok(usage)
    }

    /// Gives what the driver says that processes hold; how many of the readings counted.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn observe(&mut self, seen: Vec<Observed>) -> Result<usize, ClientError> {
        match self.call(&Ask::Observed(seen), &[])? {
            Reply::Counted { counted } => Ok(counted),
            reply => Err(self.unexpected(reply)),
        }
    }

    /// All listeners that the broker serves: a duplicate of each.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn listeners(&mut self) -> Result<Vec<(SessionId, Name, OwnedFd)>, ClientError> {
        let mut all: Vec<(SessionId, Name, OwnedFd)> = Vec::new();
        loop {
            let after = all.last().map(|(session, ..)| session.clone());
            let reply = self.call(&Ask::Listeners { after }, &[])?;
            let Reply::Listeners { sessions } = reply else {
                return Err(self.unexpected(reply));
            };
            let fds = std::mem::take(&mut self.fds);
            if fds.len() != sessions.len() {
                return Err(self.unexpected(Reply::Listeners { sessions }));
            }
            if sessions.is_empty() {
                return Ok(all);
            }
            let some = sessions.into_iter().zip(fds);
            all.extend(some.map(|((session, container), fd)| (session, container, fd)));
        }
    }

    /// Has the broker answer for a session no longer, and close its listener.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn forget(&mut self, session: &SessionId) -> Result<(), ClientError> {
        let session = session.clone();
        self.done(&Ask::Forget { session }, &[])
    }

    fn usage_by(&mut self, ask: &Ask) -> Result<Usage, ClientError> {
        match self.call(ask, &[])? {
            Reply::Usage(usage) => Ok(*usage),
            reply => Err(self.unexpected(reply)),
        }
    }

    fn done(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        match self.call(ask, fds)? {
            Reply::Done => Ok(()),
            reply => Err(self.unexpected(reply)),
        }
    }

    fn unexpected(&self, reply: Reply) -> ClientError {
        let path = self.path.clone();
        match reply {
            Reply::Refused { detail } => ClientError::Refused { path, detail },
            _ => ClientError::Unexpected { path },
        }
    }

    /// The reply; descriptors that came with it are in `self.fds`.
    fn call(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Reply, ClientError> {
        self.fds.clear();
        let protocol = |path: &Path, source| ClientError::Protocol {
            path: path.to_owned(),
            source,
        };
        let frame = protocol::encode_within(ask, MAX_BODY);
        let frame = frame.map_err(|source| protocol(&self.path, source))?;
        let lost = |path: &Path, source| ClientError::Lost {
            path: path.to_owned(),
            source,
        };
        // A refusal at the door may be there already when writing fails.
        let sent = pass::send(&self.stream, &frame, fds);
        let mut chunk = vec![0; 64 << 10];
        loop {
            let read = protocol::decode_within(&self.input, MAX_BODY);
            if let Some((reply, taken)) = read.map_err(|source| protocol(&self.path, source))? {
                self.input.drain(..taken);
                return Ok(reply);
            }
            match pass::receive(&self.stream, &mut chunk) {
                Ok((0, _)) => {
                    sent.map_err(|source| lost(&self.path, source))?;
                    return Err(lost(&self.path, io::ErrorKind::UnexpectedEof.into()));
                }
                Ok((got, fds)) => {
                    self.input.extend(chunk.iter().take(got));
                    self.fds.extend(fds);
                }
                Err(error) => return Err(lost(&self.path, error)),
            }
        }
    }
}
