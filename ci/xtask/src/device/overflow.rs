//! Overflow on a real GPU: programs of the CUDA runtime, built here by `nvcc`, by the local driver
//! and through the shim to an executor on the loopback, in the same run. What both say is equal.

use super::Lab;
use crate::checks::{Check, Limit};
use anyhow::{Context, Result, ensure};
use ghost_overflow_tests::cuda::{HEADER, MLP, SOURCES, Source};
use ghost_overflow_tests::{Executor, Place, Said, Stage, Ticket};
use ghost_wire::stats::Counter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest that a program may take.
const LONGEST: Duration = Duration::from_secs(120);
/// Graphs that `graph.cu` runs, and the calls of the whole program that may be waited for.
const REPLAYS: f64 = 6000.0;
const WAITED: f64 = 400.0;

struct Bed {
    stage: Stage,
    ticket: Ticket,
    _executor: Executor,
}

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "nvidia"])?;
    let ticket = stage.ticket(executor.address());
    let bed = Bed {
        stage,
        ticket,
        _executor: executor,
    };
    torch(lab, &bed)?;
    std::fs::write(bed.stage.path().join(HEADER.0), HEADER.1)?;
    for source in SOURCES {
        for runtime in ["static", "shared"] {
            let name = format!("{}.cu, {runtime} runtime", source.name);
            if let Err(e) = one(lab, &bed, source, runtime, &name) {
                lab.report.failed(&name, &e);
            }
        }
    }
    Ok(())
}

/// A network in PyTorch, to the last bit; not where there is no PyTorch.
fn torch(lab: &mut Lab, bed: &Bed) -> Result<()> {
    let file = bed.stage.path().join("mlp.py");
    std::fs::write(&file, MLP)?;
    let there = Command::new("python3")
        .args(["-c", "import torch"])
        .output();
    if !there.is_ok_and(|o| o.status.success()) {
        eprintln!("  no PyTorch here: its row is left out");
        return Ok(());
    }
    let name = "PyTorch, five steps of a network: equal to local";
    let both = (|| {
        let python = Path::new("python3");
        let args = [file.to_str().context("no text")?];
        let local = bed.run(Place::Local, python, &args)?;
        Ok((local, bed.run(Place::There(&bed.ticket), python, &args)?))
    })();
    match both {
        Ok((local, there)) => equal(lab, name, &local, &there),
        Err(e) => lab.report.failed(name, &e),
    }
    Ok(())
}

fn one(lab: &mut Lab, bed: &Bed, source: &Source, runtime: &str, name: &str) -> Result<()> {
    let program = build(bed.stage.path(), source, runtime)?;
    let local = bed.run(Place::Local, &program, &[])?;
    let there = bed.run(Place::There(&bed.ticket), &program, &[])?;
    equal(lab, &format!("{name}: equal to local"), &local, &there);
    match source.name {
        "loop" => {
            let (local, there) = (seconds(&local)?, seconds(&there)?);
            lab.report.push(Check::new(
                format!("{name}: time of local"),
                2.0,
                there / local,
                "x",
                Limit::AtMost,
            ));
        }
        "graph" => {
            let waited = bed.stage.counter(there.pid, Counter::Waited)?;
            lab.report.push(Check::new(
                format!("{name}: calls waited for, {REPLAYS} replays"),
                WAITED,
                waited as f64,
                "",
                Limit::AtMost,
            ));
        }
        _ => {}
    }
    Ok(())
}

/// A row that both said the same; what they said, where they did not.
fn equal(lab: &mut Lab, name: &str, local: &Said, there: &Said) {
    let same = local.out == there.out && !local.out.is_empty();
    if !same {
        eprintln!("  local: {}\n  there: {}", local.out, there.out);
    }
    let same = f64::from(u8::from(same));
    lab.report
        .push(Check::new(name, 1.0, same, "", Limit::AtLeast));
}

/// What a program measured of itself.
fn seconds(said: &Said) -> Result<f64> {
    let mut lines = said.err.lines();
    let found = lines.find_map(|line| line.strip_prefix("seconds ")?.parse().ok());
    found.with_context(|| format!("no time in {:?}", said.err))
}

impl Bed {
    fn run(&self, place: Place<'_>, program: &Path, args: &[&str]) -> Result<Said> {
        let mut command = self.stage.command(place, program)?;
        let process = self.stage.start(command.args(args))?;
        process.end(LONGEST)?.right().context(match place {
            Place::There(_) => "there",
            _ => "local",
        })
    }
}

/// Builds a program; libraries come from the toolkit, or else from Python's packages.
fn build(folder: &Path, source: &Source, runtime: &str) -> Result<PathBuf> {
    let file = folder.join(format!("{}.cu", source.name));
    std::fs::write(&file, source.text)?;
    let program = folder.join(format!("{}-{runtime}", source.name));
    let mut command = Command::new("nvcc");
    command
        .args(["-arch=native", "-std=c++17", "-O2", "-cudart", runtime])
        .arg("-o")
        .arg(&program)
        .arg(&file);
    if let Some(packages) = packages().filter(|_| !source.libraries.is_empty()) {
        let libraries = packages.join("lib");
        command.arg("-I").arg(packages.join("include"));
        command.arg("-L").arg(&libraries);
        command.arg(format!("-Xlinker=-rpath,{}", libraries.display()));
    }
    let libraries = source.libraries.iter();
    command.args(libraries.map(|library| format!("-l:{library}")));
    let built = command.output().context("nvcc can't be started")?;
    ensure!(
        built.status.success(),
        "nvcc: {}",
        String::from_utf8_lossy(&built.stderr).trim()
    );
    Ok(program)
}

/// Where the libraries of Python's packages are.
fn packages() -> Option<PathBuf> {
    let ask = "import nvidia; print(list(nvidia.__path__)[0])";
    let said = Command::new("python3").args(["-c", ask]).output().ok()?;
    let path = Path::new(String::from_utf8_lossy(&said.stdout).trim()).join("cu13");
    path.is_dir().then_some(path)
}
