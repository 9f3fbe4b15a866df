//! What each thread has of its own: the stack of contexts, its default stream in each context.

use ghost_wire::id::{STREAM_LEGACY, STREAM_PER_THREAD};
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_HANDLE, SUCCESS};
use ghost_wire::{Id, Object};
use std::cell::RefCell;

/// A context that is or was current.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Current {
    /// As the program sees it.
    pub(crate) handle: u64,
    /// As the wire has it.
    pub(crate) wire: u64,
    /// Its device.
    pub(crate) device: i32,
}

struct Thread {
    /// The last is current.
    contexts: Vec<Current>,
    streams: Vec<Own>,
    /// How many contexts had ended when `streams` was looked through.
    ended: u64,
}

/// A thread's default stream in a context.
struct Own {
    /// The context as the wire has it, and in which of its lives.
    context: u64,
    life: u64,
    stream: u64,
}

impl Drop for Thread {
    fn drop(&mut self) {
        for own in &self.streams {
            // SAFETY: a handle, by value.
            unsafe { crate::sent::cuStreamDestroy_v2(own.stream) };
        }
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = const {
        RefCell::new(Thread { contexts: Vec::new(), streams: Vec::new(), ended: 0 })
    };
}

fn with<R>(with: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let thread = THREAD.try_with(|thread| thread.try_borrow_mut().ok().map(|mut t| with(&mut t)));
    thread.ok().flatten()
}

/// The current context.
pub(crate) fn context() -> Option<Current> {
    with(|thread| thread.contexts.last().copied()).flatten()
}

/// The current context as the program sees it, 0 for none.
pub(crate) fn current() -> u64 {
    context().map_or(0, |context| context.handle)
}

/// The current context as the wire has it, 0 for none.
pub(crate) fn wire() -> u64 {
    context().map_or(0, |context| context.wire)
}

/// Makes `context` the current one in place of that which is; `None` takes that away.
pub(crate) fn set(context: Option<Current>) {
    with(|thread| {
        thread.contexts.pop();
        thread.contexts.extend(context);
    });
}

/// Makes `context` the current one.
pub(crate) fn push(context: Current) {
    with(|thread| thread.contexts.push(context));
}

/// Takes the current context away.
pub(crate) fn pop() -> Option<Current> {
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
    let context = wire();
    if context == 0 {
        return Err(INVALID_CONTEXT);
    }
    let ended = crate::context::ended();
    let known = with(|thread| {
        if thread.ended != ended {
            thread.ended = ended;
            let lives = crate::context::life;
            thread.streams.retain(|own| own.life == lives(own.context));
        }
        let own = thread.streams.iter().find(|own| own.context == context);
        own.map(|own| own.stream)
    });
    if let Some(stream) = known.flatten() {
        return Ok(stream);
    }
    let mut stream = 0;
    // SAFETY: room for a handle.
    match unsafe { crate::sent::cuStreamCreate(&raw mut stream, 0) } {
        SUCCESS => {
            let life = crate::context::life(context);
            with(|thread| {
                thread.streams.push(Own {
                    context,
                    life,
                    stream,
                });
            });
            Ok(stream)
        }
        code => Err(code),
    }
}
