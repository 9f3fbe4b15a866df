//! Limits of a context. Libraries ask for them before each launch of some kernels. `cuCtxSetLimit`
//! changes them, and of the stack's size the driver tells more once a kernel has run that needs more.

use crate::context::life;
use crate::memory::{done, tell};
use crate::session::link;
use crate::{answer, sent, thread};
use ghost_wire::result::{Code, INVALID_CONTEXT};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A context, its life, and a limit's number.
type Key = (u64, u64, u32);

/// Limits that were asked for, and [`STACKS`] before. Guards them, and is held while one is asked for
/// or set.
static KNOWN: Mutex<Option<HashMap<Key, (u64, u64)>>> = Mutex::new(None);

/// `CU_LIMIT_STACK_SIZE`.
const STACK: u32 = 0;

/// How often something was launched that may need a larger stack than all before it.
static STACKS: AtomicU64 = AtomicU64::new(0);

/// How often stacks have become smaller, so that a kernel that ran may make them larger again.
static ERA: AtomicU64 = AtomicU64::new(1);

/// A kernel's first launch in a context and era was sent, or that of a graph.
pub(crate) fn stacks_may_grow() {
    STACKS.fetch_add(1, Ordering::AcqRel);
}

/// See [`new_era`].
#[inline]
pub(crate) fn era() -> u64 {
    ERA.load(Ordering::Acquire)
}

/// The stack's size was set, or a context has ended.
pub(crate) fn new_era() {
    ERA.fetch_add(1, Ordering::AcqRel);
}

fn key(limit: u32) -> Result<Key, Code> {
    let context = thread::context().ok_or(INVALID_CONTEXT)?.wire;
    Ok((context, life(context), limit))
}

pub(crate) unsafe extern "C" fn cuCtxGetLimit(to: *mut u64, limit: u32) -> Code {
    let told = || {
        link()?;
        let key = key(limit)?;
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        let stacks = STACKS.load(Ordering::Acquire);
        let value = match known.get(&key) {
            Some((value, then)) if limit != STACK || *then == stacks => *value,
            _ => {
                let mut value = 0;
                // SAFETY: room for a number of our own.
                done(unsafe { sent::cuCtxGetLimit(&raw mut value, limit) })?;
                known.insert(key, (value, stacks));
                value
            }
        };
        // SAFETY: null, or the program's own room.
        unsafe { tell(to, value) }
    };
    answer(told())
}

/// The driver may take another value than the one it is given, so that it is asked again.
pub(crate) unsafe extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> Code {
    let set = || {
        link()?;
        let key = key(limit)?;
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuCtxSetLimit(limit, value) })?;
        known.get_or_insert_default().remove(&key);
        if limit == STACK {
            new_era();
        }
        Ok(())
    };
    answer(set())
}
