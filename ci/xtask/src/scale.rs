//! What ghostd costs with 100 containers that all have work.

use crate::loads::{Load, sleep_ms};
use crate::node::Node;
use anyhow::Result;
use std::time::Instant;

/// How many.
pub const CONTAINERS: usize = 100;

/// Makes the containers, starts a load in each with `args`, and gives what ghostd then uses:
/// percent of a core over 10 s, and megabytes resident.
///
/// # Errors
/// If a load does not start.
pub fn cost(node: &Node, args: &[&str]) -> Result<(f64, f64)> {
    let mut loads = Vec::new();
    for i in 0..CONTAINERS {
        let name = format!("c{i}");
        node.ctl(&["create", &name])?;
        let mut command = node.load_command(&name, &name, args)?;
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
    Ok((part, rss))
}
