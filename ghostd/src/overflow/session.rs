//! Sessions: four connections that belong together, and the executor that they are given to.

use super::lease::{Lease, Leases};
use super::stats::Stats;
use super::tenant;
use command_fds::{CommandFdExt, FdMapping};
use ghost_model::name::sanitize;
use ghost_wire::hello::{Hello, Role};
use nix::unistd::Uid;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

/// All four connections must stand so long after the first.
const JOIN: Duration = Duration::from_secs(10);
/// What an executor sent before its end may still travel so long.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes that are copied at a time between TLS and an executor.
const COPY: usize = 256 << 10;
/// The first descriptor of the session in the executor; the others follow.
const FIRST_FD: i32 = 3;

/// An accepted connection, its hello read.
#[derive(Debug)]
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What executors are started with.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// ghostd's socket, for `ghostctl run`.
    pub(super) socket: PathBuf,
    /// `ghostctl`.
    pub(super) ghostctl: PathBuf,
    /// The executor.
    pub(super) executor: PathBuf,
    /// Whom it runs as; `None`: as ghostd.
    pub(super) user: Option<String>,
    /// Where tenants' images are kept.
    pub(super) cache: PathBuf,
}

/// A session that not all connections have come for.
struct Forming {
    /// Of the first connection; it speaks for all.
    hello: Hello,
    /// Which are expected, have said hello, or stand.
    said: [bool; 4],
    stand: [Option<Connection>; 4],
    lease: Lease,
    permit: OwnedSemaphorePermit,
}

/// A session that stands.
pub(super) struct Full {
    hello: Hello,
    stand: [Connection; 4],
    lease: Lease,
    permit: OwnedSemaphorePermit,
}

/// All sessions.
#[derive(Clone)]
pub(super) struct Sessions {
    /// Guards those that are forming, and is held to change them only.
    forming: Arc<Mutex<HashMap<[u8; 16], Forming>>>,
    places: Arc<Semaphore>,
    most: usize,
    leases: Leases,
    start: Arc<Start>,
    stats: Arc<Stats>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({} of {})", self.open(), self.most)
    }
}

impl Sessions {
    pub(super) fn new(most: usize, leases: Leases, start: Start, stats: Arc<Stats>) -> Sessions {
        Sessions {
            forming: Arc::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
            leases,
            start: Arc::new(start),
            stats,
        }
    }

    /// How many more are taken.
    pub(super) fn left(&self) -> usize {
        self.places.available_permits()
    }

    /// How many there are, those that are forming included.
    pub(super) fn open(&self) -> usize {
        self.most.saturating_sub(self.places.available_permits())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Forming>> {
        self.forming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a hello whose sender is known. The first of a session makes its container.
    ///
    /// # Errors
    /// A sentence for the client.
    pub(super) async fn expect(&self, hello: &Hello) -> Result<(), String> {
        let at = index(hello.role)?;
        if let Some(said) = join(&mut self.lock(), hello, at) {
            return said;
        }
        let place = tenant::place(&hello.tenant)?;
        if !self.start.executor.exists() {
            let executor = self.start.executor.display();
            tracing::error!("{executor} is not there: set executor in [overflow] of ghostd.toml");
            return Err("this host has no ghost-executor: install all of Ghost there".into());
        }
        let permit = self.places.clone().try_acquire_owned().map_err(|_| {
            format!(
                "this host serves {} sessions already: try again later, or raise max_sessions there",
                self.most
            )
        })?;
        let lease = self.leases.take(&place).await;
        let lease = lease.map_err(|p| format!("the container is refused: {}", p.detail))?;
        let mut said = [false; 4];
        said[at] = true;
        let forming = Forming {
            hello: hello.clone(),
            said,
            stand: [const { None }; 4],
            lease,
            permit,
        };
        let id = hello.session;
        {
            let mut all = self.lock();
            // Another connection of the same session may have been quicker.
            if let Some(said) = join(&mut all, hello, at) {
                return said;
            }
            all.insert(id, forming);
        }
        let all = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(JOIN).await;
            if all.lock().remove(&id).is_some() {
                tracing::warn!(
                    "a session did not come to stand within {} s",
                    JOIN.as_secs()
                );
            }
        });
        Ok(())
    }

    /// Adds a connection whose verdict was sent; gives the session once it is whole.
    pub(super) fn add(&self, hello: &Hello, connection: Connection) -> Option<Full> {
        let mut all = self.lock();
        let at = index(hello.role).ok()?;
        let forming = all.get_mut(&hello.session)?;
        forming.stand[at] = Some(connection);
        if forming.stand.iter().any(Option::is_none) {
            return None;
        }
        let forming = all.remove(&hello.session)?;
        let [Some(commands), Some(replies), Some(up), Some(down)] = forming.stand else {
            return None;
        };
        Some(Full {
            hello: forming.hello,
            stand: [commands, replies, up, down],
            lease: forming.lease,
            permit: forming.permit,
        })
    }

