//! REST over ghostd's unix socket: one connection a request.

use crate::error::Error;
use crate::output;
use ghost_model::name::sanitize;
use ghost_model::report::{Container, Page};
use ghost_model::{GpuId, GpuInfo, Kind, Name, Problem};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Where ghostd listens unless told otherwise.
pub const SOCKET: &str = "/run/ghost/ghostd.sock";
/// A daemon that does not answer for this long, beyond what was asked to wait, is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Larger answers than any that ghostd gives.
const MOST: usize = 256 << 20;

/// Talks to one ghostd.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    verbose: bool,
}

/// A path with its query.
#[derive(Clone, Debug)]
pub struct Target(String);

impl Target {
    /// `/v1/node`
    pub fn new(path: &str) -> Target {
        Target(path.to_owned())
    }

    /// `/v1/containers/team%2Fjob` and what follows it (`/procs`).
    pub fn container(name: &Name, below: &str) -> Target {
        Target(format!(
            "/v1/containers/{}{below}",
            name.as_str().replace('/', "%2F")
        ))
    }

    /// `/v1/peers/bighost` and what follows it (`/drain`).
    pub fn peer(name: &str, below: &str) -> Target {
        Target(format!("/v1/peers/{}{below}", encoded(name)))
    }

    /// The same with one more pair in its query.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Target {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0 += key;
        self.0.push('=');
        self.0 += &encoded(value);
        self
    }

    /// The same, with `key=true` if `on`.
    #[must_use]
    pub fn flag(self, key: &str, on: bool) -> Target {
        if on { self.with(key, "true") } else { self }
    }
}

/// A text as a part of a path or of a query.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out += &format!("%{b:02X}");
        }
    }
    out
}

impl Client {
    /// For the socket that was named; else the system's, or the user's own where there is one
    /// and the system has none.
    pub fn new(socket: Option<PathBuf>, verbose: bool) -> Client {
        let socket = socket.unwrap_or_else(|| {
            let own = std::env::var_os("XDG_RUNTIME_DIR")
                .filter(|_| !nix::unistd::Uid::effective().is_root())
                .map(|dir| Path::new(&dir).join("ghost/ghostd.sock"))
                .filter(|own| own.exists());
            own.unwrap_or_else(|| SOCKET.into())
        });
        Client { socket, verbose }
    }

    /// Where it talks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads a document as it is.
    ///
    /// # Errors
    /// ghostd's [`Problem`], or why it could not be asked.
    pub async fn get(&self, target: Target) -> Result<Json, Error> {
        self.call(Method::GET, target, None, Duration::ZERO).await
    }

    /// Reads a document as a `T`.
    ///
    /// # Errors
    /// As [`Client::get`], and [`Error::Answer`] if it is no `T`.
    pub async fn read<T: DeserializeOwned>(&self, target: Target) -> Result<T, Error> {
        let what = target.0.clone();
        typed(&what, self.get(target).await?)
    }

