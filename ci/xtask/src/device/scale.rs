//! What ghostd costs with 100 containers that all have work.

use super::{LONG, Lab};
use crate::checks::{Check, Limit};
use crate::loads::{Load, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::Result;
use std::time::Instant;

const CONTAINERS: usize = 100;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::Stock)?;
    let mut loads = Vec::new();
    for i in 0..CONTAINERS {
        let name = format!("c{i}");
        node.ctl(&["create", &name])?;
        let args = ["1000", LONG, "--iters-per-ms", &lab.iters_per_ms];
        let mut command = node.load_command(&name, &name, &args)?;
        loads.push(Load::spawn(&mut command, node.out(), &name)?);
    }
    for (i, load) in loads.iter_mut().enumerate() {
        load.wait_ready(node.out(), &format!("c{i}"))?;
    }
    sleep_ms(3000.0);
    let (before, _) = node.ghostd_cost()?;
    let start = Instant::now();
    sleep_ms(10_000.0);
    let (after, rss) = node.ghostd_cost()?;
    let part = 100.0 * (after - before) / start.elapsed().as_secs_f64();
    let name = format!("{CONTAINERS} containers with work: ghostd");
    lab.report.push(Check::new(
        format!("{name}, of a core"),
        1.0,
        part,
        "%",
        Limit::AtMost,
    ));
    lab.report.push(Check::new(
        format!("{name}, resident"),
        40.0,
        rss,
        "MB",
        Limit::AtMost,
    ));
    Ok(())
}
