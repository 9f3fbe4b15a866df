//! Variables of modules and libraries: where they are is asked once.

use super::map::{self, What};
use super::{done, reserve, tell_maybe};
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::result::{Code, INVALID_VALUE};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, PoisonError};

type Known = HashMap<(u64, u64, CString), (u64, u64)>;

/// Address and length by module or library, context and name. Guards them.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Forgets the variables of a module or library that ends.
pub(crate) fn forget_globals(of: u64) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.as_mut() {
        known.retain(|(owner, ..), _| *owner != of);
    }
    map::write(|map| map.forget(of));
}

/// # Safety
/// `name` is null or a text that ends; the others are null or room for a number.
unsafe fn find(
    at: *mut u64,
    len: *mut u64,
    of: u64,
    name: *const c_char,
    ask: impl FnOnce(*mut u64, *mut u64) -> Code,
) -> Result<(), Code> {
    link()?;
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let key = (of, crate::thread::wire(), name);
    let known = {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().and_then(|known| known.get(&key).copied())
    };
    let (found_at, found_len) = match known {
        Some(known) => known,
        None => {
            let (mut at, mut len) = (0, 0);
            done(ask(&raw mut at, &raw mut len))?;
            reserve::prefer(at, len);
            map::write(|map| map.insert(map::range(at, len, What::Global { of })));
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            known.get_or_insert_default().insert(key, (at, len));
            (at, len)
        }
    };
    // SAFETY: null, or the program's own room.
    unsafe {
        tell_maybe(at, found_at);
        tell_maybe(len, found_len);
    }
    Ok(())
}

macro_rules! globals {
    ($($symbol:ident)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol(
            at: *mut u64,
            len: *mut u64,
            of: u64,
            name: *const c_char,
        ) -> Code {
            // SAFETY: handed on; room for two numbers of our own.
            let found = unsafe { find(at, len, of, name, |at, len| sent::$symbol(at, len, of, name)) };
            answer(found)
        }
    )*};
}

globals! {
    cuModuleGetGlobal_v2
    cuLibraryGetGlobal
}
