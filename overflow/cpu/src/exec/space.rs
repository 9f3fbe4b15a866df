//! Loads and stores, each checked against what is allocated.

use super::{Block, Fault};
use crate::ptx::code::{
    Addr, DYNAMIC_SHARED, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Space, mask,
};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Where the bytes of an access are.
enum Place {
    /// In the host's memory, aligned.
    Host(usize),
    Shared(usize),
    Local(usize),
    Param(usize),
}

impl Block<'_> {
    /// The address that `addr` comes to.
    pub(super) fn address(&self, t: usize, addr: Addr) -> u64 {
        self.get(t, addr.base).wrapping_add_signed(addr.offset)
    }

    fn place(&self, t: usize, space: Space, addr: u64, len: u8) -> Result<Place, Fault> {
        let fault = Fault::Address(addr);
        let len = u64::from(len);
        if !addr.is_multiple_of(len) {
            return Err(Fault::Misaligned(addr));
        }
        let (space, at) = match space {
            Space::Generic => match addr >> 56 << 56 {
                SHARED_WINDOW => (Space::Shared, addr - SHARED_WINDOW),
                LOCAL_WINDOW => (Space::Local, addr - LOCAL_WINDOW),
                PARAM_WINDOW => (Space::Param, addr - PARAM_WINDOW),
                _ => (Space::Global, addr),
            },
            space => (space, addr),
        };
        let end = at.checked_add(len).ok_or(fault)?;
        let within = |size: usize, at: u64| {
            let fits = at.saturating_add(len) <= size as u64;
            if fits { Ok(at as usize) } else { Err(fault) }
        };
        match space {
            Space::Shared if at >= DYNAMIC_SHARED => {
                let at = within(self.launch.dynamic_shared, at - DYNAMIC_SHARED)?;
                Ok(Place::Shared(self.kernel.shared + at))
            }
            Space::Shared => within(self.kernel.shared, at).map(Place::Shared),
            Space::Local if end <= self.kernel.local as u64 => {
                Ok(Place::Local(t * self.kernel.local + at as usize))
            }
            Space::Local => Err(fault),
            Space::Param => within(self.launch.params.len(), at).map(Place::Param),
            Space::Global | Space::Generic => {
                let host = self.view.at(addr, len).ok_or(fault)?;
                // Registered memory may begin anywhere, but keeps its address.
                if !(host as u64).is_multiple_of(len) {
                    return Err(Fault::Misaligned(addr));
                }
                Ok(Place::Host(host))
            }
        }
    }

    pub(super) fn load(&self, t: usize, space: Space, addr: u64, len: u8) -> Result<u64, Fault> {
        let (from, at) = match self.place(t, space, addr, len)? {
            Place::Host(at) => return Ok(load_host(at, len)),
            Place::Shared(at) => (&self.shared, at),
            Place::Local(at) => (&self.local, at),
            Place::Param(at) => (&self.launch.params, at),
        };
        let mut bytes = [0; 8];
        let len = usize::from(len);
        let from = from.get(at..at + len).ok_or(Fault::Address(addr))?;
        bytes
            .get_mut(..len)
            .ok_or(Fault::Address(addr))?
            .copy_from_slice(from);
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn store(
        &mut self,
        t: usize,
        space: Space,
        addr: u64,
        len: u8,
        value: u64,
    ) -> Result<(), Fault> {
        let (to, at) = match self.place(t, space, addr, len)? {
            Place::Host(at) => {
                store_host(at, len, value);
                return Ok(());
            }
            Place::Shared(at) => (&mut self.shared, at),
            Place::Local(at) => (&mut self.local, at),
            Place::Param(_) => return Err(Fault::Address(addr)),
        };
        let len = usize::from(len);
        let to = to.get_mut(at..at + len).ok_or(Fault::Address(addr))?;
        to.copy_from_slice(value.to_le_bytes().get(..len).unwrap_or_default());
        Ok(())
    }

    /// Replaces a value by what `f` makes of it, at once for all others; the old one.
    pub(super) fn update(
        &mut self,
        t: usize,
        space: Space,
        addr: u64,
        len: u8,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if let Place::Host(at) = self.place(t, space, addr, len)? {
            let next = |old: u64| Some(f(old) & mask(len));
            return Ok(if len == 4 {
                // SAFETY: as for `load_host`.
                let cell = unsafe { AtomicU32::from_ptr(at as *mut u32) };
                let next = |old: u32| next(u64::from(old)).map(|v| v as u32);
                cell.fetch_update(Relaxed, Relaxed, next)
                    .map_or_else(u64::from, u64::from)
            } else {
                // SAFETY: as for `load_host`.
                let cell = unsafe { AtomicU64::from_ptr(at as *mut u64) };
                cell.fetch_update(Relaxed, Relaxed, next)
                    .unwrap_or_else(|v| v)
            });
        }
        let old = self.load(t, space, addr, len)?;
        self.store(t, space, addr, len, f(old))?;
        Ok(old)
    }
}

fn load_host(at: usize, len: u8) -> u64 {
    // SAFETY: `place` found `len` bytes at `at` in a live allocation, and `at` a multiple of `len`.
    // A region stays mapped; other memory is removed only when no kernel runs. Host threads may
    // touch the same bytes, hence atomics.
    unsafe {
        match len {
            1 => u64::from(AtomicU8::from_ptr(at as *mut u8).load(Relaxed)),
            2 => u64::from(AtomicU16::from_ptr(at as *mut u16).load(Relaxed)),
            4 => u64::from(AtomicU32::from_ptr(at as *mut u32).load(Relaxed)),
            _ => AtomicU64::from_ptr(at as *mut u64).load(Relaxed),
        }
    }
}

fn store_host(at: usize, len: u8, value: u64) {
    // SAFETY: as for `load_host`.
    unsafe {
        match len {
            1 => AtomicU8::from_ptr(at as *mut u8).store(value as u8, Relaxed),
            2 => AtomicU16::from_ptr(at as *mut u16).store(value as u16, Relaxed),
            4 => AtomicU32::from_ptr(at as *mut u32).store(value as u32, Relaxed),
            _ => AtomicU64::from_ptr(at as *mut u64).store(value, Relaxed),
        }
    }
}
