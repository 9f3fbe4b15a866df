//! What the program may ask of an address.

use super::map::{self, Range, What};
use super::{done, host, tell};
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::result::{Code, INVALID_VALUE, NOT_SUPPORTED};

/// `CUpointer_attribute`.
mod attribute {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const SYNC_MEMOPS: u32 = 6;
    pub(super) const BUFFER_ID: u32 = 7;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const IS_IPC_CAPABLE: u32 = 10;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
    pub(super) const ALLOWED_HANDLES: u32 = 14;
    pub(super) const IS_RDMA_CAPABLE: u32 = 15;
    pub(super) const ACCESS: u32 = 16;
    pub(super) const POOL: u32 = 17;
    pub(super) const MAPPING_SIZE: u32 = 18;
    pub(super) const MAPPING_BASE: u32 = 19;
    pub(super) const BLOCK_ID: u32 = 20;
    pub(super) const IS_DECOMPRESS_CAPABLE: u32 = 21;
}

const HOST: u64 = 1;
const DEVICE: u64 = 2;
const READ_WRITE: u64 = 3;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: i32 = -2;

/// How many bytes an attribute has.
fn size(what: u32) -> Result<usize, Code> {
    use attribute::*;
    match what {
        CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE
        | ALLOWED_HANDLES | POOL | MAPPING_SIZE | MAPPING_BASE | BLOCK_ID => Ok(8),
        MEMORY_TYPE
        | SYNC_MEMOPS
        | IS_MANAGED
        | DEVICE_ORDINAL
        | IS_IPC_CAPABLE
        | MAPPED
        | IS_RDMA_CAPABLE
        | ACCESS
        | IS_DECOMPRESS_CAPABLE => Ok(4),
        5 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

/// An attribute of the address `at` in `range`; `window` asks for the device's address of host
/// memory.
fn value(
    what: u32,
    range: &Range,
    at: u64,
    window: impl FnOnce(u64) -> Result<u64, Code>,
) -> Result<u64, Code> {
    use attribute::*;
    let offset = at.saturating_sub(range.start);
    Ok(match what {
        CONTEXT => range.context,
        MEMORY_TYPE => match range.what {
            What::Pinned { .. } | What::Registered { .. } | What::Window { .. } => HOST,
            _ => DEVICE,
        },
        DEVICE_POINTER if range.is_host() => window(at)?,
        DEVICE_POINTER => at,
        HOST_POINTER => match range.what {
            What::Window { host } => host.saturating_add(offset),
            What::Pinned { .. } | What::Registered { .. } | What::Managed => at,
            _ => return Err(INVALID_VALUE),
        },
        SYNC_MEMOPS => range.sync.into(),
        BUFFER_ID | BLOCK_ID => range.id,
        IS_MANAGED => (range.what == What::Managed).into(),
        DEVICE_ORDINAL => range.device.cast_unsigned().into(),
        RANGE_START | MAPPING_BASE => range.start,
        RANGE_SIZE | MAPPING_SIZE => range.len,
        MAPPED => 1,
        IS_IPC_CAPABLE if range.what.is_there() => {
            let mut is = 0;
            // SAFETY: room for the attribute.
            done(unsafe { sent::cuPointerGetAttribute(&raw mut is, what, at) })?;
            is.into()
        }
        IS_IPC_CAPABLE | ALLOWED_HANDLES | IS_RDMA_CAPABLE | IS_DECOMPRESS_CAPABLE => 0,
        ACCESS => READ_WRITE,
        POOL => match range.what {
            What::Device { pool } => pool,
            _ => 0,
        },
        _ => return Err(INVALID_VALUE),
    })
}

/// Writes an attribute of `len` bytes.
///
/// # Safety
/// `to` is null or room for it.
unsafe fn put(to: *mut u8, value: u64, len: usize) -> Result<(), Code> {
    // SAFETY: handed on.
    unsafe {
        match len {
            4 => tell(to.cast(), value as u32),
            _ => tell(to.cast(), value),
        }
    }
}

pub(crate) unsafe extern "C" fn cuPointerGetAttribute(to: *mut u8, what: u32, at: u64) -> Code {
    let told = || {
        link()?;
        let len = size(what)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let range = map::find(at).ok_or(INVALID_VALUE)?;
        let value = value(what, &range, at, host::window)?;
        // SAFETY: not null, and room for the attribute.
        unsafe { put(to, value, len) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    what: *const u32,
    to: *const *mut u8,
    at: u64,
) -> Code {
    let told = || {
        link()?;
        if what.is_null() || to.is_null() {
            return Err(INVALID_VALUE);
        }
        let range = map::find(at);
        for n in 0..count as usize {
            // SAFETY: not null, and `count` items each.
            let (what, to) = unsafe { (what.add(n).read_unaligned(), to.add(n).read_unaligned()) };
            let len = size(what)?;
            // Asked for all attributes at once, as the runtime does to learn what an address is,
            // pinned memory is not shared for that.
            let window = |at| {
                Ok(range.map_or(at, |r| match r.window {
                    0 => at,
                    window => window + (at - r.start),
                }))
            };
            let none = match what {
                attribute::DEVICE_ORDINAL => NO_DEVICE.cast_unsigned().into(),
                _ => 0,
            };
            let value = range.as_ref().map(|range| value(what, range, at, window));
            // SAFETY: the program's room for the attribute.
            unsafe { put(to, value.and_then(Result::ok).unwrap_or(none), len) }?;
        }
        Ok(())
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuPointerSetAttribute(
    value: *const u32,
    what: u32,
    at: u64,
) -> Code {
    let set = || {
        link()?;
        if value.is_null() || what != attribute::SYNC_MEMOPS {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the attribute's four bytes.
        let on = unsafe { value.read_unaligned() } != 0;
        match map::write(|map| map.change(at, |range| range.sync = on)) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        }
    };
    answer(set())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(what: u32, range: &Range, at: u64) -> Result<u64, Code> {
        value(what, range, at, |at| Ok(at + 0x10_0000))
    }

    #[test]
    fn an_address_is_told_by_its_range() {
        let device = map::range(0x1000, 0x100, What::Device { pool: 5 });
        assert_eq!(of(attribute::MEMORY_TYPE, &device, 0x1010), Ok(DEVICE));
        assert_eq!(of(attribute::RANGE_START, &device, 0x1010), Ok(0x1000));
        assert_eq!(of(attribute::RANGE_SIZE, &device, 0x1010), Ok(0x100));
        assert_eq!(of(attribute::DEVICE_POINTER, &device, 0x1010), Ok(0x1010));
        assert_eq!(
            of(attribute::HOST_POINTER, &device, 0x1010),
            Err(INVALID_VALUE)
        );
        assert_eq!(of(attribute::POOL, &device, 0x1010), Ok(5));

        let pinned = map::range(0x1000, 0x100, What::Pinned { flags: 0 });
        assert_eq!(of(attribute::MEMORY_TYPE, &pinned, 0x1010), Ok(HOST));
        assert_eq!(
            of(attribute::DEVICE_POINTER, &pinned, 0x1010),
            Ok(0x10_1010)
        );
        assert_eq!(of(attribute::HOST_POINTER, &pinned, 0x1010), Ok(0x1010));

        let window = map::range(0x2000, 0x100, What::Window { host: 0x1000 });
        assert_eq!(of(attribute::HOST_POINTER, &window, 0x2010), Ok(0x1010));
        let managed = map::range(0x3000, 0x100, What::Managed);
        assert_eq!(of(attribute::IS_MANAGED, &managed, 0x3000), Ok(1));
    }

    #[test]
    fn each_attribute_has_a_size() {
        assert_eq!(size(attribute::CONTEXT), Ok(8));
        assert_eq!(size(attribute::DEVICE_ORDINAL), Ok(4));
        assert_eq!(
            (size(5), size(99)),
            (Err(NOT_SUPPORTED), Err(INVALID_VALUE))
        );
    }
}
