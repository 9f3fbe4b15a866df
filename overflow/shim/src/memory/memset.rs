//! Memsets. They are work of a stream in both forms; none is waited for.

use super::publish;
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::result::Code;

macro_rules! memsets {
    ($($sync:ident $async:ident ($($arg:ident : $ty:ty),*);)*) => {$(
        pub(crate) unsafe extern "C" fn $async<const PT: bool>($($arg: $ty,)* stream: u64) -> Code {
            match answer(link().and_then(publish)) {
                // SAFETY: no pointer in it.
                0 => unsafe { sent::$async::<PT>($($arg,)* stream) },
                code => code,
            }
        }

        pub(crate) unsafe extern "C" fn $sync<const PT: bool>($($arg: $ty),*) -> Code {
            // SAFETY: no pointer in it.
            unsafe { $async::<PT>($($arg,)* 0) }
        }
    )*};
}

memsets! {
    cuMemsetD8_v2 cuMemsetD8Async (to: u64, value: u8, count: usize);
    cuMemsetD16_v2 cuMemsetD16Async (to: u64, value: u16, count: usize);
    cuMemsetD32_v2 cuMemsetD32Async (to: u64, value: u32, count: usize);
    cuMemsetD2D8_v2 cuMemsetD2D8Async (to: u64, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D16_v2 cuMemsetD2D16Async (to: u64, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD2D32_v2 cuMemsetD2D32Async (to: u64, pitch: usize, value: u32, width: usize, height: usize);
}
