//! A tenant's call, done for it with copies.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Call, HeapFunction, MEMORY_PARAMS, argument_size, parse, status_of};
use crate::Status;
use crate::abi::memory::{
    CLASS_DEVICE_MEMORY, Heap, HeapLayout, MEMORY_INFO_LIST, MemoryInfoEntry, MemoryInfoList,
    MemoryParams, OldAlloc,
};
use crate::abi::{Alloc, ControlArgs, iowr};
use crate::bytes::{long, put_long, put_word, word};
use crate::card;

/// Does a call on `fd`, a tenant's descriptor, and gives the driver's answer. Afterwards
/// `argument` and `params` are what the tenant is to find: its own addresses, the driver's
/// answers. Done by the calling thread: its user and capabilities are those that the driver sees.
///
/// `params` is for an allocation of class 0x40, [`MEMORY_PARAMS`] bytes, and for a query of
/// [`card`], as many as the tenant said, with what [`card::Query::list`] names behind them.
///
/// # Errors
///
/// errno of the `ioctl`; [`io::ErrorKind::InvalidInput`] for a call that is never done for a
/// tenant, without asking the driver: one with other addresses in it than that of `params`,
/// another class than 0x40, another control than those of [`card`].
pub fn perform(
    fd: BorrowedFd<'_>,
    cmd: u32,
    argument: &mut [u8],
    params: Option<&mut [u8]>,
) -> io::Result<Status> {
    let call = parse(cmd, argument).map_err(refuse)?;
    let mut copy = argument.to_vec();
    let list = prepare(&call, &mut copy, params)?;
    let done = ioctl(fd, cmd, &mut copy);
    if let Some((params, own)) = list {
        put_long(params, offset_of!(MemoryInfoList, entries), own);
    }
    done?;
    restore(&call, argument, &mut copy);
    argument.copy_from_slice(&copy);
    status_of(cmd, argument).ok_or_else(|| refuse("it has no status"))
}

/// Puts our addresses in place of the tenant's. Gives parameters that had an address inside, and
/// what that was.
fn prepare<'p>(
    call: &Call,
    copy: &mut [u8],
    params: Option<&'p mut [u8]>,
) -> io::Result<Option<(&'p mut [u8], u64)>> {
    match (call, params) {
        (Call::Free(_) | Call::Dup(_), None) => {}
        (Call::Heap(heap), None) => match heap.function {
            HeapFunction::Alloc { .. } => {
                let function = word(copy, offset_of!(Heap, function));
                let layout = function.and_then(HeapLayout::of);
                let address = layout.ok_or_else(|| refuse("not an allocation"))?.address;
                put_long(copy, address, 0);
            }
            HeapFunction::Free { .. } | HeapFunction::Info => {}
            HeapFunction::Other(_) => return Err(refuse("a heap function that is not known")),
        },
        (Call::OldAlloc(old), None) if old.class == CLASS_DEVICE_MEMORY => {
            put_long(copy, offset_of!(OldAlloc, memory), 0);
            // Not one of ours, where it happens to be open here.
            put_word(copy, offset_of!(OldAlloc, fd), u32::MAX);
        }
        (Call::Alloc(alloc), Some(params)) if alloc.class == CLASS_DEVICE_MEMORY => {
            if alloc.flags != 0 || alloc.rights_at != 0 {
                return Err(refuse("an allocation with flags or rights"));
            }
            if params.len() != MEMORY_PARAMS {
                return Err(refuse("parameters of another size than the driver's"));
            }
            put_long(params, offset_of!(MemoryParams, address), 0);
            put_long(copy, offset_of!(Alloc, params), params.as_mut_ptr() as u64);
        }
        (Call::Control(control), Some(params)) if card::is_query(control.cmd) => {
            if control.flags != 0 {
                return Err(refuse("a control with flags"));
            }
            let size = control.params_size as usize;
            put_long(
                copy,
                offset_of!(ControlArgs, params),
                params.as_mut_ptr() as u64,
            );
            if control.cmd == MEMORY_INFO_LIST {
                return Ok(Some(prepare_list(size, params)?));
            }
            if params.len() != size {
                return Err(refuse("parameters of another size than the call says"));
            }
        }
        _ => return Err(refuse("a call that is not done for others")),
    }
    Ok(None)
}

/// The list behind the parameters in place of the one that they point to.
fn prepare_list(size: usize, params: &mut [u8]) -> io::Result<(&mut [u8], u64)> {
    let wrong = || refuse("a list of another size than its parameters say");
    let head = size_of::<MemoryInfoList>();
    let rest = params.get(head..).ok_or_else(wrong)?;
    let count = word(params, offset_of!(MemoryInfoList, count)).ok_or_else(wrong)?;
    let own = long(params, offset_of!(MemoryInfoList, entries)).ok_or_else(wrong)?;
    let wanted = (count as usize).checked_mul(size_of::<MemoryInfoEntry>());
    if size != head || wanted != Some(rest.len()) {
        return Err(wrong());
    }
    let address = rest.as_ptr() as u64;
    put_long(params, offset_of!(MemoryInfoList, entries), address);
    Ok((params, own))
}

/// Puts the tenant's addresses back.
fn restore(call: &Call, argument: &[u8], copy: &mut [u8]) {
    let mut keep = |offset, length: usize| {
        let (from, to) = (argument.get(offset..), copy.get_mut(offset..));
        let from = from.and_then(|rest| rest.get(..length));
        if let (Some(from), Some(to)) = (from, to.and_then(|rest| rest.get_mut(..length))) {
            to.copy_from_slice(from);
        }
    };
    match call {
        Call::Alloc(_) => keep(offset_of!(Alloc, params), size_of::<u64>()),
        Call::Control(_) => keep(offset_of!(ControlArgs, params), size_of::<u64>()),
        Call::OldAlloc(_) => {
            keep(offset_of!(OldAlloc, memory), size_of::<u64>());
            keep(offset_of!(OldAlloc, fd), size_of::<u32>());
        }
        _ => {}
    }
}

fn ioctl(fd: BorrowedFd<'_>, cmd: u32, copy: &mut [u8]) -> io::Result<()> {
    if argument_size(cmd) != Some(copy.len()) {
        return Err(refuse("an argument of another size than its number says"));
    }
    // Type and direction as the driver's own users send them.
    let request = iowr(cmd as u8, copy.len());
    loop {
        // SAFETY: `copy` is as many bytes as the request says. `prepare` let only calls through
        // whose addresses are 0, or unused, or those of parameters that the caller holds
        // exclusively and that are as many bytes as the driver takes: the size that a control's
        // argument says, or all that a memory allocation's class has.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, copy.as_mut_ptr()) };
        if rc >= 0 {
            return Ok(());
        }
        // The driver answers EINTR only before it starts.
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn refuse(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
