//! What the broker costs a tenant: the same programs with and without, by turns.

use super::super::{LONG, create, work};
use super::Lab;
use super::steps::{MIB, Steps};
use crate::checks::{Check, Estimate, Limit};
use crate::loads::{beside, last_processor, quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Result, ensure};
use nix::sched::sched_setaffinity;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

/// Processes that start at once.
const MANY: usize = 64;

pub(in crate::device) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    node.patch("a", &serde_json::json!({"gpu.memory.max": "100G"}), true)?;
    allocations(lab, &node)?;
    copies(lab, &node)?;
    launches(lab, &node)?;
    start_of_pytorch(lab, &node)?;
    many(lab, &node)
}

/// A program and the same in the container, on one processor. Processors of a virtual machine have
/// more than one speed and change between them within seconds: what two processors took, or two
/// seconds, cannot be compared.
fn pair(node: &Node) -> Result<(Steps, Steps)> {
    let (bare, held) = (Steps::bare()?, Steps::start(node.run("a")?)?);
    on_one_processor(&[&bare, &held])?;
    Ok((bare, held))
}

fn on_one_processor(programs: &[&Steps]) -> Result<()> {
    let one = last_processor()?;
    for take in programs {
        sched_setaffinity(Pid::from_raw(take.pid), &one)?;
    }
    sleep_ms(500.0);
    Ok(())
}

/// `cuMemAlloc` and `cuMemFree`: medians of 50 calls, with and without by turns of milliseconds. Of
/// many pairs of programs, for each is quicker or slower than others for as long as it lives. A
/// third program shows how much of what is added is the machine's own.
fn allocations(lab: &mut Lab, node: &Node) -> Result<()> {
    const PAIRS: usize = 9;
    const TURNS: usize = 12;
    /// What was answered without, what the least of a filter added, and what was added: of each
    /// pair.
    type Pairs = [Vec<f64>; 3];
    let mut calls: BTreeMap<(&str, &str), Pairs> = BTreeMap::new();
    for _ in 0..PAIRS {
        let (mut bare, mut held) = pair(node)?;
        let mut least = Steps::least()?;
        on_one_processor(&[&least])?;
        for (size, bytes) in [("2 MiB", 2.0 * MIB), ("64 MiB", 64.0 * MIB)] {
            let step = format!("time {bytes} 50");
            let mut turns = Vec::new();
            for turn in 0..TURNS {
                let (without, with) = by_turns(turn, &mut bare, &mut held, |take| take.ask(&step))?;
                let all = [without, least.ask(&step)?, with];
                ensure!(all.iter().all(|one| one.len() == 3), "{step}: {all:?}");
                turns.push(all);
            }
            for (call, at) in [("cuMemAlloc", 1), ("cuMemFree", 2)] {
                let of = |f: &dyn Fn(&[Vec<f64>; 3]) -> f64| {
                    quantile(&mut turns.iter().map(f).collect::<Vec<f64>>(), 0.5)
                };
                let [without, by_least, added] = calls.entry((size, call)).or_default();
                without.push(of(&|[bare, ..]| bare[at]));
                by_least.push(of(&|[bare, least, _]| least[at] - bare[at]));
                added.push(of(&|[bare, _, held]| held[at] - bare[at]));
            }
        }
    }
    for ((size, call), [mut without, mut by_least, mut added]) in calls {
        for (what, all) in [
            ("without Ghost", &mut without),
            ("the least that a filter adds", &mut by_least),
        ] {
            let name = format!("{call} of {size}, {what}");
            lab.report.push(Check::told(name, quantile(all, 0.5), "us"));
        }
        lab.report.push(Check::estimated(
            format!("{call} of {size}: added"),
            15.0,
            Estimate::of_median(&mut added),
            "us",
            Limit::AtMost,
        ));
    }
    Ok(())
}

/// Asks both, the one first that was second the turn before.
fn by_turns<T, R>(
    turn: usize,
    bare: &mut T,
    held: &mut T,
    mut ask: impl FnMut(&mut T) -> Result<R>,
) -> Result<(R, R)> {
    if turn.is_multiple_of(2) {
        let without = ask(bare)?;
        Ok((without, ask(held)?))
    } else {
        let with = ask(held)?;
        Ok((ask(bare)?, with))
    }
}

