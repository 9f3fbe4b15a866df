//! A daemon in this process on simulated GPUs, one as a process of its own, and a small client.
#![allow(dead_code, reason = "not every test uses all of it")]

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use ghost_backend::sim::{self, Sim};
use ghost_model::Micros;
use ghostd::caller::Caller;
use ghostd::config::{Args, Config, Surroundings};
use ghostd::daemon::{Daemon, DaemonError, Sockets};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tower::ServiceExt;

pub(crate) const ROOT: Caller = Caller {
    uid: 0,
    admin: true,
};

/// A user who does not administer.
pub(crate) fn user(uid: u32) -> Caller {
    Caller { uid, admin: false }
}

/// Directories of one daemon.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("containers.d")).unwrap();
        Place { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.path("containers.d").join(name), text).unwrap();
    }

    pub(crate) fn config(&self, more: &str) -> Config {
        let args = Args {
            socket: Some(self.path("ghostd.sock")),
            state_dir: Some(self.path("state")),
            run_dir: Some(self.path("run")),
            containers_dir: Some(self.path("containers.d")),
            ..Args::default()
        };
        Config::parse(more, &args, &Surroundings::default()).unwrap()
    }

    /// A daemon of its own process.
    pub(crate) fn spawn(&self) -> Process {
        self.spawn_by(Command::new(env!("CARGO_BIN_EXE_ghostd")))
    }

    pub(crate) fn spawn_by(&self, mut command: Command) -> Process {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        command
            .args(["--backend", "sim", "--config"])
            .arg(self.path("ghostd.toml"))
            .arg("--socket")
            .arg(self.path("ghostd.sock"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--run-dir")
            .arg(self.path("run"))
            .arg("--containers-dir")
            .arg(self.path("containers.d"))
            .env_remove("GHOST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if !self.path("ghostd.toml").exists() {
            std::fs::write(self.path("ghostd.toml"), "").unwrap();
        }
        let child = command.spawn().unwrap();
        let socket = self.path("ghostd.sock");
        let process = Process { child, socket };
        until("ghostd answers", || {
            process
                .get("/readyz")
                .is_some_and(|(status, _)| status == 200)
        });
        process
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// Polls for what must come true some time.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon in this process.
pub(crate) struct Node {
    pub(crate) daemon: Daemon,
    pub(crate) sim: Sim,
    router: Router,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(&self) -> Json {
        assert!(self.status.is_success(), "{self:?}");
        if self.text.is_empty() {
            return Json::Null;
        }
        self.json()
    }

    /// Asserts a refusal in the form that all have.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, kind: &str, detail: &str) -> Json {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let json = self.json();
        assert_eq!(json["type"], kind, "{json}");
        assert!(json["detail"].as_str().unwrap().contains(detail), "{json}");
        assert!(json["request_id"].is_string(), "{json}");
        json
    }
}

impl Node {
    pub(crate) fn start(place: &Place) -> Node {
        let sim = Sim::real_time(sim::Config {
            gpus: 2,
            ..sim::Config::default()
        });
        Node::on(place, sim)
    }

    pub(crate) fn on(place: &Place, sim: Sim) -> Node {
        let backend = sim.backend();
        let backend = || Ok::<_, DaemonError>(backend);
        let daemon = Daemon::start(&place.config(""), Sockets::default(), backend, || ());
        Node::of(daemon.unwrap(), sim)
    }

    pub(crate) fn of(daemon: Daemon, sim: Sim) -> Node {
        Node {
            router: ghostd::http::router(daemon.app().clone()),
            daemon,
            sim,
        }
    }

    pub(crate) async fn stop(self) {
        self.daemon.stop().await.unwrap();
    }

    pub(crate) async fn send(&self, caller: Option<Caller>, mut request: Request<Body>) -> Answer {
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn call(
        &self,
        caller: Caller,
        method: &str,
        path: &str,
        body: impl ToString,
    ) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_string()))
            .unwrap();
        self.send(Some(caller), request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Json {
        self.call(ROOT, "GET", path, "").await.ok()
    }

    /// Creates a container, and waits until it is in force.
    pub(crate) async fn create(&self, name: &str, spec: Json) -> Json {
        let body = serde_json::json!({"name": name, "spec": spec});
        let answer = self
            .call(ROOT, "POST", "/v1/containers?wait=30s", body)
            .await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    }

    pub(crate) async fn until(&self, path: &str, what: &str, is: impl Fn(&Json) -> bool) -> Json {
        let begin = Instant::now();
        loop {
            let json = self.get(path).await;
            if is(&json) {
                return json;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "never: {what}: {json}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A daemon of its own process; dropping it kills it.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
}

impl Process {
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        call(&self.socket, "GET", path, "")
    }

    pub(crate) fn json(&self, path: &str) -> Json {
        let (status, text) = self.get(path).unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// `None` where the daemon is not there, or went away meanwhile.
    pub(crate) fn call(&self, method: &str, path: &str, body: Json) -> Option<(u16, String)> {
        call(&self.socket, method, path, &body.to_string())
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own.
pub(crate) fn call(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    // A refusal may come before the body was read.
    let _ = stream.write_all(body.as_bytes());
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    read.ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// A process to put into containers.
pub(crate) struct Member(pub(crate) Child);

impl Member {
    pub(crate) fn start() -> Member {
        Member(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Gives it work on a simulated GPU.
    pub(crate) fn works_on(&self, sim: &Sim, gpu: u32) -> ghost_model::GroupId {
        let id = ghostd::proc::Proc::host().find(self.pid()).unwrap().id;
        sim.start(id, "sleep", None);
        let load = sim::gpu::Load::Backlog {
            kernel: Micros(1000),
        };
        sim.spawn(id, gpu, load).unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
