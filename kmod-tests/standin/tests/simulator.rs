//! ghost-load as a process on the simulator, which needs neither `/dev/fuse` nor root.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use ghost_backend::sim::{Config, SOCKET, SOCKET_ENV, SimBackend};
use ghost_backend::{Backend, Event};
use ghost_model::plan::Why;
use ghost_model::{Action, Members, Membership, Micros, Name, ProcId};
use ghost_notify::PidFd;

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "{what} within 30 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_load_is_a_process_that_is_held_by_its_container() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET);
    let mut backend = SimBackend::real_time(Config::default(), &socket).unwrap();
    let mut load = Command::new(env!("CARGO_BIN_EXE_ghost-load"))
        .args(["a", "1000", "60", "--contexts", "2", "--tamper-slice", "9"])
        .arg("--out")
        .arg(dir.path())
        .env(SOCKET_ENV, &socket)
        .spawn()
        .unwrap();
    let csv = || std::fs::read_to_string(dir.path().join("a.csv")).unwrap_or_default();
    until("progress", || csv().lines().count() > 2);

    let held = PidFd::open_pid(load.id() as i32).unwrap();
    let name: Name = "a".parse().unwrap();
    let membership = Membership {
        pids: vec![ProcId {
            pid: load.id(),
            start: held.id().start_ticks,
        }],
        cgroups: vec![],
    };
    backend.set_members(&Members(BTreeMap::from([(name.clone(), membership)])));
    let processes = backend.processes();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].command, "ghost-load");
    assert_eq!(processes[0].container, name);
    let gpu = backend.gpus()[0].id.clone();
    assert_eq!(processes[0].groups, BTreeMap::from([(gpu.clone(), 2)]));

    let groups = backend.sample().gpus[0].groups.clone();
    let slices = groups.iter().map(|group| Action::SetSlice {
        gpu: gpu.clone(),
        group: group.id,
        slice: Micros(3000),
    });
    assert_eq!(backend.apply(&slices.collect::<Vec<_>>()), []);
    until("tampering", || {
        let reasserted =
            |e: &Event| matches!(e, Event::Reasserted { pid, .. } if *pid == load.id());
        backend.sample();
        backend.events().iter().any(reasserted)
    });

    let pause = Action::Pause {
        gpu: gpu.clone(),
        container: name,
        why: Why::Freeze,
    };
    backend.apply(&[pause]);
    let used = |backend: &mut SimBackend| -> u64 {
        let sample = backend.sample();
        let groups = sample.gpus[0].groups.iter();
        groups.map(|g| g.used.fresh().unwrap().0).sum()
    };
    let before = used(&mut backend);
    let lines = csv().lines().count();
    until("a paused load's reports", || {
        csv().lines().count() > lines + 5
    });
    assert_eq!(used(&mut backend), before);

    load.kill().unwrap();
    load.wait().unwrap();
    until("its end", || backend.processes().is_empty());
}
