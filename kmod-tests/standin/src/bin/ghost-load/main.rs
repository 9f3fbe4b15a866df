//! ghost-load: a load whose progress another process can read, where there is no GPU. It takes
//! what `burn` takes and writes the same files, and runs on ghostd's simulator or on a stand-in
//! for the driver. `ghost-load mem` does what programs do with device memory. A program that is
//! linked statically is made with `RUSTFLAGS=-Ctarget-feature=+crt-static` and a `--target`.
//!
//! `NAME.csv` has `t_ms,kernels` every 5 ms, `t_ms` on CLOCK_MONOTONIC, or with a period a
//! `t_ms,latency_ms` for each kernel. `NAME.ready` appears when the channel groups are there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use ghost_backend::sim::wire::{Hello, Progress, Request, Response};
use ghost_backend::sim::{SOCKET, SOCKET_ENV};
use ghost_model::Bytes;
use ghost_standin::DEV_ENV;
use ghost_standin::tenant::Tenant;
use mem::Mem;

mod mem;

#[derive(Parser)]
#[command(
    about = "A load for ghostd's simulator, or for a stand-in for the NVIDIA driver",
    after_help = "ghost-load mem --help: what programs do with device memory, step by step."
)]
struct Args {
    /// Name of the CSV file.
    name: String,
    /// Length of a kernel in microseconds; 0 makes a context and stays idle.
    #[arg(default_value_t = 1000.0)]
    kernel_us: f64,
    /// How long to run.
    #[arg(default_value_t = 10.0)]
    seconds: f64,
    /// One kernel each so many milliseconds, each waited for, instead of a backlog.
    period_ms: Option<f64>,
    /// Busy for so many milliseconds, then idle for so many, by turns.
    #[arg(long, num_args = 2, value_names = ["ON_MS", "OFF_MS"], conflicts_with = "period_ms")]
    duty: Option<Vec<f64>>,
    /// Make the contexts and launch nothing.
    #[arg(long)]
    idle: bool,
    /// The GPU: a UUID (simulator only) or an index.
    #[arg(long, default_value = "0")]
    gpu: String,
    /// CUDA contexts to make; each has the whole load.
    #[arg(long, default_value_t = 1)]
    contexts: u32,
    /// Set the own timeslice to so many microseconds every 50 ms, as a hostile tenant may.
    #[arg(long)]
    tamper_slice: Option<u64>,
    /// Socket of the simulator [default: sim.sock beside ghostd's own].
    #[arg(long, env = SOCKET_ENV)]
    sim: Option<PathBuf>,
    /// Directory of a stand-in for the driver, instead of the simulator.
    #[arg(long, env = DEV_ENV)]
    dev: Option<PathBuf>,
    /// Memory that each group takes beside its context: bytes, or a number with K, M, G or T; on
    /// the simulator only
    #[arg(long, default_value = "0")]
    memory: Bytes,
    /// Where the files go.
    #[arg(long, default_value = "/tmp")]
    out: PathBuf,
}

/// What the load runs on.
enum Device {
    Sim(BufReader<UnixStream>),
    Standin(Tenant),
}

impl Device {
    fn open(args: &Args) -> Result<Self> {
        if let Some(dir) = &args.dev {
            let gpu = args.gpu.parse().context("a stand-in's GPU is an index")?;
            let mut tenant = Tenant::open(dir, gpu)?;
            for _ in 0..args.contexts {
                tenant.context()?;
            }
            return Ok(Device::Standin(tenant));
        }
        let path = args.sim.clone().unwrap_or_else(default_socket);
        let stream = UnixStream::connect(&path).with_context(|| {
            format!(
                "{}: no simulator; start ghostd with backend = \"sim\"",
                path.display()
            )
        })?;
        Ok(Device::Sim(BufReader::new(stream)))
    }

    fn ask(&mut self, request: &Request) -> Result<Response> {
        let stream = match self {
            Device::Standin(tenant) => return Ok(tenant.ask(request)?),
            Device::Sim(stream) => stream,
        };
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.get_mut().write_all(line.as_bytes())?;
        line.clear();
        stream.read_line(&mut line)?;
        match serde_json::from_str(&line).context("the simulator ended")? {
            Response::Error(why) => bail!("the simulator refused: {why}"),
            response => Ok(response),
        }
    }

