//! The socket at which runtimes hand over listeners.

mod common;

use common::{Member, Node, Place, ROOT};
use ghost_backend::sim::{self, Sim, SimBackend};
use ghost_backend::{AdoptError, Backend, Event, Failure};
use ghost_model::report::Process;
use ghost_model::{
    Action, Capabilities, GpuInfo, Members, MemorySeen, MemoryWanted, Name, ProcId, Sample,
};
use ghost_notify::{Credentials, as_tenant, pass};
use ghostd::daemon::{Daemon, DaemonError, Sockets};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The user of the tests that is nobody's.
const STRANGER: u32 = 65_534;

/// What was adopted, and which processes are held.
#[derive(Clone, Default)]
struct Door {
    adopted: Arc<Mutex<Vec<(Name, OwnedFd)>>>,
    held: Arc<Mutex<BTreeSet<ProcId>>>,
    broken: Arc<Mutex<bool>>,
}

/// A simulated GPU, with a place for listeners.
struct Listens(SimBackend, Door);

impl Backend for Listens {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn gpus(&mut self) -> Vec<GpuInfo> {
        self.0.gpus()
    }
    fn set_members(&mut self, members: &Members) {
        self.0.set_members(members);
    }
    fn set_memory(&mut self, wanted: &MemoryWanted) {
        self.0.set_memory(wanted);
    }
    fn memory(&mut self) -> Option<MemorySeen> {
        let held = self.1.held.lock().unwrap().clone();
        self.0.memory().map(|seen| MemorySeen { held, ..seen })
    }
    fn takes_listeners(&self) -> bool {
        true
    }
    fn adopt(&mut self, container: &Name, listener: OwnedFd) -> Result<(), AdoptError> {
        if *self.1.broken.lock().unwrap() {
            return Err(AdoptError {
                container: container.clone(),
                cause: "the test refuses".into(),
            });
        }
        let mut adopted = self.1.adopted.lock().unwrap();
        adopted.push((container.clone(), listener));
        Ok(())
    }
    fn sample(&mut self) -> Sample {
        self.0.sample()
    }
    fn apply(&mut self, actions: &[Action]) -> Vec<Failure> {
        self.0.apply(actions)
    }
    fn processes(&mut self) -> Vec<Process> {
        self.0.processes()
    }
    fn events(&mut self) -> Vec<Event> {
        self.0.events()
    }
}

fn start(place: &Place) -> (Node, Door, PathBuf) {
    let sim = Sim::real_time(sim::Config::default());
    let door = Door::default();
    let backend = Listens(sim.backend(), door.clone());
    let config = place.config("socket_mode = \"0666\"");
    let backend = || Ok::<_, DaemonError>(backend);
    let daemon = Daemon::start(&config, Sockets::default(), backend, || ());
    let socket = place.path("run").join("notify.sock");
    (Node::of(daemon.unwrap(), sim), door, socket)
}

fn state(container: &str, pid: u32) -> Json {
    json!({
        "ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": pid, "metadata": container,
        "state": {"ociVersion": "1.0.2", "id": "x", "status": "creating", "bundle": "/b"}
    })
}

/// Something to pass, which can be told from others.
fn descriptor() -> (File, u64) {
    let file = tempfile::tempfile().unwrap();
    let inode = file.metadata().unwrap().ino();
    (file, inode)
}

