use super::wire::{Hello, Progress, Request, Response};
use super::*;
use crate::{Backend, Event};
use ghost_model::plan::Why;
use ghost_model::{
    Action, Members, Membership, MemoryEvents, MemoryLimits, MemoryWanted, Name, Reading, Sample,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MS: Load = Load::Backlog {
    kernel: Micros(1000),
};
const SECOND: u64 = 1_000_000;

fn process(pid: u32) -> ProcId {
    ProcId { pid, start: 5 }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn members(all: &[(&str, &[u32], &[&str])]) -> Members {
    let one = |(container, pids, cgroups): &(&str, &[u32], &[&str])| {
        let membership = Membership {
            pids: pids.iter().map(|&pid| process(pid)).collect(),
            cgroups: cgroups.iter().map(|c| c.parse().unwrap()).collect(),
        };
        (name(container), membership)
    };
    Members(all.iter().map(one).collect())
}

fn used(sample: &Sample, group: GroupId) -> Reading<Micros> {
    let all = sample.gpus.iter().flat_map(|g| &g.groups);
    all.into_iter().find(|g| g.id == group).unwrap().used
}

fn fresh(value: u64, at: u64) -> Reading<Micros> {
    Reading::Fresh {
        value: Micros(value),
        at: Micros(at),
    }
}

#[test]
fn what_is_sampled_is_what_is_so() {
    let sim = Sim::new(Config::default());
    let mut backend = sim.backend();
    backend.set_members(&members(&[("a", &[1], &[]), ("a/b", &[], &["/x"])]));
    let one = sim.spawn(process(1), 0, MS).unwrap();
    sim.start(process(2), "two", Some("/x/y"));
    let two = sim.spawn(process(2), 1, Load::Idle).unwrap();
    assert_eq!(sim.spawn(process(2), 2, MS), None, "there are two GPUs");
    sim.advance(Micros(10_000));

    let sample = backend.sample();
    assert_eq!(sample.at, Micros(10_000));
    let ids: Vec<_> = sample.gpus.iter().map(|g| g.gpu.clone()).collect();
    assert_eq!(ids, [sim.gpu(0), sim.gpu(1)]);
    let (first, second) = (&sample.gpus[0].groups[0], &sample.gpus[1].groups[0]);
    assert_eq!(
        (first.id, first.pid, &first.container),
        (one, 1, &name("a"))
    );
    assert_eq!((second.id, &second.container), (two, &name("a/b")));
    assert_eq!(first.used, fresh(10_000, 10_000));
    assert_eq!(first.slice, fresh(2048, 10_000));
    assert_eq!(first.active.fresh(), Some(true));
    assert_eq!(second.active.fresh(), Some(false));

    let appeared = |pid, container, index| Event::Appeared {
        pid,
        container: name(container),
        gpu: sim.gpu(index),
    };
    assert_eq!(
        backend.events(),
        [appeared(1, "a", 0), appeared(2, "a/b", 1)]
    );
    let processes = backend.processes();
    assert_eq!(processes[1].command, "two");
    assert_eq!(processes[1].groups, BTreeMap::from([(sim.gpu(1), 1)]));
    assert_eq!(processes[1].memory[&sim.gpu(1)], Bytes(520 << 20));
}

#[test]
fn ids_are_never_used_again_and_ends_are_told() {
    let sim = Sim::new(Config::default());
    let mut backend = sim.backend();
    let first = sim.spawn(process(1), 0, MS).unwrap();
    let second = sim.spawn(process(1), 0, MS).unwrap();
    sim.kill(process(1));
    let third = sim.spawn(process(1), 0, MS).unwrap();
    assert!(third > second && second > first);
    assert_eq!(backend.sample().gpus[0].groups.len(), 1);
    let exits = |events: Vec<Event>| {
        let is = |e: &&Event| matches!(e, Event::Exited { pid: 1, .. });
        events.iter().filter(is).count()
    };
    assert_eq!(exits(backend.events()), 1);
    sim.close(third);
    assert!(backend.sample().gpus[0].groups.is_empty());
    assert_eq!(exits(backend.events()), 0, "the process goes on");
}

#[test]
fn a_pause_holds_those_that_come_later_and_follows_membership() {
    let sim = Sim::new(Config::default());
    let mut backend = sim.backend();
    backend.set_members(&members(&[("a", &[1, 2], &[]), ("a/b", &[3], &[])]));
    let early = sim.spawn(process(1), 0, MS).unwrap();
    let below = sim.spawn(process(3), 0, MS).unwrap();
    let gpu = sim.gpu(0);
    let pause = Action::Pause {
        gpu: gpu.clone(),
        container: name("a"),
        why: Why::Freeze,
    };
    assert_eq!(backend.apply(&[pause.clone(), pause]), []);
    let late = sim.spawn(process(2), 0, MS).unwrap();
    let elsewhere = sim.spawn(process(2), 1, MS).unwrap();
    sim.advance(Micros(SECOND));
    let state = |id| sim.group(id).unwrap();
    assert_eq!((state(early).completed(), state(late).completed()), (0, 0));
    assert_eq!(state(below).completed(), 1000, "not the containers below");
    assert_eq!(state(elsewhere).completed(), 1000, "on that GPU only");
    let paused =
        |sample: Sample| -> Vec<bool> { sample.gpus[0].groups.iter().map(|g| g.paused).collect() };
    assert_eq!(paused(backend.sample()), [true, false, true]);

    backend.set_members(&members(&[("a", &[1], &[]), ("c", &[2], &[])]));
    assert_eq!(paused(backend.sample()), [true, false, false]);
    let resume = Action::Resume {
        gpu,
        container: name("a"),
    };
    assert_eq!(backend.apply(&[resume.clone(), resume]), []);
    assert_eq!(state(early).disables(), 0);
    assert_eq!(paused(backend.sample()), [false; 3]);
}

#[test]
fn slices_are_set_and_set_back() {
    let sim = Sim::new(Config::default());
    let mut backend = sim.backend();
    let group = sim.spawn(process(1), 0, MS).unwrap();
    let set = |group| Action::SetSlice {
        gpu: sim.gpu(0),
        group,
        slice: Micros(5000),
    };
    sim.tamper(group, Micros(9));
    backend.sample();
    backend.events();
    assert_eq!(
        sim.group(group).unwrap().slice(),
        Micros(9),
        "nothing wanted"
    );
    assert_eq!(backend.apply(&[set(group), set(GroupId(99))]), []);
    assert_eq!(sim.group(group).unwrap().slice(), Micros(5000));
    for _ in 0..2 {
        sim.tamper(group, Micros(1_000_000));
        let sample = backend.sample();
        assert_eq!(sample.gpus[0].groups[0].slice, fresh(5000, 0));
        assert_eq!(
            backend.events(),
            [Event::Reasserted {
                pid: 1,
                container: Name::system(),
                gpu: sim.gpu(0)
            }]
        );
    }
    let nowhere = Action::Resume {
        gpu: "GPU-00000000".parse().unwrap(),
        container: name("a"),
    };
    let failures = backend.apply(&[nowhere.clone(), set(group)]);
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].action, nowhere);
    assert!(failures[0].cause.contains("GPU-00000000"));
}

