//! The filter that `run` puts before a program, against a fake that takes its listener; and the
//! profile by which others do the same.

#[allow(dead_code, reason = "not every test uses all of it")]
mod common;

use common::{Done, Fake, ghostctl};
use ghost_model::{Kind, Problem};
use ghost_notify::{Listener, Received, pass};
use serde_json::{Value as J, json};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

/// One of the driver's calls, on no descriptor.
const CALL: u64 = 0xC030_462B;
/// What the fake's supervisor has such a call return.
const ANSWER: i64 = 4711;

/// What was handed over, and who called after.
#[derive(Default)]
struct Seen {
    messages: Vec<J>,
    callers: Vec<i32>,
}

/// Has the fake take listeners. It says `reply`, and answers calls if that is a yes.
fn take_listeners(fake: &Fake, dir: &tempfile::TempDir, reply: &str) -> Arc<Mutex<Seen>> {
    let path = dir.path().join("notify.sock");
    let socket = UnixListener::bind(&path).unwrap();
    fake.inner.lock().unwrap().notify = Some(path);
    let seen = Arc::<Mutex<Seen>>::default();
    let shared = seen.clone();
    let reply = reply.to_owned();
    thread::spawn(move || {
        for stream in socket.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = vec![0; 4096];
            let (count, mut fds) = pass::receive(&stream, &mut bytes).unwrap();
            bytes.truncate(count);
            stream.read_to_end(&mut bytes).unwrap();
            let message = serde_json::from_slice(&bytes).unwrap();
            shared.lock().unwrap().messages.push(message);
            let listener = Listener::new(fds.remove(0)).unwrap();
            assert!(fds.is_empty());
            if reply.contains("true") {
                let shared = shared.clone();
                thread::spawn(move || supervise(&listener, &shared));
            }
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    seen
}

fn supervise(listener: &Listener, seen: &Mutex<Seen>) {
    let (_hold, stop) = UnixStream::pair().unwrap();
    while let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() {
        let ioctl = call.ioctl().unwrap();
        if u64::from(ioctl.cmd) == CALL {
            seen.lock().unwrap().callers.push(call.tid);
            listener.answer(call.id, Ok(ANSWER)).unwrap();
        } else {
            listener.allow(call.id).unwrap();
        }
    }
}

/// Arguments that run this program's [`caller`] under `run`.
fn caller_args<'a>(args: &[&'a str], exe: &'a str) -> Vec<&'a str> {
    let rest = [exe, "--exact", "caller", "--ignored", "--nocapture"];
    [args, &rest].concat()
}

fn exe() -> String {
    std::env::current_exe().unwrap().display().to_string()
}

/// The program in the container.
#[test]
#[ignore = "run in a container by the other tests"]
fn caller() {
    // SAFETY: no descriptor has this number; who answers writes nothing.
    let got = unsafe { nix::libc::syscall(nix::libc::SYS_ioctl, -1, CALL, 0) };
    println!("pid {} got {got}", std::process::id());
}

/// What [`caller`] said of its pid and of the call's result.
fn said(done: &Done) -> (i32, i64) {
    let line = done.out.lines().find(|line| line.starts_with("pid "));
    let words: Vec<&str> = line
        .unwrap_or_else(|| panic!("{done:?}"))
        .split(' ')
        .collect();
    (words[1].parse().unwrap(), words[3].parse().unwrap())
}

#[test]
fn a_program_is_answered_by_whom_ghostd_gives_its_listener_to() {
    let fake = Fake::start().with("team/job", json!({}));
    let dir = tempfile::tempdir().unwrap();
    let seen = take_listeners(&fake, &dir, "{\"ok\":true}\n");
    let exe = exe();
    let done = fake.run(&caller_args(&["run", "team/job", "--"], &exe));
    assert_eq!(done.code, Some(0), "{done:?}");
    let (pid, got) = said(&done);
    assert_eq!(got, ANSWER);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.callers.len(), 1);
    let [message] = &seen.messages[..] else {
        panic!("{:?}", seen.messages);
    };
    assert_eq!(message["metadata"], "team/job");
    assert_eq!(message["fds"], json!(["seccompFd"]));
    assert_eq!(message["pid"], pid);
    assert_eq!(message["state"]["pid"], pid);
    for key in ["ociVersion", "id", "status", "bundle"] {
        assert!(message["state"][key].is_string(), "{key}: {message}");
    }
}

#[test]
fn in_place_the_program_is_ghostctls_own_process() {
    let fake = Fake::start().with("a", json!({}));
    let dir = tempfile::tempdir().unwrap();
    let seen = take_listeners(&fake, &dir, "{\"ok\":true}\n");
    let exe = exe();
    let mut command = fake.command(&caller_args(&["run", "--in-place", "a", "--"], &exe));
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let own = child.id().cast_signed();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(said(&done), (own, ANSWER));
    assert_eq!(seen.lock().unwrap().messages[0]["pid"], own);
    let rm = fake.run(&["run", "--in-place", "--rm", "a", "--", "true"]);
    assert!(rm.err.contains("cannot be used with"), "{rm:?}");
}

