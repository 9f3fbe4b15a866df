//! GPU memory held at the allocation: real processes under the real filter, a stand-in for the
//! driver, and the guardian's program.

mod death;
mod host;
mod tenants;

use std::process::Command;
use std::time::Duration;

use ghost_guardian::broker::books::Observed;
use ghost_model::{Bytes, Members, Membership, ProcId};

use host::{GIB, Host, MIB, Tenant, name, until};

/// As `context` takes, of which all is counted to the process.
const CONTEXT: u64 = 518 * MIB;

#[test]
fn the_limit_holds_for_all_of_a_container_and_of_those_above_it() {
    let Some(host) = Host::start(2) else { return };
    host.limit(&[("team", 2 * GIB), ("team/a", GIB), ("b", GIB)]);
    let mut one = host.tenant("team/a");
    assert!(one.ask("alloc=1000M").starts_with("0x"));
    assert_eq!(one.ask("alloc=25M"), "out of memory");
    let last = one.ask("alloc=24M");
    assert!(last.starts_with("0x"), "{last}");
    assert_eq!(host.current("team/a"), GIB);
    assert_eq!(host.standin.memory_of(one.pid(), 0), GIB);

    // Another program, that is a child of a shell's, and one that was executed by one.
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        let load = host.load();
        command.arg("-c").arg(script).arg(load.get_program());
        command.args(load.get_args());
        command
    };
    let mut child = host.put("team/a", shell(r#""$0" "$@"; exit 0"#));
    assert_eq!(child.ask("alloc=2M"), "out of memory");
    let mut executed = host.put("team", shell(r#"exec "$0" "$@""#));
    assert!(executed.ask("alloc=1000M").starts_with("0x"));
    assert_eq!(executed.ask("alloc=25M"), "out of memory");
    assert_eq!(host.current("team"), GIB + 1000 * MIB);
    // The older form, and another container.
    assert_eq!(one.ask("heap=2M"), "out of memory");
    let mut other = host.tenant("b");
    let heap = other.ask("heap=5M");
    assert!(heap.starts_with("0x"), "{heap}");
    assert_eq!(host.current("b"), 6 * MIB, "as the driver rounds");

    assert_eq!(one.ask(&format!("free={last}")), "ok");
    assert_eq!(other.ask(&format!("free={heap}")), "ok");
    assert_eq!(host.current("team/a"), 1000 * MIB);
    assert_eq!(host.current("b"), 0);
    assert!(child.ask("alloc=24M").starts_with("0x"));

    let seen = host.usage().seen;
    let used = seen.containers[&name("team")][&host.gpu(0)];
    assert_eq!((used.current.0, used.peak.0), (2024 * MIB, 2024 * MIB));
    assert_eq!((used.events.max, used.events_local.max), (4, 1));
    one.kill();
    executed.kill();
    drop(child);
    until("charges are gone", || host.current("team") == 0);
    until("clients are gone", || host.usage().tenants.len() == 1);
}

#[test]
fn a_context_is_counted_and_its_groups_are_told() {
    let Some(host) = Host::start(1) else { return };
    let mut broker = host.broker();
    let mut news = broker.usage().unwrap().news;
    let mut tenant = host.tenant("a");
    assert_eq!(tenant.ask("context"), "ok");
    assert_eq!(host.current("a"), CONTEXT);
    let mut groups = Vec::new();
    until("the groups are told", || {
        let usage = broker.wait(news, Duration::from_secs(10)).unwrap();
        news = usage.news;
        let clients = usage.tenants.iter().flat_map(|tenant| &tenant.clients);
        groups = clients.flat_map(|client| client.groups.clone()).collect();
        groups.len() == 4
    });
    let known: Vec<u32> = host
        .standin
        .groups()
        .iter()
        .map(|g| g.group.object.0)
        .collect();
    assert_eq!(
        groups.iter().map(|(_, group)| *group).collect::<Vec<_>>(),
        known
    );
    let usage = host.usage();
    assert_eq!(usage.tenants[0].owner.pid, tenant.pid());
    assert_eq!(usage.seen.held.len(), 1);
    assert!(usage.counts.notifications > usage.counts.done);

    // What a limit is lowered below stays; nothing more is had.
    host.limit(&[("a", 100 * MIB)]);
    assert_eq!(tenant.ask("alloc=2M"), "out of memory");
    assert_eq!(host.current("a"), CONTEXT);
}

#[test]
fn an_import_is_counted_once_where_it_was_allocated_until_its_last_name_is_gone() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB), ("b", 10 * MIB)]);
    let (mut owner, mut other) = (host.tenant("a"), host.tenant("b"));
    let client = owner.ask("client");
    let client = client.split(' ').next().unwrap().to_owned();
    let memory = owner.ask("alloc=512M");
    let import = format!("import={client}:{memory}");
    let name = other.ask(&import);
    assert!(name.starts_with("0x"), "{name}");
    assert_eq!((host.current("a"), host.current("b")), (512 * MIB, 0));
    assert_eq!(owner.ask(&format!("free={memory}")), "ok");
    assert_eq!(host.current("a"), 512 * MIB);
    assert_eq!(owner.ask("alloc=513M"), "out of memory");
    assert_eq!(other.ask(&format!("free={name}")), "ok");
    assert_eq!(host.current("a"), 0);

    let memory = owner.ask("alloc=512M");
    assert!(
        other
            .ask(&format!("import={client}:{memory}"))
            .starts_with("0x")
    );
    owner.kill();
    until("the owner is gone", || host.usage().tenants.len() == 1);
    assert_eq!(host.current("a"), 512 * MIB);
    other.kill();
    until("charges are gone", || host.current("a") == 0);
    assert_eq!(host.standin.memory_used(0), 0);
}

