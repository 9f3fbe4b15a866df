//! What holds when ghostd or its guardian is killed or hangs, and when a tenant is.

use super::{LONG, Lab, create, memory_used, percent, work};
use crate::checks::{Check, Limit};
use crate::loads::{Load, now_ms, quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    killed(lab)?;
    stopped(lab)?;
    if Kind::gpu() == Kind::Stock {
        both_killed(lab)?;
    }
    dead_tenant(lab)
}

/// When the first work after `since` was done, in milliseconds from then.
fn resumed(load: &Load, since: f64) -> Result<f64> {
    let before = load.work(0.0, since);
    for _ in 0..2000 {
        if let Some((t, _)) = load
            .lines()
            .into_iter()
            .find(|(t, done)| *t > since && *done > before)
        {
            return Ok(t - since);
        }
        sleep_ms(2.0);
    }
    Ok(f64::NAN)
}

fn frozen(lab: &Lab, node: &Node, name: &str) -> Result<Load> {
    let load = lab.held(node, "a", name, &["1000", LONG])?;
    sleep_ms(700.0);
    node.patch("a", &json!({"ghost.freeze": 1}), true)?;
    sleep_ms(200.0);
    Ok(load)
}

/// ghostd is killed while a container is paused; a new ghostd adopts all there was.
fn killed(lab: &mut Lab) -> Result<()> {
    let mut node = Node::start(Kind::gpu())?;
    create(&node, "a", 300)?;
    create(&node, "b", 100)?;
    let a = frozen(lab, &node, "killed-a")?;
    let b = lab.held(&node, "b", "killed-b", &["1000", LONG])?;
    let since = now_ms();
    node.kill_ghostd()?;
    let after = resumed(&a, since)?;
    lab.report.push(Check::new(
        "a paused container runs after kill -9 of ghostd",
        100.0,
        after,
        "ms",
        Limit::AtMost,
    ));
    node.start_ghostd()?;
    sleep_ms(300.0);
    let frozen = work(&[&a], 300.0)[0];
    lab.report.push(Check::new(
        "work done by it once a new ghostd is there",
        0.0,
        frozen,
        "kernels",
        Limit::AtMost,
    ));
    node.patch("a", &json!({"ghost.freeze": 0}), true)?;
    sleep_ms(1500.0);
    let share = percent(&work(&[&a, &b], 2000.0))[0];
    lab.report.push(Check::new(
        "share after restart, weights 300 and 100",
        75.0,
        share,
        "%",
        Limit::Within(0.5),
    ));
    Ok(())
}

fn stopped(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    let a = frozen(lab, &node, "stopped-a")?;
    let since = now_ms();
    node.signal_ghostd(Signal::SIGSTOP)?;
    let after = resumed(&a, since)?;
    node.signal_ghostd(Signal::SIGCONT)?;
    lab.report.push(Check::new(
        "a paused container runs after SIGSTOP of ghostd",
        300.0,
        after,
        "ms",
        Limit::AtMost,
    ));
    Ok(())
}

fn both_killed(lab: &mut Lab) -> Result<()> {
    let mut node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    let a = frozen(lab, &node, "both-a")?;
    node.kill_guardian()?;
    node.kill_ghostd()?;
    sleep_ms(200.0);
    let since = now_ms();
    node.start_guardian()?;
    let after = resumed(&a, since)?;
    lab.report.push(Check::new(
        "ghostd and guardian killed: it runs after the guardian is back",
        100.0,
        after,
        "ms",
        Limit::AtMost,
    ));
    Ok(())
}

/// How long a killed tenant's memory stays, without Ghost, with it, and with ghostd stopped.
fn dead_tenant(lab: &mut Lab) -> Result<()> {
    let bare = {
        let mut times = Vec::new();
        for _ in 0..5 {
            let load = lab.bare("dead", &["1000", LONG])?;
            times.push(memory_back(load, None)?);
        }
        quantile(&mut times, 0.5)
    };
    lab.report.push(Check::told(
        "memory of a killed tenant is back, without Ghost",
        bare,
        "ms",
    ));
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    for stop in [false, true] {
        let mut times = Vec::new();
        for _ in 0..5 {
            let load = lab.held(&node, "a", "dead-a", &["1000", LONG])?;
            sleep_ms(500.0);
            let inner = tenant_of(&node)?;
            if stop {
                node.signal_ghostd(Signal::SIGSTOP)?;
            }
            times.push(memory_back(load, Some(inner))?);
            node.signal_ghostd(Signal::SIGCONT)?;
            sleep_ms(200.0);
        }
        let name = if stop {
            "the same, ghostd stopped"
        } else {
            "the same, in a container"
        };
        lab.report.push(Check::new(
            name,
            bare + 50.0,
            quantile(&mut times, 0.5),
            "ms",
            Limit::AtMost,
        ));
    }
    Ok(())
}

/// The pid of the one GPU process in container `a`.
fn tenant_of(node: &Node) -> Result<i32> {
    let a = node.get("/v1/containers/a")?;
    let procs = a["status"]["ghost.procs"]
        .as_array()
        .context("no ghost.procs")?;
    let busy = procs
        .iter()
        .find(|p| p["groups"].as_object().is_some_and(|g| !g.is_empty()));
    let pid = busy
        .and_then(|p| p["pid"].as_i64())
        .context("no GPU process in the container")?;
    Ok(i32::try_from(pid)?)
}

fn memory_back(mut load: Load, inner: Option<i32>) -> Result<f64> {
    sleep_ms(100.0);
    let with = memory_used()?;
    let since = now_ms();
    match inner {
        Some(pid) => nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL)?,
        None => load.end(Signal::SIGKILL),
    }
    while now_ms() - since < 5000.0 {
        if memory_used()? < with - 2e8 {
            return Ok(now_ms() - since);
        }
        sleep_ms(1.0);
    }
    Ok(f64::NAN)
}
