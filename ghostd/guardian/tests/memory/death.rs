//! Kills: of tenants anywhere, and of the guardian between every pair of steps.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use ghost_notify::pass;

use super::host::{GIB, Host, MIB, Tenant, until};

const STEPS: [&str; 6] = [
    "received", "begun", "done", "settled", "written", "answered",
];

/// What the books say is what the driver says.
fn agree(host: &Host, tenant: &Tenant, bytes: u64) {
    assert_eq!(host.standin.memory_of(tenant.pid(), 0), bytes);
    until("the books agree", || host.current("a") == bytes);
}

/// The guardian dies after this step of what the tenant is told.
fn through(host: &mut Host, step: &str, tenant: &mut Tenant, what: &str) -> String {
    host.restart(&["--die-after", step]);
    tenant.tell(what);
    host.guardian_dies();
    host.start_guardian(&[]);
    host.adopt_again();
    tenant.hear()
}

#[test]
fn a_guardian_that_is_killed_between_steps_loses_no_call_and_no_charge() {
    let Some(mut host) = Host::start(1) else {
        return;
    };
    host.limit(&[("a", GIB)]);
    let mut tenant = host.tenant("a");
    let mut owner = host.tenant("a");
    // Starting makes calls too: none of them is to be the one that the guardian dies after.
    tenant.ask("client");
    let client = owner.ask("client");
    let client = client.split(' ').next().unwrap().to_owned();
    let theirs = owner.ask("alloc=10M");
    let base = host.current("a");
    assert_eq!(base, 10 * MIB);
    for step in STEPS {
        let made = through(&mut host, step, &mut tenant, "alloc=600M");
        assert!(made.starts_with("0x"), "{step}: {made}");
        assert_eq!(host.standin.memory_of(tenant.pid(), 0), 600 * MIB, "{step}");
        until("the books agree", || host.current("a") == base + 600 * MIB);
        assert_eq!(tenant.ask("alloc=600M"), "out of memory", "{step}");

        let freed = through(&mut host, step, &mut tenant, &format!("free={made}"));
        assert_eq!(freed, "ok", "{step}");
        assert_eq!(host.standin.memory_of(tenant.pid(), 0), 0, "{step}");
        until("the books agree", || host.current("a") == base);

        let import = format!("import={client}:{theirs}");
        let name = through(&mut host, step, &mut tenant, &import);
        assert!(name.starts_with("0x"), "{step}: {name}");
        assert_eq!(host.current("a"), base, "{step}");
        assert_eq!(tenant.ask(&format!("free={name}")), "ok", "{step}");
    }
    for step in ["received", "answered"] {
        let info = through(&mut host, step, &mut tenant, "info");
        assert!(info.starts_with(&format!("total={GIB} ")), "{step}: {info}");
    }
    assert_eq!(owner.ask(&format!("free={theirs}")), "ok");
    agree(&host, &tenant, 0);
    owner.kill();
    tenant.kill();
    until("all are gone", || host.usage().tenants.is_empty());
    assert_eq!(host.standin.memory_used(0), 0);
}

#[test]
fn kills_of_the_guardian_in_a_storm_lose_nothing() {
    let Some(mut host) = Host::start(1) else {
        return;
    };
    host.limit(&[("a", GIB)]);
    let mut tenants: Vec<Tenant> = (0..4).map(|_| host.tenant("a")).collect();
    for tenant in &mut tenants {
        tenant.tell("storm=4");
    }
    for n in 0..5_u64 {
        std::thread::sleep(Duration::from_millis(200 + 37 * n));
        host.restart(&[]);
    }
    for tenant in &mut tenants {
        let told = tenant.hear();
        assert!(told.starts_with("allocated="), "{told}");
    }
    until("the storms' memory is given back", || {
        host.current("a") == 0
    });
    assert_eq!(host.standin.memory_used(0), 0);
    assert!(tenants[0].ask("alloc=1000M").starts_with("0x"));
    assert_eq!(tenants[1].ask("alloc=25M"), "out of memory");
    agree(&host, &tenants[0], 1000 * MIB);
}

#[test]
fn kills_of_tenants_in_a_storm_leave_no_charge() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    let kills = std::env::var("GHOST_KILLS").map_or(40, |n| n.parse().unwrap());
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut tenants: Vec<Tenant> = Vec::new();
    for _ in 0..kills {
        while tenants.len() < 4 {
            let mut tenant = host.tenant("a");
            tenant.tell("storm=600");
            tenants.push(tenant);
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        std::thread::sleep(Duration::from_micros((random >> 33) % 20_000));
        let victim = (random >> 50) as usize % tenants.len();
        tenants.swap_remove(victim).kill();
    }
    drop(tenants);
    until("charges are gone", || host.current("a") == 0);
    until("clients are gone", || host.usage().tenants.is_empty());
    assert_eq!(host.standin.memory_used(0), 0);
    assert!(
        host.tenant("a")
            .ask(&format!("alloc={GIB}"))
            .starts_with("0x")
    );
    until("ended sessions are gone", || {
        host.usage().sessions.is_empty()
    });
}

#[test]
fn systemd_keeps_the_listeners_of_a_guardian_that_is_killed() {
    let Some(mut host) = Host::start(1) else {
        return;
    };
    host.limit(&[("a", GIB)]);
    let path = host.at("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let systemd = UnixStream::from(OwnedFd::from(systemd));
    host.guardian = None;
    let guardian = env!("CARGO_BIN_EXE_ghost-guardian");
    let mut command = Command::new(guardian);
    command.args(host.arguments());
    host.start_as(command.env("NOTIFY_SOCKET", &path));
    let mut tenant = host.tenant("a");
    assert!(tenant.ask("alloc=600M").starts_with("0x"));
    let (name, kept) = loop {
        let mut bytes = [0; 512];
        let (got, fds) = pass::receive(&systemd, &mut bytes).unwrap();
        let said = String::from_utf8_lossy(&bytes[..got]).into_owned();
        if let (true, [_]) = (said.contains("FDSTORE=1"), &fds[..]) {
            let name = said.lines().find_map(|line| line.strip_prefix("FDNAME="));
            break (name.unwrap().to_owned(), fds.into_iter().next().unwrap());
        }
    };
    assert_eq!(name, "session-0=a");

    host.guardian = None;
    host.drop_listeners();
    tenant.tell("alloc=2M");
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"LISTEN_PID=$$ exec "$0" "$@""#, guardian])
        .args(host.arguments())
        .envs([("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", &name)])
        .env_remove("NOTIFY_SOCKET");
    let fd = kept.as_raw_fd();
    let third = move || {
        // SAFETY: takes integers only.
        match unsafe { libc::dup2(fd, 3) } {
            3 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the child of the fork makes one system call.
    unsafe { command.pre_exec(third) };
    host.start_as(&mut command);
    assert!(tenant.hear().starts_with("0x"));
    assert_eq!(tenant.ask("alloc=423M"), "out of memory");
    assert_eq!(host.current("a"), 602 * MIB);
}
