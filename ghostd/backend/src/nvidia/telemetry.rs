//! What NVML knows and the resource manager is not asked for: products, memory, MIG, MPS.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::PathBuf;

use ghost_model::{Bytes, GpuId, Micros};
use ghost_rm::abi::discover::ClientDatabase;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use serde::Deserialize;

use super::clock;

/// Why something is not known.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// NVML did not answer.
    #[error("nvml: {0}; does nvidia-smi work?")]
    Nvml(#[from] NvmlError),
    /// The file that stands for NVML cannot be read.
    #[error("{path}: cannot read the telemetry")]
    Read {
        /// The file.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// It is not as it should be.
    #[error("{path}: not the telemetry of a stand-in")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
}

/// A GPU as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Card {
    /// `GPU-…`
    pub(crate) uuid: GpuId,
    /// As nvidia-smi counts.
    pub(crate) index: u32,
    /// `00000000:3B:00.0`
    pub(crate) pci: String,
    /// Product name.
    pub(crate) name: String,
    /// Bytes on the card.
    pub(crate) memory_total: Bytes,
    /// Bytes in use, by whomever.
    pub(crate) memory_used: Option<Bytes>,
    /// N of the node `nvidiaN`.
    pub(crate) minor: Option<u32>,
    /// Whether MIG is on.
    #[serde(default)]
    pub(crate) mig: bool,
}

/// GPU time that a process used, by a source that counts in processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// The process.
    pub(crate) pid: u32,
    /// Since it was first seen.
    pub(crate) used: Micros,
    /// The moment for which it holds, on the monotonic clock.
    pub(crate) at: Micros,
}

/// Where it is learnt.
pub(crate) trait Telemetry: Send {
    /// Every GPU of this host that answers.
    ///
    /// # Errors
    /// [`TelemetryError`].
    fn cards(&mut self) -> Result<Vec<Card>, TelemetryError>;

    /// Bytes in use on `gpu`, by whomever, and all that it has; `None` where they are not told. Of
    /// what [`Telemetry::cards`] tells only this changes, and it is asked for each second.
    ///
    /// # Errors
    /// [`TelemetryError`].
    fn memory(&mut self, gpu: &GpuId) -> Result<Option<[Bytes; 2]>, TelemetryError>;

    /// Bytes in use by each process on `gpu`; `None` where they are not told.
    ///
    /// # Errors
    /// [`TelemetryError`].
    fn processes(&mut self, gpu: &GpuId) -> Result<BTreeMap<u32, Option<Bytes>>, TelemetryError>;

    /// The MPS clients on `gpu`.
    ///
    /// # Errors
    /// [`TelemetryError`].
    fn mps(&mut self, gpu: &GpuId) -> Result<Vec<u32>, TelemetryError>;

    /// GPU time by process, for where context switches cannot be traced.
    ///
    /// # Errors
    /// [`TelemetryError`].
    fn used(&mut self, gpu: &GpuId) -> Result<Vec<Used>, TelemetryError>;

    /// How often that changes.
    fn period(&self) -> Micros;

    /// What that source is, in a few words for people.
    fn source(&self) -> &'static str;
}

/// What processes hold is asked for this often where no count says that it changed: some of it,
/// managed memory for one, may not show there.
const HOLDINGS: Micros = Micros(10_000_000);

/// What each process holds of each GPU's memory. NVML takes 35 us a process to tell, so it is
/// asked when the driver's count of objects has moved, or the version of the broker's books.
#[derive(Debug, Default)]
pub(crate) struct Holdings(BTreeMap<GpuId, Held>);

#[derive(Debug)]
struct Held {
    count: Option<ClientDatabase>,
    /// The version of the broker's books before NVML was asked, where it was known.
    version: Option<u64>,
    at: Micros,
    of: BTreeMap<u32, Option<Bytes>>,
}

impl Holdings {
    /// The bytes in use by each process on `gpu`, as of the time when the driver's count was
    /// `count` and the books had `version`, if that matters; nothing where they are not told.
    pub(crate) fn on(
        &mut self,
        gpu: &GpuId,
        count: Option<ClientDatabase>,
        version: Option<u64>,
        now: Micros,
        telemetry: &mut dyn Telemetry,
    ) -> &BTreeMap<u32, Option<Bytes>> {
        let ask = |telemetry: &mut dyn Telemetry| Held {
            count,
            version,
            at: now,
            of: telemetry.processes(gpu).unwrap_or_default(),
        };
        let held = match self.0.entry(gpu.clone()) {
            Entry::Vacant(entry) => entry.insert(ask(telemetry)),
            Entry::Occupied(entry) => {
                let held = entry.into_mut();
                let same = count.is_some()
                    && held.count == count
                    && (version.is_none() || held.version == version);
                if !same || now.since(held.at) >= HOLDINGS {
                    *held = ask(telemetry);
                }
                held
            }
        };
        &held.of
    }
}

