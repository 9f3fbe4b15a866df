//! What survives: the real program, killed, starved of disk, given rubbish, and stalled.

mod common;

use common::{Place, Process, call, until};
use nix::sys::signal::Signal;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

fn weights(ghostd: &Process) -> BTreeMap<String, Json> {
    let list = ghostd.json("/v1/containers");
    let all = list["items"].as_array().unwrap().iter();
    all.filter(|c| c["name"] != "system")
        .map(|c| {
            (
                c["name"].as_str().unwrap().to_owned(),
                c["spec"]["gpu.weight"].clone(),
            )
        })
        .collect()
}

#[test]
fn what_was_confirmed_survives_kill_9() {
    let place = Place::new();
    let mut confirmed = BTreeMap::new();
    let mut uids = BTreeMap::new();
    for round in 0..3u32 {
        let mut ghostd = place.spawn();
        assert_eq!(weights(&ghostd), confirmed, "round {round}");
        for (name, uid) in &uids {
            assert_eq!(&ghostd.json(&format!("/v1/containers/{name}"))["uid"], uid);
        }
        let pid = ghostd.child.id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            let pid = nix::unistd::Pid::from_raw(pid as i32);
            nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
        });
        // The last one may be made and not confirmed.
        let mut attempted = None;
        for i in 1.. {
            let (name, weight) = (format!("c{}", i % 20), i % 9000 + 1 + round);
            let body = json!({"spec": {"gpu.weight": weight}});
            attempted = Some((name.clone(), json!(weight)));
            match ghostd.call("PUT", &format!("/v1/containers/{name}"), body) {
                Some((200 | 201, text)) => {
                    let document: Json = serde_json::from_str(&text).unwrap();
                    uids.insert(name.clone(), document["uid"].clone());
                    confirmed.insert(name, json!(weight));
                }
                Some(other) => panic!("{other:?}"),
                None => break,
            }
        }
        killer.join().unwrap();
        ghostd.child.wait().unwrap();
        assert!(confirmed.len() > 1);
        let ghostd = place.spawn();
        let found = weights(&ghostd);
        if found != confirmed {
            let (name, weight) = attempted.unwrap();
            confirmed.insert(name.clone(), weight);
            assert_eq!(found, confirmed);
            let uid = ghostd.json(&format!("/v1/containers/{name}"))["uid"].clone();
            uids.insert(name, uid);
        }
        assert!(
            place.log().contains("ended without notice"),
            "{}",
            place.log()
        );
    }
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let place = Place::new();
    // No file of this ghostd may grow beyond 16 KiB, which fails writes as a full disk does.
    let mut limited = Command::new("bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_ghostd"));
    let ghostd = place.spawn_by(limited);
    let mut confirmed = BTreeMap::new();
    let refused = (0..).find_map(|i| {
        let name = format!("c{i}");
        let body = json!({"name": name, "spec": {"gpu.weight": 7}});
        match ghostd.call("POST", "/v1/containers", body).unwrap() {
            (201, _) => {
                confirmed.insert(name, json!(7));
                None
            }
            other => Some(other),
        }
    });
    let (status, text) = refused.unwrap();
    assert_eq!(status, 503, "{text}");
    assert!(
        text.contains("\"unavailable\"") && text.contains("cannot be stored"),
        "{text}"
    );
    assert!(confirmed.len() > 5);
    assert_eq!(weights(&ghostd), confirmed, "nothing changed in memory");
    assert_eq!(ghostd.get("/healthz").unwrap().0, 200);
    drop(ghostd);
    let ghostd = place.spawn();
    assert_eq!(weights(&ghostd), confirmed);
    assert_eq!(
        ghostd.json("/v1/node")["problems"],
        json!([]),
        "nothing half written was left"
    );
    assert_eq!(
        ghostd
            .call("POST", "/v1/containers", json!({"name": "more"}))
            .unwrap()
            .0,
        201
    );
}

#[test]
fn a_half_written_store_is_named_and_kept() {
    let place = Place::new();
    let ghostd = place.spawn();
    for name in ["a", "b"] {
        let body = json!({"name": name, "spec": {"gpu.weight": 7}});
        assert_eq!(ghostd.call("POST", "/v1/containers", body).unwrap().0, 201);
    }
    drop(ghostd);
    let log = place.path("state/containers.log");
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 10]).unwrap();
    let ghostd = place.spawn();
    assert_eq!(weights(&ghostd), BTreeMap::from([("a".into(), json!(7))]));
    let problems = ghostd.json("/v1/node")["problems"].to_string();
    assert!(
        problems.contains("half written") && problems.contains("containers.damaged-1"),
        "{problems}"
    );
    assert!(place.log().contains("containers.damaged-1"));
    let kept = std::fs::read(place.path("state/containers.damaged-1")).unwrap();
    assert_eq!(kept, whole[..whole.len() - 10]);
    drop(ghostd);
    let ghostd = place.spawn();
    assert_eq!(
        ghostd.json("/v1/node")["problems"],
        json!([]),
        "the new store is whole"
    );
    assert_eq!(weights(&ghostd).len(), 1);
}

