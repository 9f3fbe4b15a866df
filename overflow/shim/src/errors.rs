//! Names and texts of codes.

use ghost_wire::result::{Code, INVALID_VALUE, Meaning, SUCCESS, meaning};
use std::ffi::{CStr, c_char};

pub(crate) unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    // SAFETY: the caller's room for a pointer, or null.
    unsafe { tell(code, name, |meaning| meaning.name) }
}

pub(crate) unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller's room for a pointer, or null.
    unsafe { tell(code, text, |meaning| meaning.text) }
}

/// # Safety
/// `to` is null or can be written.
unsafe fn tell(
    code: Code,
    to: *mut *const c_char,
    which: impl FnOnce(&'static Meaning) -> &'static CStr,
) -> Code {
    if to.is_null() {
        return INVALID_VALUE;
    }
    let meaning = meaning(code);
    let text = meaning.map_or(std::ptr::null(), |meaning| which(meaning).as_ptr());
    // SAFETY: not null, and the caller's.
    unsafe { to.write(text) };
    if text.is_null() {
        INVALID_VALUE
    } else {
        SUCCESS
    }
}
