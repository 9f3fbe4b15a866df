//! The private tables that the CUDA runtime and NVIDIA's libraries ask for. They are the genuine
//! driver's, but for a few entries. Those that look at the current context are told which it is, since
//! for the genuine driver none is. And those that are given a module or a stream are answered from
//! what the shim knows of it, since the genuine driver knows none of the shim's.

use crate::session::say;
use crate::work::{cuStreamGetId, functions};
use crate::{genuine, thread};
use ghost_wire::result::{Code, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, SUCCESS};
use std::ffi::{OsString, c_void};
use std::ptr::null;
use std::sync::{Once, OnceLock};

type Uuid = [u8; 16];

/// The runtime's interface; entry 2 hands out the handle of a device's primary context.
const RUNTIME: Uuid = [
    0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
];
/// The beginning of that of context-local storage: put, delete, get.
const STORAGE: [u8; 4] = [0xc6, 0x93, 0x33, 0x6e];
/// The beginnings of the tables that are handed on: those that the runtime and the libraries of
/// PyTorch were seen to use with no handles but that of a context. An entry that is given another
/// of the shim's handles follows it into nothing. Who asks for a table must live without it, for an
/// older driver has none.
const HANDED_ON: [[u8; 4]; 12] = [
    [0xf8, 0xcf, 0xf9, 0x51],
    [0x6b, 0xd5, 0xfb, 0x6c],
    [0xa0, 0x94, 0x79, 0x8c],
    CURRENT,
    STREAMS,
    STORAGE,
    [0x26, 0x3e, 0x88, 0x60],
    [0xd4, 0x08, 0x20, 0x55],
    [0x69, 0xa2, 0x8e, 0x9f],
    [0xda, 0x91, 0x51, 0xd3],
    [0x17, 0x34, 0xdc, 0x26],
    FUNCTIONS,
];

/// The beginning of the table that cuFFT asks for. It calls [`MODULES`]' last entry and no other, so
/// the table ends there, as that of an older driver would.
const FUNCTIONS: [u8; 4] = [0x6e, 0x16, 0x3f, 0xbe];

/// The table's size in bytes, and its entries up to that which cuFFT calls.
#[repr(C)]
struct Modules {
    size: usize,
    unknown: [usize; 6],
    each: Each,
}

static MODULES: Modules = Modules {
    size: size_of::<Modules>(),
    unknown: [0; 6],
    each: each_function,
};

type Each = unsafe extern "C" fn(u64, u64, Option<Tell>, *mut c_void) -> u32;
type Tell = unsafe extern "C" fn(*mut c_void, u64);

/// Calls `tell` with each function of `module`, as the genuine entry was seen to do on driver
/// 580.159; 1 is success.
unsafe extern "C" fn each_function(
    _context: u64,
    module: u64,
    tell: Option<Tell>,
    with: *mut c_void,
) -> u32 {
    let (Some(tell), Ok(functions)) = (tell, functions(module)) else {
        return 0;
    };
    for function in functions {
        // SAFETY: the caller's function, with what it gave for it.
        unsafe { tell(with, function) };
    }
    1
}

/// The beginning of a table of which entry 2 tells the current context.
const CURRENT: [u8; 4] = [0x42, 0xd8, 0x5a, 0x81];
/// The beginning of a table that cuBLAS asks about streams: entry 51 finds the stream that a handle
/// stands for in a context, entry 39 tells its number.
const STREAMS: [u8; 4] = [0x21, 0x31, 0x8c, 0x60];

unsafe extern "C" fn current(to: *mut u64) -> Code {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's room.
    unsafe { to.write(thread::current()) };
    SUCCESS
}

unsafe extern "C" fn stream(_context: u64, handle: u64, to: *mut u64) -> Code {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller's room.
    unsafe { to.write(handle) };
    SUCCESS
}

unsafe extern "C" fn number(_context: u64, stream: u64, to: *mut u64) -> Code {
    // SAFETY: handed on.
    unsafe { cuStreamGetId::<false>(stream, to) }
}

