//! The exports: for each row of the table one jump through a slot, which holds the genuine driver's
//! function or the shim's.

use ghost_wire::driver_api;
use ghost_wire::result::Code;
use std::sync::atomic::AtomicPtr;

/// How many rows the table has.
const ROWS: usize = ghost_wire::api::ENTRIES.len();

/// A function's address.
#[derive(Clone, Copy)]
pub(crate) struct Target(pub(crate) *const ());
// SAFETY: the address of code, never written through.
unsafe impl Sync for Target {}

macro_rules! trampoline {
    ($function:ident $symbol:expr, $at:expr) => {
        #[unsafe(naked)]
        #[unsafe(export_name = $symbol)]
        unsafe extern "C" fn $function() {
            std::arch::naked_asm!(
                "jmp qword ptr [rip + {slots} + {at}]",
                slots = sym crate::exports::SLOTS,
                at = const $at * 8,
            )
        }
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

macro_rules! pending {
    (refused $variant:ident $symbol:ident) => {};
    (posted $variant:ident $symbol:ident) => {};
    (waited $variant:ident $symbol:ident) => {};
    (cached $variant:ident $symbol:ident) => {};
    ($class:ident plain $symbol:ident) => {
        pub(super) unsafe extern "C" fn $symbol() -> Code {
            crate::refused::refuse(ghost_wire::api::op::$symbol)
        }
    };
    ($class:ident $variant:ident $symbol:ident) => {
        pub(super) unsafe extern "C" fn $symbol<const PT: bool>() -> Code {
            crate::refused::refuse(ghost_wire::api::op::$symbol)
        }
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
        /// Stand for what is not written yet.
        #[allow(dead_code)]
        mod pending {
            use super::Code;
            $(pending!($class $variant $symbol);)*
        }
        /// Where each export jumps: of row n the plain form at 2 n, the per-thread form after it.
        pub(crate) static SLOTS: [[AtomicPtr<()>; 2]; ROWS] = {
            #[allow(unused_imports)]
            use pending::*;
            {
                use crate::hand::*;
                [$({
                    let [plain, per_thread] = target!($class $variant $symbol);
                    [AtomicPtr::new(plain), AtomicPtr::new(per_thread)]
                }),*]
            }
        };
    };
}

driver_api!(exports {});
