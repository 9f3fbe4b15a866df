//! What each thread has of its own: the stack of contexts, its default stream in each context.

use ghost_wire::id::{STREAM_LEGACY, STREAM_PER_THREAD};
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_HANDLE, SUCCESS};
use ghost_wire::{Id, Object};
use std::cell::RefCell;

#[derive(Default)]
struct Thread {
    /// Handles as the program sees them; the last is current.
    contexts: Vec<u64>,
    /// Context and stream.
    streams: Vec<(u64, u64)>,
}

thread_local! {
    static THREAD: RefCell<Thread> = const {
        RefCell::new(Thread { contexts: Vec::new(), streams: Vec::new() })
    };
}

fn with<R>(with: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD
        .try_with(|thread| thread.try_borrow_mut().ok().map(|mut t| with(&mut t)))
        .ok()
        .flatten()
}

/// The current context as the program sees it, 0 for none.
pub(crate) fn current() -> u64 {
    with(|thread| thread.contexts.last().copied())
        .flatten()
        .unwrap_or(0)
}

/// Makes `context` the current one in place of that which is; 0 takes that away.
pub(crate) fn set(context: u64) {
    with(|thread| {
        thread.contexts.pop();
        if context != 0 {
            thread.contexts.push(context);
        }
    });
}

/// Makes `context` the current one.
pub(crate) fn push(context: u64) {
    with(|thread| thread.contexts.push(context));
}

/// Takes the current context away.
pub(crate) fn pop() -> Option<u64> {
    with(|thread| thread.contexts.pop()).flatten()
}

/// The stream as the wire has it: the thread's own where it is meant, made when it is needed.
pub(crate) fn stream(raw: u64, per_thread: bool) -> Result<u64, Code> {
    match raw {
        0 if per_thread => own_stream(),
        STREAM_PER_THREAD => own_stream(),
        0 | STREAM_LEGACY => Ok(raw),
        _ => match Id::from_raw(raw).and_then(Id::object) {
            Some(Object::Stream) => Ok(raw),
            _ => Err(INVALID_HANDLE),
        },
    }
}

fn own_stream() -> Result<u64, Code> {
    let context = current();
    if context == 0 {
        return Err(INVALID_CONTEXT);
    }
    let known = with(|t| t.streams.iter().find(|s| s.0 == context).map(|s| s.1)).flatten();
    if let Some(stream) = known {
        return Ok(stream);
    }
    let mut stream = 0;
    // SAFETY: room for a handle.
    match unsafe { crate::sent::cuStreamCreate(&raw mut stream, 0) } {
        SUCCESS => {
            with(|thread| thread.streams.push((context, stream)));
            Ok(stream)
        }
        code => Err(code),
    }
}
