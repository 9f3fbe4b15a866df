//! The daemon's process: command line, logging, signals, systemd.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use ghost_backend::Roots;
use ghost_backend::patched::{self, Patched};
use ghost_backend::sim::{self, SimBackend};
use ghost_backend::stock::Stock;
use ghost_model::BackendKind;
use ghostd::config::{Args, BackendChoice, Config};
use ghostd::daemon::{Daemon, Sockets};
use ghostd::{http, journal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use std::fs;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Where a loaded NVIDIA driver tells its version.
const DRIVER: &str = "/proc/driver/nvidia/version";

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            let usage = error.is::<ghostd::config::ConfigError>();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.print_openapi {
        let mut text = serde_json::to_string_pretty(&http::openapi())?;
        text.push('\n');
        io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.replay {
        return replay(path);
    }
    let config = Config::load(args)?;
    let mut from_systemd = listenfd::ListenFd::from_env();
    let mut take = |at| from_systemd.take_unix_listener(at);
    // In the order of the unit.
    let sockets = Sockets {
        rest: take(0).context("the socket from systemd")?,
        notify: take(1).context("the notify socket from systemd")?,
    };
    log();
    raise_limit();
    // Two threads suffice for many clients, and a small daemon is one of the promises.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .enable_all()
        .build()
        .context("the runtime")?;
    runtime.block_on(serve(&config, sockets))?;
    Ok(ExitCode::SUCCESS)
}

fn replay(path: &Path) -> anyhow::Result<ExitCode> {
    let file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let result = journal::replay(BufReader::new(file))?;
    anyhow::ensure!(
        result.steps > 0 || result.unreadable == 0,
        "{}: no line of it is a step that this ghostd wrote",
        path.display()
    );
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(if result.different.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// To the journal where systemd connected us to it, else to standard error.
fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GHOST_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let to_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let journald = to_journal
        .then(tracing_journald::layer)
        .and_then(Result::ok);
    let stderr = journald.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journald)
        .with(stderr)
        .init();
}

async fn serve(config: &Config, sockets: Sockets) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let daemon = match choose(config) {
        BackendKind::Patched => Daemon::start(config, sockets, || patched(config), watchdog())?,
        BackendKind::Stock => Daemon::start(config, sockets, || stock(config), watchdog())?,
        BackendKind::Sim => Daemon::start(config, sockets, || simulated(config), watchdog())?,
    };
    tracing::info!(
        socket = %config.socket.display(),
        backend = %daemon.app().observed.borrow().capabilities.backend,
        "ghostd {} is ready", env!("CARGO_PKG_VERSION")
    );
    tell(&[NotifyState::Ready]);
    let failed = loop {
        tokio::select! {
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            _ = hang_up.recv() => {
                let now = NotifyState::monotonic_usec_now()?;
                tell(&[NotifyState::Reloading, now]);
                if let Err(refused) = daemon.reload().await {
                    tracing::error!("container files were not reloaded: {refused}");
                }
                tell(&[NotifyState::Ready]);
            }
            error = daemon.failed() => break Some(error),
        }
    };
    tell(&[NotifyState::Stopping]);
    let stopped = daemon.stop().await;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(stopped?),
    }
}

/// Connections and listeners are descriptors: as many as may be, also where no unit says so.
fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Tells systemd, where it is there.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}

/// Called by the control loop at each turn, so that a loop that hangs is seen to hang.
fn watchdog() -> impl FnMut() + Send + 'static {
    let every = sd_notify::watchdog_enabled().map(|limit| limit / 3);
    let mut last: Option<Instant> = None;
    move || {
        let due = |every: Duration| last.is_none_or(|at| at.elapsed() >= every);
        if every.is_some_and(due) {
            tell(&[NotifyState::Watchdog]);
            last = Some(Instant::now());
        }
    }
}

fn choose(config: &Config) -> BackendKind {
    match config.backend {
        BackendChoice::Patched => BackendKind::Patched,
        BackendChoice::Stock => BackendKind::Stock,
        BackendChoice::Sim => BackendKind::Sim,
        BackendChoice::Auto if config.standin.is_some() => BackendKind::Stock,
        BackendChoice::Auto => match patched::probe(Path::new(patched::PATH)) {
            Ok(_) => BackendKind::Patched,
            Err(error) if Path::new(DRIVER).exists() => {
                tracing::info!("the driver is taken as an unmodified one: {error}");
                BackendKind::Stock
            }
            Err(_) => BackendKind::Sim,
        },
    }
}

fn roots(config: &Config) -> Roots {
    match &config.standin {
        Some(dir) => Roots::standin(dir.clone(), config.guardian.clone()),
        None => Roots {
            guardian: config.guardian.clone(),
            ..Roots::host()
        },
    }
}

fn patched(config: &Config) -> anyhow::Result<Patched> {
    Ok(Patched::open(Path::new(patched::PATH), &roots(config))?)
}

fn stock(config: &Config) -> anyhow::Result<Stock> {
    Ok(Stock::open(roots(config))?)
}

fn simulated(config: &Config) -> anyhow::Result<SimBackend> {
    if config.backend == BackendChoice::Auto {
        tracing::warn!("no NVIDIA driver is loaded: the GPUs are simulated");
    }
    let run_dir = &config.run_dir;
    fs::create_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    let of = sim::Config {
        gpus: config.sim_gpus,
        ..sim::Config::default()
    };
    Ok(SimBackend::real_time(of, &run_dir.join(sim::SOCKET))?)
}
