//! `ghost-guardian`: arguments, signals and systemd around the library's loop.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use ghost_guardian::broker::{Broker, Settings, door};
use ghost_guardian::channels::RmChannels;
use ghost_guardian::ledger::{BootId, FileStore, Ledger};
use ghost_guardian::pauses::Pauses;
use ghost_guardian::server::{Server, listen};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;

/// Holds GPU pauses as leases and ends them when whoever asked is gone; answers for the GPU memory
/// that containers take.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Socket to listen on
    #[arg(long, default_value = "/run/ghost/guardian.sock")]
    socket: PathBuf,
    /// Socket on which listeners and limits are handed over
    #[arg(long, default_value = "/run/ghost/broker.sock")]
    broker_socket: PathBuf,
    /// Directory of the ledger and the journal; made if missing; need not outlive a boot
    #[arg(long, default_value = "/run/ghost/guardian")]
    state: PathBuf,
    /// Directory of the NVIDIA nodes
    #[arg(long, default_value = "/dev")]
    dev_root: PathBuf,
    /// File with the driver's version
    #[arg(long, default_value = "/proc/driver/nvidia/version")]
    driver_version: PathBuf,
    /// Another uid, besides root, that may connect; can be repeated
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    /// Dies after this step of a call: for tests
    #[cfg(debug_assertions)]
    #[arg(long, hide = true)]
    die_after: Option<ghost_guardian::broker::Step>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot block signals")?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let stop = SignalFd::with_flags(&signals, flags).context("cannot make a signalfd")?;

    // Listeners and tenants are descriptors: as many as may be, also where no unit says so.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read a limit")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise the open files")?;

    std::fs::create_dir_all(&args.state)
        .with_context(|| format!("{}: cannot make the directory", args.state.display()))?;
    let store = FileStore::open(&args.state)?;
    let (ledger, found) = Ledger::open(store, BootId::current()?)?;
    if found.damaged > 0 {
        report(&format!(
            "the ledger is damaged in {} places: if a gpu program hangs, restart that program",
            found.damaged
        ));
    }
    let broker = Broker::start(
        &args.state,
        Settings {
            dev_root: args.dev_root.clone(),
            driver_version: args.driver_version.clone(),
            report: Box::new(report),
            #[cfg(debug_assertions)]
            die_after: args.die_after,
        },
    )?;
    let channels = RmChannels::new(args.dev_root, args.driver_version);
    let mut pauses = Pauses::recover(channels, ledger, Instant::now());
    pauses.rest();
    let listener = listen(&args.socket)?;
    let mut uids = args.allow_uid;
    uids.push(0);
    door::open(&args.broker_socket, uids.clone(), &broker)?;
    broker.resume();
    let mut server = Server::new(listener, uids, pauses, Box::new(report));

    tell_systemd(NotifyState::Ready);
    // Twice as often as asked: one late round is no reason to be killed.
    let every = sd_notify::watchdog_enabled().map(|watchdog| watchdog / 2);
    server.run(stop.as_fd(), every, || tell_systemd(NotifyState::Watchdog))?;
    let _ = std::fs::remove_file(&args.socket);
    let _ = std::fs::remove_file(&args.broker_socket);
    // Calls that are being answered end here as by a kill: the next guardian puts them in order.
    Ok(())
}

fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        report(&format!("cannot tell systemd: {error}"));
    }
}

/// A line for the journal, which reads the priority (warning) off its front.
fn report(line: &str) {
    eprintln!("<4>ghost-guardian: {line}");
}