#[test]
fn a_refused_program_does_not_begin() {
    let fake = Fake::start().with("a", json!({}));
    let dir = tempfile::tempdir().unwrap();
    let problem = Problem::new(Kind::NotFound, "no container \"a\"").hint("ghostctl list -q");
    let problem = serde_json::to_string(&problem).unwrap();
    for (reply, says) in [
        (
            problem.as_str(),
            "error: no container \"a\"\nhint: ghostctl list -q\n",
        ),
        ("{\"ok\":false}\n", "does not understand: {\"ok\":false}"),
        ("", "does not understand: it closed the connection"),
    ] {
        let _ = std::fs::remove_file(dir.path().join("notify.sock"));
        let seen = take_listeners(&fake, &dir, reply);
        let begun = dir.path().join("begun");
        let script = format!(": > {}", begun.display());
        let done = fake.run(&["run", "a", "--", "sh", "-c", &script]);
        assert_eq!(done.code, Some(125), "{done:?}");
        assert!(done.err.contains(says), "{done:?}");
        assert_eq!(seen.lock().unwrap().messages.len(), 1);
        assert!(!begun.exists(), "{reply:?}");
    }
}

#[test]
fn nobody_at_the_notify_socket_is_125() {
    let fake = Fake::start().with("a", json!({}));
    fake.inner.lock().unwrap().notify = Some("/nowhere/notify.sock".into());
    let done = fake.run(&["run", "a", "--", "true"]);
    assert_eq!(done.code, Some(125), "{done:?}");
    let says = "error: ghostd does not answer on /nowhere/notify.sock: ";
    assert!(done.err.contains(says), "{done:?}");
}

#[test]
fn where_ghostd_takes_no_listeners_there_is_no_filter() {
    let fake = Fake::start().with("a", json!({}));
    let filters = "sed -n 's/^Seccomp_filters:\\s*//p' /proc/self/status";
    let count = |done: Done| -> u32 { done.out.trim().parse().unwrap() };
    let own = Command::new("sh").args(["-c", filters]).output().unwrap();
    let own = count(Done::of(own));
    let run = ["run", "a", "--", "sh", "-c", filters];
    assert_eq!(count(fake.run(&run)), own);
    let dir = tempfile::tempdir().unwrap();
    take_listeners(&fake, &dir, "{\"ok\":true}\n");
    assert_eq!(count(fake.run(&run)), own + 1);
}

#[test]
fn within_a_filter_only_the_membership_moves() {
    let fake = Fake::start()
        .with("outer", json!({}))
        .with("inner", json!({}));
    let dir = tempfile::tempdir().unwrap();
    let seen = take_listeners(&fake, &dir, "{\"ok\":true}\n");
    let exe = exe();
    let inner = [
        "run",
        "outer",
        "--",
        env!("CARGO_BIN_EXE_ghostctl"),
        "run",
        "inner",
        "--",
    ];
    let done = fake.run(&caller_args(&inner, &exe));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(said(&done).1, ANSWER);
    let metadata: Vec<J> = {
        let seen = seen.lock().unwrap();
        seen.messages
            .iter()
            .map(|m| m["metadata"].clone())
            .collect()
    };
    assert_eq!(metadata, [json!("outer")]);
    let names: Vec<String> = {
        let inner = fake.inner.lock().unwrap();
        inner.members.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names, ["outer", "inner"]);
}

#[test]
fn a_profile_names_ghostds_socket_or_the_one_given() {
    let fake = Fake::start();
    let profile = |args: &[&str]| {
        let done = fake.run(&[&["seccomp-profile"], args].concat());
        serde_json::from_str::<J>(&done.ok()).unwrap()
    };
    let given = profile(&["--listener", "/run/x.sock"]);
    assert_eq!(given["listenerPath"], "/run/x.sock");
    assert_eq!(given["defaultAction"], "SCMP_ACT_ALLOW");
    assert_eq!(given.get("listenerMetadata"), None);
    fake.run(&["seccomp-profile"]).fails(
        3,
        "error: this ghostd holds no memory by seccomp listeners\nhint: `ghostctl info`\n",
    );
    fake.inner.lock().unwrap().notify = Some("/run/ghost/notify.sock".into());
    let asked = profile(&["--container", "team/job"]);
    assert_eq!(asked["listenerPath"], "/run/ghost/notify.sock");
    assert_eq!(asked["listenerMetadata"], "team/job");
}

#[test]
fn a_profile_is_merged_into_a_base_or_the_base_is_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.json");
    let base = base.to_str().unwrap();
    let merge = || {
        let args = [
            "seccomp-profile",
            "--listener",
            "/run/x.sock",
            "--base",
            base,
        ];
        Done::of(ghostctl(&args).output().unwrap())
    };
    let rules = json!([{"names": ["ioctl", "read"], "action": "SCMP_ACT_ALLOW"}]);
    let sound = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules});
    std::fs::write(base, sound.to_string()).unwrap();
    let merged: J = serde_json::from_str(&merge().ok()).unwrap();
    assert_eq!(merged["syscalls"][0]["names"], json!(["read"]));
    std::fs::write(base, r#"{"defaultAction": "SCMP_ACT_ERRNO"}"#).unwrap();
    merge().fails(
        2,
        &format!(
            "error: {base}: defaultAction answers ioctl with SCMP_ACT_ERRNO: GPUs are used by \
             ioctl; allow it in the base\n"
        ),
    );
    std::fs::write(base, "{").unwrap();
    let broken = merge();
    assert_eq!(broken.code, Some(2));
    assert!(
        broken.err.starts_with(&format!("error: {base}: EOF")),
        "{broken:?}"
    );
    let relative = ["seccomp-profile", "--listener", "run/x.sock"];
    Done::of(ghostctl(&relative).output().unwrap())
        .fails(2, "error: run/x.sock: a listener's path begins with /\n");
}