    /// Serves a session to its end.
    pub(super) async fn serve(&self, full: Full) {
        let tenant = &full.hello.tenant;
        let container = full.lease.name.clone();
        let whose = format!(
            "{:?} (process {}, {:?}) of {:?}",
            sanitize(&tenant.container),
            tenant.pid,
            sanitize(&tenant.program),
            sanitize(&tenant.host)
        );
        tracing::info!(%container, "a session begins for {whose}");
        match self.run(full.hello, full.stand, &full.lease).await {
            Ok(status) if status.success() => {
                tracing::info!(%container, "the session for {whose} ended");
            }
            Ok(status) => {
                tracing::warn!(%container, "the session for {whose} ended: executor: {status}");
            }
            Err(error) => tracing::error!(%container, %error, "no executor for {whose}"),
        }
        drop((full.lease, full.permit));
    }

    async fn run(
        &self,
        hello: Hello,
        stand: [Connection; 4],
        lease: &Lease,
    ) -> io::Result<std::process::ExitStatus> {
        let mut copies = JoinSet::new();
        let mut fds = Vec::new();
        for connection in stand {
            fds.push(hand_over(connection, &mut copies)?);
        }
        let cache = self.start.cache.join(lease.name.leaf());
        private_to(&cache, self.start.user.as_deref())?;
        let mut command = self.start.command(&hello, lease, &cache);
        let tenant = &hello.tenant;
        let counted = self.stats.serve(&lease.name, &tenant.host, tenant.pid)?;
        fds.push(counted.file.try_clone()?.into());
        let numbered = fds.into_iter().zip(FIRST_FD..);
        let mappings = numbered.map(|(parent_fd, child_fd)| FdMapping {
            parent_fd,
            child_fd,
        });
        command
            .fd_mappings(mappings.collect())
            .map_err(|e| io::Error::other(e.to_string()))?;
        let mut command = tokio::process::Command::from(command);
        let mut child = command.spawn()?;
        // The descriptors are the executor's alone from here on: its end is to be seen.
        drop(command);
        let status = child.wait().await;
        let all = async { while copies.join_next().await.is_some() {} };
        // What is left after that is dropped, and with it aborted.
        let _ = tokio::time::timeout(FAREWELL, all).await;
        status
    }
}

/// Joins a session that is forming, if it is.
fn join(
    all: &mut HashMap<[u8; 16], Forming>,
    hello: &Hello,
    at: usize,
) -> Option<Result<(), String>> {
    let forming = all.get_mut(&hello.session)?;
    let same = forming.hello.tenant == hello.tenant;
    let said = &mut forming.said[at];
    Some(if !same {
        Err("another tenant's session has this id".into())
    } else if std::mem::replace(said, true) {
        Err("this connection of the session is there already".into())
    } else {
        Ok(())
    })
}

impl Start {
    /// `ghostctl run`, so that the executor is held exactly as a program of this host is.
    fn command(&self, hello: &Hello, lease: &Lease, cache: &Path) -> std::process::Command {
        let mut command = std::process::Command::new(&self.ghostctl);
        command.arg("--socket").arg(&self.socket).arg("run");
        if let Some(user) = &self.user {
            command.args(["--user", user]);
        }
        let fds: Vec<String> = (FIRST_FD..).take(4).map(|fd| fd.to_string()).collect();
        command.args([lease.name.as_str(), "--"]);
        command
            .arg(&self.executor)
            .args(["--session", &fds.join(",")])
            .args(["--stats-fd", &(FIRST_FD + 4).to_string()]);
        command.arg("--cache").arg(cache);
        for (flag, value) in [
            ("--rtt-us", hello.inject.rtt_us),
            ("--rate", hello.inject.rate),
        ] {
            if value > 0 {
                command.args([flag, &value.to_string()]);
            }
        }
        // What ghostd was started with is no business of a tenant's process, but for what starting
        // a scope takes.
        command.env_clear();
        for name in ["PATH", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("HOME", cache).envs(hello.variables());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// The descriptor that the executor gets. TLS ends here, for the certificate's key is not to be in
/// a process whose memory the tenant's kernels can reach.
fn hand_over(connection: Connection, copies: &mut JoinSet<()>) -> io::Result<OwnedFd> {
    match connection {
        Connection::Plain(socket) => {
            let socket = socket.into_std()?;
            socket.set_nonblocking(false)?;
            Ok(socket.into())
        }
        Connection::Tls(mut tls) => {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            let mut ours = UnixStream::from_std(ours)?;
            copies.spawn(async move {
                let copied = copy_bidirectional_with_sizes(&mut tls, &mut ours, COPY, COPY).await;
                if let Err(error) = copied {
                    tracing::debug!(%error, "a connection of a session broke");
                }
            });
            Ok(theirs.into())
        }
    }
}

/// A directory for one tenant.
fn private_to(dir: &Path, user: Option<&str>) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        let all = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(above);
        all?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    if let Some(user) = user.filter(|_| Uid::effective().is_root()) {
        let found = nix::unistd::User::from_name(user)?;
        let found = found.ok_or_else(|| io::Error::other(format!("no user {user:?}")))?;
        chown(dir, Some(found.uid.as_raw()), Some(found.gid.as_raw()))?;
    }
    Ok(())
}

/// Which of the four it is.
fn index(role: Role) -> Result<usize, String> {
    let at = Role::ALL.iter().position(|one| *one == role);
    at.ok_or_else(|| "this connection is none of a session's".to_owned())
}
