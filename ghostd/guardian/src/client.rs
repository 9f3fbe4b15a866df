//! The guardian as ghostd's stock backend sees it: a connection with blocking
//! calls. What was paused through a connection is resumed when it ends, also
//! by being dropped.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ghost_rm::Gpu;

use crate::protocol::{
    self, Answer, Key, Keys, Listing, MAX_LEASE_US, Outcome, Pause, ProtocolError, Request,
};

/// Why a call on the guardian has no answer. After any of these but
/// [`ClientError::Refused`] the connection is of no use: connect anew, and take
/// it that nothing is paused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("{path}: cannot connect to the guardian; is ghost-guardian.service running?")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or no answer came in time.
    #[error("{path}: no answer from the guardian")]
    Lost {
        /// The socket.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The answer cannot be read, or the request is too large to send.
    #[error("{path}: cannot speak with the guardian")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: ProtocolError,
    },
    /// The guardian would not read the request, or not from us.
    #[error("{path}: the guardian refused: {detail}")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Its words.
        detail: String,
    },
    /// The answer is to another question.
    #[error("{path}: the guardian answered another question; restart it")]
    Unexpected {
        /// The socket.
        path: PathBuf,
    },
}

/// A connection to the guardian.
///
/// ```no_run
/// # use ghost_guardian::{Guardian, Keys, Pause};
/// # use std::time::Duration;
/// # fn f(pause: Pause) -> Result<(), ghost_guardian::ClientError> {
/// let path = "/run/ghost/guardian.sock".as_ref();
/// let mut guardian = Guardian::connect(path, Duration::from_millis(200))?;
/// for outcome in guardian.pause(vec![pause])? {
///     assert!(outcome.error.is_none());
/// }
/// guardian.renew(Keys::All, Duration::from_millis(100))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Guardian {
    path: PathBuf,
    stream: UnixStream,
    input: Vec<u8>,
}

impl Guardian {
    /// Connects to the socket at `path`; no later call takes much longer than
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let stream = connect(path, timeout)?;
        Ok(Self {
            path: path.to_owned(),
            stream,
            input: Vec::new(),
        })
    }

    /// Pauses all of `pauses` in as few driver calls as possible; in force when
    /// this returns. One outcome for each, in order.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn pause(&mut self, pauses: Vec<Pause>) -> Result<Vec<Outcome>, ClientError> {
        self.done(&Request::Pause(pauses))
    }

    /// Resumes `keys`; a key that is not paused is no error. In force when this
    /// returns.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn resume(&mut self, keys: Vec<Key>) -> Result<Vec<Outcome>, ClientError> {
        self.done(&Request::Resume(keys))
    }

    /// Lets the leases of `keys` end `lease` from now, a minute at most. The
    /// outcome of a key that is not paused any more has an error.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn renew(&mut self, keys: Keys, lease: Duration) -> Result<Vec<Outcome>, ClientError> {
        let lease_us = lease.as_micros().min(MAX_LEASE_US.into());
        let lease_us = u64::try_from(lease_us).unwrap_or(MAX_LEASE_US);
        self.done(&Request::Renew { keys, lease_us })
    }

    /// All that is paused, other connections' pauses included.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn list(&mut self) -> Result<Listing, ClientError> {
        match self.call(&Request::List)? {
            Answer::Listing(listing) => Ok(listing),
            answer => Err(self.unexpected(answer)),
        }
    }

    /// The guardian's version, if it is there.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn ping(&mut self) -> Result<String, ClientError> {
        match self.call(&Request::Ping)? {
            Answer::Pong { version } => Ok(version),
            answer => Err(self.unexpected(answer)),
        }
    }

    /// Has the driver opened for pauses on `gpu`.
    ///
    /// # Errors
    ///
    /// Any [`ClientError`].
    pub fn ready(&mut self, gpu: Gpu) -> Result<(), ClientError> {
        match self.call(&Request::Ready { gpu })? {
            Answer::Pong { .. } => Ok(()),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn done(&mut self, request: &Request) -> Result<Vec<Outcome>, ClientError> {
        match self.call(request)? {
            Answer::Done(outcomes) => Ok(outcomes),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn unexpected(&self, answer: Answer) -> ClientError {
        let path = self.path.clone();
        match answer {
            Answer::Refused { detail } => ClientError::Refused { path, detail },
            _ => ClientError::Unexpected { path },
        }
    }

    fn call(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let protocol = |path: &Path, source| ClientError::Protocol {
            path: path.to_owned(),
            source,
        };
        let frame = protocol::encode(request).map_err(|source| protocol(&self.path, source))?;
        self.exchange(&frame).map_err(|error| match error {
            Exchange::Io(source) => ClientError::Lost {
                path: self.path.clone(),
                source,
            },
            Exchange::Protocol(source) => protocol(&self.path, source),
        })
    }

    fn exchange(&mut self, frame: &[u8]) -> Result<Answer, Exchange> {
        // A refusal at the door may be there already when writing fails.
        let written = self.stream.write_all(frame);
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some((answer, taken)) =
                protocol::decode(&self.input).map_err(Exchange::Protocol)?
            {
                self.input.drain(..taken);
                return Ok(answer);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    written.map_err(Exchange::Io)?;
                    return Err(Exchange::Io(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(got) => self.input.extend(chunk.iter().take(got)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Exchange::Io(error)),
            }
        }
    }
}

/// A stream to the socket at `path`, on which no read or write takes longer than `timeout`.
pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<UnixStream, ClientError> {
    let connected = UnixStream::connect(path).and_then(|stream| {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(stream)
    });
    connected.map_err(|source| ClientError::Connect {
        path: path.to_owned(),
        source,
    })
}

enum Exchange {
    Io(io::Error),
    Protocol(ProtocolError),
}
