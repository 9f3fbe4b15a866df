//! What ghostd costs with 100 containers on a GPU.

use super::{LONG, Lab};
use crate::checks::{Check, Limit};
use crate::node::{Kind, Node};
use crate::scale::{CONTAINERS, cost};
use anyhow::Result;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    let args = ["1000", LONG, "--iters-per-ms", &lab.iters_per_ms];
    let (part, rss) = cost(&node, &args)?;
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
