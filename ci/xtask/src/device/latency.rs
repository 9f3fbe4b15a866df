//! A latency container beside long kernels, with no hint of coming work.

use super::{LONG, Lab, create};
use crate::checks::{Check, Limit};
use crate::loads::{quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::Result;

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "quick", 100)?;
    create(&node, "heavy", 100)?;
    node.ctl(&["limit", "quick", "gpu.latency=target=300"])?;
    let quick = lab.held(&node, "quick", "quick", &["100", LONG, "5"])?;
    let _heavy = lab.held(&node, "heavy", "heavy", &["20000", LONG])?;
    sleep_ms(2000.0);
    let mut seen = lab.latencies(&quick, 5000.0)?;
    for (name, q, limit) in [("p50", 0.5, 0.42), ("p99", 0.99, 0.65)] {
        let got = quantile(&mut seen, q);
        let name = format!("gpu.latency beside 20 ms kernels, {name}");
        lab.report
            .push(Check::new(name, limit, got, "ms", Limit::AtMost));
    }
    Ok(())
}
