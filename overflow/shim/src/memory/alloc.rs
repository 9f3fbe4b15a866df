//! Memory of the device. Each address is the far device's own, and kept free here.

use super::map::{self, What};
use super::{done, reserve, shared, tell};
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::result::{Code, INVALID_VALUE, NOT_FOUND};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Asks for blocks until one is free on both sides, and enters it in the map.
fn allocate<T>(
    to: *mut u64,
    what: What,
    mut ask: impl FnMut(*mut u64) -> Code,
    len: impl Fn(&T) -> u64,
    more: impl Fn() -> T,
    give_back: impl FnMut(u64, u64),
) -> Result<T, Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let (at, (more, len)) = reserve::until_free(
        || {
            let mut at = 0;
            done(ask(&raw mut at))?;
            let more = more();
            let len = len(&more);
            Ok((at, len, (more, len)))
        },
        give_back,
    )?;
    map::write(|map| map.insert(map::range(at, len, what)));
    // SAFETY: not null, and the program's own room.
    unsafe { tell(to, at) }?;
    Ok(more)
}

/// As [`allocate`], where the length is known before.
fn allocate_len(
    to: *mut u64,
    len: usize,
    what: What,
    ask: impl FnMut(*mut u64) -> Code,
    give_back: impl FnMut(u64, u64),
) -> Code {
    let got = link().and_then(|_| allocate(to, what, ask, |()| len as u64, || (), give_back));
    answer(got)
}

fn free_block(at: u64, _: u64) {
    // SAFETY: no pointer in it.
    unsafe { sent::cuMemFree_v2(at) };
}

pub(crate) unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, len: usize) -> Code {
    allocate_len(
        to,
        len,
        What::Device { pool: 0 },
        // SAFETY: room for an address.
        |at| unsafe { sent::cuMemAlloc_v2(at, len) },
        free_block,
    )
}

pub(crate) unsafe extern "C" fn cuMemAllocPitch_v2(
    to: *mut u64,
    pitch: *mut u64,
    width: usize,
    height: usize,
    element: u32,
) -> Code {
    let allocated = || {
        link()?;
        if pitch.is_null() {
            return Err(INVALID_VALUE);
        }
        let got = std::cell::Cell::new(0_u64);
        let told = allocate(
            to,
            What::Device { pool: 0 },
            // SAFETY: room for both.
            |at| unsafe { sent::cuMemAllocPitch_v2(at, got.as_ptr(), width, height, element) },
            |pitch: &u64| pitch.saturating_mul(height as u64),
            || got.get(),
            free_block,
        )?;
        // SAFETY: not null, and the program's own room.
        unsafe { tell(pitch, told) }
    };
    answer(allocated())
}

pub(crate) unsafe extern "C" fn cuMemFree_v2(at: u64) -> Code {
    let freed = || {
        let link = link()?;
        if at == 0 {
            return Ok(());
        }
        let ours = |what| matches!(what, What::Device { .. } | What::Managed);
        let range = map::write(|map| map.remove(at, ours)).ok_or(INVALID_VALUE)?;
        if range.what == What::Managed {
            link.landed(at, range.len as usize)?;
            shared::end(at);
            reserve::unback(at, range.len);
            return shared::ask_end(at);
        }
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuMemFree_v2(at) })
    };
    answer(freed())
}

pub(crate) unsafe extern "C" fn cuMemAllocAsync<const PT: bool>(
    to: *mut u64,
    len: usize,
    stream: u64,
) -> Code {
    allocate_len(
        to,
        len,
        What::Device { pool: 0 },
        // SAFETY: room for an address.
        |at| unsafe { sent::cuMemAllocAsync::<PT>(at, len, stream) },
        |at, _| {
            // SAFETY: no pointer in it.
            unsafe { sent::cuMemFreeAsync::<PT>(at, stream) };
        },
    )
}

