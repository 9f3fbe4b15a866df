//! Opens the four connections of a session, or one that asks what is free at a peer.

use crate::stream::{Stream, secure, tune};
use ghost_wire::frame::{Reply, ReplyKind};
use ghost_wire::hello::{
    self, ENVIRONMENT, Hello, MAGIC, MAX, Role, Room, Tenant, Ticket, Verdict, Welcome,
};
use ghost_wire::{Malformed, VERSION, api};
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// To reach the peer.
const CONNECT: Duration = Duration::from_secs(5);
/// For each answer of the handshake.
const ANSWER: Duration = Duration::from_secs(10);
/// For the welcome: the far driver starts.
const WELCOME: Duration = Duration::from_secs(60);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The peer's name is not known.
    #[error("the peer {address} is not known: {source}")]
    Resolve {
        /// As in the ticket.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Unprotected, and not on this host.
    #[error(
        "the peer {0} is another host and the ticket has no fingerprint of its certificate: add it \
         with `ghostctl peer add`"
    )]
    Unprotected(SocketAddr),
    /// Not 64 hexadecimal digits.
    #[error("the fingerprint {0:?} in the ticket is not a SHA-256 in hexadecimal")]
    Fingerprint(String),
    /// No connection.
    #[error("the peer {address} can't be reached: {source}")]
    Reach {
        /// As in the ticket.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection failed within the handshake.
    #[error("the peer {address} did not answer as it should: {source}")]
    Handshake {
        /// As in the ticket.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// TLS could not begin.
    #[error("TLS can't be used: {0}")]
    Tls(#[from] rustls::Error),
    /// What the peer sent is no part of a handshake.
    #[error("the peer {address} sent what is no part of Ghost's handshake: {source}")]
    Malformed {
        /// As in the ticket.
        address: String,
        /// Why.
        source: Malformed,
    },
    /// It said no.
    #[error("the peer {address} refused: {why}")]
    Refused {
        /// As in the ticket.
        address: String,
        /// Its word.
        why: String,
    },
}

/// The four connections, in the order of [`Role::ALL`], and the welcome.
#[derive(Debug)]
pub struct Opened {
    /// [`Role::Commands`].
    pub commands: Stream,
    /// [`Role::Replies`], after the welcome.
    pub replies: Stream,
    /// [`Role::Up`].
    pub up: Stream,
    /// [`Role::Down`].
    pub down: Stream,
    /// What the far side told of itself.
    pub welcome: Welcome,
}

/// The variables of this program's environment that are meant for the driver.
#[must_use]
pub fn drivers_variables() -> Vec<(String, String)> {
    let set = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
    ENVIRONMENT.iter().filter_map(set).collect()
}

/// Opens a session as `ticket` says, served by a driver with `environment`.
///
/// # Errors
/// [`ConnectError`].
pub fn open(ticket: &Ticket, environment: Vec<(String, String)>) -> Result<Opened, ConnectError> {
    let mut way = Way::new(ticket, environment)?;
    let mut one = |role| way.connect(role, CONNECT, ANSWER).map(|(stream, _)| stream);
    let commands = one(Role::Commands)?;
    let mut replies = one(Role::Replies)?;
    let up = one(Role::Up)?;
    let down = one(Role::Down)?;
    let welcome = welcome(&ticket.address, &mut replies)?;
    for stream in [&commands, &replies, &up, &down] {
        let untimed = stream.socket().set_read_timeout(None);
        untimed.map_err(|source| ConnectError::Handshake {
            address: ticket.address.clone(),
            source,
        })?;
    }
    Ok(Opened {
        commands,
        replies,
        up,
        down,
        welcome,
    })
}

/// Asks the peer of a ticket what is free there, and how long a round trip takes. Each step may
/// take as long as `patience`.
///
/// # Errors
/// [`ConnectError`].
pub fn look(ticket: &Ticket, patience: Duration) -> Result<(Room, Duration), ConnectError> {
    let mut way = Way::new(ticket, Vec::new())?;
    let (mut stream, rtt) = way.connect(Role::Look, patience, patience)?;
    let room = read(&ticket.address, &mut stream)?;
    Ok((room, rtt))
}

/// How a peer is reached.
struct Way<'a> {
    address: &'a str,
    resolved: Vec<SocketAddr>,
    /// SHA-256 of its certificate; `None`: no TLS.
    pin: Option<[u8; 32]>,
    hello: Hello,
}

fn sha256(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, at) in out.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(out)
}

