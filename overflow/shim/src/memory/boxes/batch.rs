//! Many copies of boxes in one call.

use super::{How, Place, UNIFIED, copy, later};
use crate::answer;
use crate::memory::tell_maybe;
use crate::session::link;
use ghost_wire::result::{Code, INVALID_VALUE, NOT_SUPPORTED};

/// `CUmemcpy3DOperand`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Operand {
    kind: u32,
    at: u64,
    row: usize,
    rows: usize,
    _hint: u64,
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchCopy {
    from: Operand,
    to: Operand,
    extent: [usize; 3],
    _order: u32,
    _flags: u32,
}

impl Operand {
    /// The place; elements are bytes where no array is an end. The shim does not know the elements
    /// of arrays.
    fn place(&self) -> Result<Place, Code> {
        /// `CU_MEMCPY_OPERAND_TYPE_POINTER` and `_ARRAY`.
        const POINTER: u32 = 1;
        const IN_ARRAY: u32 = 2;
        match self.kind {
            POINTER => Ok(Place {
                pitch: self.row,
                height: self.rows,
                ..Place::flat(UNIFIED, self.at)
            }),
            IN_ARRAY => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// # Safety
/// `all` is null or has `count` copies; `failed` is null or room for a number.
unsafe fn batch(
    count: usize,
    all: *const BatchCopy,
    failed: *mut usize,
    flags: u64,
    how: How,
) -> Result<(), Code> {
    link()?;
    if all.is_null() || count == 0 || flags != 0 {
        return Err(INVALID_VALUE);
    }
    for at in 0..count {
        // SAFETY: not null, and `count` of them.
        let one = unsafe { all.add(at).read_unaligned() };
        let done = one.from.place().and_then(|from| {
            let to = one.to.place()?;
            match one.extent.contains(&0) {
                true => Err(INVALID_VALUE),
                false => copy(from, to, one.extent, how),
            }
        });
        if let Err(code) = done {
            // SAFETY: null, or the program's own room.
            unsafe { tell_maybe(failed, at) };
            return Err(code);
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuMemcpy3DBatchAsync<const PT: bool>(
    count: usize,
    all: *const BatchCopy,
    failed: *mut usize,
    flags: u64,
    stream: u64,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { batch(count, all, failed, flags, later::<PT>(stream)) })
}

pub(crate) unsafe extern "C" fn cuMemcpy3DBatchAsync_v2<const PT: bool>(
    count: usize,
    all: *const BatchCopy,
    flags: u64,
    stream: u64,
) -> Code {
    let failed = std::ptr::null_mut();
    // SAFETY: handed on.
    answer(unsafe { batch(count, all, failed, flags, later::<PT>(stream)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_sizes_of_cuda() {
        assert_eq!((size_of::<Operand>(), size_of::<BatchCopy>()), (40, 112));
    }
}
