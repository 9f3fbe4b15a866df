//! The policy of Ghost: a pure function from what people want and what a backend saw to what
//! is to be done. It has no clock, reads and writes nothing, and is the same for every backend.
//!
//! ```
//! use ghost_policy::{Desired, Memory, step};
//! use ghost_model::Sample;
//!
//! let (memory, plan) = step(Memory::default(), &Desired::default(), &Sample::default());
//! assert!(plan.actions.is_empty());
//! assert!(memory.stats().is_empty());
//! ```
//!
//! How time is shared: a GPU's scheduler gives the channel groups that have work, in turn, their
//! timeslice. A container's slice is a part of a [round](round::best), by `gpu.weight` among the
//! siblings that have work, level by level. A container that has processes of its own and
//! containers below it competes with those as one more of weight 100. A container that uses more
//! of a GPU's memory than `gpu.memory.high` counts among its siblings there with a tenth of its
//! weight, with all below it, until it uses less; nobody else's share is smaller for it, and
//! alone it has the GPU all the same. `gpu.max` is a token
//! [bucket](Bucket) that pauses its whole subtree where it is empty; see [`tuning`] for the
//! numbers and [`invariant`] for what always holds.
#![forbid(unsafe_code)]

mod activity;
pub mod budget;
mod feedback;
mod idle;
pub mod invariant;
mod latency;
mod memory;
pub mod round;
pub mod share;
mod step;
mod tree;
pub mod tuning;

pub use budget::Bucket;
pub use memory::{ContainerStat, Memory};
pub use step::{Desired, step};