#[test]
fn one_state_directory_and_one_socket_have_one_ghostd() {
    let place = Place::new();
    let _ghostd = place.spawn();
    let try_with = |state: &str| {
        let mut ghostd = Command::new(env!("CARGO_BIN_EXE_ghostd"));
        ghostd.args(["--backend", "sim", "--config"]);
        ghostd.arg(place.path("ghostd.toml"));
        ghostd.arg("--socket").arg(place.path("ghostd.sock"));
        ghostd.arg("--run-dir").arg(place.path("run2"));
        ghostd
            .arg("--containers-dir")
            .arg(place.path("containers.d"));
        let output = ghostd
            .arg("--state-dir")
            .arg(place.path(state))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let same_state = try_with("state");
    assert!(
        same_state.contains("in use by another ghostd"),
        "{same_state}"
    );
    let same_socket = try_with("state2");
    assert!(
        same_socket.contains("another ghostd listens there"),
        "{same_socket}"
    );
}

#[test]
fn bad_configuration_is_a_usage_error() {
    let place = Place::new();
    std::fs::write(place.path("ghostd.toml"), "sockett = \"/x\"\n").unwrap();
    let run = |args: &[&str]| {
        let mut ghostd = Command::new(env!("CARGO_BIN_EXE_ghostd"));
        let output = ghostd.args(args).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let path = place.path("ghostd.toml").display().to_string();
    let (code, text) = run(&["--config", &path]);
    assert_eq!(code, Some(2));
    assert!(text.contains("did you mean socket?"), "{text}");
    assert_eq!(run(&["--config", "/no/such/file"]).0, Some(2));
    assert_eq!(run(&["--backend", "vulkan"]).0, Some(2));
}

#[test]
fn what_is_no_journal_does_not_replay_as_equal() {
    let place = Place::new();
    let path = place.path("notes.txt");
    std::fs::write(&path, "milk\nbread\n").unwrap();
    let mut ghostd = Command::new(env!("CARGO_BIN_EXE_ghostd"));
    let output = ghostd.arg("--replay").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no line of it is a step"), "{said}");
}

#[test]
fn sighup_reloads_and_sigterm_ends_in_order() {
    let place = Place::new();
    let mut ghostd = place.spawn();
    place.file("a.toml", "[container.a]\ngpu.weight = 7\n");
    ghostd.signal(Signal::SIGHUP);
    until("the file is read", || {
        weights(&ghostd).get("a") == Some(&json!(7))
    });
    place.file("a.toml", "[container.a]\ngpu.weight = 0\n");
    ghostd.signal(Signal::SIGHUP);
    until("the mistake is shown", || {
        ghostd.json("/v1/node")["problems"]
            .to_string()
            .contains("\\\"0\\\" is not a weight")
    });
    assert_eq!(weights(&ghostd)["a"], 7);
    ghostd.signal(Signal::SIGTERM);
    assert!(ghostd.child.wait().unwrap().success());
    assert!(!place.path("ghostd.sock").exists());
    drop(ghostd);
    let before = place.log().len();
    let _ghostd = place.spawn();
    assert!(!place.log()[before..].contains("ended without notice"));
}

#[test]
fn a_peer_that_stalls_harms_nobody() {
    let place = Place::new();
    let ghostd = place.spawn();
    let connect = || UnixStream::connect(place.path("ghostd.sock")).unwrap();
    // Half a head, half a body, and an answer that is not read.
    let mut stalled: Vec<UnixStream> = Vec::new();
    for text in [
        "GET /v1/no",
        "POST /v1/containers HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{",
        "GET /v1/events HTTP/1.1\r\nhost: g\r\nlast-event-id: 0\r\n\r\n",
    ] {
        for _ in 0..20 {
            let mut stream = connect();
            stream.write_all(text.as_bytes()).unwrap();
            stalled.push(stream);
        }
    }
    let body = json!({"name": "a", "spec": {}});
    let (status, text) = ghostd
        .call("POST", "/v1/containers?wait=20s", body)
        .unwrap();
    assert_eq!(status, 201);
    let made: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(made["status"]["observed_generation"], 1);
    for i in 0..200 {
        let patch = json!({"spec": {"gpu.weight": i % 2 + 1}});
        assert_eq!(
            ghostd.call("PATCH", "/v1/containers/a", patch).unwrap().0,
            200
        );
    }
    // Those who never said what they want are let go.
    let first = &mut stalled[0];
    first
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut answer = Vec::new();
    first.read_to_end(&mut answer).unwrap();
    let second = &mut stalled[20];
    second
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("\"invalid\""),
        "{answer}"
    );
}

#[test]
fn a_body_of_100_mb_is_refused_on_the_wire() {
    let place = Place::new();
    let ghostd = place.spawn();
    let body = " ".repeat(100 << 20);
    // Whoever sends on regardless may find the connection closed before the answer is read.
    let socket = place.path("ghostd.sock");
    if let Some((status, text)) = call(&socket, "POST", "/v1/containers", &body) {
        assert_eq!(status, 413, "{text}");
    }
    assert_eq!(ghostd.get("/readyz").unwrap().0, 200);
    let status = std::fs::read_to_string(format!("/proc/{}/status", ghostd.child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB");
}