/// NVML of the loaded driver.
pub(crate) struct NvmlTelemetry {
    nvml: Nvml,
    /// For each GPU the last sample seen, and what each process used.
    seen: BTreeMap<GpuId, (u64, BTreeMap<u32, Used>)>,
}

/// A sample of utilization holds for the time since the one before, unless that is too long ago.
const LONGEST_SAMPLE_US: u64 = 1_000_000;

impl NvmlTelemetry {
    pub(crate) fn open() -> Result<Self, TelemetryError> {
        // The name without a number is there only where one compiles against it.
        let nvml = Nvml::builder()
            .lib_path("libnvidia-ml.so.1".as_ref())
            .init()?;
        Ok(Self {
            nvml,
            seen: BTreeMap::new(),
        })
    }
}

impl Telemetry for NvmlTelemetry {
    fn cards(&mut self) -> Result<Vec<Card>, TelemetryError> {
        let count = self.nvml.device_count()?;
        let card = |index| -> Result<Card, NvmlError> {
            let device = self.nvml.device_by_index(index)?;
            let memory = device.memory_info();
            Ok(Card {
                uuid: device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?,
                index,
                pci: device.pci_info()?.bus_id,
                name: device.name()?,
                memory_total: Bytes(memory.as_ref().map_or(0, |m| m.total)),
                memory_used: memory.ok().map(|m| Bytes(m.used)),
                minor: device.minor_number().ok(),
                // A GPU that cannot have MIG says that it does not know.
                mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
            })
        };
        let cards = (0..count).filter_map(|index| {
            card(index)
                .inspect_err(|error| tracing::warn!(index, %error, "gpu does not answer nvml"))
                .ok()
        });
        Ok(cards.collect())
    }

    fn memory(&mut self, gpu: &GpuId) -> Result<Option<[Bytes; 2]>, TelemetryError> {
        match self.nvml.device_by_uuid(gpu.as_str())?.memory_info() {
            Ok(memory) => Ok(Some([Bytes(memory.used), Bytes(memory.total)])),
            // One that shares the host's memory has none of its own.
            Err(NvmlError::NotSupported) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn processes(&mut self, gpu: &GpuId) -> Result<BTreeMap<u32, Option<Bytes>>, TelemetryError> {
        let device = self.nvml.device_by_uuid(gpu.as_str())?;
        let listed = device.running_compute_processes()?.into_iter();
        Ok(listed
            .map(|process| {
                let memory = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                    UsedGpuMemory::Unavailable => None,
                };
                (process.pid, memory)
            })
            .collect())
    }

    fn mps(&mut self, gpu: &GpuId) -> Result<Vec<u32>, TelemetryError> {
        let device = self.nvml.device_by_uuid(gpu.as_str())?;
        let listed = device.mps_running_compute_processes()?;
        Ok(listed.into_iter().map(|process| process.pid).collect())
    }

    fn used(&mut self, gpu: &GpuId) -> Result<Vec<Used>, TelemetryError> {
        let device = self.nvml.device_by_uuid(gpu.as_str())?;
        let (last, used) = self.seen.entry(gpu.clone()).or_default();
        let mut samples = match device.process_utilization_stats(*last) {
            Ok(samples) => samples,
            // No process used it since.
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        samples.sort_unstable_by_key(|sample| sample.timestamp);
        let behind = clock::realtime().since(clock::now());
        for sample in samples.iter().filter(|sample| sample.timestamp > *last) {
            let at = Micros(sample.timestamp.saturating_sub(behind.0));
            let entry = used.entry(sample.pid).or_insert(Used {
                pid: sample.pid,
                used: Micros::ZERO,
                at,
            });
            let span = at.since(entry.at).0.min(LONGEST_SAMPLE_US);
            entry.used = entry.used + Micros(span * u64::from(sample.sm_util.min(100)) / 100);
            entry.at = at;
        }
        if let Some(newest) = samples.last() {
            *last = newest.timestamp;
        }
        Ok(used.values().copied().collect())
    }

    fn period(&self) -> Micros {
        Micros(200_000)
    }

    fn source(&self) -> &'static str {
        "nvml process utilization (an estimate: one sample each 200 ms)"
    }
}

/// A file that a stand-in for the driver keeps.
pub(crate) struct FileTelemetry {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Document {
    gpus: Vec<Card>,
    processes: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    gpu: GpuId,
    pid: u32,
    memory: Option<Bytes>,
    used_us: Micros,
    mps: bool,
}

impl FileTelemetry {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<Document, TelemetryError> {
        let text = fs::read(&self.path).map_err(|source| TelemetryError::Read {
            path: self.path.clone(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| TelemetryError::Parse {
            path: self.path.clone(),
            source,
        })
    }

    fn listed(&self, gpu: &GpuId) -> Result<impl Iterator<Item = Listed>, TelemetryError> {
        let all = self.read()?.processes.into_iter();
        Ok(all.filter(move |process| process.gpu == *gpu))
    }
}

impl Telemetry for FileTelemetry {
    fn cards(&mut self) -> Result<Vec<Card>, TelemetryError> {
        Ok(self.read()?.gpus)
    }

