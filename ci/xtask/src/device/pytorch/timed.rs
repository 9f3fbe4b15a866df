//! How long steps take, beside the local driver; with every call waited for, and over longer ways.

use super::plot::{Point, svg};
use super::said::Line;
use super::{Bed, LONGEST, Lines, finish, row, wanted};
use crate::checks::{Check, Limit};
use crate::device::Lab;
use crate::loads::quantile;
use anyhow::{Context, Result, anyhow};
use ghost_overflow_tests::{Place, Ticket};
use ghost_wire::stats::{Counter, waits_of};
use std::collections::BTreeMap;

const FILE: &str = "train.py";
/// Local runs and runs there, one after the other.
const ROUNDS: usize = 2;
/// Of the ablation: what is added to each reply's way, and about how long a program's steps may
/// take in all.
const RTT_US: [u64; 3] = [0, 300, 5000];
const SECONDS: &str = "4";
/// How many of the calls that are waited for are named.
const NAMED: usize = 6;

/// A program that is timed.
struct Timed {
    name: &'static str,
    /// For people.
    what: &'static str,
    /// Time of a step, of local, at most.
    ratio: Option<f64>,
    /// Calls of a step that may be waited for.
    waited: Option<f64>,
}

/// What one process runs; its first has the time from the process's start, too.
const PROCESSES: &[&[Timed]] = &[
    &[timed("gpt", "GPT-2 training step", Some(1.05), Some(3.0))],
    &[
        timed("resnet", "ResNet-50 inference", Some(1.10), None),
        timed("resnet-fed", "the same, images from the host", None, None),
    ],
    &[
        timed("launches", "10 layers inference", Some(2.0), None),
        timed("launches-train", "10 layers training step", Some(2.0), None),
    ],
];
/// From a process's start to its first result, of local, at most.
const FIRST: f64 = 1.5;
/// What the ablation runs, in one process; what may take longest comes last.
const ABLATED: [&str; 3] = ["launches", "resnet", "gpt"];

const fn timed(
    name: &'static str,
    what: &'static str,
    ratio: Option<f64>,
    waited: Option<f64>,
) -> Timed {
    Timed {
        name,
        what,
        ratio,
        waited,
    }
}

/// Median seconds of a step of each program, by the local driver and there.
type Medians = BTreeMap<&'static str, [f64; 2]>;

/// What can be asked for.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let timed = PROCESSES.iter().flat_map(|process| *process);
    timed.map(|timed| timed.name).chain(["peer", "ablation"])
}

pub(super) fn run(lab: &mut Lab, bed: &Bed) -> Result<()> {
    let only = lab.asked.only.clone();
    let mut medians = Medians::new();
    for process in PROCESSES {
        let names: Vec<&str> = process.iter().map(|timed| timed.name).collect();
        if !wanted(&only, &names).is_empty() {
            beside(lab, bed, process, &mut medians)?;
        }
    }
    if !wanted(&only, &["peer"]).is_empty() {
        peer(lab, bed, &medians)?;
    }
    if !wanted(&only, &["ablation"]).is_empty() {
        ablation(lab, bed, &medians)?;
    }
    Ok(())
}

/// Rows of the programs of one process.
fn beside(lab: &mut Lab, bed: &Bed, process: &[Timed], medians: &mut Medians) -> Result<()> {
    let names: Vec<&str> = process.iter().map(|timed| timed.name).collect();
    // Local and there.
    let mut runs: [Vec<Lines>; 2] = Default::default();
    let mut why = String::new();
    for _ in 0..ROUNDS {
        for (place, runs) in [Place::Local, Place::There(&bed.ticket)]
            .into_iter()
            .zip(&mut runs)
        {
            let (lines, said) = finish(bed.start(place, FILE, &names, &[])?, LONGEST);
            runs.push(lines);
            why = said;
        }
    }
    for (at, timed) in process.iter().enumerate() {
        let lines = runs.each_ref().map(|runs| {
            let lines = runs.iter().map(|lines| lines.get(timed.name));
            lines.collect::<Vec<Option<&Line>>>()
        });
        let [local, there] = &lines;
        row(lab, timed.name, [local[0], local[1]], there[0], &why);
        let steps = lines.each_ref().map(|lines| {
            let steps = lines.iter().flatten().flat_map(|line| line.step_s.clone());
            quantile(&mut steps.collect::<Vec<f64>>(), 0.5)
        });
        medians.insert(timed.name, steps);
        let what = timed.what;
        lab.report
            .push(Check::told(format!("{what}, local"), steps[0] * 1e3, "ms"));
        ratio(lab, format!("{what}: of local"), steps, timed.ratio);
        if at == 0 {
            let first = lines.each_ref().map(|lines| {
                let first = lines.iter().flatten().filter_map(|line| line.first_s);
                quantile(&mut first.collect::<Vec<f64>>(), 0.0)
            });
            let name = format!("{what}: from the start to the first, of local");
            ratio(lab, name, first, Some(FIRST));
        }
        counted(lab, timed, there);
    }
    Ok(())
}

