//! What the driver with Ghost in it holds by itself: the same with ghostd alive and killed, and
//! against a tenant that does not want it. Left out where the driver is NVIDIA's own.

use super::memory::steps::{GIB, MIB, Steps};
use super::{LONG, Lab, create, percent, work};
use crate::checks::{Check, Limit};
use crate::loads::{now_ms, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::Result;
use serde_json::json;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    if Kind::gpu() != Kind::Patched {
        eprintln!("  left out: needs the driver with Ghost in it (`ci/driver-on-gpu`)");
        return Ok(());
    }
    memory(lab)?;
    own_slice(lab)?;
    without_ghostd(lab)
}

fn row(lab: &mut Lab, name: &str, wanted: f64, got: f64, unit: &'static str, limit: Limit) {
    lab.report.push(Check::new(name, wanted, got, unit, limit));
}

/// CUDA's result of taking so much in a way.
fn take(steps: &mut Steps, kind: &str, bytes: f64) -> Result<f64> {
    Ok(steps.ask(&format!("take {kind} {bytes}"))?[0])
}

/// The limit holds for each kind of memory, managed memory too, also once ghostd is dead.
fn memory(lab: &mut Lab) -> Result<()> {
    const LEFT: f64 = 256.0;
    let mut node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    let mut held = Steps::start(node.run("a")?)?;
    let max = held.used()? + LEFT * MIB;
    node.patch("a", &json!({ "gpu.memory.max": max as u64 }), true)?;
    for dead in [false, true] {
        let when = match dead {
            true => {
                node.kill_ghostd()?;
                ", ghostd killed"
            }
            false => "",
        };
        for kind in ["malloc", "pool", "vmm", "array"] {
            let code = take(&mut held, kind, 512.0 * MIB)?;
            let name = format!("{kind} of 512 MiB where 256 are left{when}: CUDA's result");
            row(lab, &name, 2.0, code, "", Limit::Within(0.0));
        }
        // Managed memory beyond the limit is CUDA's to place elsewhere, or to refuse.
        let before = super::memory_used()?;
        take(&mut held, "managed", 2.0 * GIB)?;
        let grown = (super::memory_used()? - before) / MIB;
        let name = format!("managed memory of 2 GiB where 256 MiB are left{when}: on the GPU");
        row(lab, &name, LEFT + 2.0, grown, "MiB", Limit::AtMost);
        held.ask("free")?;
    }
    Ok(())
}

/// A tenant sets a timeslice of 1 s on its own channel groups, and gains nothing.
fn own_slice(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    create(&node, "b", 300)?;
    let a = lab.held(&node, "a", "slice-a", &["1000", LONG])?;
    let b = lab.held(&node, "b", "slice-b", &["1000", LONG])?;
    let mut greedy = Steps::start(node.run("a")?)?;
    let said = greedy.ask("slice 1000000")?;
    row(
        lab,
        "channel groups that a tenant found as its own",
        1.0,
        said[1],
        "",
        Limit::AtLeast,
    );
    row(
        lab,
        "timeslice in force after it set 1 s on them",
        200.0,
        said[2] / 1e3,
        "ms",
        Limit::AtMost,
    );
    sleep_ms(1500.0);
    let share = percent(&work(&[&a, &b], 3000.0))[0];
    row(
        lab,
        "its container's share, weights 100 and 300",
        25.0,
        share,
        "%",
        Limit::Within(0.5),
    );
    Ok(())
}

/// Weights and budgets are kept once ghostd is dead, and nothing stays paused.
fn without_ghostd(lab: &mut Lab) -> Result<()> {
    let mut node = Node::start(Kind::gpu())?;
    create(&node, "a", 300)?;
    create(&node, "b", 100)?;
    let a = lab.held(&node, "a", "alone-a", &["1000", LONG])?;
    let b = lab.held(&node, "b", "alone-b", &["1000", LONG])?;
    sleep_ms(700.0);
    node.patch("b", &json!({"ghost.freeze": 1}), true)?;
    let since = now_ms();
    node.kill_ghostd()?;
    sleep_ms(300.0);
    let ran = b.work(since, since + 200.0);
    row(
        lab,
        "kernels that a paused container did in 200 ms after kill -9 of ghostd",
        1.0,
        ran,
        "",
        Limit::AtLeast,
    );
    sleep_ms(1500.0);
    let share = percent(&work(&[&a, &b], 3000.0))[0];
    row(
        lab,
        "share with ghostd dead, weights 300 and 100",
        75.0,
        share,
        "%",
        Limit::Within(0.5),
    );
    drop(b);
    node.start_ghostd()?;
    node.ctl(&["limit", "a", "gpu.max=30000 100000"])?;
    sleep_ms(1000.0);
    node.kill_ghostd()?;
    sleep_ms(1000.0);
    let got = 100.0 * work(&[&a], 3000.0)[0] / 3.0 / lab.alone;
    row(
        lab,
        "gpu.max 30 % with ghostd dead",
        31.5,
        got,
        "%",
        Limit::AtMost,
    );
    Ok(())
}