    fn memory(&mut self, gpu: &GpuId) -> Result<Option<[Bytes; 2]>, TelemetryError> {
        let mut cards = self.read()?.gpus.into_iter();
        let card = cards.find(|card| card.uuid == *gpu);
        Ok(card.and_then(|card| Some([card.memory_used?, card.memory_total])))
    }

    fn processes(&mut self, gpu: &GpuId) -> Result<BTreeMap<u32, Option<Bytes>>, TelemetryError> {
        Ok(self.listed(gpu)?.map(|p| (p.pid, p.memory)).collect())
    }

    fn mps(&mut self, gpu: &GpuId) -> Result<Vec<u32>, TelemetryError> {
        Ok(self.listed(gpu)?.filter(|p| p.mps).map(|p| p.pid).collect())
    }

    fn used(&mut self, gpu: &GpuId) -> Result<Vec<Used>, TelemetryError> {
        let at = clock::now();
        let used = |p: Listed| Used {
            pid: p.pid,
            used: p.used_us,
            at,
        };
        Ok(self.listed(gpu)?.map(used).collect())
    }

    fn period(&self) -> Micros {
        Micros::ZERO
    }

    fn source(&self) -> &'static str {
        "the stand-in's own count"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One process, which holds a byte more each time that it is asked about.
    struct Growing(u64);

    impl Telemetry for Growing {
        fn cards(&mut self) -> Result<Vec<Card>, TelemetryError> {
            Ok(Vec::new())
        }

        fn memory(&mut self, _: &GpuId) -> Result<Option<[Bytes; 2]>, TelemetryError> {
            Ok(None)
        }

        fn processes(&mut self, _: &GpuId) -> Result<BTreeMap<u32, Option<Bytes>>, TelemetryError> {
            self.0 += 1;
            Ok(BTreeMap::from([(7, Some(Bytes(self.0)))]))
        }

        fn mps(&mut self, _: &GpuId) -> Result<Vec<u32>, TelemetryError> {
            Ok(Vec::new())
        }

        fn used(&mut self, _: &GpuId) -> Result<Vec<Used>, TelemetryError> {
            Ok(Vec::new())
        }

        fn period(&self) -> Micros {
            Micros::ZERO
        }

        fn source(&self) -> &'static str {
            "a test"
        }
    }

    #[test]
    fn what_is_held_is_asked_for_when_a_count_moves_or_is_not_known() {
        let gpu: GpuId = "GPU-00000000-0000-0000-0000-000000000001".parse().unwrap();
        let (mut holdings, mut telemetry) = (Holdings::default(), Growing(0));
        let mut held_at = |resources: Option<u64>, version, at| {
            let count = resources.map(|resources| ClientDatabase {
                clients: 1,
                pad: 0,
                resources,
            });
            holdings.on(&gpu, count, version, Micros(at), &mut telemetry)[&7]
        };
        let mut held = |resources, at| held_at(resources, None, at);
        assert_eq!(held(Some(5), 0), Some(Bytes(1)));
        assert_eq!(held(Some(5), 9_000_000), Some(Bytes(1)));
        assert_eq!(held(Some(6), 9_000_001), Some(Bytes(2)));
        assert_eq!(held(Some(6), 19_000_001), Some(Bytes(3)));
        assert_eq!(held(None, 19_000_002), Some(Bytes(4)));
        assert_eq!(held(None, 19_000_003), Some(Bytes(5)));
        assert_eq!(held_at(Some(6), Some(3), 19_000_004), Some(Bytes(6)));
        assert_eq!(held_at(Some(6), Some(3), 19_000_005), Some(Bytes(6)));
        assert_eq!(held_at(Some(6), None, 19_000_006), Some(Bytes(6)));
        assert_eq!(held_at(Some(6), Some(4), 19_000_007), Some(Bytes(7)));
    }
}
