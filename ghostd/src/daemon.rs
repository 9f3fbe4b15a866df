//! Puts the parts together: store, core, control loop, REST. `main` runs one on the host's
//! directories; tests run as many as they like on directories of their own.

use crate::caller::{Admins, Caller};
use crate::config::Config;
use crate::control::{self, Message, Observed};
use crate::core::{self, Handle, Refused, Request};
use crate::events::Events;
use crate::http::{self, App, Server};
use crate::journal::{self, Recorder};
use crate::metrics::{LoopMetrics, Metrics};
use crate::notify::{self, Notify};
use crate::overflow::{self, Overflow, OverflowError};
use crate::proc::Proc;
use crate::socket::{self, SocketError};
use crate::store::{Store, StoreError};
use ghost_backend::Backend;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How often the end of a thread is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Why ghostd does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Work cannot be taken from other hosts, or given to them.
    #[error(transparent)]
    Overflow(#[from] OverflowError),
    /// A thread or a directory cannot be had.
    #[error("{what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A thread panicked.
    #[error("the {0} thread ended by itself: see its panic above")]
    Ended(&'static str),
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    app: App,
    control: mpsc::Sender<Message>,
    stop: watch::Sender<bool>,
    loop_thread: JoinHandle<()>,
    core_thread: JoinHandle<()>,
    server: tokio::task::JoinHandle<()>,
    notify: Option<Notify>,
    overflow: overflow::Tasks,
}

/// The sockets that systemd made, where it did.
#[derive(Debug, Default)]
pub struct Sockets {
    /// REST.
    pub rest: Option<UnixListener>,
    /// Where listeners are handed over.
    pub notify: Option<UnixListener>,
}

impl Daemon {
    /// Opens the store, which refuses a second ghostd, and starts all parts. `backend` is made
    /// after that, so that two daemons never hold the same GPUs; `alive` is called at each turn of the control loop.
    ///
    /// # Errors
    /// [`DaemonError`], or the backend's own.
    pub fn start<B: Backend + 'static, E: From<DaemonError>>(
        config: &Config,
        sockets: Sockets,
        backend: impl FnOnce() -> Result<B, E>,
        alive: impl FnMut() + Send + 'static,
    ) -> Result<Daemon, E> {
        let (store, mut store_notes) = Store::open(&config.state_dir).map_err(DaemonError::from)?;
        let admins = Admins::new(&config.socket_group);
        let mut backend = backend()?;
        let start = || -> Result<Daemon, DaemonError> {
            let server = match sockets.rest {
                Some(listener) => Server::on(listener, admins.clone())?,
                None => Server::bind(&config.socket, config.socket_mode, admins.clone())?,
            };
            let events = Events::new();
            let proc = Proc::host();
            let of_loop = Arc::new(LoopMetrics::default());
            let (saved, note) = journal::load(&config.state_dir);
            store_notes.extend(note);
            let recorder = Recorder::start(&config.state_dir).map_err(system("the journal"))?;
            let (publish, observed) = watch::channel(Arc::new(Observed::default()));
            let (control, messages) = mpsc::channel();
            let wake = control.clone();
            // Without a loop there is nobody to wake.
            backend.wake_by(Box::new(move || drop(wake.send(Message::Wake))));
            let takes_listeners = backend.takes_listeners();
            let loop_thread = control::start(
                backend,
                control::Parts {
                    tick: config.tick,
                    messages,
                    observed: publish,
                    events: events.clone(),
                    metrics: of_loop.clone(),
                    recorder,
                    saved,
                    alive: Box::new(alive),
                },
            )
            .map_err(system("the control loop"))?;
            let (core, core_thread) = core::start(core::Parts {
                store,
                store_notes,
                directory: config.containers_dir.clone(),
                proc: proc.clone(),
                events: events.clone(),
                observed: observed.clone(),
                control: control.clone(),
            })
            .map_err(system("the core"))?;
            let notify = takes_listeners.then(|| -> Result<Notify, DaemonError> {
                let path = &config.notify_socket;
                let (socket, own) = match sockets.notify {
                    Some(socket) => (socket, None),
                    None => {
                        let socket = socket::bind(path, config.socket_mode, &admins)?;
                        (socket, Some(path.clone()))
                    }
                };
                let parts = notify::Parts {
                    admins: admins.clone(),
                    core: core.clone(),
                    control: control.clone(),
                    events: events.clone(),
                };
                Notify::start(socket, own, parts).map_err(system("the notify socket"))
            });
            let notify = notify.transpose()?;
            let (stop, stopping) = watch::channel(false);
            let (overflow, tasks) = Overflow::start(config, &core, &observed, stopping.clone())?;
            let app = App {
                metrics: Arc::new(Metrics::new(
                    &of_loop,
                    core.clone(),
                    observed.clone(),
                    (overflow.clone(), admins.clone()),
                )),
                overflow,
                admins,
                core,
                observed,
                events,
                of_loop,
                proc,
                notify: notify
                    .is_some()
                    .then(|| config.notify_socket.as_path().into()),
                stopping: stopping.clone(),
            };
            let router = http::router(app.clone());
            Ok(Daemon {
                server: tokio::spawn(server.serve(router, stopping)),
                app,
                control,
                stop,
                loop_thread,
                core_thread,
                notify,
                overflow: tasks,
            })
        };
        Ok(start()?)
    }

    /// What the doors work with.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Reads the container files again; what is wrong with them is logged and shown.
    ///
    /// # Errors
    /// [`Refused`]: the store cannot be written.
    pub async fn reload(&self) -> Result<(), Refused> {
        let core: &Handle = &self.app.core;
        core.ask(Caller::daemon(), Request::Reload).await.map(drop)
    }

    /// Returns when a part ended that should not: the daemon is of no use then.
    pub async fn failed(&self) -> DaemonError {
        loop {
            if self.loop_thread.is_finished() {
                return DaemonError::Ended("control");
            }
            if self.core_thread.is_finished() {
                return DaemonError::Ended("core");
            }
            if self.server.is_finished() {
                return DaemonError::Ended("server");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends in order: no more requests, everything that is paused runs again, memory and counters
    /// are on the disk.
    ///
    /// # Errors
    /// [`DaemonError::Ended`] for a part that had panicked.
    pub async fn stop(self) -> Result<(), DaemonError> {
        self.stop.send_replace(true);
        let server = self.server.await;
        drop((self.notify, self.overflow));
        // Without a loop there is nobody to be told.
        let _ = self.control.send(Message::Stop);
        self.app.core.stop();
        let threads = [("control", self.loop_thread), ("core", self.core_thread)];
        for (name, thread) in threads {
            let joined = tokio::task::spawn_blocking(move || thread.join());
            if !matches!(joined.await, Ok(Ok(()))) {
                return Err(DaemonError::Ended(name));
            }
        }
        server.map_err(|_| DaemonError::Ended("server"))
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}
