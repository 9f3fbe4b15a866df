//! The share of a GPU that weights give: what `top` calls WANTED.

use ghost_model::report::Container;
use ghost_model::{GpuId, Name};
use std::collections::BTreeMap;

/// For each container with processes that is granted `gpu`, its part of the GPU, 0 to 1, if
/// everybody wants it. A container shares with its siblings what the one above them has; the
/// processes of the one above count as one more sibling, of weight 100. Containers with
/// `gpu.idle` get what is left, which then is nothing.
pub fn wanted(containers: &[Container], gpu: &GpuId) -> BTreeMap<Name, f64> {
    let level = |parent: Option<&Name>| -> Vec<&Container> {
        containers
            .iter()
            .filter(|c| c.name.parent().as_ref() == parent)
            .filter(|c| c.status.events.populated == 1 && c.status.devices_effective.contains(gpu))
            .collect()
    };
    let mut out = BTreeMap::new();
    let mut todo: Vec<(Option<&Container>, f64)> = vec![(None, 1.0)];
    while let Some((parent, share)) = todo.pop() {
        let children = level(parent.map(|c| &c.name));
        let weight = |c: &Container| match c.status.effective.idle() {
            true => 0.0,
            false => f64::from(c.status.effective.weight(gpu).get()),
        };
        let own = match parent {
            Some(c) if !c.status.procs.is_empty() => 100.0,
            _ => 0.0,
        };
        let sum: f64 = own + children.iter().map(|c| weight(c)).sum::<f64>();
        for child in children {
            let part = if sum > 0.0 {
                share * weight(child) / sum
            } else {
                0.0
            };
            out.insert(child.name.clone(), part);
            todo.push((Some(child), part));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(name: &str, spec: serde_json::Value, pids: &[u32], populated: u8) -> Container {
        let procs: Vec<_> = pids
            .iter()
            .map(|p| json!({"pid": p, "command": "x", "container": name, "groups": {}, "memory": {}}))
            .collect();
        serde_json::from_value(json!({
            "name": name, "uid": "u", "generation": 1, "spec": spec,
            "status": {
                "observed_generation": 1, "state": "idle", "effective": spec,
                "gpu.devices.effective": ["GPU-aaaa"], "enforced_by": {},
                "gpu.memory.current": {}, "gpu.memory.peak": {}, "gpu.stat": {},
                "ghost.procs": procs, "ghost.events": {"populated": populated, "frozen": 0},
                "slices_reasserted": 0
            }
        }))
        .unwrap()
    }

    #[test]
    fn shares_are_hierarchical_and_leave_out_who_cannot_want() {
        let all = [
            container("team", json!({"gpu.weight": 300}), &[], 1),
            container("team/a", json!({"gpu.weight": 200}), &[1], 1),
            container("team/b", json!({}), &[2], 1),
            container("other", json!({}), &[3], 1),
            container("empty", json!({"gpu.weight": 9999}), &[], 0),
            container("rest", json!({"gpu.idle": 1}), &[4], 1),
        ];
        let shares = wanted(&all, &"GPU-aaaa".parse().unwrap());
        let shares: Vec<_> = shares.iter().map(|(n, s)| (n.as_str(), *s)).collect();
        assert_eq!(
            shares,
            [
                ("other", 0.25),
                ("rest", 0.0),
                ("team", 0.75),
                ("team/a", 0.5),
                ("team/b", 0.25)
            ]
        );
        assert!(wanted(&all, &"GPU-bbbb".parse().unwrap()).is_empty());
    }

    #[test]
    fn processes_of_an_inner_container_are_one_sibling() {
        let all = [
            container("team", json!({}), &[1, 2], 1),
            container("team/a", json!({"gpu.weight": 300}), &[3], 1),
        ];
        let shares = wanted(&all, &"GPU-aaaa".parse().unwrap());
        assert_eq!(shares[&"team/a".parse::<Name>().unwrap()], 0.75);
    }
}
