//! Functions and kernels: names, layouts and attributes.

use super::modules::{self, by_index, by_name, callable};
use crate::context::ended;
use crate::memory::{done, tell, tell_maybe};
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::Id;
use ghost_wire::result::{Code, INVALID_VALUE, NOT_FOUND, SUCCESS};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError, RwLock};

/// The function of this name in a module or library.
///
/// # Safety
/// `to` is null or room for a handle, `name` null or a text that ends.
unsafe fn get(to: *mut u64, of: u64, name: *const c_char) -> Result<(), Code> {
    let link = link()?;
    if to.is_null() || name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a text that ends.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    let handle = by_name(link, of, name.map_err(|_| NOT_FOUND)?)?;
    // SAFETY: not null, and the program's own room.
    unsafe { tell(to, handle) }
}

pub(crate) unsafe extern "C" fn cuModuleGetFunction(
    to: *mut u64,
    module: u64,
    name: *const c_char,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { get(to, module, name) })
}

pub(crate) unsafe extern "C" fn cuLibraryGetKernel(
    to: *mut u64,
    library: u64,
    name: *const c_char,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { get(to, library, name) })
}

macro_rules! answers {
    ($($symbol:ident ($to:ident : $result:ty, $handle:ident) $link:ident => $value:expr;)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol($to: *mut $result, $handle: u64) -> Code {
            let told = || {
                let $link = link()?;
                let value: $result = $value;
                // SAFETY: null, or the program's own room.
                unsafe { tell($to, value) }
            };
            answer(told())
        }
    )*};
}

/// `CU_FUNCTION_LOADING_STATE_LOADED`: functions come with their image.
const IS_LOADED: u32 = 1;

answers! {
    cuModuleGetFunctionCount(to: u32, module) _link => modules::count(module)? as u32;
    cuLibraryGetKernelCount(to: u32, library) _link => modules::count(library)? as u32;
    cuLibraryGetModule(to: u64, library) link => modules::module(link, library)?;
    cuKernelGetFunction(to: u64, kernel) link => modules::function(link, kernel)?;
    cuKernelGetLibrary(to: u64, kernel) _link => modules::library_of(kernel)?;
    cuFuncGetModule(to: u64, function) link => modules::module_of(link, function)?;
    cuFuncGetName(to: *const c_char, function) _link => callable(function)?.name();
    cuKernelGetName(to: *const c_char, kernel) _link => callable(kernel)?.name();
    cuFuncIsLoaded(to: u32, function) _link => callable(function).map(|_| IS_LOADED)?;
}

/// The functions of a module.
///
/// # Errors
/// As in [`modules::count`].
pub(crate) fn functions(module: u64) -> Result<Vec<u64>, Code> {
    let link = link()?;
    let all = 0..modules::count(module)?;
    all.map(|at| by_index(link, module, at)).collect()
}

/// # Safety
/// `to` is null or room for `count` handles.
unsafe fn enumerate(to: *mut u64, count: u32, of: u64) -> Result<(), Code> {
    let link = link()?;
    let all = modules::count(of)?;
    if to.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    for at in 0..all.min(count as usize) {
        let handle = by_index(link, of, at)?;
        // SAFETY: not null, and room for `count`.
        unsafe { to.add(at).write_unaligned(handle) };
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuModuleEnumerateFunctions(
    to: *mut u64,
    count: u32,
    module: u64,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { enumerate(to, count, module) })
}

pub(crate) unsafe extern "C" fn cuLibraryEnumerateKernels(
    to: *mut u64,
    count: u32,
    library: u64,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { enumerate(to, count, library) })
}

/// # Safety
/// Both are null or room for a number.
unsafe fn param(handle: u64, at: usize, offset: *mut usize, size: *mut usize) -> Result<(), Code> {
    link()?;
    let callable = callable(handle)?;
    let param = callable.layout().params.get(at).ok_or(INVALID_VALUE)?;
    // SAFETY: null, or the program's own room.
    unsafe {
        tell(offset, param.0 as usize)?;
        tell_maybe(size, param.1 as usize);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuFuncGetParamInfo(
    function: u64,
    at: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { param(function, at, offset, size) })
}

pub(crate) unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: u64,
    at: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { param(kernel, at, offset, size) })
}

