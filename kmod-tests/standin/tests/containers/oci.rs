//! OCI runtimes with Ghost's seccomp profile.

use std::process::Stdio;

use crate::common::until;
use crate::host::{GIB, Host, is_made, printed, text};

const LOAD: [&str; 4] = ["/bin/ghost-load", "mem", "--dev", "/gpu"];

fn load<'a>(steps: &[&'a str]) -> Vec<&'a str> {
    [&LOAD[..], steps].concat()
}

#[test]
fn crun_s_container_has_its_limit_and_its_own_card() {
    let Some(host) = Host::start(&["crun"]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    host.bundle(
        "a",
        &load(&["alloc=1000M", "alloc=25M", "alloc=24M", "info"]),
    );
    let out = printed(&mut host.crun(&["run", "ghost-limit"]));
    let lines: Vec<&str> = out.lines().collect();
    assert!(is_made(lines[0]) && is_made(lines[2]), "{out}");
    assert_eq!(lines[1], "alloc out of memory");
    assert!(
        lines[3].starts_with(&format!("info total={GIB} free=0 ")),
        "{out}"
    );
    until("charges are gone", || host.current("a") == 0);
    // A child of a program in the container.
    let script = "\"$0\" \"$@\"; exit 7";
    let child = [
        &["/bin/sh", "-c", script],
        &load(&["alloc=1G", "alloc=2M"])[..],
    ]
    .concat();
    host.bundle("a", &child);
    let done = host.crun(&["run", "ghost-child"]).output().unwrap();
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(7), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(is_made(lines[0]), "{out}");
    assert_eq!(lines[1], "alloc out of memory");
}

#[test]
fn what_is_executed_into_a_container_has_its_limit_too() {
    let Some(host) = Host::start(&["crun"]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    host.bundle("a", &load(&["alloc=1000M", "hold=600"]));
    let mut run = host.crun(&["run", "--detach", "ghost-exec"]);
    // Its output is the container's, which stays.
    let started = run.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(started.unwrap().success());
    until("the first allocates", || host.current("a") == 1000 << 20);
    until("it is known by whom it is held", || {
        host.status("a")["enforced_by"]["gpu.memory.max"] == "daemon"
    });
    let steps = load(&["alloc=25M", "alloc=24M"]);
    let done = host
        .crun(&[&["exec", "ghost-exec"], &steps[..]].concat())
        .output();
    let deleted = host
        .crun(&["delete", "--force", "ghost-exec"])
        .output()
        .unwrap();
    assert!(deleted.status.success(), "{}", text(&deleted.stderr));
    let done = done.unwrap();
    let out = text(&done.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}{}", text(&done.stderr));
    assert_eq!(lines[0], "alloc out of memory");
    assert!(is_made(lines[1]), "{out}");
    // Killed, and its memory is the container's again.
    until("charges are gone", || host.current("a") == 0);
}

#[test]
fn a_profile_of_no_container_lets_nothing_be_allocated() {
    let Some(host) = Host::start(&["crun"]) else {
        return;
    };
    host.bundle("nobody", &load(&["alloc=2M"]));
    let done = host.crun(&["run", "ghost-nobody"]).output().unwrap();
    assert!(!done.status.success(), "{}", text(&done.stdout));
    assert_eq!(host.driver.standin.memory_used(0), 0);
    let events = host.ctl(&["events"]);
    assert!(events.contains("nobody"), "{events}");
}

#[test]
fn podman_s_containers_have_their_limit() {
    let Some(host) = Host::start(&["podman", "crun"]) else {
        return;
    };
    host.ctl(&["create", "team"]);
    host.ctl(&["create", "team/job", "gpu.memory.max=1G"]);
    host.profile("team/job");
    let name = "ghost-podman";
    let profile = format!("seccomp={}", host.at("profile.json").display());
    let volume = format!("{}:/gpu", host.driver.standin.dir().display());
    let root = host.at("rootfs").display().to_string();
    let run = [
        "run",
        "--detach",
        "--name",
        name,
        "--network",
        "none",
        "--cgroups",
        "disabled",
        "--ulimit",
        "nofile=1000:1000",
        "--ulimit",
        "nproc=1000:1000",
        "--security-opt",
        &profile,
        "--volume",
        &volume,
        "--rootfs",
        &root,
    ];
    let mut started =
        host.podman(&[&run[..], &load(&["alloc=1000M", "alloc=25M", "hold=600"])].concat());
    printed(&mut started);
    until("the first allocates", || {
        host.current("team/job") == 1000 << 20
    });
    let steps = load(&["alloc=25M", "alloc=24M"]);
    let executed = host
        .podman(&[&["exec", name], &steps[..]].concat())
        .output()
        .unwrap();
    let logs = host.podman(&["logs", name]).output().unwrap();
    let removed = host
        .podman(&["rm", "--force", "--time", "0", name])
        .output()
        .unwrap();
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    let out = text(&executed.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}{}", text(&executed.stderr));
    assert_eq!(lines[0], "alloc out of memory");
    assert!(is_made(lines[1]), "{out}");
    let out = text(&logs.stdout);
    assert_eq!(out.lines().nth(1), Some("alloc out of memory"), "{out}");
    until("charges are gone", || host.current("team/job") == 0);
}
