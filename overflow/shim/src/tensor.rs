//! Descriptors of tensors: pure computation, done by the genuine driver of this host.

use crate::genuine;
use crate::session::link;
use ghost_wire::result::{Code, NOT_SUPPORTED};

type Word = u64;

macro_rules! genuinely {
    ($($symbol:ident ($($arg:ident),*);)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol($($arg: Word),*) -> Code {
            let done = || {
                link()?;
                let symbol = concat!(stringify!($symbol), "\0");
                let symbol = std::ffi::CStr::from_bytes_with_nul(symbol.as_bytes());
                let function = symbol.ok().and_then(genuine::symbol).ok_or(NOT_SUPPORTED)?;
                type Function = unsafe extern "C" fn($($arg: Word),*) -> Code;
                // SAFETY: the arguments are integers and pointers, each a word in a register or on
                // the stack; the function reads as much of each as it declares.
                let function = unsafe { std::mem::transmute::<*mut (), Function>(function) };
                // SAFETY: the program's arguments, handed on.
                match unsafe { function($($arg),*) } {
                    0 => Ok(()),
                    code => Err(code),
                }
            };
            crate::answer(done())
        }
    )*};
}

genuinely! {
    cuTensorMapEncodeTiled(a, b, c, d, e, f, g, h, i, j, k, l);
    cuTensorMapEncodeIm2col(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
    cuTensorMapEncodeIm2colWide(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
    cuTensorMapReplaceAddress(a, b);
}