/// Rows of the calls of a step.
fn counted(lab: &mut Lab, timed: &Timed, there: &[Option<&Line>]) {
    let calls = |counter: Counter| {
        let lines = there.iter().flatten();
        let calls = lines.filter_map(|line| line.calls.as_ref()?.get(counter as usize).copied());
        quantile(&mut calls.collect::<Vec<f64>>(), 0.5)
    };
    let waited = calls(Counter::Waited);
    let name = format!("{}: calls waited for a step", timed.what);
    lab.report.push(match timed.waited {
        Some(most) => Check::new(name, most, waited, "", Limit::AtMost),
        None => Check::told(name, waited, ""),
    });
    let mut which: Vec<(usize, f64)> = there
        .first()
        .copied()
        .flatten()
        .map(|line| line.waits.iter().map(|(at, n)| (*at, *n)).collect())
        .unwrap_or_default();
    which.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (at, n) in which.into_iter().take(NAMED) {
        let name = format!("{}: of these {}", timed.what, waits_of(at));
        lab.report.push(Check::told(name, n, ""));
    }
    // Where there are none, what was measured was not overflow.
    let name = format!("{}: calls posted a step", timed.what);
    let posted = calls(Counter::Posted);
    lab.report
        .push(Check::new(name, 1.0, posted, "", Limit::AtLeast));
}

/// A row of a time there over the local one.
fn ratio(lab: &mut Lab, name: String, [local, there]: [f64; 2], most: Option<f64>) {
    let got = there / local;
    lab.report.push(match most {
        Some(most) => Check::new(name, most, got, "x", Limit::AtMost),
        None => Check::told(name, got, "x"),
    });
}

/// The GPT step through another system that sends calls elsewhere, where `GHOST_PEER` says how a
/// program is started under it.
fn peer(lab: &mut Lab, bed: &Bed, medians: &Medians) -> Result<()> {
    let Ok(prefix) = std::env::var("GHOST_PEER") else {
        return Ok(());
    };
    let name = "GPT-2 training step through the peer: of local";
    let (lines, why) = finish(bed.start_under(&prefix, FILE, &["gpt"])?, LONGEST);
    match (lines.get("gpt").and_then(median), medians.get("gpt")) {
        (Some(peer), Some([local, _])) => ratio(lab, name.to_owned(), [*local, peer], None),
        (None, _) => lab.report.failed(name, &anyhow!(why)),
        (_, None) => lab
            .report
            .failed(name, &anyhow!("there is no local run: ask for gpt, too")),
    }
    Ok(())
}

fn median(line: &Line) -> Option<f64> {
    let mut steps = line.step_s.clone();
    (!steps.is_empty()).then(|| quantile(&mut steps, 0.5))
}

/// Rows of every combination of waiting and round trip time, and the plot.
fn ablation(lab: &mut Lab, bed: &Bed, medians: &Medians) -> Result<()> {
    let measure = |place: Place<'_>| -> Result<(Lines, String)> {
        let more = ["--seconds", SECONDS];
        Ok(finish(
            bed.start(place, FILE, &ABLATED, &more)?,
            LONGEST * 2,
        ))
    };
    // What was measured with care is not measured again.
    let known = |at: usize| -> Option<BTreeMap<&str, f64>> {
        let one = |name: &'static str| Some((name, medians.get(name)?[at]));
        ABLATED.into_iter().map(one).collect()
    };
    let steps = |lines: &Lines| -> BTreeMap<&str, f64> {
        let one = |name: &'static str| Some((name, median(lines.get(name)?)?));
        ABLATED.into_iter().filter_map(one).collect()
    };
    let local = match known(0) {
        Some(known) => known,
        None => steps(&measure(Place::Local)?.0),
    };
    let mut points = Vec::new();
    for waits in [false, true] {
        for rtt_us in RTT_US {
            let mut ticket = Ticket {
                wait_always: waits,
                ..bed.ticket.clone()
            };
            ticket.inject.rtt_us = rtt_us;
            let (there, why) = match known(1).filter(|_| !waits && rtt_us == 0) {
                Some(known) => (known, String::new()),
                None => {
                    let (lines, why) = measure(Place::There(&ticket))?;
                    (steps(&lines), why)
                }
            };
            let how = if waits { "waited for" } else { "posted" };
            for name in ABLATED {
                let row = format!("{name}, {how}, + {} ms: of local", rtt_us as f64 / 1e3);
                match (local.get(name), there.get(name)) {
                    (Some(local), Some(there)) => {
                        ratio(lab, row, [*local, *there], None);
                        points.push(Point {
                            name,
                            waits,
                            rtt_us,
                            ratio: there / local,
                        });
                    }
                    _ => lab.report.failed(&row, &anyhow!("{why}")),
                }
            }
        }
    }
    if let Some(path) = &lab.asked.plot {
        let written = std::fs::write(path, svg(&points));
        written.with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}
