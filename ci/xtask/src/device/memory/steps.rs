//! `ghost-take`, asked one step at a time.

use crate::loads::beside;
use anyhow::{Context, Result, ensure};
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(in crate::device) const MIB: f64 = 1048576.0;
pub(in crate::device) const GIB: f64 = 1024.0 * MIB;

/// A running `ghost-take`. It is ended when dropped.
pub(in crate::device) struct Steps {
    child: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
    /// CUDA's result for its context; with another than 0 it has ended.
    pub(in crate::device) code: f64,
    /// Its own pid, which is not that of `ghostctl run` around it.
    pub(in crate::device) pid: i32,
}

impl Steps {
    /// Starts it after `before` (`ghostctl run NAME --`, or the program itself) and waits for its
    /// context.
    pub(in crate::device) fn start(mut before: Command) -> Result<Steps> {
        before.arg(beside("ghost-take")?);
        Steps::spawn(before)?.ready()
    }

    /// The same without `ghostctl run`.
    pub(in crate::device) fn bare() -> Result<Steps> {
        Steps::spawn(Command::new(beside("ghost-take")?))?.ready()
    }

    /// The same under the filter of a container, with nobody who looks at what is asked.
    pub(in crate::device) fn least() -> Result<Steps> {
        let mut command = Command::new(beside("ghost-take")?);
        command.arg("least");
        Steps::spawn(command)?.ready()
    }

    /// Starts `command` and does not wait.
    pub(in crate::device) fn spawn(mut command: Command) -> Result<Steps> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Steps {
            ask: child.stdin.take().context("no pipe")?,
            answer: BufReader::new(child.stdout.take().context("no pipe")?),
            child,
            code: f64::NAN,
            pid: 0,
        })
    }

    /// Waits for its context.
    pub(in crate::device) fn ready(mut self) -> Result<Steps> {
        let first = self.line()?;
        self.code = first[0];
        self.pid = first.get(1).map_or(0, |pid| *pid as i32);
        Ok(self)
    }

    fn line(&mut self) -> Result<Vec<f64>> {
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        let numbers = line.split_whitespace().map(str::parse);
        let numbers: Vec<f64> = numbers.collect::<Result<_, _>>()?;
        ensure!(!numbers.is_empty(), "ghost-take ended without a word");
        Ok(numbers)
    }

    /// CUDA's result, and what else the step gives.
    pub(in crate::device) fn ask(&mut self, step: &str) -> Result<Vec<f64>> {
        writeln!(self.ask, "{step}")?;
        self.line().with_context(|| step.to_owned())
    }

    /// Bytes in use on the card that it sees.
    pub(in crate::device) fn used(&mut self) -> Result<f64> {
        let info = self.ask("info")?;
        ensure!(info.len() == 3, "cuMemGetInfo: CUDA error {}", info[0]);
        Ok(info[2] - info[1])
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        writeln!(self.ask, "quit").ok();
        self.child.wait().ok();
    }
}

/// Bytes that the driver counts for a process on the first GPU.
pub(in crate::device) fn per_process(pid: i32) -> Result<f64> {
    let nvml = nvml_wrapper::Nvml::init().context("NVML")?;
    let all = nvml.device_by_index(0)?.running_compute_processes()?;
    let bytes = all
        .iter()
        .find(|p| i64::from(p.pid) == i64::from(pid))
        .map(|p| match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes as f64,
            UsedGpuMemory::Unavailable => f64::NAN,
        });
    bytes.with_context(|| format!("NVML lists no process {pid}"))
}
