//! Copies of bytes in a row, in all forms. Bytes for the device have left their source when a call
//! returns; bytes for pageable memory have come when it returns, for pinned memory when the stream
//! got there.

use super::host::window;
use super::map;
use super::{done, publish};
use crate::link::{Link, Region};
use crate::session::link;
use crate::work::{self, wait_for};
use crate::{answer, sent, thread};
use ghost_wire::message::{CopyIn, CopyOut, Field, Message, wait};
use ghost_wire::result::{Code, INVALID_VALUE};

/// Where an address leads.
fn is_host(at: u64) -> bool {
    map::find(at).is_none_or(|range| range.is_host())
}

/// Before the program's memory is read for a copy: what the stream still has to bring there comes
/// first. Only pinned memory can have that ahead of it.
pub(super) fn source_ready(link: &Link, source: &Region) -> Result<(), Code> {
    let at = source.base as u64;
    let Some(range) = map::find(at).filter(map::Range::is_host) else {
        return Ok(());
    };
    work::callbacks_done(link)?;
    if range.window != 0 {
        crate::context::synchronize(0)?;
    }
    link.landed(at, source.span())
}

/// Whether this is pinned memory of the program's: a copy to there may go on after the call has
/// returned, and it may stand where an address of the device is asked for.
pub(super) fn is_pinned(at: u64) -> bool {
    map::find(at).is_some_and(|range| range.is_host())
}

/// After a copy to the device that the program takes for done: streams that don't wait for the one
/// it went by must see it too, and so must other processes.
pub(super) fn seen_by_all(link: &Link, stream: u64, per_thread: bool) -> Result<(), Code> {
    if per_thread || work::has_unordered() || super::with_others() {
        return wait_for(link, wait::STREAM, stream);
    }
    Ok(())
}

fn copy_in(to: u64, from: u64, len: usize, stream: u64, sync: bool, pt: bool) -> Result<(), Code> {
    let link = link()?;
    let captured = !sync && is_pinned(from) && work::is_captured(stream, pt)?;
    let stream = thread::stream(stream, pt)?;
    if captured {
        // Each run of the graph is to read what is there then: from where the device sees it.
        return copy_there::<false>(to, window(from)?, len, stream);
    }
    if len == 0 {
        return Ok(());
    }
    if from == 0 {
        return Err(INVALID_VALUE);
    }
    publish(link)?;
    let source = Region::flat(from as *const u8, len);
    source_ready(link, &source)?;
    // SAFETY: the program's memory, which it gave to be read.
    let posted = unsafe {
        link.post_data(CopyIn::OP, source, |encoder, bulk, data| {
            let len = len as u64;
            CopyIn {
                to,
                len,
                stream,
                bulk,
                data,
            }
            .put(encoder);
        })
    };
    done(posted)?;
    if sync {
        seen_by_all(link, stream, pt)?;
    }
    Ok(())
}

fn copy_out(to: u64, from: u64, len: usize, stream: u64, sync: bool, pt: bool) -> Result<(), Code> {
    let link = link()?;
    let captured = !sync && is_pinned(to) && work::is_captured(stream, pt)?;
    let stream = thread::stream(stream, pt)?;
    if captured {
        return copy_there::<false>(window(to)?, from, len, stream);
    }
    if len == 0 {
        return if sync { link.take_late() } else { Ok(()) };
    }
    if to == 0 {
        return Err(INVALID_VALUE);
    }
    publish(link)?;
    let region = Region::flat(to as *const u8, len);
    let message = CopyOut {
        from,
        len: len as u64,
        stream,
    };
    // SAFETY: the program's memory, which it gave to be written; pageable memory until the call
    // returns, pinned memory until it frees it, which waits.
    unsafe {
        if sync || !is_pinned(to) {
            link.wait_landing(CopyOut::OP, region, |to| message.put(to))
        } else {
            done(link.post_landing(CopyOut::OP, region, |to| message.put(to)))
        }
    }
}

/// A copy on the device.
fn copy_there<const PT: bool>(to: u64, from: u64, len: usize, stream: u64) -> Result<(), Code> {
    publish(link()?)?;
    // SAFETY: no pointer in it.
    done(unsafe { sent::cuMemcpyDtoDAsync_v2::<PT>(to, from, len, stream) })
}

/// A copy between two places of the program's own, in the stream's order.
fn copy_here<const PT: bool>(to: u64, from: u64, len: usize, stream: u64) -> Result<(), Code> {
    let link = link()?;
    let stream = thread::stream(stream, PT)?;
    wait_for(link, wait::STREAM, stream)?;
    // SAFETY: the program's memory at both ends, which may overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
    Ok(())
}

