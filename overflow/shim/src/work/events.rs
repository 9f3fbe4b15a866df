//! Events. One that has nothing outstanding is known here to be over.

use super::ask;
use super::streams::is_capturing;
use crate::memory::done;
use crate::session::link;
use crate::{answer, sent};
use ghost_wire::kind::Bytes;
use ghost_wire::message::wait;
use ghost_wire::result::{Code, INVALID_HANDLE, NOT_READY};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// How often an event was recorded, and which of these records are known to be over.
#[derive(Debug, Default)]
struct Event {
    records: AtomicU64,
    over: AtomicU64,
    /// Whether other processes may have it.
    with_others: AtomicBool,
}

/// The program's events. Guards them.
static EVENTS: RwLock<Option<HashMap<u64, Arc<Event>>>> = RwLock::new(None);

fn write<R>(with: impl FnOnce(&mut HashMap<u64, Arc<Event>>) -> R) -> R {
    let mut events = EVENTS.write().unwrap_or_else(PoisonError::into_inner);
    with(events.get_or_insert_default())
}

fn find(handle: u64) -> Result<Arc<Event>, Code> {
    let events = EVENTS.read().unwrap_or_else(PoisonError::into_inner);
    let event = events.as_ref().and_then(|events| events.get(&handle));
    event.cloned().ok_or(INVALID_HANDLE)
}

pub(crate) unsafe extern "C" fn cuEventCreate(to: *mut u64, flags: u32) -> Code {
    let created = || {
        link()?;
        // SAFETY: handed on.
        done(unsafe { sent::cuEventCreate(to, flags) })?;
        // SAFETY: the call has written the handle there.
        let handle = unsafe { to.read_unaligned() };
        write(|events| events.insert(handle, Arc::default()));
        Ok(())
    };
    answer(created())
}

pub(crate) unsafe extern "C" fn cuEventDestroy_v2(event: u64) -> Code {
    let destroyed = || {
        link()?;
        write(|events| events.remove(&event)).ok_or(INVALID_HANDLE)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuEventDestroy_v2(event) })
    };
    answer(destroyed())
}

/// An event is about to be recorded.
fn recorded(event: u64) -> Result<(), Code> {
    link()?;
    let event = find(event)?;
    event.records.fetch_add(1, Ordering::AcqRel);
    if is_capturing() {
        never_known(&event);
    }
    Ok(())
}

/// An event may be recorded out of sight, by a graph or another process: it is always asked for
/// from now on.
fn never_known(event: &Event) {
    event.over.store(u64::MAX, Ordering::Release);
}

/// From now on other processes may have an event.
fn shared_with_others(event: &Event) {
    never_known(event);
    event.with_others.store(true, Ordering::Release);
}

/// Once a record is sent: another process that hears of it must find it there.
fn arrived(event: u64) -> Result<(), Code> {
    if !find(event)?.with_others.load(Ordering::Acquire) || is_capturing() {
        return Ok(());
    }
    match ask(link()?, wait::EVENT, event, true) {
        Err(NOT_READY) => Ok(()),
        asked => asked,
    }
}

pub(crate) unsafe extern "C" fn cuIpcGetEventHandle(to: *mut [u8; 64], event: u64) -> Code {
    let told = || {
        link()?;
        let known = find(event)?;
        // SAFETY: handed on.
        done(unsafe { sent::cuIpcGetEventHandle(to, event) })?;
        shared_with_others(&known);
        Ok(())
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuIpcOpenEventHandle(to: *mut u64, handle: Bytes<64>) -> Code {
    let opened = || {
        link()?;
        // SAFETY: handed on.
        done(unsafe { sent::cuIpcOpenEventHandle(to, handle) })?;
        let event = Arc::new(Event::default());
        shared_with_others(&event);
        // SAFETY: the call has written the handle there.
        let handle = unsafe { to.read_unaligned() };
        write(|events| events.insert(handle, event));
        Ok(())
    };
    answer(opened())
}

pub(crate) unsafe extern "C" fn cuGraphAddEventRecordNode(
    to: *mut u64,
    graph: u64,
    nodes: *const u64,
    count: usize,
    event: u64,
) -> Code {
    match answer(
        link()
            .and_then(|_| find(event))
            .map(|event| never_known(&event)),
    ) {
        // SAFETY: handed on.
        0 => unsafe { sent::cuGraphAddEventRecordNode(to, graph, nodes, count, event) },
        code => code,
    }
}

pub(crate) unsafe extern "C" fn cuEventRecord<const PT: bool>(event: u64, stream: u64) -> Code {
    let done = || {
        recorded(event)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuEventRecord::<PT>(event, stream) })?;
        arrived(event)
    };
    answer(done())
}

pub(crate) unsafe extern "C" fn cuEventRecordWithFlags<const PT: bool>(
    event: u64,
    stream: u64,
    flags: u32,
) -> Code {
    let done = || {
        recorded(event)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuEventRecordWithFlags::<PT>(event, stream, flags) })?;
        arrived(event)
    };
    answer(done())
}

fn over(event: u64, query: bool) -> Result<(), Code> {
    let link = link()?;
    let known = find(event)?;
    let records = known.records.load(Ordering::Acquire);
    if known.over.load(Ordering::Acquire) == records {
        return link.take_late();
    }
    ask(link, wait::EVENT, event, query)?;
    let _ = known
        .over
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |over| {
            (over < records).then_some(records)
        });
    Ok(())
}

pub(crate) unsafe extern "C" fn cuEventSynchronize(event: u64) -> Code {
    answer(over(event, false))
}

pub(crate) unsafe extern "C" fn cuEventQuery(event: u64) -> Code {
    answer(over(event, true))
}

pub(crate) unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut f32, start: u64, end: u64) -> Code {
    // SAFETY: handed on. Every driver has the first form.
    unsafe { sent::cuEventElapsedTime(to, start, end) }
}
