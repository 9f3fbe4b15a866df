//! How a load speaks with what simulates its GPU: a line of JSON each way. On a [`Server`]'s
//! socket a connection is a process; Ghost's stand-in for the driver takes the same lines.

use ghost_model::{Bytes, Micros};
use serde::{Deserialize, Serialize};

use super::gpu::{Group, Load};

/// The longest request, bytes.
pub const MAX_REQUEST: usize = 4096;

/// The most latencies in one answer; older ones are left out.
pub const MAX_LATENCIES: usize = 4096;

/// What a load asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Makes one more channel group with this work.
    Hello(Hello),
    /// How far its groups are.
    Progress,
    /// Sets the timeslice of its groups, as a tenant of a real driver may.
    Slice {
        /// Microseconds.
        us: u64,
    },
}

/// A load's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The GPU: a UUID, an index or a PCI address.
    pub gpu: String,
    /// Length of a kernel, microseconds; 0 for no work.
    pub kernel_us: u64,
    /// A kernel each so many microseconds; without it, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_us: Option<u64>,
    /// Work for so many microseconds, then none for so many, by turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty_us: Option<(u64, u64)>,
    /// Memory that it takes beside what its context takes, bytes. Beyond a limit it is refused,
    /// and the channel group with it.
    #[serde(default)]
    pub memory: Bytes,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To [`Request::Hello`] and [`Request::Slice`].
    Done,
    /// To [`Request::Progress`].
    Progress(Progress),
    /// It was not done, and why.
    Error(String),
}

/// How far the groups of a load are, together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Kernels completed.
    pub completed: u64,
    /// GPU time used, microseconds.
    pub used_us: u64,
    /// Launch to completion of the kernels since the last such answer, microseconds; only with a
    /// period.
    pub latencies_us: Vec<u64>,
}

impl Hello {
    /// The work as the model has it.
    pub fn load(&self) -> Load {
        let kernel = Micros(self.kernel_us);
        match (self.period_us, self.duty_us) {
            _ if self.kernel_us == 0 => Load::Idle,
            (Some(period), _) => Load::Periodic {
                kernel,
                period: Micros(period),
            },
            (None, Some((on, off))) => Load::Duty {
                kernel,
                on: Micros(on),
                off: Micros(off),
            },
            (None, None) => Load::Backlog { kernel },
        }
    }
}

impl Progress {
    /// Adds a group, of whose kernels the first `known` were reported before; counts those that
    /// are reported now.
    pub fn add(&mut self, group: &Group, known: &mut u64) {
        let new = usize::try_from(group.completed() - *known).unwrap_or(usize::MAX);
        let skip = group.latencies().len().saturating_sub(new);
        *known = group.completed();
        self.completed += group.completed();
        self.used_us += group.used().0;
        let room = MAX_LATENCIES.saturating_sub(self.latencies_us.len());
        let new = group.latencies().iter().skip(skip).map(|l| l.0);
        self.latencies_us.extend(new.take(room));
    }
}
