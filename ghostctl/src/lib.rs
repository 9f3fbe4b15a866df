//! `ghostctl`: asks ghostd over its unix socket, prints what it says, and starts programs in
//! containers. It decides nothing and enforces nothing.
#![forbid(unsafe_code)]

pub mod assign;
pub mod cgroup;
pub mod cli;
pub mod client;
mod commands;
pub mod complete;
pub mod error;
pub mod keys;
pub mod output;
pub mod share;

pub use commands::execute;
