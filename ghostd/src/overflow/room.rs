//! What is free on this host's GPUs: for its own containers, and for clients of other hosts.

use crate::control::Observed;
use crate::core::Catalog;
use crate::view;
use ghost_model::{Bytes, GpuId, Key, Name};
use ghost_wire::hello::Space;

/// The GPUs on which processes of a container may compute, and what is free there: of the card, and
/// below the limits of the container and of those above it. The container need not be there.
pub(super) fn of(name: &Name, catalog: &Catalog, now: &Observed) -> Vec<(GpuId, Space)> {
    let devices = view::devices(name, catalog, now);
    let gpus = now.gpus.iter().filter(|gpu| devices.contains(&gpu.id));
    let space = gpus.map(|gpu| {
        let less = |of: Bytes, used: Option<Bytes>| of.0.saturating_sub(used.unwrap_or_default().0);
        let card = less(gpu.memory_total, gpu.memory_used);
        let below = |name: Name| {
            let max = catalog.entries.get(&name)?.spec();
            let max = max.memory(Key::MemoryMax, &gpu.id)?;
            let seen = now.containers.get(&name);
            Some(less(max, seen.and_then(|s| s.memory.get(&gpu.id)).copied()))
        };
        let space = Space {
            name: gpu.name.clone(),
            total: gpu.memory_total.0,
            free: name.lineage().filter_map(below).fold(card, u64::min),
            busy: busy(&gpu.id, now),
        };
        (gpu.id.clone(), space)
    });
    space.collect()
}

/// Percent of a GPU's time that was used lately.
fn busy(gpu: &GpuId, now: &Observed) -> u8 {
    let whole = now.containers.iter().filter(|(n, _)| n.parent().is_none());
    let used = whole.filter_map(|(_, seen)| seen.stats.get(gpu)?.usage_ratio);
    let percent = (used.sum::<f64>() * 100.0).clamp(0.0, 100.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within 0 and 100"
    )]
    let percent = percent.round() as u8;
    percent
}
