//! The drop-in that starts a service in a container.

#[allow(dead_code, reason = "not every test uses all of it")]
mod common;

use common::{Done, Fake};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const DROPIN: &str = include_str!("../systemd/ghost.conf");
const PROGRAM: &str = "/usr/bin/python3 /srv/train.py";

/// The drop-in with paths of this machine.
fn dropin(program: &str) -> String {
    assert!(DROPIN.contains(PROGRAM));
    let here = DROPIN.replace(PROGRAM, program);
    here.replace("/usr/bin/ghostctl", env!("CARGO_BIN_EXE_ghostctl"))
}

/// The command that is left of a service's own and the drop-in's.
fn command_of(texts: [&str; 2]) -> Vec<String> {
    let mut commands = Vec::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        match line.strip_prefix("ExecStart=") {
            Some("") => commands.clear(),
            Some(command) => commands.push(command),
            None => {}
        }
    }
    let [command] = commands[..] else {
        panic!("a service has one command: {commands:?}");
    };
    command
        .split(' ')
        .map(|word| word.replace("%p", "trainer"))
        .collect()
}

#[test]
fn its_command_runs_the_program_in_the_container_of_its_name() {
    let fake = Fake::start();
    let own = "[Service]\nExecStart=/bin/false\n";
    let command = command_of([own, &dropin("/usr/bin/id -u")]);
    assert_eq!(command[0], env!("CARGO_BIN_EXE_ghostctl"));
    let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    let done = fake.run(&args);
    let uid = Done::of(Command::new("id").arg("-u").output().unwrap());
    assert_eq!((done.code, &done.out), (Some(0), &uid.out), "{done:?}");
    let inner = fake.inner.lock().unwrap();
    assert!(inner.containers.contains_key("trainer"));
    assert_eq!(inner.members.len(), 1);
    let own = ghostctl::cgroup::own().filter(|path| path != "/");
    match own {
        // In place: no cgroup but the one that the service has.
        Some(path) => assert_eq!(inner.members[0].1, json!({"cgroups": [path]})),
        None => assert!(inner.members[0].1["pids"].is_array()),
    }
}

#[test]
fn systemd_accepts_it() {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        eprintln!("skipped: no systemd-analyze");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("trainer.service");
    std::fs::write(&unit, "[Service]\nExecStart=/bin/false\nType=exec\n").unwrap();
    let verify = || {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(&unit);
        Done::of(command.output().unwrap())
    };
    // What the drop-in is not to blame for.
    if verify().code != Some(0) {
        eprintln!("skipped: systemd-analyze verifies nothing here");
        return;
    }
    let drop = dir.path().join("trainer.service.d");
    std::fs::create_dir(&drop).unwrap();
    std::fs::write(drop.join("ghost.conf"), dropin("/bin/true")).unwrap();
    let done = verify();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.err.contains("ghost.conf"), "{done:?}");
    // It was looked at: without the line that takes the service's own command away there are two.
    let two = dropin("/bin/true").replace("ExecStart=\n", "");
    std::fs::write(drop.join("ghost.conf"), two).unwrap();
    let done = verify();
    assert!(done.err.contains("more than one ExecStart="), "{done:?}");
}
