//! `ghost-load mem`: what a program does with device memory, step by step.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ghost_model::Bytes;
use ghost_notify::{Listener, Received, filter};
use ghost_rm::tenant::NUMBERS;
use ghost_rm::{Client, Control, Object, RmError, Status};
use ghost_standin::DEV_ENV;
use ghost_standin::tenant::{Tenant, TenantError};

/// The most pieces that a storm holds at a time, and the largest, bytes.
const STORM_PIECES: usize = 32;
const STORM_LARGEST: u64 = 64 << 20;
/// How long memory is asked for that others hold, and how often.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(10);

const STEPS: &str = "\
Steps, done in order; without any they are read from standard input, one a line. Each prints one \
line that begins with its word:
  client               own client, device and pid
  context              make a CUDA context: 518M and its channels
  alloc=SIZE[xN]       allocate SIZE, N times up to the first refusal; prints the handles
  take=SIZE            allocate SIZE, asking again for 10 s while it is not to be had
  heap=SIZE            the same as alloc by the older heap control
  import=CLIENT:OBJECT take memory of another process too, by the handles that it printed
  free=OBJECT          free one handle; free=all frees all that were printed
  info                 total and free, as cuMemGetInfo and NVML ask for them
  old-info             the same by the two older queries
  processes            PID:BYTES of what computes on the GPU, as nvidia-smi asks for them
  hold=SECONDS         keep all that is held
  storm=SECONDS        allocate and free at random, until then or until killed; tells the slowest
  supervise            have all that Ghost's filter would ask about let through by a thread of this
                       process that looks at nothing
  time=N               medians of N: a control on /dev/null, a control of the stand-in, an
                       allocation of 2M and its free, us
Memory that is not to be had is told as \"out of memory\", other refusals as \"refused\"; both are \
no error.";

/// Does things with the device memory of a stand-in for the driver, step by step
#[derive(Parser)]
#[command(after_help = STEPS)]
pub(crate) struct Mem {
    /// Directory of the stand-in.
    #[arg(long, env = DEV_ENV)]
    dev: PathBuf,
    /// Index of the GPU.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// What to do: see below.
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Client,
    Context,
    Alloc(u64, u32),
    Take(u64),
    Heap(u64),
    Import(Client, Object),
    Free(Option<Object>),
    Info,
    OldInfo,
    Processes,
    Hold(Duration),
    Storm(Duration),
    Supervise,
    Time(usize),
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (word, value) = match text.split_once('=') {
            Some((word, value)) => (word, Some(value)),
            None => (text, None),
        };
        let size = |text: &str| Ok::<u64, anyhow::Error>(text.parse::<Bytes>()?.0);
        let time = |text: &str| Ok::<_, anyhow::Error>(Duration::try_from_secs_f64(text.parse()?)?);
        Ok(match (word, value) {
            ("client", None) => Step::Client,
            ("context", None) => Step::Context,
            ("alloc", Some(value)) => match value.split_once('x') {
                Some((each, times)) => Step::Alloc(size(each)?, times.parse()?),
                None => Step::Alloc(size(value)?, 1),
            },
            ("take", Some(value)) => Step::Take(size(value)?),
            ("heap", Some(value)) => Step::Heap(size(value)?),
            ("import", Some(value)) => {
                let (client, object) = value.split_once(':').context("not CLIENT:OBJECT")?;
                Step::Import(Client(handle(client)?), Object(handle(object)?))
            }
            ("free", Some("all")) => Step::Free(None),
            ("free", Some(value)) => Step::Free(Some(Object(handle(value)?))),
            ("info", None) => Step::Info,
            ("old-info", None) => Step::OldInfo,
            ("processes", None) => Step::Processes,
            ("hold", Some(value)) => Step::Hold(time(value)?),
            ("storm", Some(value)) => Step::Storm(time(value)?),
            ("supervise", None) => Step::Supervise,
            ("time", Some(value)) => Step::Time(value.parse()?),
            _ => bail!("{text:?} is no step; see ghost-load mem --help"),
        })
    }
}

fn handle(text: &str) -> Result<u32> {
    let digits = text.strip_prefix("0x").context("a handle begins with 0x")?;
    Ok(u32::from_str_radix(digits, 16)?)
}

/// What a step prints; a refusal is an answer.
fn told<T>(
    done: Result<T, impl Into<TenantError>>,
    tell: impl FnOnce(T) -> String,
) -> Result<String> {
    match done.map_err(Into::into) {
        Ok(value) => Ok(tell(value)),
        Err(error) => match error.status() {
            Some(Status::NO_MEMORY) => Ok("out of memory".into()),
            Some(status) => Ok(format!("refused: {status}")),
            None => Err(error.into()),
        },
    }
}

struct Run {
    tenant: Tenant,
    held: Vec<Object>,
    random: u64,
}

