//! The entry points, with their C ABI: names, arguments and codes are those of cuda.h. Handles are
//! numbers here, looked up and never followed.

mod ctx;
mod device;
mod ipc;
mod launch;
mod mem;
mod module;
mod stream;

use crate::context::Res;
use crate::result::{CuResult, INVALID_VALUE, SUCCESS, UNKNOWN};
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a program gives us to write an answer to.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn given(self) -> bool {
        !self.0.is_null()
    }

    /// Writes the answer.
    pub(crate) fn put(self, value: T) -> Res<()> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an argument of an entry point, whose caller vows that it is null or may be
        // written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The same, where the program may leave it out.
    pub(crate) fn put_if_given(self, value: T) {
        // Null is the only failure.
        let _ = self.put(value);
    }

    /// Writes the `i`th of several.
    pub(crate) fn put_at(self, i: usize, value: T) -> Res<()> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        Out(self.0.wrapping_add(i)).put(value)
    }
}

/// What a program gives us to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn given(self) -> bool {
        !self.0.is_null()
    }

    /// Reads the `i`th.
    pub(crate) fn at(self, i: usize) -> Res<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an argument of an entry point, whose caller vows that it is null or may be read
        // as far as the API says.
        Ok(unsafe { self.0.wrapping_add(i).read_unaligned() })
    }

    pub(crate) fn get(self) -> Res<T> {
        self.at(0)
    }
}

impl In<u8> {
    pub(crate) fn bytes(self, len: usize) -> Res<Vec<u8>> {
        (0..len).map(|i| self.at(i)).collect()
    }
}

/// A C string of the program's.
pub(crate) type Text = In<c_char>;

impl Text {
    pub(crate) fn read(self) -> Res<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; the caller of an entry point vows that it ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| INVALID_VALUE)
    }
}

fn answer(f: impl FnOnce() -> Res<()>) -> CuResult {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Entry points, and `find` for them.
macro_rules! entries {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[cfg_attr(feature = "exports", unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::result::CuResult {
                $crate::abi::answer(move || $body)
            }
        )*

        pub(super) fn find(symbol: &str) -> Option<*const std::ffi::c_void> {
            $(if symbol == stringify!($name) {
                return Some($name as *const std::ffi::c_void);
            })*
            None
        }
    };
}
use entries;

/// The entry point of that name.
pub(crate) fn find(symbol: &str) -> Option<*const c_void> {
    let all = [
        ctx::find,
        device::find,
        ipc::find,
        launch::find,
        mem::find,
        module::find,
        stream::find,
    ];
    all.iter().find_map(|find| find(symbol))
}
