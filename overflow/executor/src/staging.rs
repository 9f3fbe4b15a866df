//! Host memory that copies go through: pinned where the driver can, used again.

use crate::driver::Driver;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Sizes that are kept to be used again; what is larger is made for one copy.
const CLASSES: [usize; 3] = [4 << 10, 64 << 10, ghost_wire::CHUNK];

/// Small buffers are cut from pages of this size, so that few calls pin many of them.
const SLAB: usize = 4 << 20;

/// Most bytes of those in use at a time; who wants more waits.
const MOST: usize = 1 << 30;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts.
const PORTABLE: u32 = 1;

/// A buffer.
#[derive(Debug)]
pub(crate) struct Staging {
    at: NonNull<u8>,
    room: usize,
    /// Its class, or none: a mapping of its own.
    class: Option<usize>,
    /// Whether that was pinned; of a mapping of its own.
    pinned: bool,
    /// Bytes that count.
    len: usize,
}

// SAFETY: memory that only its owner uses.
unsafe impl Send for Staging {}

impl Staging {
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and as long; the device is done with it when it is read.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, and as long; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

#[derive(Debug, Default)]
struct Free {
    lists: [Vec<Staging>; CLASSES.len()],
    used: usize,
}

/// All buffers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Guards the free ones and the count of bytes in use.
    free: Mutex<Free>,
    /// Told when one comes back.
    back: Condvar,
}

/// There is no memory for it.
#[derive(Debug, thiserror::Error)]
#[error("no host memory for a copy of {0} bytes")]
pub(crate) struct NoMemory(usize);

fn map(len: usize) -> Result<NonNull<u8>, NoMemory> {
    let size = NonZeroUsize::new(len.max(1)).ok_or(NoMemory(len))?;
    let (prot, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: new memory, anywhere.
    let mapped = unsafe { mmap_anonymous(None, size, prot, flags) };
    mapped.map(NonNull::cast).map_err(|_| NoMemory(len))
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes; waits while too many are in use. It is pinned by `driver`, which
    /// needs a current context for that; without one it serves unpinned.
    pub(crate) fn take(&self, driver: &Driver, len: usize) -> Result<Staging, NoMemory> {
        let class = CLASSES.iter().position(|size| len <= *size);
        let Some((class, room)) = class.and_then(|at| Some((at, *CLASSES.get(at)?))) else {
            return Self::alone(driver, len);
        };
        let mut free = self.lock();
        while free.used + room > MOST {
            free = self.back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        free.used += room;
        let kept = free.lists.get_mut(class).and_then(Vec::pop);
        drop(free);
        match kept.map_or_else(|| self.slab(driver, class, room), Ok) {
            Ok(staging) => Ok(Staging { len, ..staging }),
            Err(error) => {
                self.lock().used -= room;
                Err(error)
            }
        }
    }

    /// A mapping for one copy.
    fn alone(driver: &Driver, len: usize) -> Result<Staging, NoMemory> {
        let at = map(len)?;
        // SAFETY: just mapped; unmapped only after it is unregistered.
        let pinned = unsafe { driver.cuMemHostRegister_v2(at.as_ptr(), len, PORTABLE) };
        Ok(Staging {
            at,
            room: len,
            class: None,
            pinned: pinned.is_ok(),
            len,
        })
    }

    /// Makes buffers of a class, keeps all but one.
    fn slab(&self, driver: &Driver, class: usize, room: usize) -> Result<Staging, NoMemory> {
        let at = map(SLAB)?;
        // SAFETY: just mapped, and never unmapped. Unpinned it serves as well, only slower.
        let _ = unsafe { driver.cuMemHostRegister_v2(at.as_ptr(), SLAB, PORTABLE) };
        let mut all: Vec<Staging> = (0..SLAB / room)
            .map(|n| Staging {
                // SAFETY: within the slab.
                at: unsafe { at.add(n * room) },
                room,
                class: Some(class),
                pinned: false,
                len: 0,
            })
            .collect();
        let one = all.pop().ok_or(NoMemory(room))?;
        if let Some(list) = self.lock().lists.get_mut(class) {
            list.append(&mut all);
        }
        Ok(one)
    }

    /// Takes a buffer back.
    pub(crate) fn give(&self, driver: &Driver, staging: Staging) {
        let Some(class) = staging.class else {
            if staging.pinned {
                // SAFETY: registered when it was made; no copy uses it any more.
                let _ = unsafe { driver.cuMemHostUnregister(staging.at.as_ptr()) };
            }
            // SAFETY: a mapping of its own.
            let _ = unsafe { munmap(staging.at.cast::<c_void>(), staging.room) };
            return;
        };
        let mut free = self.lock();
        free.used -= staging.room;
        if let Some(list) = free.lists.get_mut(class) {
            list.push(staging);
        }
        drop(free);
        self.back.notify_all();
    }
}
