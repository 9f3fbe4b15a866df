//! `gpu.max`, freeze and thaw, and how soon a change holds.

use super::{LONG, Lab, create, percent, work};
use crate::checks::{Check, Limit};
use crate::loads::{Load, now_ms, quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Result, bail};
use serde_json::json;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    capped(lab, "launches", &[])?;
    capped(lab, "CUDA graphs", &["--graph", "5"])?;
    freeze(lab)?;
    change(lab)
}

/// 30 % of the GPU in every window of 1 s, for a load that wants all of it.
fn capped(lab: &mut Lab, what: &str, args: &[&str]) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    node.ctl(&["limit", "a", "gpu.max=30000 100000"])?;
    let args: Vec<&str> = ["1000", LONG].iter().chain(args).copied().collect();
    let load = lab.held(&node, "a", "capped", &args)?;
    sleep_ms(1500.0);
    let from = now_ms();
    sleep_ms(6100.0);
    let share = |start: f64| 100.0 * load.work(start, start + 1000.0) / lab.alone;
    let windows: Vec<f64> = (0..100)
        .map(|i| share(from + f64::from(i) * 50.0))
        .collect();
    let off = |s: &&f64| (**s - 30.0).abs();
    let worst = windows
        .iter()
        .max_by(|a, b| off(a).total_cmp(&off(b)))
        .copied()
        .unwrap_or(f64::NAN);
    let name = format!("gpu.max 30 % alone, {what}: the worst window of 1 s");
    lab.report
        .push(Check::new(name, 30.0, worst, "%", Limit::Within(1.5)));
    Ok(())
}

/// The load writes a line for each short kernel, so that the moments at which it stops and
/// goes on are known to a tenth of a millisecond.
fn freeze(lab: &mut Lab) -> Result<()> {
    const TIMES: usize = 60;
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    let load = lab.held(&node, "a", "frozen", &["50", LONG, "0"])?;
    sleep_ms(1000.0);
    let mut asked = Vec::new();
    for _ in 0..TIMES {
        let freeze = now_ms();
        node.patch("a", &json!({"ghost.freeze": 1}), false)?;
        sleep_ms(30.0);
        let thaw = now_ms();
        node.patch("a", &json!({"ghost.freeze": 0}), false)?;
        asked.push((freeze, thaw));
        sleep_ms(30.0);
    }
    let lines = load.lines();
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for (freeze, thaw) in asked {
        // The last kernel that ended in the freeze, and the first that ended after the thaw. A
        // line has the start and the length, so the one that was caught spans the freeze.
        let ends = || lines.iter().map(|(start, took)| start + took);
        let last = ends().filter(|e| *e < thaw).fold(f64::MIN, f64::max);
        let first = ends().filter(|e| *e > thaw).fold(f64::MAX, f64::min);
        if first == f64::MAX || last == f64::MIN {
            bail!("the load made no progress around a freeze at {freeze}");
        }
        off.push((last - freeze).max(0.0));
        on.push(first - thaw);
    }
    for (name, times) in [("freeze", &mut off), ("thaw", &mut on)] {
        let half = quantile(times, 0.5);
        lab.report
            .push(Check::told(format!("{name} in force, p50"), half, "ms"));
    }
    lab.report.push(Check::new(
        "freeze in force, p99",
        2.0,
        quantile(&mut off, 0.99),
        "ms",
        Limit::AtMost,
    ));
    lab.report.push(Check::new(
        "thaw in force, p99",
        1.5,
        quantile(&mut on, 0.99),
        "ms",
        Limit::AtMost,
    ));
    Ok(())
}

fn change(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    create(&node, "b", 100)?;
    let a = lab.held(&node, "a", "ch-a", &["1000", LONG])?;
    let b = lab.held(&node, "b", "ch-b", &["1000", LONG])?;
    sleep_ms(1500.0);
    let mut took = Vec::new();
    let mut last = (0.0, 0.0);
    for weight in [200, 50, 400, 100, 900, 300, 25, 700, 150, 900] {
        let asked = now_ms();
        node.patch("a", &json!({"gpu.weight": weight}), true)?;
        took.push(now_ms() - asked);
        last = (asked, f64::from(weight));
        sleep_ms(100.0);
    }
    lab.report.push(Check::new(
        "limit --wait answers, slowest of ten",
        20.0,
        quantile(&mut took, 0.99),
        "ms",
        Limit::AtMost,
    ));
    sleep_ms(1000.0);
    let since = |l: &Load| l.work(last.0 + 20.0, last.0 + 1020.0);
    let wanted = 100.0 * last.1 / (last.1 + 100.0);
    let share = percent(&[since(&a), since(&b)])[0];
    lab.report.push(Check::new(
        "share from 20 ms after a change was asked for",
        wanted,
        share,
        "%",
        Limit::Within(2.0),
    ));
    let share = percent(&work(&[&a, &b], 2000.0))[0];
    lab.report.push(Check::new(
        "share a second after it",
        wanted,
        share,
        "%",
        Limit::Within(0.5),
    ));
    Ok(())
}
