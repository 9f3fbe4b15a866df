//! Memory that both sides see: managed memory, and host memory whose device address was asked for.
//! What the program wrote goes ahead of work that may read it; what the device wrote comes before
//! the answer to a wait. Bytes that only one side writes are never overwritten by the other.

use super::merge;
use crate::link::Link;
use crate::session::link;
use crate::work::callbacks_done;
use ghost_wire::CHUNK;
use ghost_wire::message::{Field, Message, Share, Unshare, WriteShared};
use ghost_wire::result::Code;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of a run that go in one message.
const RUN: usize = 256 << 10;
const _: () = assert!(RUN < CHUNK);

/// Memory that both sides see.
struct Shared {
    at: u64,
    /// What both sides last agreed on.
    base: Vec<u8>,
}

impl Shared {
    /// # Safety
    /// The memory still exists.
    unsafe fn memory(&self) -> &'static mut [u8] {
        // SAFETY: the caller's promise. The program may write there at the same time, as it may
        // with a device that does.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.base.len()) }
    }
}

/// Guards what is shared, with its bases. Held for moments, never while sending.
static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
/// Guards the order in which writes of the program's are found and sent. Taken before `SHARED`.
static ORDER: Mutex<()> = Mutex::new(());
/// How many there are, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn shared() -> MutexGuard<'static, Vec<Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the executor to share `len` bytes at `at` (0: managed memory); the address that the device
/// uses.
pub(super) fn ask(at: u64, len: u64, flags: u32) -> Result<u64, Code> {
    let message = Share { at, len, flags };
    link()?.wait(Share::OP, |to| message.put(to), |from| from.word())
}

/// Asks the executor to end it.
pub(super) fn ask_end(at: u64) -> Result<(), Code> {
    let message = Unshare { at };
    super::done(link()?.post(Unshare::OP, |to| message.put(to)))
}

/// From now on both sides see `len` bytes at `at`; the executor has zeroes there.
pub(super) fn begin(at: u64, len: usize) {
    let base = vec![0; len];
    let mut shared = shared();
    shared.push(Shared { at, base });
    COUNT.store(shared.len(), Ordering::Release);
}

/// Not any more.
pub(super) fn end(at: u64) {
    let mut shared = shared();
    shared.retain(|s| s.at != at);
    COUNT.store(shared.len(), Ordering::Release);
}

/// Sends what the program has written to shared memory, ahead of work that may read it.
#[inline]
pub(crate) fn publish(link: &Link) -> Result<(), Code> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    send(link)
}

#[cold]
fn send(link: &Link) -> Result<(), Code> {
    let _order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    // What is to come there by copies and callbacks is to be seen by later work, too.
    callbacks_done(link)?;
    let ranges: Vec<_> = shared().iter().map(|s| (s.at, s.base.len())).collect();
    for (at, len) in ranges {
        link.landed(at, len)?;
    }
    let mut written = Vec::new();
    for shared in shared().iter_mut() {
        // SAFETY: it is taken out of the list before its memory ends.
        let memory = unsafe { shared.memory() };
        for (start, len) in merge::differing(memory, &shared.base) {
            for at in (start..start + len).step_by(RUN) {
                let part = at..(at + RUN).min(start + len);
                let (Some(from), Some(to)) = (memory.get(part.clone()), shared.base.get_mut(part))
                else {
                    continue;
                };
                let data = from.to_vec();
                to.copy_from_slice(&data);
                written.push((shared.at + at as u64, data));
            }
        }
    }
    for (at, data) in &written {
        let message = WriteShared { at: *at, data };
        super::done(link.post(WriteShared::OP, |to| message.put(to)))?;
    }
    Ok(())
}

/// The device changed shared memory.
pub(crate) fn changed(at: u64, data: &[u8]) {
    let mut shared = shared();
    let holds = |s: &&mut Shared| at >= s.at && at < s.at + s.base.len() as u64;
    let Some(shared) = shared.iter_mut().find(holds) else {
        return;
    };
    // SAFETY: it is taken out of the list before its memory ends.
    let memory = unsafe { shared.memory() };
    let start = (at - shared.at) as usize;
    let end = start.saturating_add(data.len()).min(memory.len());
    if let (Some(mine), Some(base)) = (memory.get_mut(start..end), shared.base.get_mut(start..end))
    {
        merge::take(data, mine, base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_changed_arrives_and_what_it_did_not_stays() {
        let mut memory = vec![0_u8; 64];
        let at = memory.as_mut_ptr() as u64;
        begin(at, memory.len());
        memory[3] = 1;
        let mut theirs = [0; 16];
        theirs[5] = 9;
        changed(at, &theirs);
        changed(at + 60, &[7; 16]);
        end(at);
        changed(at, &[8; 16]);
        assert_eq!(memory[..8], [0, 0, 0, 1, 0, 9, 0, 0]);
        assert_eq!(memory[60..], [7; 4]);
    }
}
