//! The process's session: from `cuInit` to its exit, and what becomes of it in a forked child.

use crate::link::Link;
use ghost_wire::result::{Code, NOT_INITIALIZED};
use ghost_wire::stats::Counter;
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

static LINK: OnceLock<Link> = OnceLock::new();

/// The link to the executor, once `cuInit` has opened it.
///
/// # Errors
/// What the call is to answer: not initialised (also in a forked child of a process that was),
/// at an end, or broken.
pub(crate) fn link() -> Result<&'static Link, Code> {
    LINK.get().ok_or(NOT_INITIALIZED)
}

/// Adds to one of the process's counters.
pub(crate) fn count(_counter: Counter, _by: u64) {}

/// A line for people, on stderr.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let line = format!("ghost: {line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
