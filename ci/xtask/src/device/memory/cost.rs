//! What the broker costs a tenant: the same programs with and without, by turns.

use super::super::{LONG, create, work};
use super::Lab;
use super::steps::{MIB, Steps};
use crate::checks::{Check, Limit};
use crate::loads::{beside, quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Instant;

/// Processes that start at once.
const MANY: usize = 64;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    node.patch("a", &serde_json::json!({"gpu.memory.max": "100G"}), true)?;
    allocations(lab, &node)?;
    launches(lab, &node)?;
    start_of_pytorch(lab, &node)?;
    many(lab, &node)
}

/// `cuMemAlloc` and `cuMemFree`: medians of 100 calls each, with and without by turns, and the
/// median of what a turn adds. One turn by itself says little where the driver's own time moves by
/// half from second to second.
fn allocations(lab: &mut Lab, node: &Node) -> Result<()> {
    const TURNS: usize = 15;
    let mut bare = Steps::bare()?;
    let mut held = Steps::start(node.run("a")?)?;
    sleep_ms(2000.0);
    for (name, bytes) in [("2 MiB", 2.0 * MIB), ("64 MiB", 64.0 * MIB)] {
        let step = format!("time {bytes} 100");
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            let (without, with) = (bare.ask(&step)?, held.ask(&step)?);
            ensure!(without.len() == 3 && with.len() == 3, "{step}: {with:?}");
            turns.push((without, with));
        }
        for (call, at, limit) in [("cuMemAlloc", 1, 15.0), ("cuMemFree", 2, 15.0)] {
            let of = |get: fn(f64, f64) -> f64| {
                let mut all: Vec<f64> = turns.iter().map(|(b, h)| get(b[at], h[at])).collect();
                quantile(&mut all, 0.5)
            };
            lab.report.push(Check::told(
                format!("{call} of {name}, without Ghost"),
                of(|without, _| without),
                "us",
            ));
            lab.report.push(Check::new(
                format!("{call} of {name}: added"),
                limit,
                of(|without, with| with - without),
                "us",
                Limit::AtMost,
            ));
        }
    }
    Ok(())
}

/// Launches make no call that the filter sees. What a start costs is told elsewhere.
fn launches(lab: &mut Lab, node: &Node) -> Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        let bare = lab.bare("launch", &["20", LONG])?;
        sleep_ms(1500.0);
        rates[0].push(work(&[&bare], 700.0)[0]);
        drop(bare);
        let held = lab.held(node, "a", "launch-a", &["20", LONG])?;
        sleep_ms(1500.0);
        rates[1].push(work(&[&held], 700.0)[0]);
    }
    let [bare, held] = rates.map(|mut r| quantile(&mut r, 0.5));
    lab.report.push(Check::new(
        "kernels of 20 us, in a container with a limit, part of without",
        0.99,
        held / bare,
        "",
        Limit::AtLeast,
    ));
    Ok(())
}

/// From exec to the first tensor on the GPU, medians of pairs.
fn start_of_pytorch(lab: &mut Lab, node: &Node) -> Result<()> {
    const SCRIPT: &str = "import torch; torch.zeros(1).cuda(); torch.cuda.synchronize()";
    // The program tells how long it ran since its own first instruction, so that `ghostctl run`
    // around it does not count.
    let script =
        format!("import time; t = time.monotonic(); {SCRIPT}; print((time.monotonic() - t) * 1e3)");
    let once = |mut command: Command| -> Result<f64> {
        let said = command.args(["python3", "-c", &script]).output()?;
        Ok(String::from_utf8_lossy(&said.stdout)
            .trim()
            .parse()
            .unwrap_or(f64::NAN))
    };
    let (mut without, mut added) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let bare = once(Command::new("env"))?;
        without.push(bare);
        added.push(once(node.run("a")?)? - bare);
    }
    lab.report.push(Check::told(
        "PyTorch: import and first tensor, without Ghost",
        quantile(&mut without, 0.5),
        "ms",
    ));
    lab.report.push(Check::new(
        "PyTorch: import and first tensor: added",
        10.0,
        quantile(&mut added, 0.5),
        "ms",
        Limit::AtMost,
    ));
    Ok(())
}

/// Until all of many processes have their contexts.
fn many(lab: &mut Lab, node: &Node) -> Result<()> {
    let makespan = |held: bool| -> Result<f64> {
        let begin = Instant::now();
        let mut all = Vec::new();
        for _ in 0..MANY {
            let command = match held {
                true => {
                    let mut command = node.run("a")?;
                    command.arg(beside("ghost-take")?);
                    command
                }
                false => Command::new(beside("ghost-take")?),
            };
            all.push(Steps::spawn(command)?);
        }
        let mut ready = Vec::new();
        for one in all {
            let one = one.ready()?;
            ensure!(one.code == 0.0, "a context: CUDA error {}", one.code);
            ready.push(one);
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    let (bare, held) = (makespan(false)?, makespan(true)?);
    lab.report.push(Check::told(
        format!("{MANY} processes at once, without Ghost"),
        bare,
        "s",
    ));
    lab.report.push(Check::new(
        format!("{MANY} processes at once, part of without"),
        1.10,
        held / bare,
        "",
        Limit::AtMost,
    ));
    Ok(())
}
