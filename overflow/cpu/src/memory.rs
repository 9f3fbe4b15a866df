//! Device memory: a region of address space for each device, and what is allocated there.
//!
//! A program sees addresses of a region that cannot be touched (as with a GPU, only the device
//! reaches its memory). The bytes lie in another mapping of the same size, which is never given
//! back, so that an address that was freed while a kernel ran still harms nobody.

use crate::ipc::{self, Handle, PAGE, Shared};
use crate::result::{CuResult, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Alignment of what is allocated, in bytes.
pub(crate) const ALIGN: u64 = 256;
/// Where the first managed memory is put: beyond the regions of all devices.
const MANAGED: usize = 0x3000_0000_0000;

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    Device,
    /// Another process's, in the file of that name and there, opened so often.
    Opened {
        name: [u64; 2],
        at: u64,
        opens: u32,
    },
    /// Host memory that kernels reach too; ours to unmap.
    Host {
        managed: bool,
        flags: u32,
    },
    /// Host memory of the program's own.
    Registered {
        flags: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Alloc {
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// Where the bytes are.
    host: usize,
    pub(crate) device: usize,
    /// The context that it belongs to.
    pub(crate) context: usize,
    pub(crate) backing: Backing,
    pub(crate) id: u64,
}

impl Alloc {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }

    /// Whether the host may touch it.
    pub(crate) fn on_host(&self) -> bool {
        !matches!(self.backing, Backing::Device | Backing::Opened { .. })
    }
}

/// What a kernel may touch, in order of address: start, end, where the bytes are.
#[derive(Debug, Default)]
pub(crate) struct View(Vec<(u64, u64, usize)>);

impl View {
    /// Where the `len` bytes at `addr` are, if all of them are in one live allocation.
    pub(crate) fn at(&self, addr: u64, len: u64) -> Option<usize> {
        let after = self.0.partition_point(|(start, ..)| *start <= addr);
        let (start, end, host) = *self.0.get(after.checked_sub(1)?)?;
        let fits = addr.checked_add(len)? <= end;
        fits.then(|| host.wrapping_add((addr - start) as usize))
    }
}

#[derive(Debug)]
struct Region {
    base: u64,
    host: usize,
    size: u64,
    used: u64,
    /// What the bytes lie in, once other processes may have some of them.
    file: Option<Shared>,
}

/// All that is allocated.
#[derive(Debug)]
pub(crate) struct Memory {
    regions: Vec<Region>,
    live: BTreeMap<u64, Alloc>,
    next_id: u64,
    /// Where managed memory would be put next.
    managed: usize,
}

fn map(hint: usize, size: usize, protection: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping, which replaces none (no MAP_FIXED).
    let at = unsafe { libc::mmap(hint as *mut _, size, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

impl Memory {
    /// Regions for `devices` devices of `size` bytes each.
    pub(crate) fn new(devices: usize, size: u64) -> Option<Self> {
        let size = size.max(1 << 20).next_multiple_of(PAGE as u64);
        let bytes = usize::try_from(size).ok()?;
        let region = |i: usize| {
            // Far from where the kernel puts mappings, so that an address says what it is.
            let hint = 0x2000_0000_0000 + i * 0x100_0000_0000;
            Some(Region {
                base: map(hint, bytes, libc::PROT_NONE)? as u64,
                host: map(0, bytes, libc::PROT_READ | libc::PROT_WRITE)?,
                size,
                used: 0,
                file: None,
            })
        };
        Some(Self {
            regions: (0..devices).map(region).collect::<Option<_>>()?,
            live: BTreeMap::new(),
            next_id: 1,
            managed: MANAGED,
        })
    }

    /// Bytes that are free, and all bytes.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        let region = self.regions.get(device);
        region.map_or((0, 0), |r| (r.size - r.used, r.size))
    }

    fn insert(&mut self, mut alloc: Alloc) -> u64 {
        alloc.id = self.next_id;
        self.next_id += 1;
        self.live.insert(alloc.start, alloc);
        alloc.start
    }

    pub(crate) fn alloc(
        &mut self,
        device: usize,
        context: usize,
        size: u64,
    ) -> Result<u64, CuResult> {
        let (start, whole) = self.gap(device, size)?;
        let region = self.regions.get_mut(device).ok_or(INVALID_VALUE)?;
        region.used += whole;
        let host = region.host + (start - region.base) as usize;
        Ok(self.insert(Alloc {
            start,
            size,
            host,
            device,
            context,
            backing: Backing::Device,
            id: 0,
        }))
    }

    /// Where `size` bytes of a region are free, and how many they are as it is aligned.
    fn gap(&self, device: usize, size: u64) -> Result<(u64, u64), CuResult> {
        let region = self.regions.get(device).ok_or(INVALID_VALUE)?;
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let whole = size.checked_next_multiple_of(ALIGN).ok_or(OUT_OF_MEMORY)?;
        let end = region.base + region.size;
        // The first gap that is large enough.
        let mut start = region.base;
        for (at, alloc) in self.live.range(region.base..end) {
            if at - start >= whole {
                break;
            }
            start = alloc.end().next_multiple_of(ALIGN);
        }
        if end.saturating_sub(start) < whole {
            return Err(OUT_OF_MEMORY);
        }
        Ok((start, whole))
    }

    /// For another process, the allocation that `addr` is in. No work runs.
    pub(crate) fn share(&mut self, addr: u64) -> Result<Handle, CuResult> {
        let found = self.find(addr).filter(|a| a.backing == Backing::Device);
        let alloc = *found.ok_or(INVALID_VALUE)?;
        let region = self.regions.get_mut(alloc.device).ok_or(INVALID_VALUE)?;
        if region.file.is_none() {
            let shared = Shared::new(region.size)?;
            let of = |a: &&Alloc| a.backing == Backing::Device && a.device == alloc.device;
            for a in self.live.values().filter(of) {
                // SAFETY: the allocation's bytes, which nobody writes meanwhile.
                let bytes =
                    unsafe { std::slice::from_raw_parts(a.host as *const u8, a.size as usize) };
                let copied = shared.file().write_all_at(bytes, a.start - region.base);
                copied.map_err(|_| OUT_OF_MEMORY)?;
            }
            // SAFETY: the region's own mapping; what was in it is in the file.
            unsafe { ipc::map(shared.file(), 0, region.size as usize, region.host) }?;
            region.file = Some(shared);
        }
        let shared = region.file.as_ref().ok_or(INVALID_VALUE)?;
        Ok(shared.handle(alloc.start - region.base, alloc.size))
    }

    /// Where memory of another process is now; the same as before if it is open.
    pub(crate) fn open(
        &mut self,
        device: usize,
        context: usize,
        handle: &Handle,
    ) -> Result<u64, CuResult> {
        let mut live = self.live.values_mut().filter(|a| a.context == context);
        let again = live.find_map(|a| match &mut a.backing {
            Backing::Opened { name, at, opens } if (*name, *at) == (handle.name, handle.at) => {
                *opens += 1;
                Some(a.start)
            }
            _ => None,
        });
        if let Some(start) = again {
            return Ok(start);
        }
        if !handle.at.is_multiple_of(ALIGN) {
            return Err(INVALID_HANDLE);
        }
        let file = handle.open()?;
        let (start, _) = self.gap(device, handle.len)?;
        let within = handle.at % PAGE as u64;
        // SAFETY: in place of nothing.
        let host = unsafe {
            let len = (within + handle.len) as usize;
            ipc::map(&file, handle.at - within, len, 0)?
        };
        Ok(self.insert(Alloc {
            start,
            size: handle.len,
            host: host + within as usize,
            device,
            context,
            backing: Backing::Opened {
                name: handle.name,
                at: handle.at,
                opens: 1,
            },
            id: 0,
        }))
    }

    /// Closes what was opened; the last time no work runs that uses it.
    pub(crate) fn close(&mut self, start: u64) -> Option<()> {
        match &mut self.live.get_mut(&start)?.backing {
            Backing::Opened { opens, .. } if *opens > 1 => *opens -= 1,
            Backing::Opened { .. } => drop(self.remove(start)),
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn alloc_host(
        &mut self,
        device: usize,
        context: usize,
        size: usize,
        managed: bool,
        flags: u32,
    ) -> Result<usize, CuResult> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        // Managed memory lies apart, too: a program elsewhere has it at the same address.
        let hint = if managed { self.managed } else { 0 };
        let host = map(hint, size, libc::PROT_READ | libc::PROT_WRITE).ok_or(OUT_OF_MEMORY)?;
        if managed {
            self.managed = hint.saturating_add(size.saturating_add(PAGE) & !(PAGE - 1));
        }
        self.insert(Alloc {
            start: host as u64,
            size: size as u64,
            host,
            device,
            context,
            backing: Backing::Host { managed, flags },
            id: 0,
        });
        Ok(host)
    }

    /// Memory of the program's own, which no other allocation may overlap.
    pub(crate) fn register(
        &mut self,
        device: usize,
        context: usize,
        host: usize,
        size: usize,
        flags: u32,
    ) -> Option<()> {
        let (start, size) = (host as u64, size as u64);
        let end = start.checked_add(size)?;
        let before = self.live.range(..end).next_back();
        if before.is_some_and(|(_, a)| a.end() > start) || self.in_a_region(start) {
            return None;
        }
        self.insert(Alloc {
            start,
            size,
            host,
            device,
            context,
            backing: Backing::Registered { flags },
            id: 0,
        });
        Some(())
    }

    /// The allocation that `addr` is in.
    pub(crate) fn find(&self, addr: u64) -> Option<&Alloc> {
        let (_, alloc) = self.live.range(..=addr).next_back()?;
        (addr < alloc.end()).then_some(alloc)
    }

    /// The allocation that begins at `addr`.
    pub(crate) fn exactly(&self, addr: u64) -> Option<&Alloc> {
        self.live.get(&addr)
    }

    /// Whether `addr` could only be a device's.
    pub(crate) fn in_a_region(&self, addr: u64) -> bool {
        let mut regions = self.regions.iter();
        regions.any(|r| (r.base..r.base + r.size).contains(&addr))
    }

    /// Where the `len` bytes at `addr` are.
    pub(crate) fn resolve(&self, addr: u64, len: u64) -> Option<usize> {
        let alloc = self.find(addr)?;
        (addr.checked_add(len)? <= alloc.end()).then(|| alloc.host + (addr - alloc.start) as usize)
    }

    /// Forgets an allocation, and gives its whole pages back to the host.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Alloc> {
        let alloc = self.live.remove(&start)?;
        match alloc.backing {
            Backing::Device => {
                let whole = alloc.size.next_multiple_of(ALIGN);
                let mut advice = libc::MADV_DONTNEED;
                if let Some(region) = self.regions.get_mut(alloc.device) {
                    region.used -= whole;
                    if region.file.is_some() {
                        advice = libc::MADV_REMOVE;
                    }
                }
                let end = alloc.host + whole as usize;
                let (first, last) = (alloc.host.next_multiple_of(PAGE), end / PAGE * PAGE);
                if first < last {
                    // SAFETY: whole pages of our own mapping that no live allocation is in.
                    unsafe { libc::madvise(first as *mut _, last - first, advice) };
                }
            }
            Backing::Opened { .. } => {
                let first = alloc.host / PAGE * PAGE;
                let len = alloc.host - first + alloc.size as usize;
                // SAFETY: our own mapping, from there; the caller has waited for what may use it.
                unsafe { libc::munmap(first as *mut _, len) };
            }
            Backing::Host { .. } => {
                // SAFETY: our own mapping, as long as it was made; the caller has waited for what
                // may use it.
                unsafe { libc::munmap(alloc.host as *mut _, alloc.size as usize) };
            }
            Backing::Registered { .. } => {}
        }
        Some(alloc)
    }

    /// What belongs to a context.
    pub(crate) fn of_context(&self, context: usize) -> Vec<u64> {
        let of = self.live.values().filter(|a| a.context == context);
        of.map(|a| a.start).collect()
    }

    /// What a kernel on `device` may touch.
    pub(crate) fn view(&self, device: usize) -> Arc<View> {
        let mine = |a: &&Alloc| a.on_host() || a.device == device;
        let all = self.live.values().filter(mine);
        Arc::new(View(all.map(|a| (a.start, a.end(), a.host)).collect()))
    }
}
