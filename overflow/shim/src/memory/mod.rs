//! Memory: allocations, copies, pinned and shared memory, attributes of pointers.

/// The device changed shared memory.
pub(crate) fn changed(_at: u64, _data: &[u8]) {}
