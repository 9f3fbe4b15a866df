//! Memory that the program and the device both see. The client sends what the program wrote before
//! work that may read it; from here goes back what the device changed.

use crate::driver::Driver;
use crate::link::Link;
use ghost_wire::frame::DataKind;
use ghost_wire::message::{Share, WriteShared};
use ghost_wire::result::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
/// What is compared: smaller than what processor and device would share between them.
const GRAIN: usize = 4;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `_DEVICEMAP`; the other flags say nothing about this memory.
const FLAGS: u32 = 3;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`: a word of 32 bits.
const IS_MANAGED: u32 = 8;

#[derive(Debug)]
struct Region {
    /// As the client names it.
    at: u64,
    /// Where it is here.
    here: NonNull<u8>,
    /// As client and executor last agreed on it.
    base: Vec<u8>,
    whose: Whose,
}

/// Whose memory a region is.
#[derive(Debug, Clone, Copy)]
enum Whose {
    /// The program's, mapped here.
    Mapped(NonNull<c_void>, usize),
    /// Managed, allocated for the client.
    Managed,
    /// Managed, a module's: it ends with that.
    Module,
}

// SAFETY: the memory is used under the lock only (the device's own use aside).
unsafe impl Send for Region {}

impl Region {
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as the region stands.
        unsafe { std::slice::from_raw_parts(self.here.as_ptr(), self.base.len()) }
    }

    fn end(self, driver: &Driver) -> Result<(), Code> {
        match self.whose {
            Whose::Mapped(start, len) => {
                // SAFETY: registered when it was made.
                let ended = unsafe { driver.cuMemHostUnregister(start.as_ptr().cast()) };
                if ended.is_ok() {
                    // SAFETY: a mapping of our own; the device is done with it.
                    let _ = unsafe { munmap(start, len) };
                }
                ended
            }
            Whose::Managed => driver.cuMemFree_v2(self.at),
            Whose::Module => Err(INVALID_VALUE),
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Guards the regions and their base copies; held while they are compared.
    regions: Mutex<Vec<Region>>,
}

/// Maps `len` bytes, at `at` if that is free here.
fn map(at: u64, len: usize) -> Result<NonNull<c_void>, Code> {
    let len = NonZeroUsize::new(len).ok_or(INVALID_VALUE)?;
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE;
    let wanted = usize::try_from(at).ok().and_then(NonZeroUsize::new);
    // SAFETY: memory that is free: nothing is replaced.
    let mapped = unsafe {
        mmap_anonymous(wanted, len, prot, flags | MapFlags::MAP_FIXED_NOREPLACE)
            .or_else(|_| mmap_anonymous(None, len, prot, flags))
    };
    mapped.map_err(|_| OUT_OF_MEMORY)
}

impl Shares {
    fn lock(&self) -> MutexGuard<'_, Vec<Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Adds a region; gives the device's address of it.
    pub(crate) fn add(&self, driver: &Driver, share: &Share) -> Result<u64, Code> {
        let len = usize::try_from(share.len).map_err(|_| OUT_OF_MEMORY)?;
        if len == 0
            || share
                .at
                .checked_add(share.len)
                .is_none_or(|end| end > 1 << 62)
        {
            return Err(INVALID_VALUE);
        }
        let mut base = Vec::new();
        base.try_reserve_exact(len).map_err(|_| OUT_OF_MEMORY)?;
        base.resize(len, 0);
        if share.at == 0 {
            let mut at = 0;
            driver.cuMemAllocManaged(&mut at, len, share.flags)?;
            let here = NonNull::new(at as *mut u8).ok_or(OUT_OF_MEMORY)?;
            // SAFETY: as many bytes, just made.
            unsafe { here.write_bytes(0, len) };
            let whose = Whose::Managed;
            self.lock().push(Region {
                at,
                here,
                base,
                whose,
            });
            return Ok(at);
        }
        let within = share.at % PAGE;
        let whole = (share.len + within).next_multiple_of(PAGE) as usize;
        let start = map(share.at - within, whole)?;
        let pages = start.as_ptr().cast::<u8>();
        let mut device = 0;
        // SAFETY: the mapping stands until it is unregistered.
        let registered = unsafe {
            driver
                .cuMemHostRegister_v2(pages, whole, share.flags & FLAGS | 2)
                .and_then(|()| driver.cuMemHostGetDevicePointer_v2(&mut device, pages, 0))
        };
        if let Err(code) = registered {
            // SAFETY: nobody uses it.
            let _ = unsafe { munmap(start, whole) };
            return Err(code);
        }
        // SAFETY: within the mapping.
        let here = unsafe { start.cast::<u8>().add(within as usize) };
        let whose = Whose::Mapped(start, whole);
        let at = share.at;
        self.lock().push(Region {
            at,
            here,
            base,
            whose,
        });
        Ok(device + within)
    }

    /// Adds the managed memory in which a module's variable is; where it is, and its bytes. What is
    /// in it goes to the client with the next change. None where the variable is not managed.
    pub(crate) fn add_variable(
        &self,
        driver: &Driver,
        at: u64,
    ) -> Result<Option<(u64, usize)>, Code> {
        let (mut start, mut len) = (0, 0);
        if !is_managed(driver, at) {
            return Ok(None);
        }
        driver.cuMemGetAddressRange_v2(&mut start, &mut len, at)?;
        let mut regions = self.lock();
        if regions.iter().any(|region| region.at == start) {
            return Ok(Some((start, len)));
        }
        let mut base = Vec::new();
        base.try_reserve_exact(len).map_err(|_| OUT_OF_MEMORY)?;
        base.resize(len, 0);
        let here = NonNull::new(start as *mut u8).ok_or(OUT_OF_MEMORY)?;
        let whose = Whose::Module;
        regions.push(Region {
            at: start,
            here,
            base,
            whose,
        });
        Ok(Some((start, len)))
    }

    /// Ends a module or a context with `end`, and the regions that ended with it.
    pub(crate) fn ended_by<T>(&self, driver: &Driver, end: impl FnOnce() -> T) -> T {
        let mut regions = self.lock();
        let ended = end();
        regions.retain(|region| {
            matches!(region.whose, Whose::Mapped(..)) || is_managed(driver, region.at)
        });
        ended
    }

    /// Ends the region at `at`.
    pub(crate) fn remove(&self, driver: &Driver, at: u64) -> Result<(), Code> {
        let mut regions = self.lock();
        let found = regions.iter().position(|region| region.at == at);
        let region = regions.swap_remove(found.ok_or(INVALID_VALUE)?);
        drop(regions);
        region.end(driver)
    }

    /// Writes what the program wrote.
    pub(crate) fn write(&self, write: &WriteShared<'_>) -> Result<(), Code> {
        let mut regions = self.lock();
        for region in regions.iter_mut() {
            let Some(start) = write.at.checked_sub(region.at) else {
                continue;
            };
            let Ok(start) = usize::try_from(start) else {
                continue;
            };
            let end = start.saturating_add(write.data.len());
            let Some(base) = region.base.get_mut(start..end) else {
                continue;
            };
            base.copy_from_slice(write.data);
            // SAFETY: the region is as long as its base copy.
            unsafe {
                let to = region.here.as_ptr().add(start);
                to.copy_from_nonoverlapping(write.data.as_ptr(), write.data.len());
            }
            return Ok(());
        }
        Err(INVALID_VALUE)
    }

    /// Sends what the device has changed.
    pub(crate) fn send(&self, link: &Link) {
        for region in self.lock().iter_mut() {
            for (start, end) in changes(&region.base, region.bytes()) {
                // The device may be writing on: what is sent is what is kept.
                let new = region.bytes().get(start..end).unwrap_or_default().to_vec();
                link.data(DataKind::Memory, 0, region.at + start as u64, &new);
                if let Some(old) = region.base.get_mut(start..end) {
                    old.copy_from_slice(&new);
                }
            }
        }
    }
}

/// Whether the driver has managed memory at `at`.
fn is_managed(driver: &Driver, at: u64) -> bool {
    let mut managed = 0;
    // SAFETY: room for the attribute, a word at most.
    let asked = unsafe { driver.cuPointerGetAttribute(&raw mut managed, IS_MANAGED, at) };
    asked.is_ok() && managed != 0
}

/// Runs of bytes in which two equally long copies differ. What lies between them is left alone: the
/// program may have written there.
fn changes(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let page = PAGE as usize;
    let pages = old.chunks(page).zip(new.chunks(page)).enumerate();
    for (number, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        let grains = old.chunks(GRAIN).zip(new.chunks(GRAIN)).enumerate();
        for (grain, (_, new)) in grains.filter(|(_, (old, new))| old != new) {
            let start = number * page + grain * GRAIN;
            let end = start + new.len();
            match runs.last_mut() {
                Some((_, last)) if *last == start => *last = end,
                _ => runs.push((start, end)),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_and_joined() {
        let old = vec![0; 10_000];
        let mut new = old.clone();
        assert_eq!(changes(&old, &new), []);
        for at in [3, 10, 4095, 4096, 9999] {
            new[at] = 1;
        }
        let runs = [(0, 4), (8, 12), (4092, 4100), (9996, 10_000)];
        assert_eq!(changes(&old, &new), runs);
    }
}
