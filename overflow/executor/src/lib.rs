//! `ghost-executor`: computes for a program of another host. One process serves one client, so
//! that what belongs to it goes with the process, and no client touches another.

pub mod args;
mod calls;
mod copies;
mod dispatch;
pub mod driver;
mod handles;
mod images;
mod kinds;
mod link;
pub mod listen;
mod nvml;
mod output;
pub mod session;
mod shared;
mod staging;
mod waits;

/// Reads a command as a session does, as far as that goes without a driver; for tests.
///
/// # Errors
/// Why the command ends the session.
pub fn read(number: ghost_wire::Op, body: &[u8]) -> Result<(), String> {
    dispatch::read(number, body)
}