    /// Sends a document (or none), waits `wait` longer than usual, and reads the answer, `null`
    /// where there is none.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn call(
        &self,
        method: Method,
        target: Target,
        body: Option<&Json>,
        wait: Duration,
    ) -> Result<Json, Error> {
        let what = format!("{method} {}", target.0);
        let after = PATIENCE + wait;
        let answer = async {
            let response = self.send(method, target, body, None).await?;
            let (head, body) = response.into_parts();
            let bytes = Limited::new(body, MOST)
                .collect()
                .await
                .map_err(|e| answer(&what, e))?
                .to_bytes();
            if !head.status.is_success() {
                return Err(refusal(&what, head.status, &bytes));
            }
            if bytes.is_empty() {
                return Ok(Json::Null);
            }
            serde_json::from_slice(&bytes).map_err(|e| answer(&what, e))
        };
        tokio::time::timeout(after, answer)
            .await
            .unwrap_or_else(|_| {
                Err(Error::Silent {
                    request: what.clone(),
                    after,
                })
            })
    }

    /// Where ghostd takes seccomp listeners; `None` if it holds no memory by them, as on a
    /// simulated GPU.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn notify_socket(&self) -> Result<Option<PathBuf>, Error> {
        let node = self.get(Target::new("/v1/node")).await?;
        let path = node.get("notify_socket").and_then(Json::as_str);
        Ok(path.map(PathBuf::from))
    }

    /// Opens the stream of server-sent events, those after `last` (all that are kept for 0) or
    /// only new ones.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn stream(&self, target: Target, last: Option<u64>) -> Result<Incoming, Error> {
        let what = format!("GET {}", target.0);
        let open = async {
            let response = self.send(Method::GET, target, None, last).await?;
            let (head, body) = response.into_parts();
            if head.status.is_success() {
                return Ok(body);
            }
            let bytes = Limited::new(body, MOST).collect().await;
            let bytes = bytes.map_err(|e| answer(&what, e))?.to_bytes();
            Err(refusal(&what, head.status, &bytes))
        };
        tokio::time::timeout(PATIENCE, open)
            .await
            .unwrap_or_else(|_| {
                Err(Error::Silent {
                    request: what.clone(),
                    after: PATIENCE,
                })
            })
    }

    async fn send(
        &self,
        method: Method,
        target: Target,
        body: Option<&Json>,
        last_event: Option<u64>,
    ) -> Result<Response<Incoming>, Error> {
        let what = format!("{method} {}", target.0);
        if self.verbose {
            output::note(match body {
                Some(body) => format!("{what} {body}"),
                None => what.clone(),
            });
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| {
            if source.kind() == io::ErrorKind::PermissionDenied {
                return Error::SocketDenied(self.socket.clone());
            }
            Error::NotRunning {
                socket: self.socket.clone(),
                source,
            }
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|e| answer(&what, e))?;
        tokio::spawn(async move {
            // What breaks a connection is reported by the request on it.
            let _ = connection.await;
        });
        let merge = method == Method::PATCH;
        let mut request = Request::builder();
        if let Some(id) = last_event {
            request = request.header("last-event-id", id);
        }
        let request = request
            .method(method)
            .uri(target.0)
            .header(header::HOST, "ghostd")
            .header(
                header::CONTENT_TYPE,
                if merge {
                    "application/merge-patch+json"
                } else {
                    "application/json"
                },
            )
            .body(Full::from(body.map(Json::to_string).unwrap_or_default()))
            .map_err(|e| answer(&what, e))?;
        sender
            .send_request(request)
            .await
            .map_err(|e| answer(&what, e))
    }

    /// All containers, page by page.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn containers(&self, label: Option<&str>) -> Result<Vec<Json>, Error> {
        let mut items = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut target = Target::new("/v1/containers").with("limit", "1000");
            if let Some(label) = label {
                target = target.with("label", label);
            }
            if let Some(token) = &token {
                target = target.with("page_token", token);
            }
            let page: Page<Json> = self.read(target).await?;
            items.extend(page.items);
            match page.next_page_token {
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                _ => return Ok(items),
            }
        }
    }

    /// One container, by its name or by the beginning of it if no other begins so. A whole name
    /// wins over a beginning.
    ///
    /// # Errors
    /// As [`Client::get`]; where none is meant, the problem says which name is like it.
    pub async fn find(&self, name: &Name) -> Result<Json, Error> {
        match self.get(Target::container(name, "")).await {
            Err(Error::Problem(p)) if p.kind == Kind::NotFound => {}
            other => return other,
        }
        let all = self.containers(None).await?;
        let names = || {
            all.iter()
                .filter_map(|c| c.get("name").and_then(Json::as_str))
        };
        let like: Vec<&str> = names().filter(|n| n.starts_with(name.as_str())).collect();
        match like.as_slice() {
            [one] => {
                let is = |c: &&Json| c.get("name").and_then(Json::as_str) == Some(one);
                Ok(all.iter().find(is).cloned().unwrap_or_default())
            }
            [] => Err(missing(name, names()).into()),
            several => {
                let shown: Vec<String> = several.iter().take(5).map(|n| sanitize(n)).collect();
                Err(Problem::new(
                    Kind::NotFound,
                    format!(
                        "{name} is the beginning of {} containers' names: {}{}",
                        several.len(),
                        shown.join(", "),
                        if several.len() > 5 { ", …" } else { "" }
                    ),
                )
                .into())
            }
        }
    }

    /// As [`Client::find`], typed.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub async fn container(&self, name: &Name) -> Result<Container, Error> {
        typed("/v1/containers", self.find(name).await?)
    }

    /// The GPUs of the host.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn gpus(&self) -> Result<Vec<GpuInfo>, Error> {
        let target = Target::new("/v1/gpus");
        let what = target.0.clone();
        match self.get(target).await? {
            Json::Object(mut page) => typed(&what, page.remove("items").unwrap_or_default()),
            list => typed(&what, list),
        }
    }

    /// The GPU that is meant.
    ///
    /// # Errors
    /// As [`Client::get`], and a [`Problem`] if there is none.
    pub async fn gpu(&self, gpu: &GpuId) -> Result<GpuId, Error> {
        let gpus = self.gpus().await?;
        gpu.resolve(&gpus)
            .map_err(|e| Problem::new(Kind::NotFound, e.to_string()).into())
    }
}

/// A document as a `T`.
///
/// # Errors
/// [`Error::Answer`].
pub fn typed<T: DeserializeOwned>(what: &str, json: Json) -> Result<T, Error> {
    serde_json::from_value(json).map_err(|e| answer(what, e))
}

fn answer(request: &str, why: impl std::fmt::Display) -> Error {
    Error::Answer {
        request: request.to_owned(),
        why: why.to_string(),
    }
}

fn refusal(what: &str, status: hyper::StatusCode, body: &[u8]) -> Error {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => answer(what, format!("status {}", status.as_u16())),
    }
}

fn missing<'a>(name: &Name, names: impl Iterator<Item = &'a str>) -> Problem {
    let nearest = names
        .map(|n| (strsim::jaro_winkler(n, name.as_str()), n))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = nearest.map_or_else(String::new, |(_, n)| {
        format!(", did you mean {}?", sanitize(n))
    });
    Problem::new(
        Kind::NotFound,
        format!("no container {name:?}{meant}", name = name.as_str()),
    )
    .hint("ghostctl list -q")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_encoded() {
        let name = "team/job".parse().unwrap();
        let target = Target::container(&name, "/procs")
            .with("label", "a=b c")
            .flag("force", true)
            .flag("runtime", false);
        assert_eq!(
            target.0,
            "/v1/containers/team%2Fjob/procs?label=a%3Db%20c&force=true"
        );
    }

    #[test]
    fn a_missing_name_gets_the_nearest() {
        let p = missing(
            &"trianer".parse().unwrap(),
            ["notebook", "trainer"].into_iter(),
        );
        assert_eq!(p.detail, "no container \"trianer\", did you mean trainer?");
        let p = missing(&"x".parse().unwrap(), ["notebook"].into_iter());
        assert_eq!(p.detail, "no container \"x\"");
    }
}
