//! Loads whose own progress is the measure of what they got: `burn` on a real GPU, `ghost-load`
//! on a simulated one. Both write the same CSV.

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Milliseconds of CLOCK_MONOTONIC, the clock of the CSV files.
pub fn now_ms() -> f64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0.0, |t| t.tv_sec() as f64 * 1e3 + t.tv_nsec() as f64 / 1e6)
}

/// The last processor that this process may use.
///
/// # Errors
///
/// errno.
pub fn last_processor() -> Result<CpuSet> {
    let all = sched_getaffinity(Pid::from_raw(0))?;
    let last = (0..CpuSet::count()).rfind(|cpu| all.is_set(*cpu) == Ok(true));
    let mut one = CpuSet::new();
    one.set(last.context("no processor")?)?;
    Ok(one)
}

/// Sleeps.
pub fn sleep_ms(ms: f64) {
    std::thread::sleep(Duration::from_secs_f64(ms.max(0.0) / 1e3));
}

/// A program beside this one in the target folder.
pub fn beside(program: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(program);
    if !path.exists() {
        bail!(
            "{} is not built: run `cargo build --workspace`",
            path.display()
        );
    }
    Ok(path)
}

/// A running load. It is stopped when dropped.
pub struct Load {
    child: Child,
    csv: PathBuf,
}

impl Load {
    /// Starts `command`, whose arguments make it write `NAME.csv` and `NAME.ready` to `out`, and
    /// waits until it is ready.
    ///
    /// # Errors
    /// If it ends or is not ready after 60 s; the message has what it said.
    pub fn start(mut command: Command, out: &Path, name: &str) -> Result<Load> {
        let mut load = Load::spawn(&mut command, out, name)?;
        load.wait_ready(out, name)?;
        Ok(load)
    }

    /// The same without waiting.
    pub fn spawn(command: &mut Command, out: &Path, name: &str) -> Result<Load> {
        let log = std::fs::File::create(out.join(format!("{name}.log")))?;
        std::fs::remove_file(out.join(format!("{name}.ready"))).ok();
        command
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Load {
            child,
            csv: out.join(format!("{name}.csv")),
        })
    }

    /// Waits until the load says that it is ready.
    pub fn wait_ready(&mut self, out: &Path, name: &str) -> Result<()> {
        let start = Instant::now();
        while !out.join(format!("{name}.ready")).exists() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || start.elapsed() > Duration::from_secs(60) {
                let said =
                    std::fs::read_to_string(out.join(format!("{name}.log"))).unwrap_or_default();
                bail!("load {name} is not ready ({ended:?}): {}", said.trim());
            }
            sleep_ms(2.0);
        }
        Ok(())
    }

    /// Sends the program itself a signal, whatever was started around it. It must be ready.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let ready = self.csv.with_extension("ready");
        let pid = std::fs::read_to_string(&ready)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .with_context(|| format!("{}: no pid", ready.display()))?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Its lines so far: two numbers each.
    pub fn lines(&self) -> Vec<(f64, f64)> {
        let text = std::fs::read_to_string(&self.csv).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let number = |s: &str| s.trim().parse().ok();
        complete
            .lines()
            .filter_map(|l| {
                l.split_once(',')
                    .and_then(|(a, b)| Some((number(a)?, number(b)?)))
            })
            .collect()
    }

    /// Work units completed between two moments, between lines by proportion.
    pub fn work(&self, from: f64, to: f64) -> f64 {
        let lines = self.lines();
        done_at(&lines, to) - done_at(&lines, from)
    }

    /// Ends it with a signal and waits until it is gone.
    pub fn end(&mut self, signal: Signal) {
        // A child that was waited for is no longer ours to signal.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill(Pid::from_raw(self.child.id() as i32), signal).ok();
            self.child.wait().ok();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // One that was stopped does not end by SIGTERM.
        self.signal(Signal::SIGCONT).ok();
        self.end(Signal::SIGTERM);
    }
}

fn done_at(lines: &[(f64, f64)], t: f64) -> f64 {
    let next = lines.partition_point(|(at, _)| *at <= t);
    match (next.checked_sub(1).map(|i| lines[i]), lines.get(next)) {
        (Some((t0, d0)), Some((t1, d1))) if *t1 > t0 => d0 + (d1 - d0) * (t - t0) / (t1 - t0),
        (Some((_, done)), _) => done,
        (None, _) => 0.0,
    }
}

/// The value below which a part `q` of all lies.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 * q) as usize).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_between_lines() {
        let lines = [(10.0, 0.0), (20.0, 100.0), (30.0, 100.0)];
        assert_eq!(done_at(&lines, 5.0), 0.0);
        assert_eq!(done_at(&lines, 15.0), 50.0);
        assert_eq!(done_at(&lines, 99.0), 100.0);
    }

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&mut [1.0], 0.99), 1.0);
        assert!(quantile(&mut [], 0.5).is_nan());
    }
}
