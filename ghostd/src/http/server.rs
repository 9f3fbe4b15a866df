//! The unix socket. Who is at the other end comes from the kernel. A peer that stalls holds its
//! own connection and nothing else, and has a bounded number of those.

use crate::caller::{Admins, Caller};
use crate::socket::{self, Most, Places, SocketError};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tower::ServiceExt;

/// Open connections.
const MOST: Most = Most {
    each: 128,
    strangers: 512,
    admins: 1024,
};
/// The head of a request that is not there by then does not come; also the longest idle time.
const HEAD: Duration = Duration::from_secs(10);
/// How long requests may go on once the daemon stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// The socket, before it is served.
#[derive(Debug)]
pub struct Server {
    /// Removed at the end, where it is ours.
    path: Option<PathBuf>,
    listener: UnixListener,
    admins: Admins,
}

impl Server {
    /// Listens at `path`, as [`socket::bind`] does.
    ///
    /// # Errors
    /// [`SocketError`]
    pub fn bind(path: &Path, mode: u32, admins: Admins) -> Result<Server, SocketError> {
        let listener = socket::bind(path, mode, &admins)?;
        let mut server = Server::on(listener, admins)?;
        server.path = Some(path.to_owned());
        Ok(server)
    }

    /// Listens on a socket that systemd made, with mode and group as its unit says.
    ///
    /// # Errors
    /// It is no socket that can be waited for.
    pub fn on(
        listener: std::os::unix::net::UnixListener,
        admins: Admins,
    ) -> Result<Server, SocketError> {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener))
            .map_err(|source| SocketError::System {
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
        let places = Places::new(MOST);
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
