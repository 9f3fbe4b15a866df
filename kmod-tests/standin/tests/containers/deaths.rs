//! Ghost's own processes die, the programs in containers do not.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ghost_standin::DEV_ENV;

use crate::common::until;
use crate::host::{Host, is_made, program};

const MIB: u64 = 1 << 20;

/// A program in a container that does what it is told.
struct Program {
    child: Child,
    steps: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Program {
    fn start(host: &Host, container: &str) -> Program {
        let mut command = Command::new(program("ghostctl"));
        command
            .args(["run", container, "--"])
            .arg(program("ghost-load"))
            .arg("mem")
            .env("GHOST_SOCKET", host.at("ghostd.sock"))
            .env(DEV_ENV, host.driver.standin.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Program {
            steps: child.stdin.take().unwrap(),
            said: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn tell(&mut self, step: &str) {
        writeln!(self.steps, "{step}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn takes(&mut self, mib: u64) {
        self.tell(&format!("alloc={mib}M"));
        let line = self.answer();
        assert!(is_made(&line), "{line}");
    }

    #[track_caller]
    fn is_refused(&mut self, mib: u64) {
        self.tell(&format!("alloc={mib}M"));
        assert_eq!(self.answer(), "alloc out of memory");
    }

    /// The end of its steps is its own.
    fn end(self) {
        let Program {
            mut child, steps, ..
        } = self;
        drop(steps);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn limits_hold_while_ghostd_is_away_and_programs_wait_for_the_guardian() {
    let Some(mut host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    let mut one = Program::start(&host, "a");
    one.takes(600);
    until("its charge", || host.current("a") == 600 * MIB);

    host.ghostd.kill();
    one.takes(300);
    one.is_refused(300);
    host.ghostd.start_again();
    until("ghostd", || host.ghostctl(&["info"]).status.success());
    until("all charges", || host.current("a") == 900 * MIB);
    assert_eq!(host.status("a")["enforced_by"]["gpu.memory.max"], "daemon");
    host.ctl(&["limit", "a", "gpu.memory.max=2G", "--wait"]);
    one.takes(300);

    // The listener came through two ghostds, and goes to a second guardian.
    host.guardian.kill();
    one.tell("alloc=100M");
    // What is started while it is away waits for it too.
    let mut late = Program::start(&host, "a");
    late.tell("alloc=4G");
    std::thread::sleep(Duration::from_secs(1));
    host.guardian.start_again();
    let line = one.answer();
    assert!(is_made(&line), "{line}");
    assert_eq!(late.answer(), "alloc out of memory");
    late.end();
    one.is_refused(800);
    let mut two = Program::start(&host, "a");
    two.is_refused(800);
    two.takes(700);
    until("all charges", || host.current("a") == 2000 * MIB);

    // Both at once: what one kept of the other's is still there when it is asked.
    host.ghostd.kill();
    two.tell("free=all");
    assert!(two.answer().starts_with("free"));
    host.ghostd.start_again();
    until("ghostd", || host.ghostctl(&["info"]).status.success());
    until("what was freed meanwhile", || {
        host.current("a") == 1300 * MIB
    });
    one.end();
    two.end();
    until("charges are gone", || host.current("a") == 0);
    let document = host.status("a");
    let peak = document["gpu.memory.peak"].as_object().unwrap();
    assert_eq!(peak.values().next().unwrap(), 2000 * MIB);
}
