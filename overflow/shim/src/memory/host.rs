//! Host memory that CUDA knows of: given out page-locked, registered, managed. Nothing is locked
//! here; the device sees such memory once its device address was asked for, or a kernel has its
//! address for an argument.

use super::map::{self, What};
use super::{reserve, shared, tell};
use crate::answer;
use crate::link::Link;
use crate::session::link;
use ghost_wire::result::{
    Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const PORTABLE: u32 = 1;
const DEVICE_MAP: u32 = 2;
const READ_ONLY: u32 = 8;
/// `CU_MEM_ATTACH_GLOBAL` and `CU_MEM_ATTACH_HOST`.
const ATTACH: [u32; 2] = [1, 2];

/// Page-locked memory is put from here on, where it seldom meets anything of the executor's: that
/// can have it at the same address then. A large page each, or several.
static NEXT: AtomicU64 = AtomicU64::new(0x4800_0000_0000);
const LARGE: u64 = 2 << 20;

/// All host memory that CUDA knows of, or knew of, is from the first to before the second.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Memory of the host's, zero, for the program.
fn map_memory(len: usize) -> Result<*mut u8, Code> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let room = (len as u64).checked_next_multiple_of(LARGE);
    let wanted = NEXT.fetch_add(room.ok_or(OUT_OF_MEMORY)?, Ordering::Relaxed);
    // SAFETY: new memory, there or wherever there is room.
    let at = unsafe { libc::mmap(wanted as *mut _, len, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    Ok(at.cast())
}

/// Takes note of host memory.
fn enter(map: &mut map::Map, at: u64, len: u64, what: What) {
    map.insert(map::range(at, len, what));
    LOWEST.fetch_min(at, Ordering::Release);
    HIGHEST.fetch_max(at.saturating_add(len), Ordering::Release);
}

/// Where host memory can be: a look before each launch, so it is quick.
#[inline]
pub(crate) fn host_bounds() -> Option<Range<u64>> {
    let bounds = LOWEST.load(Ordering::Acquire)..HIGHEST.load(Ordering::Acquire);
    (!bounds.is_empty()).then_some(bounds)
}

/// An argument of a kernel is the address `at` in the bounds of host memory. With one space for all
/// addresses a program may give it to the device as it is, so the device is shown it now.
#[cold]
pub(crate) fn show(at: u64) {
    if map::find(at).is_some_and(|range| range.is_host() && range.window == 0) {
        // Where that fails the kernel has an address that leads nowhere, and it may not follow it.
        let _ = window(at);
    }
}

fn allocate(to: *mut *mut u8, len: usize, flags: u32) -> Result<(), Code> {
    link()?;
    if to.is_null() || len == 0 || flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    if crate::thread::context().is_none() {
        return Err(ghost_wire::result::INVALID_CONTEXT);
    }
    let at = map_memory(len)?;
    // Everything is mapped and portable where all addresses are in one space.
    let flags = flags | DEVICE_MAP | PORTABLE;
    let what = What::Pinned { flags };
    map::write(|map| enter(map, at as u64, len as u64, what));
    // SAFETY: not null, and the program's own room.
    unsafe { tell(to, at) }
}

pub(crate) unsafe extern "C" fn cuMemAllocHost_v2(to: *mut *mut u8, len: usize) -> Code {
    answer(allocate(to, len, 0))
}

pub(crate) unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut u8, len: usize, flags: u32) -> Code {
    answer(allocate(to, len, flags))
}

/// Ends what the device sees of a range of host memory, after all that may still come there. An
/// error is an earlier one's: nothing comes there after this.
fn hide(link: &Link, range: &map::Range) -> Result<(), Code> {
    let landed = link.landed(range.start, range.len as usize);
    if range.window == 0 {
        return landed;
    }
    let waited = crate::context::synchronize(0);
    shared::end(range.start);
    map::write(|map| map.remove(range.window, |what| matches!(what, What::Window { .. })));
    shared::ask_end(range.start).and(landed).and(waited)
}

pub(crate) unsafe extern "C" fn cuMemFreeHost(at: u64) -> Code {
    let freed = || {
        let link = link()?;
        let pinned = |what| matches!(what, What::Pinned { .. });
        let range = map::write(|map| map.remove(at, pinned)).ok_or(INVALID_VALUE)?;
        let hidden = hide(link, &range);
        // SAFETY: mapped by `allocate`, and in no list any more.
        unsafe { libc::munmap(at as *mut _, range.len as usize) };
        hidden
    };
    answer(freed())
}

pub(crate) unsafe extern "C" fn cuMemHostRegister_v2(at: u64, len: usize, flags: u32) -> Code {
    let registered = || {
        link()?;
        if at == 0 || len == 0 || flags & !(7 | READ_ONLY) != 0 {
            return Err(INVALID_VALUE);
        }
        map::write(|map| {
            if map.overlapping(at, len as u64).is_some() {
                return Err(HOST_MEMORY_ALREADY_REGISTERED);
            }
            let flags = (flags & 7) | DEVICE_MAP | PORTABLE;
            enter(map, at, len as u64, What::Registered { flags });
            Ok(())
        })
    };
    answer(registered())
}

pub(crate) unsafe extern "C" fn cuMemHostRegister(at: u64, len: usize, flags: u32) -> Code {
    // SAFETY: handed on.
    unsafe { cuMemHostRegister_v2(at, len, flags) }
}

pub(crate) unsafe extern "C" fn cuMemHostUnregister(at: u64) -> Code {
    let unregistered = || {
        let link = link()?;
        let registered = |what| matches!(what, What::Registered { .. });
        let range = map::write(|map| map.remove(at, registered));
        let range = range.ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        hide(link, &range)
    };
    answer(unregistered())
}

/// Held while host memory is shared, so that none is shared twice.
static SHARING: Mutex<()> = Mutex::new(());

/// Where the device sees the host memory at `at`; it is shared with it from now on.
pub(super) fn window(at: u64) -> Result<u64, Code> {
    let _sharing = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    let range = map::find(at).ok_or(INVALID_VALUE)?;
    let (What::Pinned { flags } | What::Registered { flags }) = range.what else {
        return match range.what {
            What::Managed => Ok(at),
            _ => Err(INVALID_VALUE),
        };
    };
    if range.window != 0 {
        return Ok(range.window + (at - range.start));
    }
    let window = shared::ask(range.start, range.len, flags)?;
    // The far side has put it at the same address where it could.
    if window != range.start
        && let Err(code) = reserve::claim(window, range.len)
    {
        shared::ask_end(range.start)?;
        return Err(code);
    }
    shared::begin(range.start, range.len as usize);
    map::write(|map| {
        let host = range.start;
        if map.overlapping(window, range.len).is_none() {
            map.insert(map::Range {
                window,
                ..map::range(window, range.len, What::Window { host })
            });
        }
        map.change(host, |range| range.window = window);
    });
    Ok(window + (at - range.start))
}

/// Whether the program, too, writes to the memory at `at`.
pub(crate) fn is_shared_with_host(at: u64) -> bool {
    let host = |range: map::Range| {
        range.is_host() || matches!(range.what, What::Managed | What::Window { .. })
    };
    map::find(at).is_some_and(host)
}

/// The address for the device of what the program has at `at`.
pub(crate) fn tell_device(at: u64) -> Result<u64, Code> {
    match map::find(at) {
        Some(range) if range.is_host() => window(at),
        _ => Ok(at),
    }
}

pub(crate) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    to: *mut u64,
    at: u64,
    flags: u32,
) -> Code {
    let told = || {
        link()?;
        if flags != 0 || to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, window(at)?) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuMemHostGetFlags(to: *mut u32, at: u64) -> Code {
    let told = || {
        link()?;
        match map::find(at).map(|range| range.what) {
            // SAFETY: null, or the program's own room.
            Some(What::Pinned { flags } | What::Registered { flags }) => unsafe { tell(to, flags) },
            _ => Err(INVALID_VALUE),
        }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuMemAllocManaged(to: *mut u64, len: usize, flags: u32) -> Code {
    let allocated = || {
        link()?;
        if to.is_null() || len == 0 || !ATTACH.contains(&flags) {
            return Err(INVALID_VALUE);
        }
        let (at, ()) = reserve::until_free(
            || Ok((shared::ask(0, len as u64, flags)?, len as u64, ())),
            |at, _| {
                let _ = shared::ask_end(at);
            },
        )?;
        if let Err(code) = reserve::back(at, len as u64) {
            shared::ask_end(at)?;
            return Err(code);
        }
        shared::begin(at, len);
        map::write(|map| map.insert(map::range(at, len as u64, What::Managed)));
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, at) }
    };
    answer(allocated())
}
