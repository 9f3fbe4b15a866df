//! The socket at which container runtimes and `ghostctl run` hand over the listeners of seccomp
//! filters, as the OCI runtime specification has it: one message, the state of the container's
//! process with the listener as a descriptor. The answer is one line of JSON, which runtimes do
//! not read.
//!
//! Who hands one over may do so where REST would let the same user put processes into the
//! container. A listener that is not taken is closed, and the filtered calls fail: closed, not
//! open. Each connection has a thread, and a bounded time.

pub mod state;

use crate::caller::{Admins, Caller};
use crate::control::{Adopt, Message};
use crate::core::{Handle, Request};
use crate::events::Events;
use crate::socket::{Most, Places};
use ghost_model::{Kind, Name, Problem};
use ghost_notify::pass;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::json;
use state::{MAX_FDS, MAX_STATE, State, StateError};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// All of a state must be there by then, and all of an answer taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// A state comes in no more parts than this.
const PARTS: usize = 64;
/// Connections, each with a thread: a batch of jobs comes all at once.
const MOST: Most = Most {
    each: 64,
    strangers: 256,
    admins: 512,
};
/// Stack of a connection's thread.
const STACK: usize = 256 << 10;

/// What the socket works with.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Who administers.
    pub admins: Admins,
    /// Who may put what where.
    pub core: Handle,
    /// Where the backend is.
    pub control: mpsc::Sender<Message>,
    /// Where refusals go.
    pub events: Events,
}

/// The socket, until it is dropped.
#[derive(Debug)]
pub struct Notify {
    /// Removed at the end, where it is ours.
    path: Option<PathBuf>,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Notify {
    /// Takes listeners. `path` is where the socket is, if it is ours to remove.
    ///
    /// # Errors
    /// No thread, or no pipe.
    pub fn start(
        listener: UnixListener,
        path: Option<PathBuf>,
        parts: Parts,
    ) -> io::Result<Notify> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new()
            .name("notify".into())
            .spawn(move || serve(&listener, &stopped, &parts))?;
        Ok(Notify {
            path,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            // What is not there is removed already.
            let _ = fs::remove_file(path);
        }
    }
}

fn serve(listener: &UnixListener, stopped: &UnixStream, parts: &Parts) {
    let places = Places::new(MOST);
    loop {
        let mut fds = [
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) if fds[0].any() != Some(false) => return,
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "the notify socket cannot be waited for");
                return;
            }
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // Out of descriptors, most likely: peers wait in the queue meanwhile.
                tracing::warn!(%error, "a listener cannot be accepted");
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else {
            continue;
        };
        let caller = parts.admins.caller(peer.uid(), peer.gid());
        let Some(place) = places.take(caller) else {
            tracing::warn!(%caller, "a listener is not taken: too many connections of this user");
            continue;
        };
        let (parts, runtime) = (parts.clone(), peer.pid().cast_unsigned());
        let spawned = thread::Builder::new()
            .name("listener".into())
            .stack_size(STACK)
            .spawn(move || {
                answer(&stream, caller, runtime, &parts);
                drop(place);
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a listener is not taken: no thread");
        }
    }
}

fn answer(mut stream: &UnixStream, caller: Caller, runtime: u32, parts: &Parts) {
    let begin = Instant::now();
    let mut container = None;
    let taken = receive(stream, begin).and_then(|(state, listener)| {
        container = Some(state.container.clone());
        adopt(state, listener, caller, runtime, parts)
    });
    let line = match taken {
        Ok(()) => json!({ "ok": true }).to_string(),
        Err(problem) => {
            let detail = format!("a seccomp listener was not taken: {}", problem.detail);
            tracing::warn!(%caller, "{detail}");
            parts.events.push("refused", container.as_ref(), detail);
            serde_json::to_string(&problem).unwrap_or_default()
        }
    };
    // Whoever reads it does so at once, and most do not.
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}

/// The state and the listener that came with it; other descriptors are closed.
fn receive(stream: &UnixStream, begin: Instant) -> Result<(State, OwnedFd), Problem> {
    let broken = |e: io::Error| {
        let detail = match e.kind() {
            io::ErrorKind::WouldBlock => {
                let seconds = PATIENCE.as_secs();
                format!("the state of the container's process did not come within {seconds} s")
            }
            _ => format!("the connection broke: {e}"),
        };
        Problem::new(Kind::Invalid, detail)
    };
    let invalid = |why: String| Problem::new(Kind::Invalid, why);
    let (mut bytes, mut fds) = (Vec::new(), Vec::new());
    let mut part = vec![0; 64 << 10];
    for _ in 0..PARTS {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        let left = left.max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(broken)?;
        let (count, some) = pass::receive(stream, &mut part).map_err(broken)?;
        bytes.extend(part.iter().take(count));
        fds.extend(some);
        if fds.len() > MAX_FDS {
            return Err(invalid(StateError::TooMany(fds.len()).to_string()));
        }
        match state::parse(&bytes) {
            Err(StateError::Incomplete) if count > 0 && bytes.len() <= MAX_STATE => {}
            Err(e) => return Err(invalid(e.to_string())),
            Ok(state) if state.fds != fds.len() => {
                let (said, came) = (state.fds, fds.len());
                return Err(invalid(format!(
                    "fds: {came} descriptors came, the state names {said}"
                )));
            }
            Ok(state) => {
                let listener = fds.into_iter().nth(state.listener);
                let missing = || invalid(StateError::Listeners(0).to_string());
                return Ok((state, listener.ok_or_else(missing)?));
            }
        }
    }
    Err(invalid(StateError::Incomplete.to_string()))
}

fn adopt(
    state: State,
    listener: OwnedFd,
    caller: Caller,
    runtime: u32,
    parts: &Parts,
) -> Result<(), Problem> {
    let container: Name = state.container;
    let join = Request::Join {
        name: container.clone(),
        pid: state.pid,
        runtime,
    };
    parts
        .core
        .ask_blocking(caller, join)
        .map_err(|refused| refused.into_problem())?;
    let (answer, answered) = oneshot::channel();
    let adopt = Adopt {
        container: container.clone(),
        listener,
        answer,
    };
    let stopping = || Problem::new(Kind::Unavailable, "ghostd is stopping");
    let sent = parts.control.send(Message::Adopt(Box::new(adopt)));
    sent.map_err(|_| stopping())?;
    let taken = answered.blocking_recv().map_err(|_| stopping())?;
    taken.map_err(|e| Problem::new(Kind::Unavailable, e.to_string()))?;
    tracing::info!(%container, by = %caller, "a seccomp listener was taken");
    Ok(())
}
