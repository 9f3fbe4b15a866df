//! Measurements that need no GPU: what ghostd costs and how fast it answers.

use crate::checks::{Check, Limit, Report};
use crate::loads::{beside, quantile};
use crate::node::{Kind, Node};
use crate::scale::{CONTAINERS, cost};
use anyhow::{Result, bail};
use std::process::{Command, ExitCode};
use std::time::Instant;

mod memory;
mod overflow;

type Part = (&'static str, fn(&mut Report) -> Result<()>);

const PARTS: &[Part] = &[
    ("scale", scale),
    ("rest", rest),
    ("memory", memory::run),
    ("overflow", overflow::run),
];

/// Runs one bench, or all.
pub fn run(only: Option<&str>, json: bool) -> Result<ExitCode> {
    if let Some(name) = only.filter(|n| PARTS.iter().all(|(part, _)| part != n)) {
        let known: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
        bail!("no bench {name:?}: there are {}", known.join(", "));
    }
    let kind = match only {
        Some("memory") => Kind::Standin,
        _ => Kind::Sim,
    };
    let mut report = Report::new(&kind.backend().to_string(), kind.machine());
    for (name, part) in PARTS
        .iter()
        .filter(|(name, _)| only.is_none_or(|n| n == *name))
    {
        eprintln!("{name}:");
        if let Err(e) = part(&mut report) {
            report.failed(name, &e);
        }
    }
    Ok(report.finish(json))
}

/// What ghostd costs with 100 containers; its share of a core has the simulator in it.
fn scale(report: &mut Report) -> Result<()> {
    let node = Node::start(Kind::Sim)?;
    let (part, rss) = cost(&node, &["1000", "120"])?;
    let name = format!("{CONTAINERS} containers with work: ghostd");
    report.push(Check::told(
        format!("{name} with its simulated GPU, of a core"),
        part,
        "%",
    ));
    report.push(Check::new(
        format!("{name}, resident"),
        40.0,
        rss,
        "MB",
        Limit::AtMost,
    ));
    Ok(())
}

/// How fast a list of 1,000 containers is.
fn rest(report: &mut Report) -> Result<()> {
    let node = Node::start(Kind::Sim)?;
    let file = node.out().join("many.toml");
    let text: String = (0..1000)
        .map(|i| format!("[container.c{i}]\ngpu.weight = {}\n", 1 + i % 9))
        .collect();
    std::fs::write(&file, text)?;
    node.ctl(&["apply", "-f", &file.display().to_string()])?;
    let mut times = Vec::new();
    for _ in 0..300 {
        let start = Instant::now();
        let list = node.get("/v1/containers?limit=1000")?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let found = list["items"].as_array().map_or(0, Vec::len);
        if found < 1000 {
            bail!("the list has {found} containers of 1000");
        }
    }
    report.push(Check::new(
        "list of 1,000 containers over REST, p99",
        10.0,
        quantile(&mut times, 0.99),
        "ms",
        Limit::AtMost,
    ));
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        let done = Command::new(beside("ghostctl")?)
            .arg("--version")
            .output()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if !done.status.success() {
            bail!("ghostctl --version failed");
        }
    }
    report.push(Check::told(
        "ghostctl --version, p50",
        quantile(&mut times, 0.5),
        "ms",
    ));
    Ok(())
}
