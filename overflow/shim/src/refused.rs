//! What is not supported: counted, and named once.

use ghost_wire::Op;
use ghost_wire::api::ENTRIES;
use ghost_wire::result::{Code, NOT_SUPPORTED};
use ghost_wire::stats::Counter;
use std::sync::atomic::{AtomicBool, Ordering};

static NAMED: [AtomicBool; ENTRIES.len()] = [const { AtomicBool::new(false) }; ENTRIES.len()];

/// The function of a row that is refused.
pub(crate) unsafe extern "C" fn stub<const OP: u16>() -> Code {
    refuse(Op(OP))
}

/// Counts a call of `op` that can't be served, and says so the first time.
pub(crate) fn refuse(op: Op) -> Code {
    crate::stats::count(Counter::Refused, 1);
    let named = NAMED.get(usize::from(op.0));
    if named.is_some_and(|named| !named.swap(true, Ordering::Relaxed)) {
        crate::session::say(format_args!(
            "{} is not supported where a program computes on another host; it is answered with \
             CUDA_ERROR_NOT_SUPPORTED",
            op.name()
        ));
    }
    NOT_SUPPORTED
}
