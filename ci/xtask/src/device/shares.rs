//! Shares of backlogged containers, and what sharing costs.

use super::{LONG, Lab, create, percent, work};
use crate::checks::{Check, Limit};
use crate::loads::{Load, now_ms, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::Result;

/// Time for the loop to learn who is there.
const SETTLE: f64 = 1500.0;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    alone(lab)?;
    for weights in [
        &[50, 50][..],
        &[70, 30],
        &[75, 25],
        &[90, 10],
        &[97, 3],
        &[60, 30, 10],
        &[100, 200, 300, 500, 800, 1300, 2100, 3400],
    ] {
        backlogged(lab, weights)?;
    }
    processes(lab)?;
    tree(lab)?;
    unlike(lab)?;
    work_conserving(lab)?;
    newcomer(lab)
}

fn alone(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    let load = lab.held(&node, "a", "alone", &["1000", LONG])?;
    sleep_ms(SETTLE);
    let rate = work(&[&load], 4000.0)[0] / 4.0;
    lab.report.push(Check::new(
        "one container alone, of no Ghost",
        0.995,
        rate / lab.alone,
        "",
        Limit::AtLeast,
    ));
    Ok(())
}

fn backlogged(lab: &mut Lab, weights: &[u32]) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    let mut loads = Vec::new();
    for (i, weight) in weights.iter().enumerate() {
        create(&node, &format!("c{i}"), *weight)?;
        loads.push(lab.held(&node, &format!("c{i}"), &format!("c{i}"), &["1000", LONG])?);
    }
    sleep_ms(SETTLE);
    let sum: u32 = weights.iter().sum();
    let wanted = |i: usize| 100.0 * f64::from(weights[i]) / f64::from(sum);
    // A window of 2 s cuts off a part of a round at both ends, so several are looked at: the
    // one in the middle counts.
    let from = now_ms();
    sleep_ms(2000.0 + 4.0 * 170.0 + 60.0);
    let window = |n: u32| -> Vec<f64> {
        let start = from + f64::from(n) * 170.0;
        loads
            .iter()
            .map(|l| l.work(start, start + 2000.0))
            .collect()
    };
    let furthest = |w: &[f64]| -> (usize, f64) {
        let off = |i: &usize| (percent(w)[*i] - wanted(*i)).abs();
        let worst = (0..w.len())
            .max_by(|a, b| off(a).total_cmp(&off(b)))
            .unwrap_or(0);
        (worst, percent(w)[worst])
    };
    let mut windows: Vec<Vec<f64>> = (0..5).map(window).collect();
    windows.sort_by(|a, b| {
        let off = |w: &[f64]| (furthest(w).1 - wanted(furthest(w).0)).abs();
        off(a).total_cmp(&off(b))
    });
    let w = windows.swap_remove(2);
    let (worst, got) = furthest(&w);
    let name: Vec<String> = weights.iter().map(u32::to_string).collect();
    let name = name.join("/");
    lab.report.push(Check::new(
        format!("shares {name}, the one furthest off"),
        wanted(worst),
        got,
        "%",
        Limit::Within(0.5),
    ));
    let total = w.iter().sum::<f64>() / 2.0 / lab.alone;
    let check = match weights.len() {
        2 => Check::new(
            format!("shares {name}, sum of alone"),
            0.97,
            total,
            "",
            Limit::AtLeast,
        ),
        _ => Check::told(format!("shares {name}, sum of alone"), total, ""),
    };
    lab.report.push(check);
    Ok(())
}

/// Four processes in one container against one in another, also when three of the four idle.
fn processes(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "four", 100)?;
    create(&node, "one", 100)?;
    let one = lab.held(&node, "one", "one", &["1000", LONG])?;
    let mut four: Vec<Load> = (0..4)
        .map(|i| lab.held(&node, "four", &format!("four{i}"), &["1000", LONG]))
        .collect::<Result<_>>()?;
    sleep_ms(SETTLE);
    let all: Vec<&Load> = std::iter::once(&one).chain(&four).collect();
    let share = percent(&work(&all, 2000.0))[0];
    lab.report.push(Check::new(
        "one process against four, equal weights",
        50.0,
        share,
        "%",
        Limit::Within(0.5),
    ));

    four.truncate(1);
    let _idle: Vec<Load> = (0..3)
        .map(|i| lab.held(&node, "four", &format!("idle{i}"), &["0", LONG]))
        .collect::<Result<_>>()?;
    sleep_ms(SETTLE + 1500.0);
    let share = percent(&work(&[&one, &four[0]], 2000.0))[0];
    lab.report.push(Check::new(
        "the same, three of the four idle",
        50.0,
        share,
        "%",
        Limit::Within(0.5),
    ));
    Ok(())
}