#[test]
fn a_container_sees_its_own_card() {
    let Some(host) = Host::start(1) else { return };
    let total = 80 * GIB;
    host.limit(&[("a", 24 * GIB), ("b", 24 * GIB)]);
    let (mut one, mut other) = (host.tenant("a"), host.tenant("b"));
    let mut outside = Tenant::start(host.load());
    assert_eq!(one.ask("context"), "ok");
    assert_eq!(other.ask("context"), "ok");
    assert_eq!(outside.ask("context"), "ok");
    let sizes = |total: u64, free: u64| format!("total={total} free={free} ram={total}");
    let free = 24 * GIB - CONTEXT;
    assert_eq!(one.ask("info"), sizes(24 * GIB, free));
    let heap = format!(" heap-total={} heap-free={free}", 24 * GIB);
    assert_eq!(one.ask("old-info"), sizes(24 * GIB, free) + &heap);
    assert!(outside.ask("info").starts_with(&format!("total={total} ")));
    assert_eq!(one.ask("processes"), format!("{}:{CONTEXT}", one.pid()));
    let all = outside.ask("processes");
    assert_eq!(all.split(' ').count(), 3, "{all}");
    // What is free can be had, and not more.
    assert_eq!(one.ask(&format!("alloc={}", free + 1)), "out of memory");
    assert!(one.ask(&format!("alloc={free}")).starts_with("0x"));
    assert_eq!(one.ask("info"), sizes(24 * GIB, 0));
}

#[test]
fn members_go_where_ghostd_says_and_residual_counts() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB), ("b", GIB)]);
    let mut command = host.load();
    let socket = host::filtered(&mut command);
    let mut tenant = Tenant::start(command);
    let start = ghost_notify::ProcId::of_pid(tenant.pid() as i32).unwrap();
    let process = ProcId {
        pid: tenant.pid(),
        start: start.start_ticks,
    };
    let pids = vec![process];
    let members = Membership {
        pids,
        ..Membership::default()
    };
    let members = Members([(name("b"), members)].into());
    host.broker().set_members(members).unwrap();
    // Its first call is received after that.
    host.adopt("a", host::listener(&socket));
    assert!(tenant.ask("alloc=512M").starts_with("0x"));
    assert_eq!((host.current("a"), host.current("b")), (0, 512 * MIB));

    let read = |bytes: u64, version: u64| Observed {
        owner: process,
        card: host.cards()[0].card,
        bytes: Bytes(bytes),
        version,
        container: None,
    };
    let version = host.usage().version;
    let mut broker = host.broker();
    assert_eq!(broker.observe(vec![read(700 * MIB, version)]).unwrap(), 1);
    assert_eq!(host.current("b"), 700 * MIB);
    assert_eq!(tenant.ask("alloc=500M"), "out of memory");
    assert!(tenant.ask("alloc=2M").starts_with("0x"));
    let stale = broker.observe(vec![read(0, version)]).unwrap();
    assert_eq!(stale, 0, "a reading from before");
    tenant.kill();
    until("charges are gone", || host.current("b") == 0);
}

#[test]
fn listeners_are_lent_and_a_forgotten_session_fails_closed() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    let mut tenant = host.tenant("a");
    assert!(tenant.ask("alloc=2M").starts_with("0x"));
    let mut broker = host.broker();
    let lent = broker.listeners().unwrap();
    let (session, container, listener) = &lent[0];
    assert_eq!((lent.len(), container), (1, &name("a")));
    // A descriptor that is no listener is not taken, and harms nobody.
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = broker.adopt(&"x".parse().unwrap(), container, &null);
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("no seccomp listener")
    );
    broker.forget(session).unwrap();
    broker.adopt(session, container, listener).unwrap();
    assert!(tenant.ask("alloc=2M").starts_with("0x"));
    broker.forget(session).unwrap();
    drop(lent);
    host.drop_listeners();
    tenant.tell("alloc=2M");
    let status = tenant.child.wait().unwrap();
    assert!(!status.success(), "the call fails with ENOSYS");
    until("charges are gone", || host.current("a") == 0);
    assert!(host.usage().sessions.is_empty());
}
