//! A ghostd of a page: it keeps containers in memory and gives them a state, but enforces
//! nothing. What `ghostctl` asked of it can be looked up.

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use ghost_model::{Key, Kind, Problem, Spec, Value};
use serde_json::{Value as J, json};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

pub(crate) const GPU: &str = "GPU-aaaa1111-0000-0000-0000-000000000000";

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) containers: BTreeMap<String, J>,
    pub(crate) requests: Vec<String>,
    /// Runs with each PUT of members, with its body.
    pub(crate) members: Vec<(String, J)>,
    /// The value that observed_generation keeps, if it is not to follow.
    pub(crate) stuck: Option<u64>,
    pub(crate) notes: Vec<String>,
    /// Where seccomp listeners are taken.
    pub(crate) notify: Option<PathBuf>,
}

type Shared = Arc<Mutex<Inner>>;

/// A fake that listens until it is dropped with its process.
pub(crate) struct Fake {
    dir: TempDir,
    pub(crate) inner: Shared,
}

impl Fake {
    pub(crate) fn start() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let inner = Shared::default();
        let app = Router::new()
            .route("/v1/containers", any(containers))
            .route("/v1/containers/{name}", any(container))
            .route("/v1/containers/{name}/procs", put(procs))
            .route("/v1/containers/{name}/sources", get(sources))
            .route("/v1/containers/{name}/revert", post(revert))
            .route(
                "/v1/gpus",
                get(|| async { Json(json!({"items": [gpu()]})) }),
            )
            .route("/v1/gpus/{uuid}", get(|| async { Json(gpu()) }))
            .route("/v1/node", get(node))
            .route("/v1/events", get(events))
            .route("/v1/apply", post(apply))
            .with_state(inner.clone());
        let listener =
            std::os::unix::net::UnixListener::bind(dir.path().join("ghostd.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        Fake { dir, inner }
    }

    pub(crate) fn with(self, name: &str, spec: J) -> Fake {
        let c = document(name, &Spec::try_from(spec).unwrap(), 1, &BTreeMap::new());
        self.inner.lock().unwrap().containers.insert(name.into(), c);
        self
    }

    /// Changes a container's `status`.
    pub(crate) fn status(self, name: &str, fields: J) -> Fake {
        {
            let mut inner = self.inner.lock().unwrap();
            let status = &mut inner.containers.get_mut(name).unwrap()["status"];
            for (k, v) in fields.as_object().unwrap() {
                status[k] = v.clone();
            }
        }
        self
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = ghostctl(args);
        command.env("GHOST_SOCKET", self.dir.path().join("ghostd.sock"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.inner.lock().unwrap().requests.clone()
    }
}

pub(crate) fn ghostctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostctl"));
    command
        .args(args)
        .env_remove("GHOST_FORMAT")
        .env_remove("GHOST_SOCKET")
        .stdin(Stdio::null());
    command
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Done {
        Done {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts that it went well, and gives what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{self:?}");
        self.out
    }

    /// Asserts the code and all of standard error, and that nothing was printed.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, err: &str) {
        assert_eq!(
            (self.code, self.err.as_str(), self.out.as_str()),
            (Some(code), err, "")
        );
    }
}

fn gpu() -> J {
    json!({
        "uuid": GPU, "index": 0, "pci": "00000000:3B:00.0", "name": "NVIDIA Test",
        "memory_total": 80u64 << 30, "memory_used": 3u64 << 29, "state": "shared"
    })
}

async fn node(State(inner): State<Shared>) -> Json<J> {
    Json(json!({
        "notify_socket": inner.lock().unwrap().notify,
        "version": "0.1.0", "backend": "stock", "driver": "595.45.04", "patch": null,
        "enforced_by": {"gpu.weight": "daemon", "gpu.max": "daemon"},
        "meter": "channel time", "notes": [],
        "gpus": [gpu()], "strangers": [], "problems": []
    }))
}

fn document(name: &str, spec: &Spec, generation: u64, labels: &BTreeMap<String, String>) -> J {
    let mut effective = Spec::default();
    for key in Key::ALL {
        if let Some(value) = Value::default_of(*key) {
            effective.set(*key, None, value).unwrap();
        }
    }
    let effective = effective.overlaid(spec);
    json!({
        "name": name, "uid": "u1", "generation": generation, "labels": labels,
        "spec": J::from(spec.clone()),
        "status": {
            "observed_generation": generation, "state": "empty", "effective": J::from(effective),
            "gpu.devices.effective": [GPU],
            "enforced_by": {"gpu.weight": "daemon", "gpu.max": "daemon", "gpu.memory.max": "nobody"},
            "gpu.memory.current": {}, "gpu.memory.peak": {}, "gpu.stat": {},
            "ghost.procs": [], "ghost.events": {"populated": 0, "frozen": 0},
            "slices_reasserted": 0
        }
    })
}

fn refuse(problem: Problem) -> Response {
    let status = StatusCode::from_u16(problem.http_status()).unwrap();
    (status, Json(problem)).into_response()
}

fn missing(name: &str) -> Response {
    refuse(
        Problem::new(Kind::NotFound, format!("no container {name:?}")).hint("`ghostctl list -q`"),
    )
}

fn log(inner: &Shared, method: &Method, uri: &Uri, body: &[u8]) {
    let body = String::from_utf8_lossy(body);
    let line = format!("{method} {uri} {body}").trim_end().to_owned();
    inner.lock().unwrap().requests.push(line);
}

fn spec_of(document: &J) -> Spec {
    Spec::try_from(document["spec"].clone()).unwrap()
}

async fn containers(
    State(inner): State<Shared>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    log(&inner, &method, &uri, &body);
    let mut inner = inner.lock().unwrap();
    if method == Method::GET {
        // Pages of two, so that the pages matter.
        let from = query.get("page_token").cloned().unwrap_or_default();
        let mut rest = inner.containers.iter().filter(|(n, _)| **n > from);
        let items: Vec<_> = rest.by_ref().take(2).collect();
        let next = items.last().filter(|_| rest.next().is_some());
        let mut page = json!({ "items": items.iter().map(|(_, c)| c).collect::<Vec<_>>() });
        if let Some((name, _)) = next {
            page["next_page_token"] = json!(name);
        }
        return Json(page).into_response();
    }
    let body: J = serde_json::from_slice(&body).unwrap();
    let name = body["name"].as_str().unwrap().to_owned();
    if inner.containers.contains_key(&name) {
        return refuse(Problem::new(Kind::Exists, format!("{name} exists already")));
    }
    let labels = serde_json::from_value(body["labels"].clone()).unwrap_or_default();
    let c = document(&name, &spec_of(&body), 1, &labels);
    inner.containers.insert(name, c.clone());
    (StatusCode::CREATED, Json(c)).into_response()
}

async fn container(
    State(inner): State<Shared>,
    method: Method,
    uri: Uri,
    Path(name): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    log(&inner, &method, &uri, &body);
    let mut inner = inner.lock().unwrap();
    let Some(old) = inner.containers.get(&name).cloned() else {
        return missing(&name);
    };
    match method {
        Method::GET => Json(old).into_response(),
        Method::DELETE => {
            let populated = old["status"]["ghost.events"]["populated"] == 1;
            if populated && !query.contains_key("force") {
                let detail = format!("{name} has processes");
                return refuse(Problem::new(Kind::Conflict, detail));
            }
            inner.containers.remove(&name);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => {
            let body: J = serde_json::from_slice(&body).unwrap();
            let mut spec = spec_of(&old);
            if let Err(problem) = spec.merge_json(&body["spec"]) {
                return refuse(problem.of(name));
            }
            let generation = old["generation"].as_u64().unwrap() + 1;
            let mut c = document(&name, &spec, generation, &BTreeMap::new());
            if let Some(stuck) = inner.stuck {
                c["status"]["observed_generation"] = json!(stuck);
            }
            c["status"]["notes"] = json!(inner.notes);
            if !query.contains_key("dry_run") {
                inner.containers.insert(name, c.clone());
            }
            Json(c).into_response()
        }
    }
}

async fn procs(
    State(inner): State<Shared>,
    method: Method,
    uri: Uri,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    log(&inner, &method, &uri, &body);
    let mut inner = inner.lock().unwrap();
    if !inner.containers.contains_key(&name) {
        return missing(&name);
    }
    let body = serde_json::from_slice(&body).unwrap();
    inner.members.push((name, body));
    Json(json!({})).into_response()
}

async fn sources() -> Json<J> {
    Json(json!([
        {"key": "gpu.weight", "value": "70", "origin": "/etc/ghost/containers.d/a.toml"},
        {"key": "gpu.max", "value": "50000 100000", "origin": "override"},
        {"key": "gpu.weight", "gpu": GPU, "value": "7", "origin": "override"}
    ]))
}

async fn revert(State(inner): State<Shared>, Path(name): Path<String>) -> Response {
    let mut inner = inner.lock().unwrap();
    let c = document(&name, &Spec::default(), 9, &BTreeMap::new());
    inner.containers.insert(name, c.clone());
    Json(c).into_response()
}

async fn events(headers: HeaderMap) -> Response {
    let after: u64 = headers
        .get("last-event-id")
        .map_or(0, |v| v.to_str().unwrap().parse().unwrap());
    let all = (1..=3u64).filter(|id| *id > after).map(|id| {
        let event = json!({
            "id": id, "at": format!("2026-01-31T12:00:0{id}Z"), "what": "changed",
            "container": "trainer", "detail": format!("change {id}\u{1b}[2J")
        });
        format!("id: {id}\nevent: changed\ndata: {event}\n\n")
    });
    let text: String = all.collect();
    ([("content-type", "text/event-stream")], text).into_response()
}

async fn apply(State(inner): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Json<J> {
    log(&inner, &method, &uri, &body);
    Json(json!({"changes": [
        {"name": "trainer", "what": "changed", "detail": "gpu.weight 100 -> 70", "generation": 2},
        {"name": "old", "what": "deleted", "detail": "deleted", "generation": 1}
    ]}))
}
