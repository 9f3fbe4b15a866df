//! The door for other hosts: connections are accepted, say who they are within a deadline, and are
//! given to their session. Who has not said it holds a place in a short queue and nothing else.

use super::room;
use super::secret::{Identity, Token};
use super::session::{Connection, Sessions};
use super::tenant::{self, read_hello};
use crate::control::Observed;
use crate::core;
use ghost_wire::hello::{self, Hello, MAX, Role, Room, Verdict};
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// A hello must be there by then, that of TLS included.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that may be silent at a time; one more, and the oldest is closed, so that those
/// who never speak cannot keep out those who do.
const SILENT: usize = 64;

/// What connections are met with.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) identity: Option<Identity>,
    pub(super) token: Option<Token>,
    pub(super) sessions: Sessions,
    pub(super) core: core::Handle,
    pub(super) observed: watch::Receiver<Arc<Observed>>,
}

/// Connections that have not said who they are, the oldest first.
#[derive(Clone, Debug, Default)]
struct Silent(Arc<Mutex<VecDeque<(u64, AbortHandle)>>>);

impl Silent {
    fn add(&self, id: u64, task: AbortHandle) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, task)| !task.is_finished());
        all.push_back((id, task));
        if all.len() > SILENT
            && let Some((_, oldest)) = all.pop_front()
        {
            oldest.abort();
        }
    }

    /// This one has.
    fn spoke(&self, id: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| *other != id);
    }
}

/// Accepts connections until the daemon stops.
pub(super) async fn serve(listener: TcpListener, door: Door, mut stopping: watch::Receiver<bool>) {
    let silent = Silent::default();
    let mut next = 0_u64;
    loop {
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: peers wait in the queue meanwhile.
                tracing::warn!(%error, "a connection of another host cannot be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        next += 1;
        let (id, door, waiting) = (next, door.clone(), silent.clone());
        let task = tokio::spawn(async move {
            let spoke = || waiting.spoke(id);
            match door.meet(socket, spoke).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(%from, "a connection of another host is refused: {error}");
                }
                Err(error) => {
                    tracing::debug!(%from, %error, "a connection of another host came to nothing");
                }
            }
        });
        silent.add(id, task.abort_handle());
    }
}

impl Door {
    async fn meet(&self, socket: TcpStream, spoke: impl FnOnce()) -> io::Result<()> {
        tune(&socket)?;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "no hello within 5 s");
        match &self.identity {
            None => {
                let mut socket = socket;
                let hello = tokio::time::timeout(PATIENCE, read(&mut socket)).await;
                let hello = hello.map_err(|_| silent())??;
                self.answer(hello, socket, Connection::Plain, spoke).await
            }
            Some(identity) => {
                let greeted = async {
                    let mut tls = identity.acceptor.accept(socket).await?;
                    let hello = read(&mut tls).await?;
                    io::Result::Ok((tls, hello))
                };
                let greeted = tokio::time::timeout(PATIENCE, greeted).await;
                let (tls, hello) = greeted.map_err(|_| silent())??;
                let wrap = |tls| Connection::Tls(Box::new(tls));
                self.answer(hello, tls, wrap, spoke).await
            }
        }
    }

    /// Says yes or no to a hello; a whole session begins.
    async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        bytes: Vec<u8>,
        mut stream: S,
        wrap: impl FnOnce(S) -> Connection,
        spoke: impl FnOnce(),
    ) -> io::Result<()> {
        let known = read_hello(&bytes).and_then(|hello| self.knows(hello));
        let expected = match known {
            Ok(hello) if hello.role == Role::Look => {
                spoke();
                let told = async {
                    say(&mut stream, &Verdict::Welcome).await?;
                    say(&mut stream, &self.room()).await?;
                    stream.shutdown().await
                };
                return tokio::time::timeout(PATIENCE, told).await?;
            }
            Ok(hello) => {
                spoke();
                self.sessions.expect(&hello).await.map(|()| hello)
            }
            Err(why) => Err(why),
        };
        let hello = match expected {
            Ok(hello) => hello,
            Err(why) => {
                let no = Verdict::Refused(why.clone());
                // A stranger that does not read is not waited for.
                let _ = tokio::time::timeout(PATIENCE, say(&mut stream, &no)).await;
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        };
        tokio::time::timeout(PATIENCE, say(&mut stream, &Verdict::Welcome))
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        if let Some(full) = self.sessions.add(&hello, wrap(stream)) {
            let sessions = self.sessions.clone();
            tokio::spawn(async move { sessions.serve(full).await });
        }
        Ok(())
    }

    /// What is free here for clients.
    fn room(&self) -> Room {
        let sessions = u32::try_from(self.sessions.left()).unwrap_or(u32::MAX);
        let above = tenant::ABOVE.parse();
        let gpus = above.map(|above| {
            let all = room::of(&above, &self.core.catalog(), &self.observed.borrow());
            all.into_iter().map(|(_, space)| space).collect()
        });
        Room {
            gpus: gpus.unwrap_or_default(),
            sessions,
        }
    }

    fn knows(&self, hello: Hello) -> Result<Hello, String> {
        match &self.token {
            Some(token) if !token.is(&hello.token) => Err(
                "the token is not this host's: `ghostctl peer add` with its --token-file"
                    .to_owned(),
            ),
            _ => Ok(hello),
        }
    }
}

/// As the client's side has it: small messages at once, and a cut link noticed within some six
/// seconds.
fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1))
        .with_retries(4);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// A hello's bytes, and not one more: what follows is the executor's.
async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Vec<u8>> {
    let len = stream.read_u32_le().await? as usize;
    if len > MAX {
        let why = format!("a hello of {len} bytes: this is no Ghost");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, message: &impl Serialize) -> io::Result<()> {
    let bytes = hello::to_bytes(message);
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    stream.write_all(&len.to_le_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}
