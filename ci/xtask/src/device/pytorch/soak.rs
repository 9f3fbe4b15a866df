//! A long training, here and there beside each other: memory stays flat, and the losses are equal.

use super::said::{Line, apart};
use super::{Bed, finish};
use crate::checks::{Check, Limit};
use crate::device::Lab;
use crate::loads::{quantile, sleep_ms};
use anyhow::{Context, Result};
use ghost_overflow_tests::Place;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks at the memory.
const EVERY_MS: f64 = 2000.0;
/// How much memory may have grown from the second fifth to the last, in percent.
const GROWTH: f64 = 5.0;
/// What a program may take beyond its steps.
const MORE: Duration = Duration::from_secs(120);

pub(super) fn run(lab: &mut Lab, bed: &Bed, minutes: f64) -> Result<()> {
    let seconds = (minutes * 60.0).to_string();
    let start = |place| bed.start(place, "train.py", &["soak"], &["--seconds", &seconds]);
    let (mut local, mut there) = (start(Place::Local)?, start(Place::There(&bed.ticket))?);
    let begun = Instant::now();
    let within = Duration::from_secs_f64(minutes * 60.0) + MORE;
    let mut sizes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    while !(local.ended() && there.ended()) && begun.elapsed() < within {
        let executor = bed.executor.sessions();
        let of = [
            ("the local program", local.pid()),
            ("the program", there.pid()),
            ("its executor", executor.first().copied().unwrap_or(0)),
        ];
        for (name, pid) in of {
            // Nothing is seen of one that has ended.
            if let Some(size) = resident(pid) {
                sizes.entry(name).or_default().push(size);
            }
        }
        sleep_ms(EVERY_MS);
    }
    for (name, sizes) in &sizes {
        let row = format!("a training of {minutes} min: memory of {name} grew by");
        let grown = growth(sizes);
        lab.report.push(match *name {
            "the local program" => Check::told(row, grown, "%"),
            _ => Check::new(row, GROWTH, grown, "%", Limit::AtMost),
        });
        let last = sizes.last().copied().unwrap_or(f64::NAN);
        let row = format!("a training of {minutes} min: memory of {name}");
        lab.report.push(Check::told(row, last / 1024.0, "MiB"));
    }
    let ((local, why), (there, why_there)) = (finish(local, MORE), finish(there, MORE));
    let losses = |lines: &BTreeMap<String, Line>| lines.get("soak")?.result.get("losses").cloned();
    let local = losses(&local).with_context(|| format!("local: {why}"))?;
    let there = losses(&there).with_context(|| format!("there: {why_there}"))?;
    let (count, by) = curves(&local, &there);
    let row = format!("a training of {minutes} min: losses compared");
    lab.report
        .push(Check::new(row, 10.0, count as f64, "", Limit::AtLeast));
    let row = format!("a training of {minutes} min: furthest from local");
    lab.report.push(Check::new(row, 0.0, by, "", Limit::AtMost));
    Ok(())
}

/// How many losses both have, and how far apart those are.
fn curves(local: &Value, there: &Value) -> (usize, f64) {
    let (Value::Array(local), Value::Array(there)) = (local, there) else {
        return (0, f64::INFINITY);
    };
    let count = local.len().min(there.len());
    let first = |list: &[Value]| Value::Array(list[..count].to_vec());
    (count, apart(&first(local), &first(there)))
}

/// By how many percent the middle of the last fifth is more than that of the second.
fn growth(sizes: &[f64]) -> f64 {
    let fifth = sizes.len() / 5;
    let middle = |from: usize| quantile(&mut sizes[from..from + fifth].to_vec(), 0.5);
    (middle(sizes.len() - fifth) / middle(fifth) - 1.0) * 100.0
}

/// KiB of memory that a process has now.
fn resident(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn growth_is_what_comes_after_the_first_fifth() {
        let flat = [
            1.0, 50.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0,
        ];
        assert_eq!(growth(&flat), 0.0);
        let grows: Vec<f64> = (0..100).map(|i| 1000.0 + f64::from(i)).collect();
        assert!((growth(&grows) - 60.0 / 1030.0 * 100.0).abs() < 0.1);
        assert!(growth(&[1.0]).is_nan());
    }

    #[test]
    fn curves_are_compared_as_far_as_both_go() {
        assert_eq!(
            curves(&json!([1.0, 2.0, 3.0]), &json!([1.0, 2.0])),
            (2, 0.0)
        );
        assert_eq!(
            curves(&json!([1.0, 2.0]), &json!([1.0, 1.0, 7.0])),
            (2, 0.5)
        );
        assert_eq!(curves(&json!("x"), &json!([])), (0, f64::INFINITY));
    }

    #[test]
    fn what_this_process_has_is_seen() {
        assert!(resident(std::process::id()).is_some_and(|kib| kib > 100.0));
        assert_eq!(resident(0), None);
    }
}
