//! What the same loads get without Ghost: default time slicing, MPS, and MPS thread percentages.

use super::{LONG, Lab, fresh_dir, percent, work};
use crate::checks::Check;
use crate::loads::{Load, quantile, sleep_ms};
use anyhow::Result;
use std::io::Write;
use std::process::{Command, Stdio};

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    {
        let a = lab.bare("d-a", &["1000", LONG])?;
        let b = lab.bare("d-b", &["1000", LONG])?;
        pair(lab, "default slicing", &a, &b);
    }
    {
        let a = lab.bare("d-short", &["100", LONG])?;
        let b = lab.bare("d-long", &["20000", LONG])?;
        sleep_ms(300.0);
        let w = work(&[&a, &b], 2000.0);
        let share = percent(&[w[0], w[1] * 200.0])[0];
        lab.report.push(Check::told(
            "default slicing: share of 0.1 ms against 20 ms kernels",
            share,
            "%",
        ));
    }
    {
        let one = lab.bare("d-one", &["1000", LONG])?;
        let four: Vec<Load> = (0..4)
            .map(|i| lab.bare(&format!("d-four{i}"), &["1000", LONG]))
            .collect::<Result<_>>()?;
        sleep_ms(300.0);
        let all: Vec<&Load> = std::iter::once(&one).chain(&four).collect();
        let share = percent(&work(&all, 2000.0))[0];
        lab.report.push(Check::told(
            "default slicing: share of one process against four",
            share,
            "%",
        ));
    }
    {
        let quick = lab.bare("d-quick", &["100", LONG, "5"])?;
        latency(lab, "alone, without Ghost", &quick)?;
        let _load = lab.bare("d-heavy", &["20000", LONG])?;
        latency(lab, "default slicing", &quick)?;
    }
    mps(lab)
}

/// A share and a sum of two equal backlogged loads.
fn pair(lab: &mut Lab, name: &str, a: &Load, b: &Load) {
    sleep_ms(300.0);
    let w = work(&[a, b], 2000.0);
    lab.report.push(Check::told(
        format!("{name}: share of one of two"),
        percent(&w)[0],
        "%",
    ));
    let sum = (w[0] + w[1]) / 2.0 / lab.alone;
    lab.report.push(Check::told(
        format!("{name}: sum of two, of alone"),
        sum,
        "",
    ));
}

fn latency(lab: &mut Lab, name: &str, quick: &Load) -> Result<()> {
    sleep_ms(300.0);
    let mut seen = lab.latencies(quick, 2000.0)?;
    lab.report.push(Check::told(
        format!("{name}: latency p50"),
        quantile(&mut seen, 0.5),
        "ms",
    ));
    lab.report.push(Check::told(
        format!("{name}: latency p99"),
        quantile(&mut seen, 0.99),
        "ms",
    ));
    Ok(())
}

/// An MPS daemon of our own, with its own pipe folder; it is told to quit when dropped.
struct Mps(std::path::PathBuf);

impl Mps {
    fn start(dir: std::path::PathBuf) -> Result<Mps> {
        fresh_dir(&dir)?;
        let mps = Mps(dir);
        let mut daemon = Command::new("nvidia-cuda-mps-control");
        mps.in_it(&mut daemon);
        daemon.arg("-d").stdout(Stdio::null()).status()?;
        Ok(mps)
    }

    fn in_it(&self, command: &mut Command) {
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.0)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.0);
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let mut control = Command::new("nvidia-cuda-mps-control");
        self.in_it(&mut control);
        if let Ok(mut child) = control.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(b"quit -t 3\n").ok();
            }
            child.wait().ok();
        }
    }
}

fn mps(lab: &mut Lab) -> Result<()> {
    let mps = Mps::start(lab.dir.path().join("mps"))?;
    let client = |lab: &Lab, name: &str, args: &[&str], percentage: Option<&str>| {
        lab.bare_with(name, args, |command| {
            mps.in_it(command);
            if let Some(p) = percentage {
                command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", p);
            }
        })
    };
    // A program that asks for the number of multiprocessors gets its part under MPS
    // percentages, so the grid is fixed.
    let grid = ["--blocks", "1056"];
    let backlog = ["1000", LONG, grid[0], grid[1]];
    {
        let a = client(lab, "m-a", &backlog, None)?;
        let b = client(lab, "m-b", &backlog, None)?;
        pair(lab, "MPS", &a, &b);
        // A client that is ended in the middle of work can leave the server unusable: wait.
        sleep_ms(200.0);
    }
    {
        let a = client(lab, "m-70", &backlog, Some("70"))?;
        let b = client(lab, "m-30", &backlog, Some("30"))?;
        pair(lab, "MPS, thread percentages 70 and 30", &a, &b);
        drop(b);
        sleep_ms(300.0);
        let alone = work(&[&a], 1000.0)[0] / lab.alone;
        lab.report
            .push(Check::told("MPS, 70 % alone: rate, of alone", alone, ""));
    }
    {
        let quick = client(lab, "m-quick", &["100", LONG, "5", grid[0], grid[1]], None)?;
        let _load = client(lab, "m-heavy", &["20000", LONG, grid[0], grid[1]], None)?;
        latency(lab, "MPS", &quick)?;
    }
    Ok(())
}