fn answer(mut stream: UnixStream) -> Json {
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

fn send(socket: &PathBuf, message: &str, fds: usize) -> Json {
    let stream = UnixStream::connect(socket).unwrap();
    let files: Vec<File> = (0..fds).map(|_| descriptor().0).collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    pass::send(&stream, message.as_bytes(), &fds).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    answer(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_goes_to_the_backend_and_its_process_into_the_container() {
    let place = Place::new();
    let (node, door, socket) = start(&place);
    assert_eq!(node.get("/v1/node").await["notify_socket"], json!(socket));
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    node.create("team", json!({})).await;
    node.create("team/a", json!({})).await;
    let member = Member::start();
    let (file, inode) = descriptor();
    let stream = UnixStream::connect(&socket).unwrap();
    // In two parts, and without an end, as a runtime that waits for its container.
    let text = state("team/a", member.pid()).to_string();
    let (one, two) = text.split_at(20);
    pass::send(&stream, one.as_bytes(), &[file.as_fd()]).unwrap();
    (&stream).write_all(two.as_bytes()).unwrap();
    assert_eq!(answer(stream), json!({"ok": true}));
    {
        let adopted = door.adopted.lock().unwrap();
        assert_eq!(adopted.len(), 1);
        assert_eq!(adopted[0].0.as_str(), "team/a");
        let passed = File::from(adopted[0].1.try_clone().unwrap());
        assert_eq!(passed.metadata().unwrap().ino(), inode);
    }
    // Its cgroup is the runtime's too, so it is in by itself.
    let procs = node.get("/v1/containers/team%2Fa/procs").await;
    assert_eq!(procs["items"][0]["pid"], member.pid());
    assert_eq!(procs["items"].as_array().unwrap().len(), 1);

    assert_eq!(
        send(&socket, &state("team", 0).to_string(), 1),
        json!({"ok": true})
    );
    assert_eq!(
        send(&socket, &state("team", 4_000_000).to_string(), 1),
        json!({"ok": true})
    );
    assert_eq!(
        node.get("/v1/containers/team/procs").await["items"],
        json!([])
    );
    assert_eq!(door.adopted.lock().unwrap().len(), 3);
    node.stop().await;
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_and_the_listener_closed() {
    let place = Place::new();
    let (node, door, socket) = start(&place);
    node.create("a", json!({})).await;
    let good = state("a", 0);
    let mut two = good.clone();
    two["fds"] = json!(["seccompFd", "x"]);
    let cases = [
        (
            state("b", 0).to_string(),
            1,
            "not-found",
            "no container \"b\"",
        ),
        (state("system", 0).to_string(), 1, "invalid", "system"),
        (good.to_string(), 0, "invalid", "0 descriptors came"),
        (good.to_string(), 2, "invalid", "2 descriptors came"),
        (two.to_string(), 1, "invalid", "1 descriptors came"),
        (good.to_string(), 9, "invalid", "at most 8"),
        ("{\"fds\": [\"seccompFd\"".into(), 1, "invalid", "cut off"),
        ("[]".into(), 1, "invalid", "no state"),
    ];
    for (message, fds, kind, detail) in cases {
        let problem = send(&socket, &message, fds);
        assert_eq!(problem["type"], kind, "{problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains(detail),
            "{detail}: {problem}"
        );
    }
    // What is too long is not read to its end, so that the answer may be lost.
    let stream = UnixStream::connect(&socket).unwrap();
    let (file, _) = descriptor();
    let long = format!("{}{}", " ".repeat(1 << 20), good);
    let _ = pass::send(&stream, long.as_bytes(), &[file.as_fd()]);
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    let mut text = Vec::new();
    let _ = (&stream).read_to_end(&mut text);
    assert!(!String::from_utf8_lossy(&text).contains("true"));
    *door.broken.lock().unwrap() = true;
    let problem = send(&socket, &good.to_string(), 1);
    assert_eq!(problem["type"], "unavailable");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("the test refuses")
    );
    assert!(door.adopted.lock().unwrap().is_empty());
    let events = node.daemon.app().events.after(0, 100);
    let refused = events.iter().filter(|e| e.what == "refused");
    let of_b: Vec<_> = refused
        .filter(|e| e.container.as_ref().is_some_and(|c| c.as_str() == "b"))
        .collect();
    assert_eq!(of_b.len(), 1);
    assert!(of_b[0].detail.contains("listener"), "{}", of_b[0].detail);

    // The other end of what was passed is closed: nobody would answer.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = UnixStream::connect(&socket).unwrap();
    pass::send(
        &stream,
        state("b", 0).to_string().as_bytes(),
        &[theirs.as_fd()],
    )
    .unwrap();
    drop(theirs);
    assert_eq!(answer(stream)["type"], "not-found");
    ours.set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    assert_eq!((&ours).read(&mut [0]).unwrap(), 0);

    // One that says nothing holds up nobody, nor the end.
    let _silent = UnixStream::connect(&socket).unwrap();
    *door.broken.lock().unwrap() = false;
    assert_eq!(send(&socket, &good.to_string(), 1), json!({"ok": true}));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_may_what_rest_allows_them() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (node, door, socket) = start(&place);
    node.create("roots", json!({})).await;
    let own = json!({"name": "own", "owner": STRANGER});
    node.call(ROOT, "POST", "/v1/containers", own).await.ok();
    let roots_process = Member::start();
    let send = |message: Json| {
        let who = Credentials {
            uid: STRANGER,
            gid: STRANGER,
        };
        let stream = as_tenant(who, || UnixStream::connect(&socket)).unwrap();
        let stream = stream.unwrap();
        let (file, _) = descriptor();
        let text = message.to_string();
        pass::send(&stream, text.as_bytes(), &[file.as_fd()]).unwrap();
        answer(stream)
    };
    let denied = send(state("roots", 0));
    assert_eq!(denied["type"], "denied", "{denied}");
    let denied = send(state("own", roots_process.pid()));
    assert_eq!(denied["type"], "denied", "{denied}");
    assert!(door.adopted.lock().unwrap().is_empty());
    assert_eq!(send(state("own", 0)), json!({"ok": true}));
    assert_eq!(door.adopted.lock().unwrap().len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_held_is_said_for_each_container() {
    let place = Place::new();
    let (node, door, _) = start(&place);
    node.create("t", json!({"gpu.memory.max": "30G"})).await;
    node.create("t/a", json!({})).await;
    let path = "/v1/containers/t";
    let by = |d: &Json| d["status"]["enforced_by"]["gpu.memory.max"].clone();
    assert_eq!(by(&node.get(path).await), "daemon", "nobody is in it");
    let members = [Member::start(), Member::start()];
    for member in &members {
        let pids = json!({"pids": [member.pid()]});
        node.call(ROOT, "PUT", "/v1/containers/t%2Fa/procs", pids)
            .await
            .ok();
        member.works_on(&node.sim, 0);
    }
    let pid = |i: usize| members[i].pid().to_string();
    let notes = |d: &Json| d["status"]["notes"].to_string();
    let both = |d: &Json| notes(d).contains(&pid(0)) && notes(d).contains(&pid(1));
    let document = node.until(path, "both named", both).await;
    assert_eq!(by(&document), "nobody");
    let status = &document["status"];
    assert_eq!(status["enforced_by"]["gpu.memory.min"], "nobody");
    assert_eq!(status["enforced_by"]["gpu.memory.high"], "daemon");
    assert_eq!(status["enforced_by"]["gpu.weight"], "daemon");
    let below = node.get("/v1/containers/t%2Fa").await;
    assert!(
        !below["status"]["notes"]
            .to_string()
            .contains("ghostctl run"),
        "no limit of its own"
    );
    let id = |member: &Member| ghostd::proc::Proc::host().find(member.pid()).unwrap().id;
    door.held.lock().unwrap().insert(id(&members[0]));
    let document = node.until(path, "mixed", |d| by(d) == "mixed").await;
    let notes = notes(&document);
    assert!(
        !notes.contains(&pid(0)) && notes.contains(&pid(1)),
        "{notes}"
    );
    door.held.lock().unwrap().insert(id(&members[1]));
    node.until(path, "daemon", |d| by(d) == "daemon").await;
    node.stop().await;
}