/// A copy whose direction the addresses tell.
fn copy<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
    sync: bool,
) -> Result<(), Code> {
    link()?;
    if len == 0 {
        return Ok(());
    }
    match (is_host(to), is_host(from)) {
        (false, false) => copy_there::<PT>(to, from, len, stream),
        (false, true) => copy_in(to, from, len, stream, sync, PT),
        (true, false) => copy_out(to, from, len, stream, sync, PT),
        (true, true) => copy_here::<PT>(to, from, len, stream),
    }
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoD_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
) -> Code {
    answer(match is_pinned(to) {
        true => copy_here::<PT>(to, from, len, 0),
        false => copy_in(to, from, len, 0, true, PT),
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoDAsync_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
) -> Code {
    answer(match is_pinned(to) {
        true => copy_here::<PT>(to, from, len, stream),
        false => copy_in(to, from, len, stream, false, PT),
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoH_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
) -> Code {
    answer(match is_pinned(from) {
        true => copy_here::<PT>(to, from, len, 0),
        false => copy_out(to, from, len, 0, true, PT),
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoHAsync_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
) -> Code {
    answer(match is_pinned(from) {
        true => copy_here::<PT>(to, from, len, stream),
        false => copy_out(to, from, len, stream, false, PT),
    })
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoD_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
) -> Code {
    answer(copy_device::<PT>(to, from, len, 0, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoDAsync_v2<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
) -> Code {
    answer(copy_device::<PT>(to, from, len, stream, false))
}

/// A copy that is called one on the device; pinned memory may stand at either end.
fn copy_device<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
    sync: bool,
) -> Result<(), Code> {
    if is_pinned(to) || is_pinned(from) {
        return copy::<PT>(to, from, len, stream, sync);
    }
    copy_there::<PT>(to, from, len, stream)
}

pub(crate) unsafe extern "C" fn cuMemcpy<const PT: bool>(to: u64, from: u64, len: usize) -> Code {
    answer(copy::<PT>(to, from, len, 0, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyAsync<const PT: bool>(
    to: u64,
    from: u64,
    len: usize,
    stream: u64,
) -> Code {
    answer(copy::<PT>(to, from, len, stream, false))
}

/// Between contexts: addresses are unique over all devices of the far side.
pub(crate) unsafe extern "C" fn cuMemcpyPeer<const PT: bool>(
    to: u64,
    _to_context: u64,
    from: u64,
    _from_context: u64,
    len: usize,
) -> Code {
    answer(copy::<PT>(to, from, len, 0, true))
}

pub(crate) unsafe extern "C" fn cuMemcpyPeerAsync<const PT: bool>(
    to: u64,
    _to_context: u64,
    from: u64,
    _from_context: u64,
    len: usize,
    stream: u64,
) -> Code {
    answer(copy::<PT>(to, from, len, stream, false))
}

/// # Safety
/// The lists are null or have `count` items; `failed` is null or room for a number.
unsafe fn batch<const PT: bool>(
    to: *const u64,
    from: *const u64,
    len: *const usize,
    count: usize,
    failed: *mut usize,
    stream: u64,
) -> Result<(), Code> {
    link()?;
    if to.is_null() || from.is_null() || len.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    for at in 0..count {
        // SAFETY: not null, and `count` items each.
        let (to, from, len) = unsafe {
            (
                to.add(at).read_unaligned(),
                from.add(at).read_unaligned(),
                len.add(at).read_unaligned(),
            )
        };
        if let Err(code) = copy::<PT>(to, from, len, stream, false) {
            // SAFETY: null, or the program's own room.
            unsafe { super::tell_maybe(failed, at) };
            return Err(code);
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuMemcpyBatchAsync<const PT: bool>(
    to: *const u64,
    from: *const u64,
    len: *const usize,
    count: usize,
    _attributes: *const u8,
    _attribute_at: *const usize,
    _attribute_count: usize,
    failed: *mut usize,
    stream: u64,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { batch::<PT>(to, from, len, count, failed, stream) })
}

pub(crate) unsafe extern "C" fn cuMemcpyBatchAsync_v2<const PT: bool>(
    to: *const u64,
    from: *const u64,
    len: *const usize,
    count: usize,
    _attributes: *const u8,
    _attribute_at: *const usize,
    _attribute_count: usize,
    stream: u64,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { batch::<PT>(to, from, len, count, std::ptr::null_mut(), stream) })
}
