//! The unix socket. Who is at the other end comes from the kernel. A peer that stalls holds its
//! own connection and nothing else, and has a bounded number of those.

use crate::caller::{Admins, Caller};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tower::ServiceExt;

/// Connections of one user who does not administer, of all of those, and of all who do. Each
/// kind has its own, so that none can shut the other out.
const EACH: usize = 32;
const STRANGERS: usize = 256;
const ADMINS: usize = 256;
/// The head of a request that is not there by then does not come; also the longest idle time.
const HEAD: Duration = Duration::from_secs(10);
/// How long requests may go on once the daemon stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// Why ghostd cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Somebody listens there.
    #[error("{0}: another ghostd listens there: stop it, or choose another --socket")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}")]
    System {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// The socket, before it is served.
#[derive(Debug)]
pub struct Server {
    /// Removed at the end, where it is ours.
    path: Option<PathBuf>,
    listener: UnixListener,
    admins: Admins,
}

impl Server {
    /// Listens at `path` with this mode; the socket belongs to the group of `admins`, where
    /// there is one and ghostd may give it. A socket that nobody listens on is replaced.
    ///
    /// # Errors
    /// [`ServerError`]
    pub fn bind(path: &Path, mode: u32, admins: Admins) -> Result<Server, ServerError> {
        let failed = |what| {
            move |source| ServerError::System {
                path: path.to_owned(),
                what,
                source,
            }
        };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed("make its directory"))?;
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(ServerError::InUse(path.to_owned()));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
            fs::remove_file(path).map_err(failed("remove the old socket"))?;
        }
        let listener = UnixListener::bind(path).map_err(failed("listen"))?;
        if let Some(group) = admins.group()
            && let Err(error) = nix::unistd::chown(path, None, Some(group))
        {
            tracing::warn!(%error, "the socket keeps ghostd's own group");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(failed("set its mode"))?;
        Ok(Server {
            path: Some(path.to_owned()),
            listener,
            admins,
        })
    }

    /// Listens on a socket that systemd made, with mode and group as its unit says.
    ///
    /// # Errors
    /// It is no socket that can be waited for.
    pub fn on(
        listener: std::os::unix::net::UnixListener,
        admins: Admins,
    ) -> Result<Server, ServerError> {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener))
            .map_err(|source| ServerError::System {
                path: "the socket from systemd".into(),
                what: "listen",
                source,
            })?;
        Ok(Server {
            path: None,
            listener,
            admins,
        })
    }

    /// Serves until `stopping` says so, then lets requests end for a while.
    pub async fn serve(self, router: Router, mut stopping: watch::Receiver<bool>) {
        let places = Places::default();
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stopped(&mut stopping) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: peers wait in the queue meanwhile.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(peer) = stream.peer_cred() else {
                continue;
            };
            let caller = self.admins.caller(peer.uid(), peer.gid());
            match places.take(caller) {
                Some(place) => {
                    let router = router.clone();
                    let stopping = stopping.clone();
                    connections.spawn(async move {
                        serve_one(stream, caller, router, stopping).await;
                        drop(place);
                    });
                }
                None => {
                    connections.spawn(turn_away(stream));
                }
            }
        }
        drop(self.listener);
        if let Some(path) = &self.path {
            // What is not there is removed already.
            let _ = fs::remove_file(path);
        }
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            tracing::warn!("some requests did not end and are dropped");
        }
    }
}

async fn serve_one(
    stream: UnixStream,
    caller: Caller,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(caller);
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopped(&mut stopping) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%caller, %error, "a connection broke");
    }
}

/// Returns when the daemon stops, or has gone already.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Says why, to a peer that reads at once.
async fn turn_away(mut stream: UnixStream) {
    let body = r#"{"type":"unavailable","detail":"too many connections of this user are open: close some"}"#;
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer.as_bytes())).await;
}

/// Open connections by user. The lock guards the counts, and is held to change them only.
#[derive(Clone, Debug, Default)]
struct Places(Arc<Mutex<HashMap<u32, (bool, usize)>>>);

struct Place {
    places: Places,
    uid: u32,
}

impl Places {
    fn take(&self, caller: Caller) -> Option<Place> {
        let mut all = self.lock();
        let mine = all.get(&caller.uid).map_or(0, |(_, n)| *n);
        let kind: usize = all
            .values()
            .filter(|(admin, _)| *admin == caller.admin)
            .map(|(_, n)| *n)
            .sum();
        let fits = if caller.admin {
            kind < ADMINS
        } else {
            kind < STRANGERS && mine < EACH
        };
        if !fits {
            return None;
        }
        all.insert(caller.uid, (caller.admin, mine + 1));
        Some(Place {
            places: self.clone(),
            uid: caller.uid,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (bool, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.lock();
        if let Some((_, n)) = all.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_shut_out_each_other_or_administrators() {
        let places = Places::default();
        let caller = |uid, admin| Caller { uid, admin };
        let held: Vec<Place> = (0..EACH)
            .map_while(|_| places.take(caller(7, false)))
            .collect();
        assert_eq!(held.len(), EACH);
        assert!(places.take(caller(7, false)).is_none());
        assert!(places.take(caller(8, false)).is_some());
        let more: Vec<Place> = (100..)
            .map_while(|uid| places.take(caller(uid, false)))
            .collect();
        assert_eq!(held.len() + more.len(), STRANGERS);
        assert!(places.take(caller(0, true)).is_some());
        drop((held, more));
        assert!(places.lock().is_empty());
    }
}
