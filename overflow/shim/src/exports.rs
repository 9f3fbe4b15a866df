//! The exports: for each row of the table one jump through a slot, which holds the genuine driver's
//! function or the shim's.

use ghost_wire::api::ENTRIES;
use ghost_wire::result::{Code, NO_DEVICE, NOT_SUPPORTED};
use ghost_wire::{Op, driver_api};
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How many rows the table has.
const ROWS: usize = ENTRIES.len();

/// Addresses of exports: of each row the plain form and the per-thread form, which is the plain one
/// where there is no other.
struct Trampolines([[*const (); 2]; ROWS]);
// SAFETY: addresses of code, never written through.
unsafe impl Sync for Trampolines {}

/// The address that the export of this row and form has.
pub(crate) fn trampoline(op: Op, per_thread: bool) -> Option<*const ()> {
    let row = TRAMPOLINES.0.get(usize::from(op.0))?;
    row.get(usize::from(per_thread)).copied()
}

/// What needs no driver.
const DRIVERLESS: &[&str] = &["cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"];

/// Makes each export jump to the genuine driver's function.
pub(crate) fn pass() {
    let lacking = if crate::genuine::exists() {
        lacks as *mut ()
    } else {
        absent as *mut ()
    };
    for (slots, entry) in SLOTS.iter().zip(ENTRIES) {
        let suffixes = ["", entry.variant.suffix().unwrap_or_default()];
        for (slot, suffix) in slots.iter().zip(suffixes) {
            let symbol = CString::new(format!("{}{suffix}", entry.symbol)).unwrap_or_default();
            match crate::genuine::symbol(&symbol) {
                Some(genuine) => slot.store(genuine, Ordering::Release),
                None if DRIVERLESS.contains(&entry.name) => {}
                None => slot.store(lacking, Ordering::Release),
            }
        }
    }
}

/// For what the genuine driver is too old to have.
unsafe extern "C" fn lacks() -> Code {
    NOT_SUPPORTED
}

/// For every call where this host has no genuine driver.
unsafe extern "C" fn absent() -> Code {
    NO_DEVICE
}

macro_rules! trampoline {
    ($function:ident $symbol:expr, $at:expr) => {
        #[unsafe(naked)]
        #[unsafe(export_name = $symbol)]
        pub(super) unsafe extern "C" fn $function() {
            std::arch::naked_asm!(
                "jmp qword ptr [rip + {slots} + {at}]",
                slots = sym crate::exports::SLOTS,
                at = const $at * 8,
            )
        }
    };
}

macro_rules! both {
    (plain $symbol:ident) => {
        [plain::$symbol as *const (), plain::$symbol as *const ()]
    };
    ($variant:ident $symbol:ident) => {
        [
            plain::$symbol as *const (),
            per_thread::$symbol as *const (),
        ]
    };
}

macro_rules! form {
    (plain $symbol:ident) => {};
    (ptsz $symbol:ident) => {
        trampoline!($symbol concat!(stringify!($symbol), "_ptsz"), ghost_wire::api::op::$symbol.0 as usize * 2 + 1);
    };
    (ptds $symbol:ident) => {
        trampoline!($symbol concat!(stringify!($symbol), "_ptds"), ghost_wire::api::op::$symbol.0 as usize * 2 + 1);
    };
}

/// The function that serves a row in its plain and in its per-thread form, as addresses.
macro_rules! target {
    (refused $variant:ident $symbol:ident) => {
        [
            crate::refused::stub::<{ ghost_wire::api::op::$symbol.0 }> as *mut (),
            crate::refused::stub::<{ ghost_wire::api::op::$symbol.0 }> as *mut (),
        ]
    };
    (posted $variant:ident $symbol:ident) => { forms!($variant crate::sent::$symbol) };
    (waited $variant:ident $symbol:ident) => { forms!($variant crate::sent::$symbol) };
    (cached $variant:ident $symbol:ident) => { forms!($variant crate::sent::$symbol) };
    ($class:ident $variant:ident $symbol:ident) => { forms!($variant $symbol) };
}

macro_rules! forms {
    (plain $($function:tt)*) => {
        [$($function)* as *mut (), $($function)* as *mut ()]
    };
    ($variant:ident $($function:tt)*) => {
        [$($function)*::<false> as *mut (), $($function)*::<true> as *mut ()]
    };
}

macro_rules! exports {
    ({} $($symbol:ident $name:literal $since:literal $variant:ident $class:ident
        $(($($arg:ident : $kind:ty),*))?;)*) => {
        mod plain {
            $(trampoline!($symbol stringify!($symbol), ghost_wire::api::op::$symbol.0 as usize * 2);)*
        }
        mod per_thread {
            $(form!($variant $symbol);)*
        }
        static TRAMPOLINES: Trampolines = Trampolines([$(both!($variant $symbol)),*]);

        /// Where each export jumps: of row n the plain form at 2 n, the per-thread form after it.
        pub(crate) static SLOTS: [[AtomicPtr<()>; 2]; ROWS] = {
            use crate::hand::*;
            [$({
                let [plain, per_thread] = target!($class $variant $symbol);
                [AtomicPtr::new(plain), AtomicPtr::new(per_thread)]
            }),*]
        };
    };
}

driver_api!(exports {});
