//! Variables of modules and libraries: where they are is asked once.

use super::map::{self, What};
use super::{done, reserve, shared, tell_maybe};
use crate::context::synchronize;
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::result::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, PoisonError};

type Known = HashMap<(u64, u64, CString), (u64, u64)>;

/// Address and length by module or library, context and name. Guards them.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The managed memory of libraries' variables: library, address, bytes. Guards it.
static MANAGED: Mutex<Vec<(u64, u64, u64)>> = Mutex::new(Vec::new());

/// Forgets the variables of a module or library that ends.
pub(crate) fn forget_globals(of: u64) {
    let mut managed = MANAGED.lock().unwrap_or_else(PoisonError::into_inner);
    managed.retain(|&(owner, at, len)| {
        if owner == of {
            shared::end(at);
            map::write(|map| map.remove(at, |what| what == What::Managed));
            reserve::unback(at, len);
        }
        owner != of
    });
    drop(managed);
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
            reserve::at(at, len);
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

/// Has both sides see the variable at `at`, with what is in it.
fn share(of: u64, at: u64) -> Result<(), Code> {
    let mut managed = MANAGED.lock().unwrap_or_else(PoisonError::into_inner);
    if managed
        .iter()
        .any(|&(_, start, len)| (start..start + len).contains(&at))
    {
        return Ok(());
    }
    let (start, len) = shared::ask_variable(at)?;
    if !reserve::at(start, len) || !reserve::back(start, len) {
        // Where a variable is can't be chosen.
        return Err(OUT_OF_MEMORY);
    }
    shared::begin(start, len as usize);
    map::write(|map| map.insert(map::range(start, len, What::Managed)));
    managed.push((of, start, len));
    drop(managed);
    // Its value comes before the answer to a wait.
    synchronize(0)
}

pub(crate) unsafe extern "C" fn cuLibraryGetManaged(
    at: *mut u64,
    len: *mut u64,
    of: u64,
    name: *const c_char,
) -> Code {
    let found = || {
        link()?;
        let (mut found_at, mut found_len) = (0, 0);
        // SAFETY: handed on; room for two numbers of our own.
        let code =
            unsafe { sent::cuLibraryGetManaged(&raw mut found_at, &raw mut found_len, of, name) };
        done(code)?;
        share(of, found_at)?;
        // SAFETY: null, or the program's own room.
        unsafe {
            tell_maybe(at, found_at);
            tell_maybe(len, found_len);
        }
        Ok(())
    };
    answer(found())
}
