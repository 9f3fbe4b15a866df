//! PyTorch through overflow: the same programs by the local driver and through the shim to an
//! executor on the loopback, in the same run. Results are compared, then times.

mod plot;
mod said;
mod soak;
mod timed;

use super::Lab;
use crate::checks::{Check, Limit};
use crate::loads::now_ms;
use anyhow::{Context, Result, bail, ensure};
use ghost_overflow_tests::pytorch::FILES;
use ghost_overflow_tests::{Executor, Place, Process, Stage, Ticket, until};
use said::{Line, lines, same};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// The longest that a process may take.
const LONGEST: Duration = Duration::from_secs(100);

/// Workloads whose results are compared: a file and those that one process runs.
type Group = (&'static str, &'static [&'static str]);

/// Those that run beside each other.
const BESIDE: &[Group] = &[
    (
        "ops.py",
        &[
            "mlp", "encoder", "graph", "threads", "loader", "streams", "conv", "sdpa", "fft",
            "linalg", "sparse", "random", "sort",
        ],
    ),
    ("ops.py", &["compiled"]),
    ("memory.py", &["expandable"]),
    ("memory.py", &["pools"]),
    ("host.py", &["spawn", "fork", "visible"]),
    ("host.py", &["shared"]),
];
/// And the one that looks at the GPU's memory, one process after the other.
const ALONE: &[Group] = &[("host.py", &["facts"])];

type Lines = BTreeMap<String, Line>;

/// What all programs are run with.
struct Bed {
    stage: Stage,
    ticket: Ticket,
    executor: Executor,
}

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let ask = ["-c", "import torch; torch.cuda.init()"];
    let asked = Command::new("python3").args(ask).output();
    ensure!(
        asked.is_ok_and(|o| o.status.success()),
        "no python3 here has a PyTorch that finds the GPU"
    );
    let bed = Bed::new()?;
    if let Some(minutes) = lab.asked.soak {
        return soak::run(lab, &bed, minutes);
    }
    let only = lab.asked.only.clone();
    let mut known: Vec<&str> = timed::names().collect();
    known.extend(
        [BESIDE, ALONE]
            .concat()
            .iter()
            .flat_map(|(_, names)| *names),
    );
    if let Some(name) = only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no workload {name:?}: there are {}", known.join(", "));
    }
    for (groups, beside) in [(BESIDE, true), (ALONE, false)] {
        let groups: Vec<(&str, Vec<&str>)> = groups
            .iter()
            .map(|(file, names)| (*file, wanted(&only, names)))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        equal(lab, &bed, &groups, beside)?;
    }
    timed::run(lab, &bed)
}

/// The names that were asked for.
fn wanted<'a>(only: &[String], names: &[&'a str]) -> Vec<&'a str> {
    let asked = |name: &&&str| only.is_empty() || only.iter().any(|o| o == **name);
    names.iter().filter(asked).copied().collect()
}

/// Rows that all said the same as two local runs did. What one process did not come to, it is
/// asked for alone.
fn equal(lab: &mut Lab, bed: &Bed, groups: &[(&str, Vec<&str>)], beside: bool) -> Result<()> {
    let places = [Place::Local, Place::Local, Place::There(&bed.ticket)];
    let (mut running, mut ended) = (Vec::new(), Vec::new());
    for (file, names) in groups {
        for place in places {
            let process = bed.start(place, file, names, &[])?;
            match beside {
                true => running.push(process),
                false => ended.push(finish(process, LONGEST)),
            }
        }
    }
    ended.extend(running.into_iter().map(|process| finish(process, LONGEST)));
    let mut ended = ended.into_iter();
    for (file, names) in groups {
        let [(first, _), (second, _), (there, why)] =
            [(); 3].map(|()| ended.next().unwrap_or_default());
        for name in names {
            let failed = there.get(*name).is_none_or(|line| line.error.is_some());
            let again = match failed && names.len() > 1 {
                true => Some(finish(bed.start(places[2], file, &[name], &[])?, LONGEST)),
                false => None,
            };
            let (there, why) = again.as_ref().map_or((&there, &why), |(l, w)| (l, w));
            let local = [first.get(*name), second.get(*name)];
            row(lab, name, local, there.get(*name), why);
        }
    }
    Ok(())
}

/// The row of one workload; `why` is the end of its errors there.
fn row(lab: &mut Lab, name: &str, local: [Option<&Line>; 2], there: Option<&Line>, why: &str) {
    let said = match (local, there) {
        ([Some(first), Some(second)], Some(there)) => same([first, second], there),
        (_, None) => Err("there: it said nothing".to_owned()),
        _ => Err("local: it said nothing".to_owned()),
    };
    if let Err(differs) = &said {
        eprintln!("  {name}: {differs}\n    {why}");
    }
    lab.report.push(Check::new(
        format!("PyTorch, {name}: equal to local"),
        1.0,
        f64::from(u8::from(said.is_ok())),
        "",
        Limit::AtLeast,
    ));
}

/// Waits for the end of a process, and kills it where that does not come: what it had said, and
/// the end of its errors.
fn finish(mut process: Process, within: Duration) -> (Lines, String) {
    until(within, || process.ended());
    let out = lines(&process.out());
    let why = match process.end(Duration::ZERO) {
        Ok(said) => format!("{}: {}", said.status, tail(&said.err)),
        Err(e) => tail(&format!("{e:#}")),
    };
    (out, why)
}

/// The last lines.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n    ")
}

impl Bed {
    fn new() -> Result<Bed> {
        let stage = Stage::new()?;
        for (name, text) in FILES {
            std::fs::write(stage.path().join(name), text)?;
        }
        let cache = stage.path().join("cache");
        let cache = cache.to_str().context("the folder's name is no text")?;
        let args = ["--device", "nvidia", "--cache", cache];
        let executor = Executor::start(stage.path(), &args)?;
        let ticket = stage.ticket(executor.address());
        Ok(Bed {
            stage,
            ticket,
            executor,
        })
    }

    /// Starts the program for some of its workloads.
    fn start(
        &self,
        place: Place<'_>,
        file: &str,
        names: &[&str],
        more: &[&str],
    ) -> Result<Process> {
        let command = self.stage.command(place, "python3".as_ref())?;
        self.start_as(command, file, names, more)
    }

    /// The same by the local driver, behind a command of other words.
    fn start_under(&self, prefix: &str, file: &str, names: &[&str]) -> Result<Process> {
        let mut words = prefix.split_whitespace();
        let mut command = Command::new(words.next().context("the prefix is empty")?);
        command.args(words).arg("python3");
        self.start_as(command, file, names, &[])
    }

    fn start_as(
        &self,
        mut command: Command,
        file: &str,
        names: &[&str],
        more: &[&str],
    ) -> Result<Process> {
        // Nothing that another process has compiled is taken.
        let caches = tempfile::tempdir_in(self.stage.path())?.keep();
        command
            .arg(self.stage.path().join(file))
            .args(names)
            .args(more)
            .env("TORCHINDUCTOR_CACHE_DIR", caches.join("inductor"))
            .env("TRITON_CACHE_DIR", caches.join("triton"))
            .env("STARTED_S", (now_ms() / 1e3).to_string());
        self.stage.start(&mut command)
    }
}