/// A copy of a genuine table with other functions at some entries, made once.
fn with(
    once: &'static OnceLock<Vec<usize>>,
    table: *const usize,
    entries: &[(usize, usize)],
) -> *const usize {
    let copy = once.get_or_init(|| {
        // SAFETY: such a table begins with its size, bytes, and has as many.
        let mut copy =
            unsafe { std::slice::from_raw_parts(table, table.read() / size_of::<usize>()) }
                .to_vec();
        for (at, function) in entries {
            if let Some(entry) = copy.get_mut(*at) {
                *entry = *function;
            }
        }
        copy
    });
    copy.as_ptr()
}

type GetTable = unsafe extern "C" fn(*mut *const usize, *const Uuid) -> Code;
type Put = unsafe extern "C" fn(u64, *mut c_void, *mut c_void, *mut c_void) -> Code;
type Delete = unsafe extern "C" fn(u64, *mut c_void) -> Code;
type Get = unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_void) -> Code;

#[derive(Clone, Copy)]
struct Storage {
    put: Put,
    delete: Delete,
    get: Get,
}

static GENUINE: OnceLock<Storage> = OnceLock::new();
static WRAPPED: Storage = Storage { put, delete, get };

pub(crate) unsafe extern "C" fn cuGetExportTable(to: *mut *const usize, id: *const Uuid) -> Code {
    if to.is_null() || id.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the program's own.
    let id = unsafe {
        to.write(null());
        id.read_unaligned()
    };
    if primary_contexts().is_empty() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let lacking = if genuine::exists() {
                "finds no GPU here"
            } else {
                "is not installed here"
            };
            say(format_args!(
                "programs of the CUDA runtime need NVIDIA's driver and a GPU on their own host \
                 too, and the driver {lacking}: start this one on a host that has both; programs \
                 of the driver API need neither"
            ));
        });
        return NOT_SUPPORTED;
    }
    let Some(table) = table(&id).filter(|_| is_handed_on(&id)) else {
        return NOT_FOUND;
    };
    let table = if id.starts_with(&FUNCTIONS) {
        (&raw const MODULES).cast()
    } else if id.starts_with(&CURRENT) {
        static COPY: OnceLock<Vec<usize>> = OnceLock::new();
        with(&COPY, table, &[(2, current as *const () as usize)])
    } else if id.starts_with(&STREAMS) {
        static COPY: OnceLock<Vec<usize>> = OnceLock::new();
        let entries = [
            (39, number as *const () as usize),
            (51, stream as *const () as usize),
        ];
        with(&COPY, table, &entries)
    } else if id.starts_with(&STORAGE) {
        // SAFETY: the table's first three entries are these.
        let genuine = unsafe { table.cast::<Storage>().read() };
        GENUINE.get_or_init(|| genuine);
        (&raw const WRAPPED).cast()
    } else {
        table
    };
    // SAFETY: not null, and the program's own.
    unsafe { to.write(table) };
    SUCCESS
}

fn is_handed_on(id: &Uuid) -> bool {
    HANDED_ON.iter().any(|known| id.starts_with(known))
}

/// The genuine driver's table of this name.
fn table(id: &Uuid) -> Option<*const usize> {
    let ask = genuine::symbol(c"cuGetExportTable")?;
    // SAFETY: as `cuda.h` declares it.
    let ask: GetTable = unsafe { std::mem::transmute(ask) };
    let mut table = null();
    // SAFETY: room for a pointer, and a name.
    let code = unsafe { ask(&raw mut table, id) };
    (code == SUCCESS && !table.is_null()).then_some(table)
}

