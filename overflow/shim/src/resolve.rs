//! `cuGetProcAddress`: by name, version of the caller and flags.

use crate::exports::trampoline;
use crate::session;
use ghost_wire::Variant;
use ghost_wire::api::{find, known};
use ghost_wire::result::{Code, INVALID_VALUE, NOT_FOUND, SUCCESS};
use std::ffi::{CStr, c_char};
use std::ptr::null;

/// The flag that asks for the per-thread forms.
const PER_THREAD: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const NO_SYMBOL: u32 = 1;
const NO_VERSION: u32 = 2;

pub(crate) unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    to: *mut *const (),
    version: i32,
    flags: u64,
) -> Code {
    let mut status = FOUND;
    // SAFETY: the caller's arguments, and room for the status.
    unsafe { cuGetProcAddress_v2(name, to, version, flags, &raw mut status) }
}

pub(crate) unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    to: *mut *const (),
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Code {
    if to.is_null() || name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let version = u32::try_from(version).unwrap_or(0);
    // What the far driver or this host's is too old for is not there.
    let newest = session::version();
    let found = resolve(name, version.min(newest), flags & PER_THREAD != 0);
    let (address, how) = match found {
        Some(address) => (address, FOUND),
        None if known(name, newest) => (null(), NO_VERSION),
        None => (null(), NO_SYMBOL),
    };
    // SAFETY: not null, and the program's own.
    unsafe {
        to.write(address);
        if !status.is_null() {
            status.write(how);
        }
    }
    if how == FOUND { SUCCESS } else { NOT_FOUND }
}

fn resolve(name: &str, version: u32, per_thread: bool) -> Option<*const ()> {
    let (op, entry) = find(name, version, per_thread)?;
    trampoline(op, per_thread && entry.variant != Variant::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &CStr, version: i32, flags: u64) -> (Code, *const (), u32) {
        let (mut to, mut status) = (ask as *const (), 9);
        // SAFETY: room for both results.
        let code = unsafe {
            cuGetProcAddress_v2(name.as_ptr(), &raw mut to, version, flags, &raw mut status)
        };
        (code, to, status)
    }

    #[test]
    fn what_is_not_there_fails_cleanly() {
        assert_eq!(ask(c"", 0, 0), (NOT_FOUND, null(), NO_SYMBOL));
        assert_eq!(ask(c"cuNoSuch", 13000, 0), (NOT_FOUND, null(), NO_SYMBOL));
        let early = ask(c"cuLibraryLoadData", 11000, 0);
        assert_eq!(early, (NOT_FOUND, null(), NO_VERSION));
        // SAFETY: null is allowed.
        let null_name = unsafe { cuGetProcAddress(null(), &mut null(), 12000, 0) };
        assert_eq!(null_name, INVALID_VALUE);
        // SAFETY: null is allowed.
        let nowhere = unsafe { cuGetProcAddress(c"cuInit".as_ptr(), std::ptr::null_mut(), 0, 0) };
        assert_eq!(nowhere, INVALID_VALUE);
    }

    #[test]
    fn version_and_flag_choose_the_form() {
        let old = ask(c"cuCtxGetDevice", 12080, 0);
        let new = ask(c"cuCtxGetDevice", 13000, 0);
        assert!(old.0 == SUCCESS && new.0 == SUCCESS && old.1 != new.1);
        let legacy = ask(c"cuLaunchKernel", 12000, 0);
        let own = ask(c"cuLaunchKernel", 12000, 2);
        assert!(legacy.0 == SUCCESS && own.0 == SUCCESS && legacy.1 != own.1);
        let plain = ask(c"cuMemAlloc", 12000, 0);
        assert_eq!(plain, ask(c"cuMemAlloc", 12000, 2));
    }
}