    fn start(&mut self, hello: Hello, contexts: u32) -> Result<()> {
        // On the simulator each makes one more group; a stand-in's groups all take one load.
        let times = match self {
            Device::Sim(_) => contexts,
            Device::Standin(_) => 1,
        };
        let request = Request::Hello(hello);
        (0..times).try_for_each(|_| self.ask(&request).map(drop))
    }

    fn progress(&mut self) -> Result<Progress> {
        match self.ask(&Request::Progress)? {
            Response::Progress(progress) => Ok(progress),
            other => bail!("not an answer to a question for progress: {other:?}"),
        }
    }

    fn tamper(&mut self, us: u64) -> Result<()> {
        match self {
            Device::Sim(_) => self.ask(&Request::Slice { us }).map(drop),
            Device::Standin(tenant) => {
                let groups = tenant.groups().iter();
                let client = tenant.client();
                Ok(groups
                    .copied()
                    .try_for_each(|g| tenant.rm().set_timeslice(client, g, us))?)
            }
        }
    }
}

/// Beside ghostd's socket: the one that was named, else the user's, else the system's.
fn default_socket() -> PathBuf {
    let dir = |name| std::env::var_os(name).map(PathBuf::from);
    if let Some(socket) = dir("GHOST_SOCKET") {
        return socket.with_file_name(SOCKET);
    }
    let own = [
        dir("XDG_RUNTIME_DIR").map(|d| d.join("ghost")),
        dir("HOME").map(|d| d.join(".local/state/ghost/run")),
    ];
    let mut own = own.into_iter().flatten().map(|d| d.join(SOCKET));
    own.find(|socket| socket.exists())
        .unwrap_or_else(|| Path::new("/run/ghost").join(SOCKET))
}

fn now_ms() -> f64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0.0, |t| t.tv_sec() as f64 * 1e3 + t.tv_nsec() as f64 / 1e6)
}

fn micros(ms: f64) -> u64 {
    (ms * 1e3) as u64
}

fn main() -> Result<()> {
    // A subcommand beside a name, with options that the environment sets, is more than clap tells
    // apart.
    let mut words = std::env::args_os();
    if words.nth(1).is_some_and(|word| word == "mem") {
        let program = OsString::from("ghost-load mem");
        return Mem::parse_from(std::iter::once(program).chain(words)).run();
    }
    let args = Args::parse();
    let name = &args.name;
    let mut device = Device::open(&args)?;
    let duty = match args.duty.as_deref() {
        Some(&[on, off]) => Some((micros(on), micros(off))),
        _ => None,
    };
    let hello = Hello {
        gpu: args.gpu.clone(),
        kernel_us: if args.idle { 0 } else { args.kernel_us as u64 },
        period_us: args.period_ms.map(micros),
        duty_us: duty,
        memory: args.memory,
    };
    let idle = hello.kernel_us == 0;
    device.start(hello, args.contexts)?;
    let mut csv = File::create(args.out.join(format!("{name}.csv")))?;
    eprintln!("{name} pid={}", std::process::id());
    File::create(args.out.join(format!("{name}.ready")))?;

    let begun = now_ms();
    let (mut done, mut latencies, mut tampered) = (0, Vec::new(), begun);
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let progress = device.progress()?;
        let now = now_ms();
        done = progress.completed.max(done);
        if args.period_ms.is_some() {
            for latency in progress.latencies_us.iter().map(|&us| us as f64 / 1e3) {
                writeln!(csv, "{:.3},{latency:.4}", now - latency)?;
                latencies.push(latency);
            }
        } else if !idle {
            writeln!(csv, "{now:.3},{done}")?;
        }
        if let Some(us) = args.tamper_slice
            && now - tampered >= 50.0
        {
            device.tamper(us)?;
            tampered = now;
        }
        if now - begun >= args.seconds * 1e3 {
            break;
        }
    }
    if args.period_ms.is_some() {
        latencies.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let at = latencies.get((latencies.len() as f64 * q) as usize);
            at.copied().unwrap_or(f64::NAN)
        };
        println!(
            "{name} n={} p50={:.3} p99={:.3} max={:.3} ms",
            latencies.len(),
            at(0.5),
            at(0.99),
            latencies.last().copied().unwrap_or(f64::NAN)
        );
    } else {
        let rate = done as f64 / args.seconds;
        println!("{name} done={done} in {:.1}s = {rate:.1}/s", args.seconds);
    }
    Ok(())
}
