//! The main job, shown: two containers and their shares, a change while they run, a cap, a freeze;
//! then a program that computes on another host.

use crate::checks::{Check, Limit, Report};
use crate::loads::{Load, beside, now_ms, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Context, Result};
use std::process::ExitCode;

/// Runs the demo on the GPU of this host, or on the simulator.
pub fn run(json: bool) -> Result<ExitCode> {
    let kind = Kind::here();
    match kind {
        Kind::Stock => eprintln!(
            "On this host's GPU, under its unmodified driver: {}",
            kind.machine()
        ),
        Kind::Patched => eprintln!(
            "On this host's GPU, under the driver with Ghost in it: {}",
            kind.machine()
        ),
        Kind::Sim | Kind::Standin => {
            eprintln!("There is no NVIDIA GPU here (or we are not root): on the simulator.")
        }
    }
    let mut report = Report::new(&kind.backend().to_string(), kind.machine());
    let node = Node::start(kind)?;
    let say = |args: &[&str]| -> Result<()> {
        eprintln!("$ ghostctl {}", args.join(" "));
        let said = node.ctl(args)?;
        eprint!("{said}");
        Ok(())
    };

    say(&["create", "a", "--weight", "70"])?;
    say(&["create", "b", "--weight", "30"])?;
    let a = node.load("a", "a", &["1000", "120"])?;
    let b = node.load("b", "b", &["1000", "120"])?;
    sleep_ms(1500.0);
    let share = |a: &Load, b: &Load| {
        let (from, to) = (now_ms(), now_ms() + 3000.0);
        sleep_ms(3050.0);
        let (a, b) = (a.work(from, to), b.work(from, to));
        100.0 * a / (a + b).max(1e-9)
    };
    report.push(Check::new(
        "share of a, weights 70 and 30",
        70.0,
        share(&a, &b),
        "%",
        Limit::Within(1.0),
    ));
    say(&["list"])?;

    say(&["limit", "a", "gpu.weight=20", "--wait"])?;
    say(&["limit", "b", "gpu.weight=80", "--wait"])?;
    sleep_ms(500.0);
    report.push(Check::new(
        "share of a, changed to 20 and 80",
        20.0,
        share(&a, &b),
        "%",
        Limit::Within(1.0),
    ));

    // What a cap leaves is measured by the load's own pace when it has the GPU to itself.
    drop(b);
    sleep_ms(500.0);
    let pace = |load: &Load, ms: f64| {
        let from = now_ms();
        sleep_ms(ms + 50.0);
        load.work(from, from + ms) / ms
    };
    let alone = pace(&a, 2000.0);
    say(&["limit", "a", "gpu.max=30000 100000", "--wait"])?;
    sleep_ms(500.0);
    let capped = 100.0 * pace(&a, 3000.0) / alone.max(1e-9);
    report.push(Check::new(
        "gpu.max of 30 %, alone on the GPU",
        30.0,
        capped,
        "%",
        Limit::Within(1.5),
    ));
    say(&["limit", "a", "gpu.max=", "--wait"])?;

    say(&["freeze", "a"])?;
    sleep_ms(200.0);
    report.push(Check::new(
        "work done while frozen",
        0.0,
        pace(&a, 1000.0) * 1000.0,
        "kernels",
        Limit::AtMost,
    ));
    say(&["thaw", "a"])?;
    sleep_ms(200.0);
    let thawed = 100.0 * pace(&a, 1000.0) / alone.max(1e-9);
    report.push(Check::new(
        "pace after thaw, of alone",
        95.0,
        thawed,
        "%",
        Limit::AtLeast,
    ));
    drop(a);
    overflow(&node, &mut report)?;
    Ok(report.finish(json))
}

/// A CUDA program of this host that computes on another: a second ghostd, on the loopback.
fn overflow(node: &Node, report: &mut Report) -> Result<()> {
    let far = Node::start_with(Kind::Sim, "[overflow]\nlisten = \"127.0.0.1:0\"\n")?;
    let found = far.get("/v1/node")?;
    let listen = found["overflow"]["listen"].as_str();
    let listen = listen.context("the second ghostd takes no work of other hosts")?;
    let program = beside("ghost-overflow-saxpy")?.display().to_string();
    let say = |args: &[&str]| -> Result<String> {
        eprintln!("$ ghostctl {}", args.join(" "));
        let said = node.ctl(args)?;
        eprint!("{said}");
        Ok(said)
    };
    say(&["peer", "add", "far", listen])?;
    say(&["create", "job", "--weight", "30"])?;
    let said = say(&["run", "--on", "far", "job", "--", &program])?;
    report.push(Check::new(
        "a CUDA program that computes on another ghostd is right",
        1.0,
        f64::from(u8::from(said.trim_end().ends_with(": right"))),
        "",
        Limit::AtLeast,
    ));
    Ok(())
}
