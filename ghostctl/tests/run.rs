//! `run` and what it starts. Where these tests may write the cgroup v2 mount, or systemd gives
//! scopes, the program gets a cgroup; elsewhere its pid is attached, and that is what is tested.

#[allow(dead_code, reason = "not every test uses all of it")]
mod common;

use common::{Done, Fake, ghostctl};
use serde_json::{Value as J, json};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

const NOTE: &str = "note: children of the command do not follow it";

fn members(fake: &Fake) -> Vec<(String, J)> {
    fake.inner.lock().unwrap().members.clone()
}

fn exists(fake: &Fake, name: &str) -> bool {
    fake.inner.lock().unwrap().containers.contains_key(name)
}

#[test]
fn the_programs_own_status_is_passed() {
    let fake = Fake::start().with("a", json!({}));
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let done = fake.run(&["run", "a", "--", "sh", "-c", script]);
        assert_eq!(done.code, Some(code), "{script}: {done:?}");
    }
}

#[test]
fn what_cannot_be_started_is_125_to_127() {
    let fake = Fake::start().with("a", json!({}));
    for (command, code, want) in [
        (
            "/nonexistent/x\u{1b}",
            127,
            "error: /nonexistent/x?: No such file",
        ),
        ("/etc/passwd", 126, "error: /etc/passwd: Permission denied"),
    ] {
        let done = fake.run(&["run", "a", "--", command]);
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(done.err.contains(want), "{done:?}");
    }
    let nobody = ["run", "--socket", "/nowhere/s", "a", "--", "true"];
    let done = Done::of(ghostctl(&nobody).output().unwrap());
    assert_eq!(done.code, Some(125));
    assert!(
        done.err
            .starts_with("error: ghostd does not answer on /nowhere/s")
    );
    let done = fake.run(&["run", "--weight", "0", "a", "--", "true"]);
    assert_eq!(done.code, Some(125), "{done:?}");
}

#[test]
fn the_program_is_a_member_before_it_begins() {
    let fake = Fake::start().with("team/job", json!({}));
    let script = "sed -n s/^0:://p /proc/self/cgroup; echo $$";
    let done = fake.run(&["run", "team/job", "--", "sh", "-c", script]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let printed: Vec<&str> = done.out.lines().collect();
    let [(name, body)] = &members(&fake)[..] else {
        panic!("{:?}", members(&fake));
    };
    assert_eq!(name, "team/job");
    if done.err.contains(NOTE) {
        let pid: u32 = printed[printed.len() - 1].parse().unwrap();
        assert_eq!(*body, json!({"pids": [pid]}));
        return;
    }
    assert_eq!(*body, json!({"cgroups": [printed[0]]}));
    if printed[0].starts_with("/ghost/") {
        let gone = ghostctl::cgroup::mount().unwrap().join(&printed[0][1..]);
        assert!(
            gone.starts_with(PathBuf::from("/sys/fs/cgroup")),
            "{gone:?}"
        );
        assert!(!gone.exists(), "{gone:?} is left");
    }
}

#[test]
fn without_a_cgroup_the_programs_pid_is_attached() {
    let fake = Fake::start().with("a", json!({}));
    let done = fake.run(&["enter", "--alone", "a", "--", "sh", "-c", "echo $$"]);
    let pid: u32 = done.ok().trim().parse().unwrap();
    assert_eq!(members(&fake), [("a".into(), json!({"pids": [pid]}))]);
}

#[test]
fn a_container_is_made_if_there_is_none_and_goes_with_rm() {
    let fake = Fake::start().with("old", json!({}));
    let run = |args: &[&str]| {
        let done = fake.run(args);
        assert_eq!(done.code, Some(0), "{done:?}");
    };
    run(&["run", "--weight", "30", "new", "--", "true"]);
    assert_eq!(fake.run(&["get", "new", "gpu.weight"]).ok(), "30\n");
    run(&["run", "--rm", "brief", "--", "true"]);
    assert!(!exists(&fake, "brief"));
    // One that was there before is not ours to delete; limits change it.
    run(&["run", "--rm", "--max", "25%", "old", "--", "true"]);
    assert_eq!(fake.run(&["get", "old", "gpu.max"]).ok(), "25000 100000\n");
    // What could not be started leaves nothing behind either.
    assert_eq!(
        fake.run(&["run", "--rm", "x", "--", "/nonexistent"]).code,
        Some(127)
    );
    assert!(!exists(&fake, "x"));
}

#[test]
fn signals_for_run_reach_the_program() {
    let fake = Fake::start().with("a", json!({}));
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!(
        "trap 'echo got; exit 3' TERM; : > {}; while :; do sleep 0.05; done",
        ready.display()
    );
    let mut command = fake.command(&["run", "a", "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = child.spawn().unwrap();
    let begun = Instant::now();
    while !ready.exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it does not start"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (Some(3), "got\n"));
}

#[test]
fn the_program_begins_with_no_signal_blocked_and_may_die_of_a_closed_pipe() {
    let fake = Fake::start().with("a", json!({}));
    let script = "sed -En 's/^Sig(Blk|Ign):\\s*//p' /proc/self/status";
    let done = fake.run(&["run", "a", "--", "sh", "-c", script]);
    let set = |line: &str| u64::from_str_radix(line, 16).unwrap();
    let sets: Vec<u64> = done.out.lines().map(set).collect();
    let pipe = 1 << (nix::libc::SIGPIPE - 1);
    assert_eq!((sets[0], sets[1] & pipe), (0, 0), "{done:?}");
}
