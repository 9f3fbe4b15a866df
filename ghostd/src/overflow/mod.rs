//! Overflow: work of this host that is computed on another, and work of other hosts here.
//!
//! Far side: a listener ([`door`]), whose clients become sessions ([`session`]) in containers of
//! their own ([`lease`]), each with an executor. Near side: the hosts that this one may use
//! ([`peers`]), what they have free ([`look`]) and which of them a program goes to ([`place`]), and
//! the counters of those who do ([`stats`]).

mod door;
mod lease;
mod look;
pub mod peers;
mod place;
mod room;
mod secret;
mod session;
pub mod stats;
pub mod tenant;

pub use secret::SecretError;

use crate::config::Config;
use crate::control::Observed;
use crate::core::{self, Catalog, Entry};
use crate::view::Elsewhere;
use door::Door;
use ghost_model::Problem;
use ghost_model::report::{Listener, Peer, Placement};
use ghost_model::value::Overflow as Wanted;
use lease::Leases;
use look::Lookout;
use nix::unistd::Uid;
use peers::Peers;
use place::Need;
use secret::Token;
use session::{Sessions, Start};
use stats::Stats;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Below the state directory: what is secret.
const DIRECTORY: &str = "overflow";

/// Why there is no overflow.
#[derive(Debug, thiserror::Error)]
pub enum OverflowError {
    /// The certificate or the token.
    #[error("overflow: {0}")]
    Secret(#[from] SecretError),
    /// The address.
    #[error("overflow.listen: cannot listen at {listen}: {source}")]
    Listen {
        /// Which.
        listen: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The user of executors.
    #[error("overflow.user: there is no user {0:?}: make one, or name another")]
    User(String),
    /// The peers.
    #[error(transparent)]
    Peers(#[from] peers::PeersError),
    /// The directory of counters.
    #[error("{path}: {source}")]
    Counters {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What doors show of overflow.
#[derive(Clone, Debug)]
pub struct Overflow {
    /// The hosts that may be used.
    pub peers: Arc<Peers>,
    /// What those count who use them.
    pub stats: Arc<Stats>,
    lookout: Arc<Lookout>,
    far: Option<Arc<Far>>,
}

#[derive(Debug)]
struct Far {
    listen: SocketAddr,
    fingerprint: Option<String>,
    token_file: Option<PathBuf>,
    sessions: Sessions,
}

/// The far side's tasks, until they are dropped.
#[derive(Debug)]
pub struct Tasks(#[expect(dead_code, reason = "dropping it ends them")] JoinSet<()>);

impl Overflow {
    /// Reads the peers, and listens if that is configured.
    ///
    /// # Errors
    /// [`OverflowError`]
    pub fn start(
        config: &Config,
        core: &core::Handle,
        observed: &watch::Receiver<Arc<Observed>>,
        stopping: watch::Receiver<bool>,
    ) -> Result<(Overflow, Tasks), OverflowError> {
        let secrets = config.state_dir.join(DIRECTORY);
        let counters = config.run_dir.join(DIRECTORY);
        let stats = Stats::open(&counters).map_err(|source| OverflowError::Counters {
            path: counters,
            source,
        })?;
        let mut overflow = Overflow {
            peers: Arc::new(Peers::open(&secrets.join("peers.json"))?),
            stats: Arc::new(stats),
            lookout: Arc::default(),
            far: None,
        };
        let mut tasks = JoinSet::new();
        if let Some(far) = &config.overflow {
            let failed = |source| OverflowError::Listen {
                listen: far.listen,
                source,
            };
            let listener = std::net::TcpListener::bind(far.listen).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            let listen = listener.local_addr().map_err(failed)?;
            let token_file = match &far.token_file {
                None if far.listen.ip().is_loopback() => None,
                None => Some(secrets.join("token")),
                Some(path) => Some(path.clone()),
            };
            let token = token_file.as_deref();
            let token = token.map(|path| Token::read(path, far.token_file.is_none()));
            let identity = far
                .tls
                .then(|| secret::identity(&secrets.join("identity.pem")));
            let identity = identity.transpose()?;
            if identity.is_none() && !far.listen.ip().is_loopback() {
                tracing::warn!(
                    "overflow.tls is off: who is on the way reads and changes everything"
                );
            }
            let user = Uid::effective().is_root().then(|| far.user.clone());
            if let Some(user) = &user
                && !matches!(nix::unistd::User::from_name(user), Ok(Some(_)))
            {
                return Err(OverflowError::User(user.clone()));
            }
            let leases = Leases::new(core.clone());
            let start = Start {
                socket: config.socket.clone(),
                ghostctl: beside("ghostctl"),
                executor: far
                    .executor
                    .clone()
                    .unwrap_or_else(|| beside("ghost-executor")),
                user,
                cache: far.cache_dir.join(DIRECTORY),
            };
            let sessions = Sessions::new(
                far.max_sessions,
                leases.clone(),
                start,
                Arc::clone(&overflow.stats),
            );
            overflow.far = Some(Arc::new(Far {
                listen,
                fingerprint: identity.as_ref().map(|i| i.fingerprint.clone()),
                token_file,
                sessions: sessions.clone(),
            }));
            let door = Door {
                identity,
                token: token.transpose()?,
                sessions,
                core: core.clone(),
                observed: observed.clone(),
            };
            tracing::info!(%listen, tls = far.tls, "work of other hosts is taken");
            tasks.spawn(door::serve(listener, door, stopping));
            tasks.spawn(leases.sweep());
        }
        Ok((overflow, Tasks(tasks)))
    }

    /// The peers, each with what it says of itself.
    pub async fn peers(&self) -> Vec<Peer> {
        let looks = self.lookout.look(self.peers.ways()).await;
        let mut all = self.peers.list();
        for peer in &mut all {
            peer.look = looks.get(&peer.name).cloned();
        }
        all
    }

    /// Where a program of a container computes by a rule, of what is free now.
    ///
    /// # Errors
    /// It must go to a peer, and none takes it.
    pub async fn place(
        &self,
        rule: Wanted,
        entry: &Entry,
        catalog: &Catalog,
        now: &Observed,
    ) -> Result<Placement, Problem> {
        let always = match rule {
            Wanted::Never => return Ok(Placement::default()),
            Wanted::Peer(peer) => {
                return Ok(Placement {
                    on: Some(peer),
                    why: None,
                });
            }
            Wanted::Auto => false,
            Wanted::Always => true,
        };
        let need = Need::of(entry, catalog, now);
        if need.fits && !always {
            return Ok(Placement::default());
        }
        let looks = self.lookout.look(self.peers.ways()).await;
        let drained = self.peers.list().into_iter().filter(|peer| peer.drained);
        let drained = drained.map(|peer| peer.name).collect();
        if always {
            place::always(&need, &looks, &drained).map_err(|p| p.of(&entry.name))
        } else {
            Ok(place::auto(&need, &looks, &drained))
        }
    }

    /// What is known of a container's work on a peer, of what was `seen`.
    pub fn of(&self, entry: &Entry, seen: &stats::Seen) -> Elsewhere {
        let note = match entry.spec().overflow() {
            Wanted::Peer(peer) if !peer.contains(':') => match self.peers.drained(&peer) {
                Some(false) => None,
                Some(true) => Some(format!(
                    "gpu.overflow: {peer} is drained: `ghostctl peer join {peer}`"
                )),
                None => Some(format!(
                    "gpu.overflow: {peer} is no peer here: `ghostctl peer add {peer} HOST:PORT`"
                )),
            },
            Wanted::Always if self.peers.list().is_empty() => Some(
                "gpu.overflow: always, and there is no peer: `ghostctl peer add NAME HOST:PORT`"
                    .to_owned(),
            ),
            _ => None,
        };
        Elsewhere {
            processes: seen.of(&entry.name),
            note,
        }
    }

    /// How work of other hosts is taken here, if it is.
    pub fn listener(&self) -> Option<Listener> {
        let far = self.far.as_ref()?;
        Some(Listener {
            listen: far.listen.to_string(),
            fingerprint: far.fingerprint.clone(),
            token_file: far.token_file.as_ref().map(|p| p.display().to_string()),
            sessions: far.sessions.open(),
        })
    }
}

/// A program of the same installation.
fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    own.map_or_else(|| name.into(), |dir| dir.join(name))
}