fn tree(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    for name in ["team", "team/a", "team/b", "other"] {
        create(&node, name, 100)?;
    }
    let other = lab.held(&node, "other", "other", &["1000", LONG])?;
    let a = lab.held(&node, "team/a", "team-a", &["1000", LONG])?;
    let b = lab.held(&node, "team/b", "team-b", &["1000", LONG])?;
    sleep_ms(SETTLE);
    let got = percent(&work(&[&other, &a, &b], 2000.0));
    lab.report.push(Check::new(
        "other against team/a and team/b",
        50.0,
        got[0],
        "%",
        Limit::Within(0.5),
    ));
    lab.report.push(Check::new(
        "team/a of the same",
        25.0,
        got[1],
        "%",
        Limit::Within(0.5),
    ));
    drop(b);
    sleep_ms(SETTLE);
    let got = percent(&work(&[&other, &a], 2000.0));
    lab.report.push(Check::new(
        "other against team/a, team/b gone",
        50.0,
        got[0],
        "%",
        Limit::Within(0.5),
    ));
    Ok(())
}

/// Kernels of 0.1 ms against kernels of 20 ms. Short kernels lose some time between one and the
/// next, so each load's work is held against its own pace alone.
fn unlike(lab: &mut Lab) -> Result<()> {
    const LENGTHS: [&str; 2] = ["100", "20000"];
    let mut alone = Vec::new();
    for length in LENGTHS {
        let load = lab.bare("unlike", &[length, LONG])?;
        sleep_ms(300.0);
        alone.push(work(&[&load], 1000.0)[0]);
    }
    let node = Node::start(Kind::gpu())?;
    create(&node, "short", 100)?;
    create(&node, "long", 100)?;
    let short = lab.held(&node, "short", "short", &[LENGTHS[0], LONG])?;
    let long = lab.held(&node, "long", "long", &[LENGTHS[1], LONG])?;
    sleep_ms(SETTLE + 2000.0);
    let w = work(&[&short, &long], 3000.0);
    let share = percent(&[w[0] / alone[0], w[1] / alone[1]])[0];
    lab.report.push(Check::new(
        "0.1 ms kernels against 20 ms kernels",
        50.0,
        share,
        "%",
        Limit::Within(1.0),
    ));
    Ok(())
}

/// A container that is busy for a second and idle for a second beside one that always is.
fn work_conserving(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    create(&node, "b", 100)?;
    let a = lab.held(&node, "a", "wc-a", &["1000", LONG])?;
    let b = lab.held(
        &node,
        "b",
        "wc-b",
        &["1000", LONG, "--duty", "1000", "1000"],
    )?;
    sleep_ms(6500.0);
    // b's own progress says when it stopped and began; the first turns teach the loop.
    let lines = b.lines();
    let (mut used, mut back) = (Vec::new(), Vec::new());
    for (stop, start) in idle_spans(&lines) {
        if start - stop > 500.0 && start + 500.0 < now_ms() {
            used.push(a.work(stop + 50.0, start - 20.0) / (start - stop - 70.0));
            back.push(b.work(start + 50.0, start + 450.0) / 400.0);
        }
    }
    let worst_used = used.iter().copied().fold(f64::MAX, f64::min) * 1000.0 / lab.alone;
    let worst_back = back.iter().copied().fold(f64::MAX, f64::min) * 1000.0 / lab.alone;
    lab.report.push(Check::new(
        "pace from 50 ms after the other went idle, of alone",
        0.97,
        worst_used,
        "",
        Limit::AtLeast,
    ));
    lab.report.push(Check::new(
        "pace from 50 ms after coming back, of alone",
        0.46,
        worst_back,
        "",
        Limit::AtLeast,
    ));
    Ok(())
}

/// Spans in which a load completed nothing: from its last completion to the first after.
fn idle_spans(lines: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut spans = Vec::new();
    let mut last: Option<(f64, f64)> = None;
    for &(t, done) in lines {
        match last {
            Some((since, before)) if done > before => {
                if t - since > 100.0 {
                    spans.push((since, t));
                }
                last = Some((t, done));
            }
            None => last = Some((t, done)),
            _ => {}
        }
    }
    spans
}

/// A third container comes while two run.
fn newcomer(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    for (name, weight) in [("a", 45), ("b", 45), ("new", 10)] {
        create(&node, name, weight)?;
    }
    let a = lab.held(&node, "a", "nc-a", &["1000", LONG])?;
    let b = lab.held(&node, "b", "nc-b", &["1000", LONG])?;
    sleep_ms(SETTLE);
    let new = lab.held(&node, "new", "nc-new", &["1000", LONG])?;
    // Ready is later than the first context, so this asks for a little more than the promise.
    sleep_ms(200.0);
    let share = percent(&work(&[&new, &a, &b], 2000.0))[0];
    lab.report.push(Check::new(
        "share of a newcomer from 200 ms after it is ready",
        10.0,
        share,
        "%",
        Limit::Within(1.0),
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_without_progress() {
        let lines = [
            (0.0, 0.0),
            (10.0, 5.0),
            (20.0, 5.0),
            (600.0, 5.0),
            (700.0, 6.0),
            (710.0, 7.0),
        ];
        assert_eq!(idle_spans(&lines), [(10.0, 700.0)]);
    }
}
