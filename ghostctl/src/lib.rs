//! `ghostctl`: asks ghostd over its unix socket, prints what it says, and starts programs in
//! containers. It decides nothing and enforces nothing: it puts the filter before a program through
//! which others hold its memory.
#![forbid(unsafe_code)]

pub mod assign;
pub mod cgroup;
pub mod cli;
pub mod client;
mod commands;
pub mod complete;
pub mod error;
pub mod keys;
mod notify;
pub mod output;
mod overflow;
pub mod profile;
pub mod share;

pub use commands::execute;