#[test]
fn readings_lag_go_stale_and_are_lost_on_demand() {
    let sim = Sim::new(Config {
        meter: Meter::Every(Micros(100_000)),
        ..Config::default()
    });
    let mut backend = sim.backend();
    let group = sim.spawn(process(1), 0, MS).unwrap();
    let mut reading = |at| {
        sim.advance(Micros(at));
        used(&backend.sample(), group)
    };
    assert_eq!(reading(50_000), Reading::Missing);
    assert_eq!(reading(250_000), fresh(200_000, 200_000));
    sim.set_fault(group, Some(Fault::Stale));
    let last = Reading::Stale {
        value: Micros(200_000),
        at: Micros(200_000),
    };
    assert_eq!(reading(450_000), last);
    sim.set_fault(group, Some(Fault::Missing));
    assert_eq!(reading(460_000), Reading::Missing);
    sim.set_fault(group, None);
    assert_eq!(reading(500_000), fresh(500_000, 500_000));
    sim.set_meter(Meter::Exact);
    assert_eq!(reading(512_345), fresh(512_345, 512_345));
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "{what} within 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(stream: &UnixStream, request: &str) -> Response {
    let mut to = stream;
    to.write_all(request.as_bytes()).unwrap();
    to.write_all(b"\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn hello(gpu: &str, period_us: Option<u64>) -> String {
    let request = Request::Hello(Hello {
        gpu: gpu.into(),
        kernel_us: 100,
        period_us,
        duty_us: None,
        memory: Bytes(0),
    });
    serde_json::to_string(&request).unwrap()
}

fn progress(stream: &UnixStream) -> Progress {
    match ask(stream, "\"progress\"") {
        Response::Progress(progress) => progress,
        other => panic!("{other:?}"),
    }
}

/// What a container holds, has held and could not have, of GPU 0.
fn seen(backend: &mut SimBackend, container: &str) -> (u64, u64, MemoryEvents) {
    let seen = backend.memory().unwrap();
    let of = seen.containers.get(&name(container));
    let used = of.and_then(|on| on.get(&super::world::uuid(0)).copied());
    let used = used.unwrap_or_default();
    (used.current.0, used.peak.0, used.events)
}

fn limits(all: &[(&str, MemoryLimits)]) -> MemoryWanted {
    let on = |limits: &MemoryLimits| BTreeMap::from([(super::world::uuid(0), *limits)]);
    MemoryWanted(all.iter().map(|(n, l)| (name(n), on(l))).collect())
}

#[test]
fn memory_is_refused_at_the_limit_of_the_tree_and_freed_with_its_group() {
    const G: u64 = 1 << 30;
    let context = super::memory::CONTEXT.0;
    let sim = Sim::new(Config::default());
    let mut backend = sim.backend();
    backend.set_members(&members(&[("t/a", &[1], &[]), ("t/b", &[2], &[])]));
    let max = |max| MemoryLimits {
        max: Some(Bytes(max)),
        ..MemoryLimits::default()
    };
    backend.set_memory(&limits(&[("t", max(8 * G)), ("t/b", max(4 * G))]));
    let a = sim.spawn(process(1), 0, MS).unwrap();
    let b = sim.spawn(process(2), 0, MS).unwrap();
    assert_eq!(seen(&mut backend, "t").0, 2 * context);
    sim.allocate(b, Bytes(3 * G)).unwrap();
    let refused = sim.allocate(b, Bytes(G)).unwrap_err().to_string();
    assert!(
        refused.contains("t/b") && refused.contains("gpu.memory.max"),
        "{refused}"
    );
    let refused = sim.allocate(a, Bytes(4 * G)).unwrap_err().to_string();
    assert!(refused.starts_with("out of memory: t: "), "{refused}");
    sim.allocate(a, Bytes(3 * G)).unwrap();
    let (current, peak, events) = seen(&mut backend, "t");
    assert_eq!((current, peak), (6 * G + 2 * context, 6 * G + 2 * context));
    assert_eq!((events.max, events.fail), (2, 2));
    let processes = backend.processes();
    let of_b = processes.iter().find(|p| p.pid == 2).unwrap();
    assert_eq!(of_b.memory[&super::world::uuid(0)], Bytes(3 * G + context));
    assert_eq!(
        backend.gpus()[0].memory_used,
        Some(Bytes(6 * G + 2 * context))
    );
    assert_eq!(
        backend.memory().unwrap().held,
        [process(1), process(2)].into()
    );

    sim.close(b);
    assert_eq!(seen(&mut backend, "t/b").0, 0);
    assert_eq!(seen(&mut backend, "t").0, 3 * G + context);
    sim.kill(process(1));
    let (current, peak, events) = seen(&mut backend, "t");
    assert_eq!((current, peak, events.fail), (0, 6 * G + 2 * context, 2));
}

#[test]
fn what_is_kept_for_one_is_refused_to_others_and_contexts_follow_their_process() {
    const G: u64 = 1 << 30;
    let context = super::memory::CONTEXT.0;
    let sim = Sim::new(Config {
        memory: Bytes(10 * G),
        ..Config::default()
    });
    let mut backend = sim.backend();
    backend.set_members(&members(&[("b", &[2], &[])]));
    let min = MemoryLimits {
        min: Bytes(6 * G),
        ..MemoryLimits::default()
    };
    backend.set_memory(&limits(&[("a", min), ("b", MemoryLimits::default())]));
    let b = sim.spawn(process(2), 0, MS).unwrap();
    let refused = sim.allocate(b, Bytes(4 * G)).unwrap_err().to_string();
    assert!(refused.contains("gpu.memory.min"), "{refused}");
    sim.allocate(b, Bytes(3 * G)).unwrap();
    let a = sim.spawn(process(1), 0, MS).unwrap();
    assert_eq!(seen(&mut backend, "system").0, context);
    backend.set_members(&members(&[("a", &[1], &[]), ("b", &[2], &[])]));
    assert_eq!(seen(&mut backend, "system").0, 0);
    assert_eq!(seen(&mut backend, "a").0, context);
    sim.allocate(a, Bytes(5 * G)).unwrap();
    backend.set_members(&members(&[("b", &[1, 2], &[])]));
    assert_eq!(
        seen(&mut backend, "a").0,
        5 * G + context,
        "stays where it was taken"
    );
}

#[test]
fn loads_register_run_and_leave_in_real_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET);
    let mut backend = SimBackend::real_time(Config::default(), &path).unwrap();
    let own = crate::procs::identify(std::process::id()).unwrap();
    let membership = Membership {
        pids: vec![own],
        cgroups: vec![],
    };
    backend.set_members(&Members(BTreeMap::from([(name("a"), membership)])));
    let listed = backend.processes();
    assert!(
        listed
            .iter()
            .any(|p| p.pid == own.pid && p.groups.is_empty())
    );

    let stream = UnixStream::connect(&path).unwrap();
    assert_eq!(ask(&stream, &hello("1", None)), Response::Done);
    assert!(matches!(ask(&stream, &hello("7", None)), Response::Error(e) if e.contains("\"7\"")));
    until("a kernel", || progress(&stream).completed > 0);
    let sample = backend.sample();
    let group = &sample.gpus[1].groups[0];
    assert_eq!((group.pid, &group.container), (own.pid, &name("a")));
    assert!(group.used.fresh().unwrap() > Micros(0));

    let periodic = UnixStream::connect(&path).unwrap();
    ask(&periodic, &hello("0", Some(1000)));
    let much = hello("0", None).replace("\"memory\":0", "\"memory\":1000000000000");
    let refused = ask(&periodic, &much);
    assert!(
        matches!(&refused, Response::Error(e) if e.contains("out of memory")),
        "{refused:?}"
    );
    let mut latencies = 0;
    until("latencies", || {
        let new = progress(&periodic).latencies_us;
        assert!(new.iter().all(|&l| l >= 132));
        latencies += new.len();
        latencies > 5
    });
    assert_eq!(latencies as u64, {
        let now = progress(&periodic);
        now.completed - now.latencies_us.len() as u64
    });

    drop(stream);
    until("the group's end", || {
        backend.sample().gpus[1].groups.is_empty()
    });
    drop(periodic);
    until("the process's end", || {
        let exited = |e: &Event| matches!(e, Event::Exited { pid, .. } if *pid == own.pid);
        backend.events().iter().any(exited)
    });
    drop(backend);
    assert!(!path.exists());
}

