//! Memory: allocations, copies, pinned and shared memory, attributes of pointers.

mod alloc;
mod boxes;
mod copy;

mod globals;
mod host;
mod ipc;
mod map;
mod memset;
mod merge;
mod pointer;
mod reserve;
mod shared;

pub(crate) use alloc::*;
pub(crate) use boxes::*;
pub(crate) use copy::*;

pub(crate) use globals::*;
pub(crate) use host::*;
pub(crate) use ipc::*;
pub(crate) use memset::*;
pub(crate) use pointer::*;
pub(crate) use shared::{changed, publish};

use ghost_wire::result::{Code, INVALID_VALUE, SUCCESS};

/// Writes a result of the program's.
///
/// # Safety
/// `to` is null or room for it.
pub(crate) unsafe fn tell<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the program's own room.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// As [`tell`], but null where the program does not care.
///
/// # Safety
/// As there.
pub(crate) unsafe fn tell_maybe<T>(to: *mut T, value: T) {
    // SAFETY: the caller's promise; null is no error here.
    let _ = unsafe { tell(to, value) };
}

/// A code as a result.
pub(crate) fn done(code: Code) -> Result<(), Code> {
    match code {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}
