//! Ends that nobody asked for: of a client, of an executor, of the link between them. The other
//! side ends in time and says why; nobody else is touched.

use anyhow::{Context, Result, ensure};
use ghost_overflow_tests::{Executor, Inject, Place, Process, Stage, Ticket, program, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Command;
use std::time::Duration;

const RTT_US: [u64; 3] = [0, 1_000, 30_000];
/// What is promised for the far side of a dead client, and for the near side of everything else.
const FREED: Duration = Duration::from_secs(5);
const TOLD: Duration = Duration::from_secs(10);

struct Pair {
    stage: Stage,
    executor: Executor,
}

impl Pair {
    fn new() -> Result<Self> {
        let stage = Stage::new()?;
        let executor = Executor::start(stage.path(), &["--device", "cpu"])?;
        Ok(Self { stage, executor })
    }

    fn ticket(&self, rtt_us: u64) -> Ticket {
        Ticket {
            inject: Inject { rtt_us, rate: 0 },
            ..self.stage.ticket(self.executor.address())
        }
    }

    /// A client that is ready, and the process that serves it.
    fn client(&self, rtt_us: u64, name: &str, args: &[&str]) -> Result<(Process, u32)> {
        let before = self.executor.sessions();
        let ticket = self.ticket(rtt_us);
        let mut command = self.stage.command(Place::There(&ticket), &program(name))?;
        let mut client = self.stage.start(command.args(args))?;
        client.says("ready\n")?;
        let now = self.executor.sessions();
        let mut new = now.into_iter().filter(|pid| !before.contains(pid));
        let session = new.next().context("no process serves the client")?;
        ensure!(new.next().is_none(), "two processes serve one client");
        Ok((client, session))
    }

    fn gone(&self, session: u32) -> bool {
        until(FREED, || !self.executor.sessions().contains(&session))
    }
}

/// A client that must see a CUDA error within the time, at each round-trip time and both while it
/// waits and while it does not.
fn told(client: Process) -> Result<()> {
    let said = client.end(TOLD)?;
    ensure!(said.status.code() == Some(3), "{said:?}");
    ensure!(
        said.out.contains("CUDA_ERROR_"),
        "no CUDA error: {}",
        said.out
    );
    let cause = said.err.to_lowercase();
    ensure!(
        cause.contains("ghost")
            && ["connection", "executor", "link"]
                .iter()
                .any(|w| cause.contains(w)),
        "no cause: {}",
        said.err
    );
    Ok(())
}

#[test]
fn a_dead_client_holds_nothing() -> Result<()> {
    let pair = Pair::new()?;
    for rtt_us in RTT_US {
        let (mut other, others) = pair.client(rtt_us, "hold", &[])?;
        for (name, args) in [("hold", &[][..]), ("work", &[]), ("work", &["wait"])] {
            let (mut client, session) = pair.client(rtt_us, name, args)?;
            client.kill()?;
            assert!(pair.gone(session), "{name} {args:?} at {rtt_us} us");
        }
        assert!(pair.executor.sessions().contains(&others));
        other.close("")?;
        let said = other.end(TOLD)?.right()?;
        assert!(said.out.ends_with("still here\n"));
        assert!(pair.gone(others), "after an end in order");
    }
    Ok(())
}

#[test]
fn the_executors_end_is_told() -> Result<()> {
    let pair = Pair::new()?;
    for rtt_us in RTT_US {
        let (mut other, _) = pair.client(rtt_us, "hold", &[])?;
        for args in [&["wait"][..], &[]] {
            let (client, session) = pair.client(rtt_us, "work", args)?;
            kill(Pid::from_raw(session.try_into()?), Signal::SIGKILL)?;
            told(client).with_context(|| format!("{args:?} at {rtt_us} us"))?;
        }
        other.close("")?;
        other.end(TOLD)?.right()?;
    }
    Ok(())
}

/// No executor at all: the first call says so, and what to do.
#[test]
fn where_nobody_listens_the_program_is_told() -> Result<()> {
    let stage = Stage::new()?;
    let ticket = stage.ticket("127.0.0.1:1");
    let said = stage.run(Place::There(&ticket), &program("vector_add"), &[])?;
    assert_eq!(said.status.code(), Some(1));
    assert!(said.err.contains("127.0.0.1:1"), "{}", said.err);
    Ok(())
}

/// Both ends have keepalive on, with its timer running: an idle link is kept alive.
#[test]
fn idle_links_are_kept_alive() -> Result<()> {
    let pair = Pair::new()?;
    for rtt_us in RTT_US {
        let (_client, _) = pair.client(rtt_us, "hold", &[])?;
        let (_, port) = pair
            .executor
            .address()
            .rsplit_once(':')
            .context("no port")?;
        let port = format!(":{:04X}", port.parse::<u16>()?);
        // Timer 2 is keepalive's where nothing is under way; its time is in hundredths of a second.
        let kept = |text: &str| {
            let sockets = text.lines().skip(1).filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let [_, local, remote, state, _, timer, ..] = fields[..] else {
                    return None;
                };
                let ours = local.ends_with(&port) || remote.ends_with(&port);
                (ours && state == "01").then(|| timer.to_owned())
            });
            let timers: Vec<_> = sockets.collect();
            let soon = |timer: &String| {
                let when = timer.strip_prefix("02:").unwrap_or("");
                u64::from_str_radix(when, 16).is_ok_and(|when| when <= 6_000)
            };
            timers.len() == 8 && timers.iter().all(soon)
        };
        let table = || std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        assert!(until(FREED, || kept(&table())), "{port}: {}", table());
    }
    Ok(())
}

const INSIDE: &str = "GHOST_TEST_NAMESPACE";

/// A cut link: in a network namespace of its own, whose loopback goes down under a client and an
/// executor.
#[test]
fn a_cut_link_is_told_on_both_sides() -> Result<()> {
    let new = ["-Urn", "--"];
    let may = Command::new("unshare").args(new).arg("true").output();
    if !may.is_ok_and(|o| o.status.success()) {
        eprintln!("left out: no user namespaces here");
        return Ok(());
    }
    let inside = Command::new("unshare")
        .args(new)
        .arg(std::env::current_exe()?)
        .args(["--exact", "inside_a_namespace", "--nocapture"])
        .env(INSIDE, "1")
        .output()?;
    let said = String::from_utf8_lossy(&inside.stdout);
    let errors = String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "{said}");
    Ok(())
}

/// The other half of the test above; does nothing outside.
#[test]
fn inside_a_namespace() -> Result<()> {
    if std::env::var_os(INSIDE).is_none() {
        return Ok(());
    }
    let loopback = |state: &str| -> Result<()> {
        let status = Command::new(program("loopback")).arg(state).status()?;
        ensure!(status.success(), "the loopback does not go {state}");
        Ok(())
    };
    for rtt_us in RTT_US {
        loopback("up")?;
        let pair = Pair::new()?;
        let (waits, first) = pair.client(rtt_us, "work", &["wait"])?;
        let (posts, second) = pair.client(rtt_us, "work", &[])?;
        let (idle, third) = pair.client(rtt_us, "hold", &[])?;
        loopback("down")?;
        told(waits).with_context(|| format!("waiting, at {rtt_us} us"))?;
        told(posts).with_context(|| format!("posting, at {rtt_us} us"))?;
        for session in [first, second, third] {
            let sessions = || pair.executor.sessions();
            ensure!(
                until(TOLD, || !sessions().contains(&session)),
                "a session of three is still there at {rtt_us} us"
            );
        }
        drop(idle);
    }
    Ok(())
}
