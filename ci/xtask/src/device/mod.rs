//! The suite for a real GPU: every promise of the issue, measured by the loads' own progress,
//! beside default time slicing and MPS in the same run. Root, one GPU that nobody else uses.

mod driver;
mod faults;
mod latency;
mod limits;
mod memory;
mod overflow;
mod peers;
mod pytorch;
mod scale;
mod shares;

use crate::checks::{Check, Report};
use crate::loads::{Load, beside, now_ms, sleep_ms};
use crate::node::{Kind, Node, load_program};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, ExitCode};

/// How long a load would run if nobody ended it.
const LONG: &str = "300";

/// What all parts of the suite share.
pub(crate) struct Lab {
    report: Report,
    /// Iterations of a kernel of 1 ms, measured once while nothing else ran.
    iters_per_ms: String,
    /// Kernels of 1 ms a second, alone and without Ghost.
    alone: f64,
    dir: tempfile::TempDir,
    asked: Asked,
}

/// What was asked of the part `pytorch`.
#[derive(clap::Args)]
pub struct Asked {
    /// Workloads of `pytorch`; all where none is named.
    only: Vec<String>,
    /// Of `pytorch`: write the plot of what waiting and longer ways cost.
    #[arg(long, value_name = "FILE")]
    plot: Option<std::path::PathBuf>,
    /// Of `pytorch`: nothing but a training that goes on for so long.
    #[arg(long, value_name = "MINUTES")]
    soak: Option<f64>,
}

type Part = (&'static str, fn(&mut Lab) -> Result<()>);

const PARTS: &[Part] = &[
    ("peers", peers::run),
    ("shares", shares::run),
    ("latency", latency::run),
    ("limits", limits::run),
    ("memory", memory::run),
    ("costs", memory::cost::run),
    ("faults", faults::run),
    ("scale", scale::run),
    ("driver", driver::run),
    ("overflow", overflow::run),
    ("pytorch", pytorch::run),
];

/// Runs one part, or all of them. A part that breaks off leaves a failed row and the others run.
pub fn run(only: Option<&str>, asked: Asked, json: bool) -> Result<ExitCode> {
    if Kind::here() == Kind::Sim {
        bail!(
            "the device suite needs root and a GPU with NVIDIA's driver; `ci/demo` runs on the simulator"
        );
    }
    if let Some(name) = only.filter(|n| PARTS.iter().all(|(part, _)| part != n)) {
        let known: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
        bail!(
            "no part {name:?} in the device suite: there are {}",
            known.join(", ")
        );
    }
    let mut lab = Lab::new(asked)?;
    for (name, part) in PARTS
        .iter()
        .filter(|(name, _)| only.is_none_or(|n| n == *name))
    {
        eprintln!("{name}:");
        if let Err(e) = part(&mut lab) {
            lab.report.failed(name, &e);
        }
    }
    Ok(lab.report.finish(json))
}

impl Lab {
    fn new(asked: Asked) -> Result<Lab> {
        let dir = tempfile::Builder::new().prefix("ghost-device-").tempdir()?;
        let said = Command::new(beside("ghost-burn")?)
            .arg("--calibrate")
            .output()?;
        let iters_per_ms = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        if iters_per_ms.parse::<f64>().is_err() {
            bail!(
                "burn does not calibrate: {}",
                String::from_utf8_lossy(&said.stderr).trim()
            );
        }
        let mut lab = Lab {
            report: Report::new(&Kind::gpu().backend().to_string(), Kind::gpu().machine()),
            iters_per_ms,
            alone: 0.0,
            dir,
            asked,
        };
        let load = lab.bare("alone", &["1000", LONG])?;
        sleep_ms(500.0);
        lab.alone = work(&[&load], 2000.0)[0] / 2.0;
        lab.report.push(Check::told(
            "kernels of 1 ms alone, without Ghost",
            lab.alone,
            "1/s",
        ));
        Ok(lab)
    }

    /// A load without Ghost.
    fn bare(&self, name: &str, args: &[&str]) -> Result<Load> {
        self.bare_with(name, args, |_| {})
    }

    /// The same, its command changed by `with`.
    fn bare_with(
        &self,
        name: &str,
        args: &[&str],
        with: impl FnOnce(&mut Command),
    ) -> Result<Load> {
        let out = self.dir.path();
        let mut command = Command::new(beside(load_program(Kind::gpu()))?);
        command
            .arg(name)
            .args(args)
            .args(["--iters-per-ms", &self.iters_per_ms])
            .arg("--out")
            .arg(out);
        with(&mut command);
        Load::start(command, out, name)
    }

    /// A load in a container of `node`.
    fn held(&self, node: &Node, container: &str, name: &str, args: &[&str]) -> Result<Load> {
        let args: Vec<&str> = args
            .iter()
            .copied()
            .chain(["--iters-per-ms", &self.iters_per_ms])
            .collect();
        node.load(container, name, &args)
    }

    /// Latencies of a periodic load over the next `ms`, in milliseconds.
    fn latencies(&self, load: &Load, ms: f64) -> Result<Vec<f64>> {
        let from = now_ms();
        sleep_ms(ms);
        let seen: Vec<f64> = load
            .lines()
            .into_iter()
            .filter(|(t, _)| *t >= from)
            .map(|(_, took)| took)
            .collect();
        if seen.is_empty() {
            Err(anyhow::anyhow!(
                "the periodic load made no progress in {ms} ms"
            ))
        } else {
            Ok(seen)
        }
    }
}

/// What each load did in the next `ms`.
fn work(loads: &[&Load], ms: f64) -> Vec<f64> {
    let from = now_ms();
    sleep_ms(ms + 60.0);
    loads.iter().map(|l| l.work(from, from + ms)).collect()
}

/// Parts of the sum, in percent.
fn percent(work: &[f64]) -> Vec<f64> {
    let sum: f64 = work.iter().sum::<f64>().max(1e-9);
    work.iter().map(|w| 100.0 * w / sum).collect()
}

/// Bytes in use on the first GPU.
fn memory_used() -> Result<f64> {
    let nvml = nvml_wrapper::Nvml::init().context("NVML")?;
    Ok(nvml.device_by_index(0)?.memory_info()?.used as f64)
}

/// The first container path of a name: `a` of `team/a` has to be made after `team`.
fn create(node: &Node, name: &str, weight: u32) -> Result<()> {
    node.ctl(&["create", name, "--weight", &weight.to_string()])
        .map(drop)
}

/// A folder that must exist for MPS.
fn fresh_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}
