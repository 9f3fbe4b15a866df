//! What the backends for NVIDIA's driver, modified or not, have in common.
//!
//! | module | what |
//! | --- | --- |
//! | `inventory` | the GPUs, and why some are refused |
//! | `telemetry` | what NVML is asked for, or the file that stands for it |
//! | `meter`, `ledger` | who used the GPU |
//! | `clock` | moments |

pub(crate) mod clock;
pub(crate) mod inventory;
mod ledger;
pub(crate) mod meter;
pub(crate) mod telemetry;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use ghost_model::GpuState;
use ghost_rm::{AllocForm, BranchError, DriverVersion, Session, SessionError};

use inventory::Board;
use meter::Meter;
use telemetry::{FileTelemetry, NvmlTelemetry, Telemetry};

pub use telemetry::TelemetryError;

/// Where the driver is. A stand-in for it has all of this in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Directory of `nvidiactl` and `nvidia0`…
    pub dev: PathBuf,
    /// Directory of `version` and `gpus`.
    pub proc_nvidia: PathBuf,
    /// File that stands for NVML; `None` for NVML itself.
    pub telemetry: Option<PathBuf>,
    /// Socket of the guardian; that of its broker, `broker.sock`, lies beside it.
    pub guardian: PathBuf,
}

impl Roots {
    /// Those of this host's driver.
    pub fn host() -> Self {
        Self {
            dev: "/dev".into(),
            proc_nvidia: "/proc/driver/nvidia".into(),
            telemetry: None,
            guardian: "/run/ghost/guardian.sock".into(),
        }
    }

    /// Those of a stand-in mounted at `dir`.
    pub fn standin(dir: PathBuf, guardian: PathBuf) -> Self {
        Self {
            proc_nvidia: dir.join("proc/driver/nvidia"),
            telemetry: Some(dir.join("telemetry.json")),
            dev: dir,
            guardian,
        }
    }
}

/// Why there is nothing to drive.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The driver's version cannot be read.
    #[error("{path}: cannot read the driver's version; is the nvidia driver loaded?")]
    Version {
        /// The file.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The version is none.
    #[error("cannot tell the driver's version")]
    Branch(#[source] BranchError),
    /// NVML cannot be had.
    #[error("cannot list the gpus")]
    Telemetry(#[from] TelemetryError),
    /// The resource manager cannot be had.
    #[error("cannot reach the driver's resource manager")]
    Session(#[from] SessionError),
}

/// The driver of this host and its GPUs.
pub(crate) struct Host {
    pub(crate) driver: DriverVersion,
    pub(crate) telemetry: Box<dyn Telemetry>,
    /// `None` where the driver is refused, and not asked anything.
    pub(crate) session: Option<Session>,
    /// In the order of their ids, as samples have them.
    pub(crate) boards: Vec<Board>,
}

impl Host {
    /// Looks at what is there. GPUs that cannot be shared are refused one by one, all of them
    /// where the driver's branch is not known.
    ///
    /// # Errors
    /// [`HostError`], if there is no driver at all.
    pub(crate) fn open(roots: &Roots) -> Result<Self, HostError> {
        let text = inventory::driver_version(&roots.proc_nvidia).map_err(|source| {
            let path = roots.proc_nvidia.join("version");
            HostError::Version { path, source }
        })?;
        let driver: DriverVersion = text.parse().map_err(HostError::Branch)?;
        let mut telemetry: Box<dyn Telemetry> = match &roots.telemetry {
            Some(path) => Box::new(FileTelemetry::new(path.clone())),
            None => Box::new(NvmlTelemetry::open()?),
        };
        let cards = telemetry.cards()?;
        let (boards, session) = match driver.branch() {
            Ok(branch) => {
                let mut session = Session::open(&roots.dev, branch.alloc)?;
                let boards = open_boards(roots, branch.alloc, &cards, &mut session);
                (boards, Some(session))
            }
            Err(error) => {
                let refuse = |card| inventory::refused(card, error.to_string());
                (cards.iter().map(refuse).collect(), None)
            }
        };
        Ok(Self {
            driver,
            telemetry,
            session,
            boards,
        })
    }
}

fn open_boards(
    roots: &Roots,
    form: AllocForm,
    cards: &[telemetry::Card],
    session: &mut Session,
) -> Vec<Board> {
    let attached = session.attached().unwrap_or_else(|error| {
        tracing::warn!(%error, "the driver does not list its gpus");
        Vec::new()
    });
    let minors = inventory::minors(&roots.proc_nvidia);
    let mut boards: Vec<Board> = cards
        .iter()
        .map(|card| {
            let meter = |gpu| Meter::open(&roots.dev, form, gpu);
            match inventory::drive(card, session, &attached, &minors, meter) {
                Ok(driven) => Board {
                    info: inventory::info_of(card, GpuState::Shared),
                    driven: Some(driven),
                },
                Err(reason) => inventory::refused(card, reason),
            }
        })
        .collect();
    boards.sort_by(|a, b| a.info.id.cmp(&b.info.id));
    boards
}

/// Asks how much of each GPU's memory is in use.
pub(crate) fn read_memory(boards: &mut [Board], telemetry: &mut dyn Telemetry) {
    for board in boards {
        let gpu = &board.info.id;
        let memory = telemetry.memory(gpu).unwrap_or_else(|error| {
            tracing::warn!(%gpu, %error, "the gpu's memory is not known");
            None
        });
        board.info.memory_used = memory.map(|[used, _]| used);
        if let Some([_, total]) = memory {
            board.info.memory_total = total;
        }
    }
}

/// How GPU time is measured, for people, and what keeps it from being measured well.
pub(crate) fn meters<'a>(
    boards: &'a [Board],
    telemetry: &dyn Telemetry,
) -> (String, BTreeSet<&'a str>) {
    let driven = boards.iter().filter_map(|board| board.driven.as_ref());
    let meters: BTreeSet<&str> = driven
        .clone()
        .map(|driven| match driven.meter {
            Meter::ContextSwitches(_) => "context switches, exact under contention",
            Meter::Telemetry(_) => telemetry.source(),
        })
        .collect();
    let problems = driven
        .flat_map(|driven| [driven.note.as_deref(), driven.meter.problem()])
        .flatten();
    (
        meters.into_iter().collect::<Vec<_>>().join("; "),
        problems.collect(),
    )
}