pub(crate) unsafe extern "C" fn cuMemAllocFromPoolAsync<const PT: bool>(
    to: *mut u64,
    len: usize,
    pool: u64,
    stream: u64,
) -> Code {
    allocate_len(
        to,
        len,
        What::Device { pool },
        // SAFETY: room for an address.
        |at| unsafe { sent::cuMemAllocFromPoolAsync::<PT>(at, len, pool, stream) },
        |at, _| {
            // SAFETY: no pointer in it.
            unsafe { sent::cuMemFreeAsync::<PT>(at, stream) };
        },
    )
}

pub(crate) unsafe extern "C" fn cuMemFreeAsync<const PT: bool>(at: u64, stream: u64) -> Code {
    let freed = || {
        link()?;
        let ours = |what| matches!(what, What::Device { .. });
        map::write(|map| map.remove(at, ours)).ok_or(INVALID_VALUE)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuMemFreeAsync::<PT>(at, stream) })
    };
    answer(freed())
}

pub(crate) unsafe extern "C" fn cuMemAddressReserve(
    to: *mut u64,
    len: usize,
    alignment: usize,
    wanted: u64,
    flags: u64,
) -> Code {
    allocate_len(
        to,
        len,
        What::Reserved,
        // SAFETY: room for an address.
        |at| unsafe { sent::cuMemAddressReserve(at, len, alignment, wanted, flags) },
        |at, len| {
            // SAFETY: no pointer in it.
            unsafe { sent::cuMemAddressFree(at, len as usize) };
        },
    )
}

pub(crate) unsafe extern "C" fn cuMemAddressFree(at: u64, len: usize) -> Code {
    let freed = || {
        link()?;
        map::write(|map| map.remove(at, |what| what == What::Reserved)).ok_or(INVALID_VALUE)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuMemAddressFree(at, len) })
    };
    answer(freed())
}

pub(crate) unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut u64,
    len: *mut usize,
    at: u64,
) -> Code {
    let told = || {
        link()?;
        let range = map::find(at).ok_or(NOT_FOUND)?;
        // SAFETY: null, or the program's own room.
        unsafe {
            super::tell_maybe(base, range.start);
            super::tell_maybe(len, range.len as usize);
        }
        Ok(())
    };
    answer(told())
}

/// The pools of devices that were asked for, by question and device. Guards them.
static POOLS: Mutex<Option<HashMap<(bool, i32), u64>>> = Mutex::new(None);

pub(crate) unsafe extern "C" fn cuDeviceGetDefaultMemPool(to: *mut u64, device: i32) -> Code {
    let told = || {
        link()?;
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = pools.get_or_insert_default();
        let pool = match pools.get(&(true, device)) {
            Some(pool) => *pool,
            None => {
                let mut pool = 0;
                // SAFETY: room for a handle.
                done(unsafe { sent::cuDeviceGetDefaultMemPool(&raw mut pool, device) })?;
                pools.insert((true, device), pool);
                pool
            }
        };
        // SAFETY: null, or the program's own room.
        unsafe { tell(to, pool) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuDeviceGetMemPool(to: *mut u64, device: i32) -> Code {
    // SAFETY: handed on.
    unsafe { sent::cuDeviceGetMemPool(to, device) }
}

/// The bytes of a pool's attribute: the first three are of 32 bits.
fn attribute_size(attribute: u32) -> Result<usize, Code> {
    match attribute {
        1..=3 => Ok(4),
        4..=8 => Ok(8),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: u64,
    attribute: u32,
    value: *const u8,
) -> Code {
    let set = || {
        link()?;
        let len = attribute_size(attribute)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut bytes = [0; 8];
        // SAFETY: not null, and as many bytes as the attribute has.
        unsafe { value.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        // SAFETY: eight bytes.
        done(unsafe { sent::cuMemPoolSetAttribute(pool, attribute, bytes.as_ptr()) })
    };
    answer(set())
}

pub(crate) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: u64,
    attribute: u32,
    value: *mut u8,
) -> Code {
    let told = || {
        link()?;
        let len = attribute_size(attribute)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut bytes = [0_u8; 8];
        // SAFETY: eight bytes.
        done(unsafe { sent::cuMemPoolGetAttribute(pool, attribute, &raw mut bytes) })?;
        // SAFETY: not null, and as many bytes as the attribute has.
        unsafe { value.copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Ok(())
    };
    answer(told())
}
