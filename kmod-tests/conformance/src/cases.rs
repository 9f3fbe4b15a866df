//! The cases, in words of the trait [`ghost_backend::Backend`].

use ghost_backend::Event;
use ghost_model::plan::Why;
use ghost_model::{Action, Bytes, Enforcer, Key, Micros, Name, ProcId};

use crate::{Case, Host, Lacks, groups};

const MIB: u64 = 1 << 20;

/// All of them.
pub const CASES: &[Case] = &[
    Case {
        name: "a process is where it was put, others are in system",
        needs: &[],
        run: members_by_pid,
    },
    Case {
        name: "a process is where the deepest of its cgroups is",
        needs: &[Lacks::Cgroups],
        run: members_by_cgroup,
    },
    Case {
        name: "groups appear and go, and their processes are told of",
        needs: &[],
        run: groups_come_and_go,
    },
    Case {
        name: "a timeslice that was set is read back",
        needs: &[],
        run: slices,
    },
    Case {
        name: "what is paused does not run, groups that are made later included",
        needs: &[],
        run: pauses,
    },
    Case {
        name: "memory beyond max is refused and counted",
        needs: &[Lacks::Memory],
        run: memory_max,
    },
    Case {
        name: "a limit is that of all containers below together",
        needs: &[Lacks::Memory],
        run: memory_below,
    },
    Case {
        name: "what is given back may be taken again, by a limit below what is in use too",
        needs: &[Lacks::Memory],
        run: memory_given_back,
    },
    Case {
        name: "who belonged to a container that is removed belongs to system",
        needs: &[],
        run: removed,
    },
    Case {
        name: "nothing stays paused when ghostd has gone",
        needs: &[Lacks::Restart],
        run: nothing_stays_paused,
    },
    Case {
        name: "limits hold when ghostd has gone, and a new one takes them over",
        needs: &[Lacks::Memory, Lacks::Restart, Lacks::Kernel],
        run: limits_stay,
    },
];

fn container_of(host: &mut Host<'_>, process: ProcId) -> Name {
    let mut found = None;
    host.until("its channel group", |_, sample| {
        found = groups(sample, process).first().map(|g| g.container.clone());
        found.is_some()
    });
    let listed = host.backend().processes();
    let listed = listed
        .iter()
        .find(|p| p.pid == process.pid)
        .expect("it is listed");
    assert_eq!(Some(&listed.container), found.as_ref());
    listed.container.clone()
}

fn members_by_pid(host: &mut Host<'_>) {
    let name = host.container("pid/inner");
    let member = host.busy(&name);
    let stranger = host.start();
    host.world.open(stranger);
    assert_eq!(container_of(host, member), name);
    assert_eq!(container_of(host, stranger), Name::system());
}

fn members_by_cgroup(host: &mut Host<'_>) {
    let (outer, inner) = (
        host.container("by-cgroup"),
        host.container("by-cgroup/deep"),
    );
    let (first, second, put) = (host.start(), host.start(), host.start());
    host.world.enter(first, "ghost-outer");
    host.world.enter(second, "ghost-outer/inner");
    host.world.enter(put, "ghost-outer/inner");
    let path = |path: &str| path.parse().expect("a path");
    host.membership(&outer).cgroups.push(path("/ghost-outer"));
    host.membership(&inner)
        .cgroups
        .push(path("/ghost-outer/inner"));
    host.membership(&outer).pids.push(put);
    host.tell();
    for process in [first, second, put] {
        host.world.open(process);
    }
    assert_eq!(container_of(host, first), outer);
    assert_eq!(container_of(host, second), inner);
    assert_eq!(container_of(host, put), outer, "its own place goes first");
}

fn groups_come_and_go(host: &mut Host<'_>) {
    let name = host.container("comes");
    let process = host.busy(&name);
    let gpu = host.world.gpu();
    let appeared = Event::Appeared {
        pid: process.pid,
        container: name.clone(),
        gpu: gpu.clone(),
    };
    host.until("the event", |host, _| host.events.contains(&appeared));
    let listed = host.backend().processes();
    let listed = listed.iter().find(|p| p.pid == process.pid);
    assert_eq!(listed.and_then(|p| p.groups.get(&gpu)), Some(&1));
    host.kill(process);
    let exited = Event::Exited {
        pid: process.pid,
        container: name,
    };
    host.until("its end", |host, sample| {
        groups(sample, process).is_empty() && host.events.contains(&exited)
    });
}

fn slices(host: &mut Host<'_>) {
    let name = host.container("slices");
    let process = host.busy(&name);
    for us in [5000, 700] {
        let sample = host.turn();
        let group = groups(&sample, process).remove(0);
        host.apply(Action::SetSlice {
            gpu: host.world.gpu(),
            group: group.id,
            slice: Micros(us),
        });
        host.until("the timeslice", |_, sample| {
            groups(sample, process)
                .iter()
                .any(|g| g.slice.fresh() == Some(Micros(us)))
        });
    }
}