/// Copies make no call that the filter sees: medians of calls that wait for their copy, by turns as
/// above.
fn copies(lab: &mut Lab, node: &Node) -> Result<()> {
    const TURNS: usize = 60;
    let (mut bare, mut held) = pair(node)?;
    for (name, bytes, n) in [("4 KiB", 4096.0, 200), ("16 MiB", 16.0 * MIB, 5)] {
        let step = format!("copy {bytes} {n}");
        let mut parts = Vec::new();
        for turn in 0..TURNS {
            let (without, with) = by_turns(turn, &mut bare, &mut held, |take| take.ask(&step))?;
            ensure!(without.len() == 2 && with.len() == 2, "{step}: {with:?}");
            parts.push(with[1] / without[1]);
        }
        lab.report.push(Check::estimated(
            format!("copies of {name} to the device, in a container with a limit, of without"),
            1.02,
            Estimate::of_median(&mut parts),
            "",
            Limit::AtMost,
        ));
    }
    Ok(())
}

/// Launches make no call that the filter sees. Two loads of the same kernels, one of them held by
/// SIGSTOP while the other is measured.
fn launches(lab: &mut Lab, node: &Node) -> Result<()> {
    const TURNS: usize = 12;
    let mut bare = lab.bare("launch", &["20", LONG])?;
    bare.signal(Signal::SIGSTOP)?;
    let mut held = lab.held(node, "a", "launch-a", &["20", LONG])?;
    held.signal(Signal::SIGSTOP)?;
    let mut parts = Vec::new();
    for turn in 0..TURNS {
        let (without, with) = by_turns(turn, &mut bare, &mut held, |load| {
            load.signal(Signal::SIGCONT)?;
            sleep_ms(200.0);
            let done = work(&[&*load], 700.0)[0];
            load.signal(Signal::SIGSTOP)?;
            Ok(done)
        })?;
        parts.push(with / without);
    }
    lab.report.push(Check::estimated(
        "kernels of 20 us, in a container with a limit, part of without",
        0.99,
        Estimate::of_median(&mut parts),
        "",
        Limit::AtLeast,
    ));
    Ok(())
}

/// Has PyTorch loaded, and for each line starts a process that makes its first tensor on the GPU;
/// says how many milliseconds that took, once the process is gone: its end keeps the driver busy,
/// and is not to fall into the next start. Loading itself makes no call that the filter sees.
const PYTORCH_SERVER: &str = r#"
import os, sys, time, torch
print(0, os.getpid(), flush=True)
took, tell = os.pipe()
for line in sys.stdin:
    if line.strip() == "quit":
        break
    if (pid := os.fork()) == 0:
        t = time.monotonic()
        torch.zeros(1).cuda()
        torch.cuda.synchronize()
        os.write(tell, b"%f" % ((time.monotonic() - t) * 1e3))
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        break
    print(os.read(took, 100).decode(), flush=True)
"#;

/// A start of PyTorch from the first call of the driver to the first tensor on the GPU.
fn start_of_pytorch(lab: &mut Lab, node: &Node) -> Result<()> {
    const TURNS: usize = 40;
    let server = |mut command: Command| {
        command.args(["python3", "-c", PYTORCH_SERVER]);
        Steps::spawn(command)?.ready()
    };
    let mut bare = server(Command::new("env"))?;
    let mut held = server(node.run("a")?)?;
    let (mut without, mut added) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let (b, h) = by_turns(turn, &mut bare, &mut held, |one| one.ask("start"))?;
        without.push(b[0]);
        added.push(h[0] - b[0]);
    }
    lab.report.push(Check::told(
        "PyTorch, loaded: the first tensor, without Ghost",
        quantile(&mut without, 0.5),
        "ms",
    ));
    lab.report.push(Check::estimated(
        "PyTorch, loaded: the first tensor: added",
        10.0,
        Estimate::of_median(&mut added),
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
