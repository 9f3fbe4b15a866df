//! What the scripts in `ci/` call: the demo, the benches, the device suite and the generators.
#![forbid(unsafe_code)]

pub mod bench;
pub mod checks;
pub mod demo;
pub mod device;
pub mod generate;
pub mod loads;
pub mod node;
pub mod scale;
