//! Contexts: the stack of each thread, primary contexts, those that a program makes.

use ghost_wire::result::Code;

/// The context as the wire has it: its id for the handle that the program holds.
pub(crate) fn wire(handle: u64) -> Result<u64, Code> {
    Ok(handle)
}