#[test]
fn a_hostile_load_loses_its_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET);
    let _backend = SimBackend::real_time(Config::default(), &path).unwrap();
    let good = UnixStream::connect(&path).unwrap();
    ask(&good, &hello("0", None));

    let bad = UnixStream::connect(&path).unwrap();
    for rubbish in ["", "{", "{\"hello\":{\"gpu\":1}}", "\u{1b}[2J", "[[[[[["] {
        assert!(
            matches!(ask(&bad, rubbish), Response::Error(_)),
            "{rubbish:?}"
        );
    }
    for _ in 0..64 {
        assert_eq!(ask(&bad, &hello("0", None)), Response::Done);
    }
    assert!(matches!(ask(&bad, &hello("0", None)), Response::Error(_)));
    let mut flood = UnixStream::connect(&path).unwrap();
    flood
        .set_write_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let endless = [b'x'; 65_536];
    until("the flood's end", || flood.write_all(&endless).is_err());
    // Asks without end and reads nothing.
    let mut deaf = UnixStream::connect(&path).unwrap();
    deaf.set_write_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let requests = "\"progress\"\n".repeat(4096);
    until("the deaf one's end", || {
        deaf.write_all(requests.as_bytes()).is_err()
    });
    progress(&good);
    assert!(matches!(
        SimBackend::real_time(Config::default(), &path),
        Err(ServerError::InUse(_))
    ));
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_a_file_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(Server::start(Sim::real_time(Config::default()), &path).unwrap());
    std::fs::write(&path, "kept").unwrap();
    let refused = Server::start(Sim::real_time(Config::default()), &path).unwrap_err();
    assert!(refused.to_string().contains("sim.sock"));
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}
