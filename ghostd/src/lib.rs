//! `ghostd`: takes what people ask for, keeps it, and holds it on the GPUs of this host.
//!
//! `file / ghostctl / REST -> core -> store`, then
//! `control loop { sample -> policy -> backend }`, then status, metrics and events.
#![forbid(unsafe_code)]

pub mod caller;
pub mod config;
pub mod control;
pub mod core;
pub mod daemon;
pub mod events;
pub mod http;
pub mod journal;
mod memory;
pub mod metrics;
pub mod notify;
pub mod overflow;
pub mod proc;
pub mod socket;
pub mod store;
pub mod view;
