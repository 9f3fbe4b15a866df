//! The socket on which loads register as processes of the simulated GPUs.
//!
//! Who a load is comes from the kernel (SO_PEERCRED and `/proc`), never from what it says. One
//! thread serves all; a peer that sends rubbish, too much, or does not read its answers loses
//! its connection and nothing else.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, thread};

use ghost_model::name::sanitize;
use ghost_model::{GpuId, GroupId, Micros, ProcId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::Sim;
use super::wire::{MAX_REQUEST, Progress, Request, Response};
use crate::procs;

/// Loads at a time.
const MAX_LOADS: usize = 512;

/// Channel groups of one load.
const MAX_GROUPS: usize = 64;

/// Bytes of answers that a load may leave unread.
const MAX_UNREAD: usize = 1 << 18;

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Somebody listens there.
    #[error("{0}: another simulation listens there; end it or choose another socket")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("{path}: cannot {what}")]
    System {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// errno.
        #[source]
        source: io::Error,
    },
}

/// Serves loads on a socket until it is dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    // Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, open to every user of the host who can reach it. A socket that nobody
    /// listens on any more is replaced.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(sim: Sim, path: &Path) -> Result<Self, ServerError> {
        let failed = |what| {
            move |source| ServerError::System {
                path: path.to_owned(),
                what,
                source,
            }
        };
        if UnixStream::connect(path).is_ok() {
            return Err(ServerError::InUse(path.to_owned()));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
            fs::remove_file(path).map_err(failed("remove the old socket"))?;
        }
        let listener = UnixListener::bind(path).map_err(failed("listen"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))
            .and_then(|()| listener.set_nonblocking(true))
            .map_err(failed("set up the socket"))?;
        let (stop, stopped) = UnixStream::pair().map_err(failed("make a pipe"))?;
        let service = Service {
            sim,
            loads: Vec::new(),
        };
        let thread = thread::Builder::new()
            .name("ghost-sim".into())
            .spawn(move || service.run(&listener, &stopped))
            .map_err(failed("start a thread"))?;
        Ok(Server {
            path: path.to_owned(),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

struct Service {
    sim: Sim,
    loads: Vec<Peer>,
}

struct Peer {
    stream: UnixStream,
    process: ProcId,
    // With the kernels that were reported.
    groups: Vec<(GroupId, u64)>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Service {
    fn run(mut self, listener: &UnixListener, stopped: &UnixStream) {
        loop {
            let mut fds = vec![
                PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(self.loads.iter().map(|load| {
                let out = PollFlags::POLLOUT;
                let out = if load.output.is_empty() {
                    PollFlags::empty()
                } else {
                    out
                };
                PollFd::new(load.stream.as_fd(), PollFlags::POLLIN | out)
            }));
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the simulation's socket cannot be waited for");
                    return;
                }
                Ok(_) => {}
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if ready.first() == Some(&true) {
                return;
            }
            let sim = self.sim.clone();
            let mut loads = ready.iter().skip(2);
            self.loads.retain_mut(|load| {
                let keep = loads.next() != Some(&true) || load.serve(&sim).is_some();
                if !keep {
                    load.end(&sim);
                }
                keep
            });
            if ready.get(1) == Some(&true) {
                self.accept(listener);
            }
        }
    }

    fn accept(&mut self, listener: &UnixListener) {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // Out of descriptors, most likely: the peer waits in the queue meanwhile.
                tracing::warn!(%error, "cannot accept a load");
                thread::sleep(Duration::from_millis(50));
                return;
            }
        };
        let identity = getsockopt(&stream, PeerCredentials).ok();
        let pid = identity.and_then(|c| u32::try_from(c.pid()).ok());
        let process = pid.and_then(procs::identify);
        let refusal = match process {
            _ if self.loads.len() >= MAX_LOADS => "too many loads: end some",
            None => "no such process here: a load runs in ghostd's pid namespace or below it",
            Some(process) if stream.set_nonblocking(true).is_ok() => {
                self.loads.push(Peer {
                    stream,
                    process,
                    groups: Vec::new(),
                    input: Vec::new(),
                    output: Vec::new(),
                });
                return;
            }
            Some(_) => "the socket cannot be used",
        };
        // It reads this or it does not.
        let _ = stream.write_all(&line(&Response::Error(refusal.into())));
    }
}

impl Peer {
    /// Does what the load asks now; `None` to part with it.
    fn serve(&mut self, sim: &Sim) -> Option<()> {
        let mut part = [0; MAX_REQUEST];
        match self.stream.read(&mut part) {
            Ok(0) => return None,
            Ok(n) => self.input.extend(part.get(..n)?),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        while let Some(end) = self.input.iter().position(|&b| b == b'\n') {
            let request: Vec<u8> = self.input.drain(..=end).collect();
            let response = match serde_json::from_slice(&request) {
                Ok(request) => self.answer(sim, request),
                Err(e) => Response::Error(format!("not a request: {}", sanitize(&e.to_string()))),
            };
            self.output.extend(line(&response));
        }
        if self.input.len() > MAX_REQUEST || self.output.len() > MAX_UNREAD {
            return None;
        }
        match self.stream.write(&self.output) {
            Ok(n) => drop(self.output.drain(..n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        Some(())
    }

    fn answer(&mut self, sim: &Sim, request: Request) -> Response {
        let mut world = sim.world();
        match request {
            Request::Hello(_) if self.groups.len() >= MAX_GROUPS => {
                Response::Error(format!("a load has {MAX_GROUPS} channel groups at most"))
            }
            Request::Hello(hello) => {
                let gpus = world.gpus();
                let gpu = hello.gpu.parse::<GpuId>().and_then(|id| id.resolve(&gpus));
                let index = match gpu {
                    Ok(gpu) => gpus.iter().find(|g| g.id == gpu).map(|g| g.index),
                    Err(e) => return Response::Error(e.to_string()),
                };
                if self.groups.is_empty() {
                    let pid = self.process.pid;
                    let command = procs::command(pid).unwrap_or_default();
                    world.start(
                        self.process,
                        &command,
                        crate::cgroup::path_of(pid).as_deref(),
                    );
                }
                let index = index.unwrap_or(u32::MAX);
                match world.spawn(self.process, index, hello.load(), hello.memory) {
                    Ok(id) => {
                        self.groups.push((id, 0));
                        Response::Done
                    }
                    Err(error) => {
                        if !world.computes(self.process) {
                            world.kill(self.process);
                        }
                        Response::Error(error.to_string())
                    }
                }
            }
            Request::Progress => {
                let mut progress = Progress::default();
                for (id, known) in &mut self.groups {
                    if let Some(group) = world.group(*id) {
                        progress.add(group, known);
                    }
                }
                Response::Progress(progress)
            }
            Request::Slice { us } => {
                let groups = self.groups.iter();
                groups.for_each(|&(id, _)| world.tamper(id, Micros(us)));
                Response::Done
            }
        }
    }

    /// The process is gone with the last of its connections.
    fn end(&mut self, sim: &Sim) {
        let mut world = sim.world();
        for &(id, _) in &self.groups {
            world.leave(id);
        }
    }
}

fn line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response).unwrap_or_default();
    line.push(b'\n');
    line
}
