//! Ghost's words and units: what a container is called, which keys it has, how each value is
//! parsed and printed, what a backend reports and what a policy asks for.
//!
//! Everything here is data. There are no clocks, files or sockets; time is always an argument.
#![forbid(unsafe_code)]

pub mod backend;
pub mod config;
pub mod gpu;
pub mod key;
pub mod memory;
pub mod name;
pub mod plan;
pub mod problem;
pub mod process;
pub mod report;
pub mod sample;
#[cfg(feature = "schema")]
mod schema;
pub mod spec;
pub mod units;
pub mod value;

pub use backend::{BackendKind, Capabilities, Enforcer};
pub use gpu::{GpuId, GpuInfo, GpuState};
pub use key::Key;
pub use memory::{MemoryEvents, MemoryLimits, MemorySeen, MemoryUse, MemoryWanted};
pub use name::Name;
pub use plan::{Action, Plan};
pub use problem::{ExitCode, Kind, Problem};
pub use process::{Members, Membership, ProcId};
pub use sample::{GpuSample, GroupId, GroupSample, Reading, Sample};
pub use spec::Spec;
pub use units::{Bytes, Micros};
pub use value::{Budget, Latency, Limit, Value, Weight};
