//! What is fuzzed: one function for each parser that takes bytes from outside. A function panics
//! if the parser does, or if what was read and printed is not read back as the same.
//!
//! The targets in `fuzz/` call these with what libFuzzer makes up; `tests/corpus.rs` calls them
//! with the files below `corpus/`.
#![forbid(unsafe_code)]

mod guardian;
mod host;
mod notify;
mod overflow;
mod ptx;
mod rm;
mod settings;
mod sim;
mod store;
mod wire;

pub use guardian::{broker_frame, guardian_frame, guardian_journal, guardian_ledger};
pub use host::{cgroup_files, driver_version, proc_stat};
pub use notify::notify_state;
pub use overflow::overflow_hello;
pub use ptx::ptx;
pub use rm::{card_answer, tenant_call};
pub use settings::{assignments, container_file, spec, value};
pub use sim::sim_wire;
pub use store::store_log;
pub use wire::wire_command;

/// A target.
pub type Target = fn(&[u8]);

/// Every target by name, which is also the name of its directory below `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("assignments", assignments),
    ("broker_frame", broker_frame),
    ("card_answer", card_answer),
    ("cgroup_files", cgroup_files),
    ("container_file", container_file),
    ("driver_version", driver_version),
    ("guardian_frame", guardian_frame),
    ("guardian_journal", guardian_journal),
    ("guardian_ledger", guardian_ledger),
    ("notify_state", notify_state),
    ("overflow_hello", overflow_hello),
    ("proc_stat", proc_stat),
    ("ptx", ptx),
    ("sim_wire", sim_wire),
    ("spec", spec),
    ("store_log", store_log),
    ("tenant_call", tenant_call),
    ("value", value),
    ("wire_command", wire_command),
];
