//! Memory that processes share whose work is at the same peer. Each has a process of its own there,
//! and the far driver's handles go between those: they are handed on as they are.

use super::map::{self, What};
use super::{done, reserve, tell};
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::kind::Bytes;
use ghost_wire::result::{Code, INVALID_VALUE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether this process has shared or opened memory: then others may see what it does.
static WITH_OTHERS: AtomicBool = AtomicBool::new(false);

/// Makes of a call to the far side and its entry in the map one step.
static ONE: Mutex<()> = Mutex::new(());

/// Whether another process may see memory of this one.
pub(super) fn with_others() -> bool {
    WITH_OTHERS.load(Ordering::Acquire)
}

pub(crate) unsafe extern "C" fn cuIpcGetMemHandle(to: *mut [u8; 64], at: u64) -> Code {
    // SAFETY: handed on.
    let code = unsafe { sent::cuIpcGetMemHandle(to, at) };
    if done(code).is_ok() {
        WITH_OTHERS.store(true, Ordering::Release);
    }
    code
}

/// Enters what was opened at `at`, and keeps its addresses free here.
fn enter(at: u64) -> Result<(), Code> {
    if map::write(|map| map.reopen(at, |opens| opens.saturating_add(1))) {
        return Ok(());
    }
    let (mut start, mut len) = (0, 0);
    // SAFETY: room for both.
    done(unsafe { sent::cuMemGetAddressRange_v2(&raw mut start, &raw mut len, at) })?;
    // Opened again, it would be at the same address.
    reserve::claim(start, len)?;
    map::write(|map| map.insert(map::range(start, len, What::Opened { opens: 1 })));
    Ok(())
}

pub(crate) unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    to: *mut u64,
    handle: Bytes<64>,
    flags: u32,
) -> Code {
    let opened = || {
        link()?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        // SAFETY: room for an address.
        done(unsafe { sent::cuIpcOpenMemHandle_v2(&raw mut at, handle, flags) })?;
        WITH_OTHERS.store(true, Ordering::Release);
        enter(at).inspect_err(|_| {
            // SAFETY: no pointer in it.
            unsafe { sent::cuIpcCloseMemHandle(at) };
        })?;
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, at) }
    };
    answer(opened())
}

pub(crate) unsafe extern "C" fn cuIpcOpenMemHandle(
    to: *mut u64,
    handle: Bytes<64>,
    flags: u32,
) -> Code {
    // SAFETY: handed on.
    unsafe { cuIpcOpenMemHandle_v2(to, handle, flags) }
}

pub(crate) unsafe extern "C" fn cuIpcCloseMemHandle(at: u64) -> Code {
    let closed = || {
        link()?;
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuIpcCloseMemHandle(at) })?;
        map::write(|map| map.reopen(at, |opens| opens.saturating_sub(1)));
        Ok(())
    };
    answer(closed())
}