fn pause(host: &mut Host<'_>, container: &Name) {
    host.apply(Action::Pause {
        gpu: host.world.gpu(),
        container: container.clone(),
        why: Why::Freeze,
    });
}

fn are_paused(host: &mut Host<'_>, process: ProcId, count: usize, paused: bool) {
    let what = if paused {
        "a pause"
    } else {
        "an end of the pause"
    };
    host.until(what, |_, sample| {
        let groups = groups(sample, process);
        groups.len() == count && groups.iter().all(|group| group.paused == paused)
    });
}

fn pauses(host: &mut Host<'_>) {
    let (name, other) = (host.container("paused"), host.container("runs"));
    let (process, runs) = (host.busy(&name), host.busy(&other));
    pause(host, &name);
    pause(host, &name);
    are_paused(host, process, 1, true);
    host.world.open(process);
    are_paused(host, process, 2, true);
    are_paused(host, runs, 1, false);
    host.apply(Action::Resume {
        gpu: host.world.gpu(),
        container: name,
    });
    are_paused(host, process, 2, false);
}

fn memory_max(host: &mut Host<'_>) {
    let name = host.container("max");
    let process = host.busy(&name);
    let before = host.used(&name);
    host.limit(&name, before.current.0 + 64 * MIB);
    assert!(host.world.allocate(process, Bytes(40 * MIB)));
    assert!(!host.world.allocate(process, Bytes(40 * MIB)));
    assert!(
        host.world.allocate(process, Bytes(4 * MIB)),
        "what fits is given"
    );
    let now = host.used(&name);
    assert_eq!(now.current.0 - before.current.0, 44 * MIB);
    assert_eq!((now.events.max, now.events.fail), (1, 1));
    assert_eq!(now.events_local, now.events);
    let held = host.backend().memory().expect("an account").held;
    assert!(held.contains(&process), "it cannot pass by");
}

fn memory_below(host: &mut Host<'_>) {
    let above = host.container("team");
    let (one, two) = (host.container("team/one"), host.container("team/two"));
    let (first, second) = (host.busy(&one), host.busy(&two));
    let before = host.used(&above).current;
    host.limit(&above, before.0 + 64 * MIB);
    assert!(host.world.allocate(first, Bytes(40 * MIB)));
    assert!(!host.world.allocate(second, Bytes(40 * MIB)));
    let (team, member) = (host.used(&above), host.used(&two));
    assert_eq!(team.current.0 - before.0, 40 * MIB);
    assert_eq!(team.events.max, 1, "the limit is the team's");
    assert_eq!((member.events.max, member.events.fail), (0, 1));
}

fn memory_given_back(host: &mut Host<'_>) {
    let name = host.container("back");
    let process = host.busy(&name);
    let before = host.used(&name).current.0;
    assert!(host.world.allocate(process, Bytes(40 * MIB)));
    host.limit(&name, before + 32 * MIB);
    let now = host.used(&name).current.0;
    assert_eq!(now - before, 40 * MIB, "nothing is taken away");
    assert!(!host.world.allocate(process, Bytes(MIB)));
    host.world.free(process);
    assert_eq!(host.used(&name).current.0, before);
    assert_eq!(host.used(&name).peak.0, now);
    assert!(host.world.allocate(process, Bytes(16 * MIB)));
}

fn removed(host: &mut Host<'_>) {
    let name = host.container("removed");
    let process = host.busy(&name);
    assert_eq!(container_of(host, process), name);
    host.specs.clear();
    host.members.0.clear();
    host.tell();
    assert_eq!(container_of(host, process), Name::system());
}

fn nothing_stays_paused(host: &mut Host<'_>) {
    let name = host.container("left");
    let process = host.busy(&name);
    pause(host, &name);
    are_paused(host, process, 1, true);
    host.restart();
    are_paused(host, process, 1, false);
}

fn limits_stay(host: &mut Host<'_>) {
    let name = host.container("stay");
    let spec = host.specs.entry(name.clone()).or_default();
    spec.set_text(Key::Weight.as_str(), None, "300")
        .expect("a weight");
    let process = host.busy(&name);
    let before = host.used(&name).current;
    host.limit(&name, before.0 + 64 * MIB);
    let held = host.backend().capabilities().enforcer(Key::MemoryMax);
    assert_eq!(held, Enforcer::Kernel);
    assert!(host.world.allocate(process, Bytes(40 * MIB)));
    host.restart();
    assert!(!host.world.allocate(process, Bytes(40 * MIB)));
    assert_eq!(container_of(host, process), name, "it was taken over");
    host.tell();
    assert_eq!(container_of(host, process), name);
    assert!(!host.world.allocate(process, Bytes(40 * MIB)));
    assert_eq!(host.used(&name).events.max, 2, "counters go on");
}