/// The handles of the primary contexts of this host's devices: what the runtime holds for them, not
/// activated. Initialises the genuine driver, once: in a forked child it could not be again.
pub(crate) fn primary_contexts() -> &'static [u64] {
    static HANDLES: OnceLock<Vec<u64>> = OnceLock::new();
    let handles = || {
        let init = genuine::symbol(c"cuInit")?;
        let count = genuine::symbol(c"cuDeviceGetCount")?;
        // SAFETY: as `cuda.h` declares them.
        let (init, count) = unsafe {
            (
                std::mem::transmute::<*mut (), unsafe extern "C" fn(u32) -> Code>(init),
                std::mem::transmute::<*mut (), unsafe extern "C" fn(*mut i32) -> Code>(count),
            )
        };
        let mut devices = 0;
        let _all = AllVisible::new();
        // SAFETY: room for a number.
        if unsafe { init(0) } != SUCCESS || unsafe { count(&raw mut devices) } != SUCCESS {
            return None;
        }
        let table = table(&RUNTIME)?;
        // SAFETY: such a table begins with its size, bytes.
        if unsafe { table.read() } < 3 * size_of::<usize>() {
            return None;
        }
        // SAFETY: it has three entries, and the third is this function.
        let primary = unsafe {
            let entry = table.add(2).read();
            std::mem::transmute::<usize, Option<unsafe extern "C" fn(*mut u64, i32) -> Code>>(entry)
        }?;
        let handle = |device| {
            let mut handle = 0;
            // SAFETY: room for a handle.
            let code = unsafe { primary(&raw mut handle, device) };
            (code == SUCCESS && handle != 0).then_some(handle)
        };
        Some((0..devices).map_while(handle).collect())
    };
    HANDLES.get_or_init(|| handles().unwrap_or_default())
}

/// While the genuine driver initialises, it sees all devices of this host: the program's choice is
/// of those of the far host.
struct AllVisible(Option<OsString>);

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

impl AllVisible {
    fn new() -> Self {
        let chosen = std::env::var_os(VISIBLE);
        if chosen.is_some() {
            // SAFETY: once, in `cuInit`; a program that changes its environment at the same time
            // does so against the rules of `setenv`.
            unsafe { std::env::remove_var(VISIBLE) };
        }
        Self(chosen)
    }
}

impl Drop for AllVisible {
    fn drop(&mut self) {
        if let Some(chosen) = &self.0 {
            // SAFETY: as above.
            unsafe { std::env::set_var(VISIBLE, chosen) };
        }
    }
}

fn or_current(context: u64) -> u64 {
    if context == 0 {
        thread::current()
    } else {
        context
    }
}

unsafe extern "C" fn put(
    context: u64,
    key: *mut c_void,
    value: *mut c_void,
    destroy: *mut c_void,
) -> Code {
    // SAFETY: the caller's arguments, handed on.
    GENUINE.get().map_or(NOT_FOUND, |genuine| unsafe {
        (genuine.put)(or_current(context), key, value, destroy)
    })
}

unsafe extern "C" fn delete(context: u64, key: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, handed on.
    GENUINE.get().map_or(NOT_FOUND, |genuine| unsafe {
        (genuine.delete)(or_current(context), key)
    })
}

unsafe extern "C" fn get(to: *mut *mut c_void, context: u64, key: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, handed on.
    GENUINE.get().map_or(NOT_FOUND, |genuine| unsafe {
        (genuine.get)(to, or_current(context), key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_that_were_seen_to_work_are_handed_on() {
        let id = |beginning: [u8; 4]| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&beginning);
            id
        };
        assert!(is_handed_on(&RUNTIME) && is_handed_on(&id(STORAGE)));
        assert!(is_handed_on(&id(FUNCTIONS)));
        assert!(!is_handed_on(&id([0x12, 0x34, 0x56, 0x78])));
        assert!(!is_handed_on(&[0; 16]));
    }
    #[test]
    fn a_copy_has_other_functions_where_the_table_is_long_enough() {
        static COPY: OnceLock<Vec<usize>> = OnceLock::new();
        let genuine = [3 * size_of::<usize>(), 11, 12, 13];
        let copy = with(&COPY, genuine.as_ptr(), &[(2, 22), (3, 33)]);
        assert_eq!(COPY.get(), Some(&vec![genuine[0], 11, 22]));
        assert_eq!(with(&COPY, genuine.as_ptr(), &[]), copy);
    }
}