type Attributes = HashMap<(u64, u32, u64), i32>;

/// Attributes that were asked for, by handle, number, and the device or context. Guards them.
static ATTRIBUTES: RwLock<Option<Attributes>> = RwLock::new(None);

/// # Safety
/// `to` is null or room for a number.
unsafe fn attribute(
    to: *mut i32,
    key: (u64, u32, u64),
    ask: impl FnOnce(*mut i32) -> Code,
) -> Result<(), Code> {
    link()?;
    let known = {
        let known = ATTRIBUTES.read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().and_then(|known| known.get(&key).copied())
    };
    let value = match known {
        Some(value) => value,
        None => {
            let mut value = 0;
            done(ask(&raw mut value))?;
            let mut known = ATTRIBUTES.write().unwrap_or_else(PoisonError::into_inner);
            known.get_or_insert_default().insert(key, value);
            value
        }
    };
    // SAFETY: null, or the program's own room.
    unsafe { tell(to, value) }
}

/// Attributes as they were set last, by the same, and how many contexts had ended then: what was set
/// ends with its context. Held while one is set.
static SET: Mutex<(u64, Option<Attributes>)> = Mutex::new((0, None));

/// Sets an attribute, unless it has that value: libraries set theirs before each launch. A change may
/// change what was answered about any function, and a kernel's attributes are its functions' too.
fn set(key: (u64, u32, u64), value: i32, send: impl FnOnce() -> Code) -> Code {
    let mut all = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let (then, all) = &mut *all;
    let now = ended();
    if *then != now {
        (*then, *all) = (now, None);
    }
    let all = all.get_or_insert_default();
    if all.get(&key) == Some(&value) {
        return answer(link().map(|_| ()));
    }
    let code = send();
    let kind = |handle| Id::from_raw(handle).and_then(Id::object);
    all.retain(|known, _| known.1 != key.1 || kind(known.0) == kind(key.0));
    if code == SUCCESS {
        all.insert(key, value);
    } else {
        all.remove(&key);
    }
    *ATTRIBUTES.write().unwrap_or_else(PoisonError::into_inner) = None;
    sent::forget();
    code
}

pub(crate) unsafe extern "C" fn cuFuncGetAttribute(
    to: *mut i32,
    number: u32,
    function: u64,
) -> Code {
    let key = (function, number, crate::thread::wire());
    // SAFETY: handed on; room for a number of our own.
    answer(unsafe { attribute(to, key, |to| sent::cuFuncGetAttribute(to, number, function)) })
}

pub(crate) unsafe extern "C" fn cuFuncSetAttribute(function: u64, number: u32, value: i32) -> Code {
    let key = (function, number, crate::thread::wire());
    // SAFETY: no pointer in it.
    set(key, value, || unsafe {
        sent::cuFuncSetAttribute(function, number, value)
    })
}

pub(crate) unsafe extern "C" fn cuKernelGetAttribute(
    to: *mut i32,
    number: u32,
    kernel: u64,
    device: i32,
) -> Code {
    let key = (kernel, number, u64::from(device.cast_unsigned()));
    let ask = |to| {
        // SAFETY: room for a number of our own.
        unsafe { sent::cuKernelGetAttribute(to, number, kernel, device) }
    };
    // SAFETY: handed on.
    answer(unsafe { attribute(to, key, ask) })
}

pub(crate) unsafe extern "C" fn cuKernelSetAttribute(
    number: u32,
    value: i32,
    kernel: u64,
    device: i32,
) -> Code {
    let key = (kernel, number, u64::from(device.cast_unsigned()));
    // SAFETY: no pointer in it.
    set(key, value, || unsafe {
        sent::cuKernelSetAttribute(number, value, kernel, device)
    })
}
