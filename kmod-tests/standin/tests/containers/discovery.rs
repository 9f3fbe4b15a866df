//! How ghostd comes to know the channel groups of a program in a container.

use std::process::{Child, Command, Stdio};

use ghost_standin::{ClientView, DEV_ENV};
use serde_json::Value as J;

use crate::common::until;
use crate::host::{Host, program};

/// Questions about a program's handles that are enough to learn its context.
const FEW: u64 = 32;

fn start(host: &Host) -> Child {
    let mut command = Command::new(program("ghostctl"));
    command
        .args(["run", "--in-place", "a", "--"])
        .arg(program("ghost-load"))
        .args(["mem", "context", "hold=600"])
        .env("GHOST_SOCKET", host.at("ghostd.sock"))
        .env(DEV_ENV, host.driver.standin.dir())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Contexts of a process that ghostd knows.
fn known(host: &Host, pid: u32) -> u64 {
    let status = host.status("a");
    let processes = status["ghost.procs"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let process = processes.into_iter().find(|process| process["pid"] == pid);
    let groups = process.and_then(|process| process["groups"].as_object().cloned());
    groups
        .into_iter()
        .flatten()
        .filter_map(|(_, n)| J::as_u64(&n))
        .sum()
}

/// A scan asks about hundreds of handles, each under the driver's locks that the program needs to
/// make its context.
#[test]
fn a_context_is_learnt_from_the_broker_and_not_scanned_for() {
    let Some(host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=70G", "gpu.weight=50"]);
    let mut asked = Vec::new();
    for _ in 0..8 {
        let mut child = start(&host);
        let pid = child.id();
        until("its context is known", || known(&host, pid) == 1);
        let groups = host.driver.standin.groups();
        assert_eq!(groups.iter().filter(|g| g.pid == pid).count(), 4);
        let clients = host.driver.standin.clients();
        let own = clients.into_iter().filter(|client| client.pid == pid);
        asked.push(own.map(|ClientView { asked, .. }| asked).sum::<u64>());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // One may have been scanned as well: each process is, by turns of seconds.
    let least = asked.iter().min();
    assert!(least.is_some_and(|least| *least <= FEW), "{asked:?}");
}
