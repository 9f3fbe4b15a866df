//! The broker's socket: a thread that lets in, and one for each connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ghost_notify::pass;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::wire::{Ask, MAX_BODY, Reply};
use super::{Broker, refused};
use crate::protocol;
use crate::server::{ServerError, listen};

/// Connections at a time: ghostd's few, and some for people who look.
const MAX_CONNECTIONS: usize = 16;

/// Enough for a message's bodies, which lie on the heap, and the reader of JSON.
const STACK: usize = 512 << 10;

/// How long a client may take to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves `broker` on a socket at `path`, made for its owner only, to callers whose uid is in
/// `uids`.
///
/// # Errors
///
/// [`ServerError::Listen`].
pub fn open(path: &Path, uids: Vec<u32>, broker: &Arc<Broker>) -> Result<(), ServerError> {
    let failed = |source| ServerError::Listen {
        path: path.to_owned(),
        source,
    };
    let listener = listen(path)?;
    listener.set_nonblocking(false).map_err(failed)?;
    let broker = broker.clone();
    std::thread::Builder::new()
        .name("door".into())
        .stack_size(STACK)
        .spawn(move || serve(&listener, &uids, &broker))
        .map_err(failed)?;
    Ok(())
}

fn serve(listener: &UnixListener, uids: &[u32], broker: &Arc<Broker>) {
    let inside = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                broker.note("accept", format!("the broker's socket: {error}"));
                // Out of descriptors, for one: what is freed meanwhile helps.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let full = inside.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS;
        let refusal = match getsockopt(&stream, PeerCredentials).map(|peer| peer.uid()) {
            Ok(uid) if !uids.contains(&uid) => {
                Some(format!("uid {uid} may not speak to the broker"))
            }
            Ok(_) if full => Some(format!("{MAX_CONNECTIONS} clients already")),
            Ok(_) => None,
            Err(errno) => Some(format!("who calls is not known: {errno}")),
        };
        let left = Left(inside.clone());
        if let Some(detail) = refusal {
            // Once, without waiting: a stranger gets no thread of ours.
            if stream.set_nonblocking(true).is_ok() {
                let _ = say(&stream, &Reply::Refused { detail }, &[]);
            }
            continue;
        }
        let broker = broker.clone();
        let spawned = std::thread::Builder::new()
            .name("client".into())
            .stack_size(STACK)
            .spawn(move || {
                let _left = left;
                // A client that goes in the middle of a message has no more to say.
                let _ = converse(&stream, &broker);
            });
        drop(spawned);
    }
}

struct Left(Arc<AtomicUsize>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(stream: &UnixStream, broker: &Arc<Broker>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut input, mut fds) = (Vec::new(), Vec::new());
    let mut chunk = vec![0; 64 << 10];
    loop {
        match protocol::decode_within::<Ask>(&input, MAX_BODY) {
            Ok(Some((ask, taken))) => {
                input.drain(..taken);
                let (reply, fds) = broker.ask(ask, std::mem::take(&mut fds));
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
                say(stream, &reply, &fds)?;
            }
            Ok(None) => {
                let (got, more) = pass::receive(stream, &mut chunk)?;
                if got == 0 {
                    return Ok(());
                }
                input.extend(chunk.iter().take(got));
                fds.extend(more);
                if fds.len() > pass::MAX_FDS {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            Err(error) => return say(stream, &refused(&error), &[]),
        }
    }
}

fn say(stream: &UnixStream, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let frame = protocol::encode_within(reply, MAX_BODY)
        .or_else(|error| protocol::encode_within(&refused(&error), MAX_BODY))
        .map_err(io::Error::other)?;
    pass::send(stream, &frame, fds)
}
