//! Variables of modules and libraries: where they are is asked once.

use super::map::{self, What};
use super::{reserve, shared, tell_maybe};
use crate::answer;
use crate::context::{life, synchronize};
use crate::kinds::handle;
use crate::session::link;
use crate::thread;
use ghost_wire::Decoder;
use ghost_wire::kind::{Handle, Library, Module};
use ghost_wire::message::{Field, Message, Variable};
use ghost_wire::result::{Code, INVALID_VALUE};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, PoisonError};

/// Module or library, context and which of its lives, whether it was asked for as a managed one,
/// name.
type Key = (u64, u64, u64, bool, CString);

/// Address and length. Guards them.
static KNOWN: Mutex<Option<HashMap<Key, (u64, u64)>>> = Mutex::new(None);

/// The managed memory of variables: module or library, address, bytes. Guards it.
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

/// A context has ended: its managed memory ended with it, and what it was here is the program's
/// alone. So did what it had opened of other processes.
pub(crate) fn forget_context(context: u64) {
    let mut managed = MANAGED.lock().unwrap_or_else(PoisonError::into_inner);
    for start in map::write(|map| map.take_managed(context)) {
        shared::end(start);
        managed.retain(|&(_, at, _)| at != start);
    }
    map::write(|map| map.forget_opened(context));
}

/// Has both sides see the managed memory of a variable. What is in it comes before the next answer.
fn share(of: u64, start: u64, len: u64) -> Result<(), Code> {
    let mut managed = MANAGED.lock().unwrap_or_else(PoisonError::into_inner);
    if managed.iter().any(|&(_, at, _)| at == start) {
        return Ok(());
    }
    // Where a variable is can't be chosen.
    reserve::claim(start, len)?;
    reserve::back(start, len)?;
    shared::begin(start, len as usize);
    map::write(|map| map.insert(map::range(start, len, What::Managed)));
    managed.push((of, start, len));
    Ok(())
}

/// Asks where a variable is; its address and length.
fn ask(of: u64, name: &CStr, managed: bool) -> Result<(u64, u64), Code> {
    let name = name.to_bytes();
    let message = Variable { of, name, managed };
    let answer = |from: &mut Decoder<'_>| <[u64; 4]>::take(from);
    let ask = || link()?.wait(Variable::OP, |to| message.put(to), answer);
    let [at, len, start, whole] = ask()?;
    if whole == 0 {
        reserve::claim(at, len)?;
        map::write(|map| map.insert(map::range(at, len, What::Global { of })));
        return Ok((at, len));
    }
    share(of, start, whole)?;
    if thread::current() == 0 {
        // There is nothing to wait for, but for the value.
        ask()?;
    } else {
        synchronize(0)?;
    }
    Ok((at, len))
}

/// # Safety
/// `name` is null or a text that ends; the others are null or room for a number.
unsafe fn find<T: Handle>(
    to: *mut u64,
    to_len: *mut u64,
    of: u64,
    name: *const c_char,
    managed: bool,
) -> Result<(), Code> {
    link()?;
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a text that ends.
    let name = unsafe { CStr::from_ptr(name) };
    let of = handle::<T>(of, false)?;
    let context = thread::wire();
    let key = (of, context, life(context), managed, name.to_owned());
    let known = {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().and_then(|known| known.get(&key).copied())
    };
    let (at, len) = match known {
        Some(known) => known,
        None => {
            let found = ask(of, name, managed)?;
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            known.get_or_insert_default().insert(key, found);
            found
        }
    };
    // SAFETY: null, or the program's own room.
    unsafe {
        tell_maybe(to, at);
        tell_maybe(to_len, len);
    }
    Ok(())
}

macro_rules! variables {
    ($($symbol:ident $of:ident $managed:literal;)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol(
            at: *mut u64,
            len: *mut u64,
            of: u64,
            name: *const c_char,
        ) -> Code {
            // SAFETY: handed on.
            answer(unsafe { find::<$of>(at, len, of, name, $managed) })
        }
    )*};
}

variables! {
    cuModuleGetGlobal_v2 Module false;
    cuLibraryGetGlobal Library false;
    cuLibraryGetManaged Library true;
}