impl Run {
    fn step(&mut self, step: Step) -> Result<String> {
        let sizes = |[total, free, ram]: [u64; 3]| format!("total={total} free={free} ram={ram}");
        Ok(match step {
            Step::Client => {
                let (client, device) = (self.tenant.client(), self.tenant.device());
                format!("client {client} device {device} pid {}", std::process::id())
            }
            Step::Context => format!("context {}", told(self.tenant.context(), |_| "ok".into())?),
            Step::Alloc(size, times) => {
                let mut line = "alloc".to_owned();
                for _ in 0..times {
                    let made = self.tenant.alloc(size);
                    let last = made.is_err();
                    line.push(' ');
                    line.push_str(&told(made, |object| self.hold(object))?);
                    if last {
                        break;
                    }
                }
                line
            }
            Step::Take(size) => {
                let made = self.take(size);
                format!("take {}", told(made, |object| self.hold(object))?)
            }
            Step::Heap(size) => {
                let made = self.tenant.heap_alloc(size);
                format!("heap {}", told(made, |object| self.hold(object))?)
            }
            Step::Import(client, object) => {
                let made = self.tenant.import(client, object);
                format!("import {}", told(made, |object| self.hold(object))?)
            }
            Step::Free(Some(object)) => {
                self.held.retain(|held| *held != object);
                format!("free {}", told(self.tenant.free(object), |()| "ok".into())?)
            }
            Step::Free(None) => {
                let held = std::mem::take(&mut self.held);
                let freed = held.into_iter().try_for_each(|o| self.tenant.free(o));
                format!("free {}", told(freed, |()| "ok".into())?)
            }
            Step::Info => format!("info {}", told(self.tenant.memory_info(), sizes)?),
            Step::OldInfo => {
                let list = told(self.tenant.memory_info_list(), sizes)?;
                let heap = |(total, free)| format!("heap-total={total} heap-free={free}");
                format!("old-info {list} {}", told(self.tenant.heap_info(), heap)?)
            }
            Step::Processes => {
                let each = |(pid, bytes): (u32, u64)| format!("{pid}:{bytes}");
                let all = |list: Vec<_>| list.into_iter().map(each).collect::<Vec<_>>().join(" ");
                format!("processes {}", told(self.tenant.processes(), all)?)
            }
            Step::Hold(time) => {
                std::thread::sleep(time);
                "hold ok".into()
            }
            Step::Storm(time) => self.storm(time)?,
            Step::Supervise => supervise()?,
            Step::Time(times) => self.time(times)?,
        })
    }

    fn hold(&mut self, object: Object) -> String {
        self.held.push(object);
        object.to_string()
    }

    fn take(&self, size: u64) -> Result<Object, RmError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let made = self.tenant.alloc(size);
            let full = matches!(&made, Err(error) if error.status() == Some(Status::NO_MEMORY));
            if !full || Instant::now() >= end {
                return made;
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn storm(&mut self, time: Duration) -> Result<String> {
        let end = Instant::now() + time;
        let mut pieces: BTreeMap<u64, Object> = BTreeMap::new();
        let (mut allocated, mut freed, mut refused) = (0u64, 0u64, 0u64);
        let mut slowest = Duration::ZERO;
        loop {
            let begun = Instant::now();
            if begun >= end {
                break;
            }
            let choice = self.random();
            if pieces.len() < STORM_PIECES && choice.is_multiple_of(2) {
                match self.tenant.alloc(choice % STORM_LARGEST + 1) {
                    Ok(object) => {
                        pieces.insert(choice, object);
                        allocated += 1;
                    }
                    Err(error) if error.status() == Some(Status::NO_MEMORY) => refused += 1,
                    Err(error) => return Err(error.into()),
                }
            } else if let Some((_, object)) = pieces.pop_first() {
                self.tenant.free(object)?;
                freed += 1;
            }
            slowest = slowest.max(begun.elapsed());
        }
        pieces.into_values().try_for_each(|o| self.tenant.free(o))?;
        Ok(format!(
            "storm allocated={allocated} freed={freed} refused={refused} slowest_ms={}",
            slowest.as_millis()
        ))
    }

    fn time(&self, times: usize) -> Result<String> {
        // Ours is not the driver's, which a control need not reach to be asked about.
        let null = File::open("/dev/null")?;
        let (client, device) = (self.tenant.client(), self.tenant.device());
        let mut took = [const { Vec::new() }; 4];
        for _ in 0..times {
            let begun = Instant::now();
            let _ = Control::new(null.as_fd()).class_of(client, device);
            let nothing = Instant::now();
            self.tenant.rm().class_of(client, device)?;
            let asked = Instant::now();
            let memory = self.tenant.alloc(2 << 20)?;
            let taken = Instant::now();
            self.tenant.free(memory)?;
            let moments = [begun, nothing, asked, taken, Instant::now()];
            for (took, pair) in took.iter_mut().zip(moments.windows(2)) {
                took.push((pair[1] - pair[0]).as_secs_f64() * 1e6);
            }
        }
        let [nothing, control, alloc, free] = took.map(|mut took| {
            took.sort_by(f64::total_cmp);
            took.get(times / 2).copied().unwrap_or_default()
        });
        Ok(format!(
            "time nothing={nothing:.3} control={control:.3} alloc={alloc:.3} free={free:.3}"
        ))
    }

    /// Xorshift: which numbers does not matter.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// The least that a filter costs.
fn supervise() -> Result<String> {
    let listener = Listener::new(filter::install(NUMBERS)?)?;
    let (stop, never) = UnixStream::pair()?;
    std::thread::spawn(move || {
        let _open = never;
        while let Ok(Received::Call(call)) = listener.receive(stop.as_fd()) {
            let _ = listener.allow(call.id);
        }
    });
    Ok("supervise ok".into())
}

impl Mem {
    pub(crate) fn run(&self) -> Result<()> {
        let mut run = Run {
            tenant: Tenant::open(&self.dev, self.gpu)?,
            held: Vec::new(),
            random: u64::from(std::process::id()) | 1 << 40,
        };
        let print = |line: String| writeln!(std::io::stdout().lock(), "{line}");
        if self.steps.is_empty() {
            for line in std::io::stdin().lock().lines() {
                print(run.step(line?.trim().parse()?)?)?;
            }
        }
        for step in &self.steps {
            print(run.step(*step)?)?;
        }
        Ok(())
    }
}
