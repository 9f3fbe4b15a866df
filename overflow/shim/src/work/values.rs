//! Operations of streams on single values in the device's memory.

use crate::memory::{done, is_shared_with_host, tell_device};
use crate::refused::refuse;
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::api::op;
use ghost_wire::kind::LIST_MAX;
use ghost_wire::result::{Code, INVALID_VALUE};

/// `CUstreamBatchMemOpType`.
mod operation {
    pub(super) const WAIT_32: u32 = 1;
    pub(super) const WRITE_32: u32 = 2;
    pub(super) const FLUSH_REMOTE_WRITES: u32 = 3;
    pub(super) const WAIT_64: u32 = 4;
    pub(super) const WRITE_64: u32 = 5;
    pub(super) const BARRIER: u32 = 6;
}

macro_rules! writes {
    ($($symbol:ident $value:ty;)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol<const PT: bool>(
            stream: u64,
            at: u64,
            value: $value,
            flags: u32,
        ) -> Code {
            let sent = || {
                link()?;
                // SAFETY: no pointer in it.
                done(unsafe { sent::$symbol::<PT>(stream, tell_device(at)?, value, flags) })
            };
            answer(sent())
        }
    )*};
}

writes! {
    cuStreamWriteValue32 u32;
    cuStreamWriteValue32_v2 u32;
    cuStreamWriteValue64 u64;
    cuStreamWriteValue64_v2 u64;
}

macro_rules! waits {
    ($($symbol:ident $value:ty;)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol<const PT: bool>(
            stream: u64,
            at: u64,
            value: $value,
            flags: u32,
        ) -> Code {
            // What the program writes there would come with the next launch only.
            if is_shared_with_host(at) {
                return answer(link().and_then(|_| Err(refuse(op::$symbol))));
            }
            // SAFETY: no pointer in it.
            unsafe { sent::$symbol::<PT>(stream, at, value, flags) }
        }
    )*};
}

waits! {
    cuStreamWaitValue32 u32;
    cuStreamWaitValue32_v2 u32;
    cuStreamWaitValue64 u64;
    cuStreamWaitValue64_v2 u64;
}

/// `CUstreamBatchMemOpParams`, in words.
pub(crate) type Operation = [u64; 6];

/// A batch is its operations one after the other: each sees what was before it.
///
/// # Safety
/// `all` is null or has `count` operations.
unsafe fn batch<const PT: bool>(
    stream: u64,
    count: u32,
    all: *const Operation,
    flags: u32,
) -> Result<(), Code> {
    link()?;
    if all.is_null() || count as usize > LIST_MAX || flags != 0 {
        return Err(INVALID_VALUE);
    }
    for at in 0..count as usize {
        // SAFETY: not null, and `count` of them.
        let [what, at, value, flags, ..] = unsafe { all.add(at).read_unaligned() };
        let (what, narrow, flags) = (what as u32, value as u32, flags as u32);
        // SAFETY: no pointer in any of them.
        done(unsafe {
            match what {
                operation::WAIT_32 => cuStreamWaitValue32_v2::<PT>(stream, at, narrow, flags),
                operation::WRITE_32 => cuStreamWriteValue32_v2::<PT>(stream, at, narrow, flags),
                operation::WAIT_64 => cuStreamWaitValue64_v2::<PT>(stream, at, value, flags),
                operation::WRITE_64 => cuStreamWriteValue64_v2::<PT>(stream, at, value, flags),
                // Nobody else writes there, and one operation follows the other.
                operation::FLUSH_REMOTE_WRITES | operation::BARRIER => 0,
                _ => INVALID_VALUE,
            }
        })?;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuStreamBatchMemOp<const PT: bool>(
    stream: u64,
    count: u32,
    all: *const Operation,
    flags: u32,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { batch::<PT>(stream, count, all, flags) })
}

pub(crate) unsafe extern "C" fn cuStreamBatchMemOp_v2<const PT: bool>(
    stream: u64,
    count: u32,
    all: *const Operation,
    flags: u32,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { batch::<PT>(stream, count, all, flags) })
}
