//! Functions of the program's that run in a stream's order.

use super::streams::is_capturing;
use crate::link::Link;
use crate::memory::{done, publish};
use crate::session::link;
use crate::{answer, thread};
use ghost_wire::message::{Field, HostCall, Message};
use ghost_wire::result::{Code, INVALID_VALUE, SUCCESS};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type WithStatus = unsafe extern "C" fn(u64, Code, *mut c_void);
type Plain = unsafe extern "C" fn(*mut c_void);

#[derive(Debug, Clone, Copy)]
enum Function {
    /// Of `cuStreamAddCallback`: the stream, too.
    WithStatus(WithStatus, u64),
    /// Of `cuLaunchHostFunc` and of graphs.
    Plain(Plain),
}

#[derive(Debug, Clone, Copy)]
struct Call {
    function: Function,
    data: *mut c_void,
    /// Whether it runs once; else it is a graph's, and runs as often as that does.
    once: bool,
}
// SAFETY: the program gave function and data to be called from a thread of the driver's.
unsafe impl Send for Call {}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    calls: HashMap<u64, Call>,
    /// How many run once and have not.
    due: usize,
}

/// Guards the calls that are to come.
static CALLS: Mutex<Option<Calls>> = Mutex::new(None);
/// Told when one has run.
static RAN: Condvar = Condvar::new();

thread_local! {
    /// Whether this thread runs a function of the program's for a stream.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

fn lock() -> MutexGuard<'static, Option<Calls>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A token for a call.
fn enter(call: Call) -> u64 {
    let mut calls = lock();
    let calls = calls.get_or_insert_default();
    calls.next += 1;
    calls.due += usize::from(call.once);
    calls.calls.insert(calls.next, call);
    calls.next
}

/// A call that will not come.
fn forget(token: u64) {
    let mut calls = lock();
    if let Some(calls) = calls.as_mut()
        && let Some(call) = calls.calls.remove(&token)
    {
        calls.due -= usize::from(call.once);
    }
    drop(calls);
    RAN.notify_all();
}

/// A token for a function of a graph's; it stays as long as the process.
///
/// # Safety
/// The function may be called with the data from another thread, as often as the graph runs.
pub(super) unsafe fn of_graph(function: Plain, data: *mut c_void) -> u64 {
    enter(Call {
        function: Function::Plain(function),
        data,
        once: false,
    })
}

/// Runs the function of the program's that has this token.
pub(crate) fn callback(token: u64, code: Code) {
    let call = lock().as_ref().and_then(|c| c.calls.get(&token).copied());
    let Some(call) = call else { return };
    let _ = RUNS.try_with(|runs| runs.set(true));
    // SAFETY: the program's function and data, given for this.
    unsafe {
        match call.function {
            Function::WithStatus(function, stream) => function(stream, code, call.data),
            Function::Plain(function) if code == SUCCESS => function(call.data),
            Function::Plain(_) => {}
        }
    }
    let _ = RUNS.try_with(|runs| runs.set(false));
    if call.once {
        forget(token);
    }
}

/// Waits until functions that may write what a copy reads have run.
pub(crate) fn callbacks_done(link: &Link) -> Result<(), Code> {
    if RUNS.try_with(Cell::get).unwrap_or(false) {
        return Ok(());
    }
    let mut calls = lock();
    while calls.as_ref().is_some_and(|calls| calls.due > 0) && link.broken().is_none() {
        let (again, _) = RAN
            .wait_timeout(calls, Duration::from_millis(100))
            .unwrap_or_else(PoisonError::into_inner);
        calls = again;
    }
    Ok(())
}

fn call(stream: u64, function: Function, data: *mut c_void, pt: bool) -> Result<(), Code> {
    let link = link()?;
    let wire = thread::stream(stream, pt)?;
    publish(link)?;
    let token = enter(Call {
        function,
        data,
        once: !is_capturing(),
    });
    let message = HostCall {
        token,
        stream: wire,
        with_status: matches!(function, Function::WithStatus(..)),
    };
    let posted = done(link.post(HostCall::OP, |to| message.put(to)));
    if posted.is_err() {
        forget(token);
    }
    posted
}

pub(crate) unsafe extern "C" fn cuStreamAddCallback<const PT: bool>(
    stream: u64,
    function: Option<WithStatus>,
    data: *mut c_void,
    flags: u32,
) -> Code {
    let Some(function) = function.filter(|_| flags == 0) else {
        return INVALID_VALUE;
    };
    answer(call(
        stream,
        Function::WithStatus(function, stream),
        data,
        PT,
    ))
}

pub(crate) unsafe extern "C" fn cuLaunchHostFunc<const PT: bool>(
    stream: u64,
    function: Option<Plain>,
    data: *mut c_void,
) -> Code {
    let Some(function) = function else {
        return INVALID_VALUE;
    };
    answer(call(stream, Function::Plain(function), data, PT))
}
