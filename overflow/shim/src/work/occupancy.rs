//! The block size with which most threads of a function fit: computed from how many blocks of a
//! size fit, with the program's own function for the shared memory that a size needs.

use super::functions::cuFuncGetAttribute;
use crate::answer;
use crate::device::cuDeviceGetAttribute;
use crate::memory::{done, tell};
use crate::sent::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags as active;
use crate::session::link;
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_VALUE};

/// How much dynamic shared memory a block of this many threads needs.
type SharedOf = Option<unsafe extern "C" fn(i32) -> usize>;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const FUNCTION_THREADS: u32 = 0;
/// `CU_DEVICE_ATTRIBUTE_*`.
const BLOCK_THREADS: i32 = 1;
const WARP: i32 = 10;
const PROCESSORS: i32 = 16;
const PROCESSOR_THREADS: i32 = 39;

/// The best block size, and how many blocks of it fit on a multiprocessor. Sizes are tried from the
/// largest down, in steps of a warp; a smaller one must be better to be taken.
fn best(
    limit: i32,
    warp: i32,
    full: i32,
    mut blocks: impl FnMut(i32) -> Result<i32, Code>,
) -> Result<(i32, i32), Code> {
    let warp = warp.max(1);
    let (mut most, mut found) = (0, (0, 0));
    let mut aligned = (limit + warp - 1) / warp * warp;
    while aligned > 0 {
        let size = aligned.min(limit);
        let count = blocks(size)?;
        if size.saturating_mul(count) > most {
            most = size.saturating_mul(count);
            found = (size, count);
        }
        if most >= full {
            break;
        }
        aligned -= warp;
    }
    Ok(found)
}

fn device(number: i32) -> Result<i32, Code> {
    let device = crate::thread::context().ok_or(INVALID_CONTEXT)?.device;
    let mut value = 0;
    // SAFETY: room for a number.
    done(unsafe { cuDeviceGetAttribute(&raw mut value, number, device) })?;
    Ok(value)
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    function: u64,
    shared_of: SharedOf,
    shared: usize,
    limit: i32,
    flags: u32,
) -> Code {
    let told = || {
        link()?;
        if grid.is_null() || block.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut own = 0;
        // SAFETY: room for a number.
        done(unsafe { cuFuncGetAttribute(&raw mut own, FUNCTION_THREADS, function) })?;
        let most = own.min(device(BLOCK_THREADS)?);
        let limit = if limit > 0 { most.min(limit) } else { most };
        let (size, count) = best(limit, device(WARP)?, device(PROCESSOR_THREADS)?, |size| {
            let shared = match shared_of {
                // SAFETY: the program's own function, as it gave it for this.
                Some(of) => unsafe { of(size) },
                None => shared,
            };
            let mut count = 0;
            // SAFETY: room for a number.
            done(unsafe { active(&raw mut count, function, size, shared, flags) })?;
            Ok(count)
        })?;
        // SAFETY: not null, and the program's own room.
        unsafe {
            tell(grid, count.saturating_mul(device(PROCESSORS)?))?;
            tell(block, size)
        }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    function: u64,
    shared_of: SharedOf,
    shared: usize,
    limit: i32,
) -> Code {
    // SAFETY: handed on.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            grid, block, function, shared_of, shared, limit, 0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A multiprocessor of 2048 threads, 32 blocks and some registers.
    fn fit(registers: i32) -> impl FnMut(i32) -> Result<i32, Code> {
        move |size| Ok((2048 / size).min(32).min(65536 / (registers * size)))
    }

    #[test]
    fn the_largest_size_wins_among_equals() {
        assert_eq!(best(1024, 32, 2048, fit(32)), Ok((1024, 2)));
        assert_eq!(best(256, 32, 2048, fit(32)), Ok((256, 8)));
        // 40 registers: 1638 threads at most; 2 × 768 are 1536, and so are 5 × 320, 1600.
        assert_eq!(best(1024, 32, 2048, fit(40)), Ok((544, 3)));
        assert_eq!(best(100, 32, 2048, fit(32)), Ok((64, 32)));
        assert_eq!(best(64, 32, 2048, |_| Ok(0)), Ok((0, 0)));
        assert_eq!(best(64, 32, 2048, |_| Err(400)), Err(400));
    }
}
