//! Limits of a context. Libraries ask for them before each launch of some kernels; only
//! `cuCtxSetLimit` changes them.

use crate::context::life;
use crate::memory::{done, tell};
use crate::session::link;
use crate::{answer, sent, thread};
use ghost_wire::result::{Code, INVALID_CONTEXT};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A context, its life, and a limit's number.
type Key = (u64, u64, u32);

/// Limits that were asked for. Guards them, and is held while one is asked for or set.
static KNOWN: Mutex<Option<HashMap<Key, u64>>> = Mutex::new(None);

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
        let value = match known.get(&key) {
            Some(value) => *value,
            None => {
                let mut value = 0;
                // SAFETY: room for a number of our own.
                done(unsafe { sent::cuCtxGetLimit(&raw mut value, limit) })?;
                known.insert(key, value);
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
        Ok(())
    };
    answer(set())
}