fn random() -> io::Result<[u8; 16]> {
    let mut out = [0_u8; 16];
    // SAFETY: room for as many bytes.
    let got = unsafe { libc::getrandom(out.as_mut_ptr().cast(), out.len(), 0) };
    if got == 16 {
        Ok(out)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn tenant(ticket: &Ticket) -> Tenant {
    let line = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().to_owned()
    };
    Tenant {
        container: ticket.container.clone(),
        host: line("/proc/sys/kernel/hostname"),
        limits: ticket.limits.clone(),
        pid: std::process::id(),
        program: line("/proc/self/comm"),
    }
}

impl<'a> Way<'a> {
    fn new(
        ticket: &'a Ticket,
        environment: Vec<(String, String)>,
    ) -> Result<Way<'a>, ConnectError> {
        let address = ticket.address.as_str();
        let resolved: Vec<SocketAddr> = address
            .to_socket_addrs()
            .map_err(|source| ConnectError::Resolve {
                address: address.to_owned(),
                source,
            })?
            .collect();
        let pin = match ticket.fingerprint.as_str() {
            "" => {
                if let Some(far) = resolved.iter().find(|at| !at.ip().is_loopback()) {
                    return Err(ConnectError::Unprotected(*far));
                }
                None
            }
            text => Some(sha256(text).ok_or_else(|| ConnectError::Fingerprint(text.to_owned()))?),
        };
        let session = random().map_err(|source| ConnectError::Reach {
            address: address.to_owned(),
            source,
        })?;
        let hello = Hello {
            magic: MAGIC,
            version: VERSION,
            table: api::fingerprint(),
            role: Role::Commands,
            session,
            token: ticket.token.clone(),
            tenant: tenant(ticket),
            inject: ticket.inject,
            environment,
        };
        Ok(Way {
            address,
            resolved,
            pin,
            hello,
        })
    }

    /// Opens one connection, whose hello was answered, and how long that took.
    fn connect(
        &mut self,
        role: Role,
        reach: Duration,
        answer: Duration,
    ) -> Result<(Stream, Duration), ConnectError> {
        self.hello.role = role;
        let address = self.address;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut socket = None;
        for at in &self.resolved {
            match TcpStream::connect_timeout(at, reach) {
                Ok(reached) => {
                    socket = Some(reached);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let socket = socket.ok_or_else(|| ConnectError::Reach {
            address: address.to_owned(),
            source: last,
        })?;
        let failed = |source| ConnectError::Handshake {
            address: address.to_owned(),
            source,
        };
        tune(&socket).map_err(failed)?;
        socket.set_read_timeout(Some(answer)).map_err(failed)?;
        let mut stream = match self.pin {
            Some(pin) => secure(socket, pin)?,
            None => Stream::Plain(socket),
        };
        stream.shake_hands().map_err(failed)?;
        let bytes = hello::to_bytes(&self.hello);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        let said = Instant::now();
        stream.send(&len, &bytes).map_err(failed)?;
        match read(address, &mut stream)? {
            Verdict::Welcome => Ok((stream, said.elapsed())),
            Verdict::Refused(why) => Err(ConnectError::Refused {
                address: address.to_owned(),
                why,
            }),
        }
    }
}

/// Reads a message of the handshake.
fn read<T: DeserializeOwned>(address: &str, stream: &mut Stream) -> Result<T, ConnectError> {
    let failed = |source| ConnectError::Handshake {
        address: address.to_owned(),
        source,
    };
    let malformed = |source| ConnectError::Malformed {
        address: address.to_owned(),
        source,
    };
    let mut len = [0; 4];
    stream.read_exact(&mut len).map_err(failed)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX {
        return Err(malformed(Malformed::Frame(len as u64)));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).map_err(failed)?;
    hello::from_bytes(&bytes).map_err(malformed)
}

fn welcome(address: &str, replies: &mut Stream) -> Result<Welcome, ConnectError> {
    let failed = |source| ConnectError::Handshake {
        address: address.to_owned(),
        source,
    };
    let malformed = |source| ConnectError::Malformed {
        address: address.to_owned(),
        source,
    };
    let timed = replies.socket().set_read_timeout(Some(WELCOME));
    timed.map_err(failed)?;
    let mut header = [0; Reply::SIZE];
    replies.read_exact(&mut header).map_err(failed)?;
    let reply = Reply::from_bytes(header).map_err(malformed)?;
    let mut body = vec![0; reply.len as usize];
    replies.read_exact(&mut body).map_err(failed)?;
    match reply.kind {
        ReplyKind::Welcome => hello::from_bytes(&body).map_err(malformed),
        ReplyKind::Bye => Err(ConnectError::Refused {
            address: address.to_owned(),
            why: String::from_utf8_lossy(&body).into_owned(),
        }),
        _ => Err(malformed(Malformed::Op(reply.kind as u16))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_64_digits() {
        let text = "0a".repeat(32);
        assert_eq!(sha256(&text), Some([0x0a; 32]));
        assert_eq!(sha256(&text[1..]), None);
        assert_eq!(sha256(&"+1".repeat(32)), None);
    }

    #[test]
    fn another_host_is_not_reached_unprotected() {
        let ticket = Ticket {
            address: "192.0.2.1:7000".to_owned(),
            ..Ticket::default()
        };
        let why = open(&ticket, vec![]).err().map(|e| e.to_string());
        assert!(
            why.is_some_and(|why| why.contains("192.0.2.1:7000") && why.contains("fingerprint"))
        );
    }
}
