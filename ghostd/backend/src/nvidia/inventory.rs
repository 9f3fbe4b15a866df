//! The GPUs of this host: what NVML says of each, and how the resource manager calls it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ghost_model::{GpuId, GpuInfo, GpuState};
use ghost_rm::{AttachedGpu, Gpu, Object, Session};

use super::meter::Meter;
use super::telemetry::Card;

/// One GPU.
pub(crate) struct Board {
    pub(crate) info: GpuInfo,
    /// How it is driven; `None` if it is refused.
    pub(crate) driven: Option<Driven>,
}

/// A GPU that is shared.
pub(crate) struct Driven {
    /// The driver's id.
    pub(crate) rm_id: u32,
    pub(crate) gpu: Gpu,
    pub(crate) subdevice: Object,
    pub(crate) meter: Meter,
    /// Why the meter is not the best, if it is not.
    pub(crate) note: Option<String>,
    /// The class by which processes are listed, once one was found to have any.
    pub(crate) class: Option<u32>,
}

/// Reads `version` below `proc_nvidia`.
pub(crate) fn driver_version(proc_nvidia: &Path) -> std::io::Result<String> {
    fs::read_to_string(proc_nvidia.join("version"))
}

/// The minor number of each GPU, from the `information` files below `proc_nvidia`.
pub(crate) fn minors(proc_nvidia: &Path) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(proc_nvidia.join("gpus"));
    let texts = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("information")).ok());
    texts.filter_map(|text| minor_of(&text)).collect()
}

fn minor_of(information: &str) -> Option<(String, u32)> {
    let field = |name: &str| {
        let value = information
            .lines()
            .find_map(|line| line.strip_prefix(name))?;
        Some(value.trim_start_matches(':').trim())
    };
    let minor = field("Device Minor")?.parse().ok()?;
    Some((field("GPU UUID")?.to_owned(), minor))
}

/// A GPU that is left alone.
pub(crate) fn refused(card: &Card, reason: String) -> Board {
    Board {
        info: info_of(card, GpuState::Refused(reason)),
        driven: None,
    }
}

/// A GPU as people see it.
pub(crate) fn info_of(card: &Card, state: GpuState) -> GpuInfo {
    GpuInfo {
        id: card.uuid.clone(),
        index: card.index,
        pci: card.pci.clone(),
        name: card.name.clone(),
        memory_total: card.memory_total,
        memory_used: card.memory_used,
        state,
    }
}

/// Begins to drive a GPU.
///
/// # Errors
/// Why it is refused.
pub(crate) fn drive(
    card: &Card,
    session: &mut Session,
    attached: &[AttachedGpu],
    minors: &BTreeMap<String, u32>,
    open_meter: impl FnOnce(Gpu) -> (Meter, Option<String>),
) -> Result<Driven, String> {
    if card.mig {
        return Err(
            "MIG is on: its instances are shared by the hardware; `nvidia-smi -mig 0` turns it off"
                .to_owned(),
        );
    }
    let uuid: &GpuId = &card.uuid;
    let found = attached.iter().find(|gpu| gpu.uuid == uuid.as_str());
    let Some(found) = found else {
        return Err("the driver has not started it: is nvidia-persistenced running?".to_owned());
    };
    let minor = minors.get(uuid.as_str()).copied().or(card.minor);
    let Some(minor) = minor else {
        return Err("its node in /dev is not known".to_owned());
    };
    let gpu = Gpu {
        instance: found.instance,
        minor,
    };
    let subdevice = session.subdevice(gpu).map_err(|error| {
        let source = std::error::Error::source(&error);
        source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
    })?;
    let (meter, note) = open_meter(gpu);
    Ok(Driven {
        rm_id: found.id,
        gpu,
        subdevice,
        meter,
        note,
        class: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_is_read_from_the_information_file() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t GPU-1938a86c-f6d3\n\
                    Bus Location: \t 0000:00:06.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        assert_eq!(minor_of(text), Some(("GPU-1938a86c-f6d3".to_owned(), 3)));
        assert_eq!(minor_of("Device Minor: x\nGPU UUID: y"), None);
    }
}
