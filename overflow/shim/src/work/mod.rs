//! Work: modules, launches, streams, events, callbacks, graphs.

use ghost_wire::result::Code;

/// Runs the function of the program's that has this token.
pub(crate) fn callback(_token: u64, _code: Code) {}
