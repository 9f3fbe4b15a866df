//! The device's memory: what is allocated, under which names, and who it is counted to.

use std::collections::BTreeMap;

use ghost_rm::Status;
use ghost_rm::abi::memory::MemoryParams;

use crate::driver::{Driver, Kind, Object};

/// Memory of each card, bytes.
pub(crate) const MEMORY: u64 = 80 << 30;
/// What the driver takes itself for each context, bytes: channels and page tables. It is counted
/// to nobody (H200).
pub(crate) const CONTEXT_OVERHEAD: u64 = 89 << 16;
/// Bits of the attributes for whether memory is in one piece, and two of their values.
const PHYSICALITY: u32 = 3 << 27;
const CONTIGUOUS: u32 = 2 << 27;
const ANY_PHYSICALITY: u32 = 3 << 27;

/// An object of a client.
type Handle = (u32, u32);

#[derive(Debug)]
struct Memory {
    gpu: usize,
    size: u64,
    /// Objects that are this memory, the oldest first: it is counted to the client of that.
    names: Vec<Handle>,
}

/// All memory, by a number that is never used twice.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    all: BTreeMap<u32, Memory>,
}

impl Memories {
    pub(crate) fn used(&self, gpu: usize) -> u64 {
        let on_it = self.all.values().filter(|m| m.gpu == gpu);
        on_it.map(|m| m.size).sum()
    }

    /// Bytes on a GPU that are counted to a client, and bytes that it only shares.
    pub(crate) fn of(&self, root: u32, gpu: usize) -> (u64, u64) {
        let on_it = self.all.values().filter(|m| m.gpu == gpu);
        on_it.fold((0, 0), |(owned, shared), memory| {
            let mut names = memory.names.iter().map(|(client, _)| *client);
            if names.next() == Some(root) {
                (owned + memory.size, shared)
            } else if names.any(|client| client == root) {
                (owned, shared + memory.size)
            } else {
                (owned, shared)
            }
        })
    }

    pub(crate) fn take(&mut self, id: u32, gpu: usize, size: u64) {
        let memory = Memory {
            gpu,
            size,
            names: Vec::new(),
        };
        self.all.insert(id, memory);
    }

    pub(crate) fn name(&mut self, id: u32, handle: Handle) {
        if let Some(memory) = self.all.get_mut(&id) {
            memory.names.push(handle);
        }
    }

    /// An object is gone; the memory too, if it was its last name.
    pub(crate) fn forget(&mut self, id: u32, handle: Handle) {
        if let Some(memory) = self.all.get_mut(&id) {
            memory.names.retain(|name| *name != handle);
            if memory.names.is_empty() {
                self.all.remove(&id);
            }
        }
    }
}

/// What the driver makes of the parameters of an allocation: checked, the size in whole pages.
pub(crate) fn grant(
    params: &mut MemoryParams,
    is_admin: impl FnOnce() -> bool,
) -> Result<(), Status> {
    if params.internal_flags != 0
        || params.size == 0
        || params.attr & MemoryParams::LOCATION != 0
        || params.flags & MemoryParams::VIRTUAL != 0
    {
        return Err(Status::INVALID_ARGUMENT);
    }
    if params.owner == 0 || params.owner == u32::MAX {
        return Err(Status::INVALID_OWNER);
    }
    // The flag for administrators of a driver for development; one that is shipped refuses it to
    // all programs.
    if params.attr2 & MemoryParams::PAGE_OFFLINING_OFF != 0 && !is_admin() {
        return Err(Status::INSUFFICIENT_PERMISSIONS);
    }
    let (page, kind) = match params.attr & MemoryParams::PAGE_SIZE {
        small @ (MemoryParams::PAGE_4K | MemoryParams::PAGE_BIG) => (64 << 10, small),
        _ => (2 << 20, MemoryParams::PAGE_HUGE),
    };
    params.size = params
        .size
        .checked_next_multiple_of(page)
        .ok_or(Status::NO_MEMORY)?;
    params.attr = params.attr & !MemoryParams::PAGE_SIZE | kind;
    if params.attr & PHYSICALITY == ANY_PHYSICALITY {
        params.attr = params.attr & !PHYSICALITY | CONTIGUOUS;
    }
    params.limit = params.size - 1;
    params.address = 0;
    Ok(())
}

impl Driver {
    /// Memory in use on a GPU, bytes.
    pub(crate) fn memory(&self, gpu: usize) -> u64 {
        let contexts = self
            .groups()
            .filter(|&(root, group, on, ..)| on == gpu && self.is_compute(root, group));
        self.memories.used(gpu) + contexts.count() as u64 * CONTEXT_OVERHEAD
    }

    /// Memory that is free on a GPU, bytes.
    pub(crate) fn memory_free(&self, gpu: usize) -> u64 {
        MEMORY.saturating_sub(self.memory(gpu))
    }

    /// Memory that is counted to a process on a GPU, and what it only shares, bytes.
    pub(crate) fn memory_of(&self, pid: u32, gpu: usize) -> (u64, u64) {
        let clients = self.clients.iter().filter(|(_, c)| c.pid == pid);
        let each = clients.map(|(&root, _)| self.memories.of(root, gpu));
        each.fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }

    /// Gives an object of any client one more name, in a client on `file`.
    pub(crate) fn dup(
        &mut self,
        file: u64,
        to: Handle,
        parent: u32,
        from: Handle,
    ) -> Result<u32, Status> {
        let source = self.clients.get(&from.0).ok_or(Status::INVALID_CLIENT)?;
        let source = source.objects.get(&from.1);
        let Object {
            class, gpu, kind, ..
        } = source.ok_or(Status::OBJECT_NOT_FOUND)?.clone();
        let Kind::Memory(id) = kind else {
            return Err(Status::NOT_SUPPORTED);
        };
        let client = self.client_on(file, to.0)?;
        match client.objects.get(&parent) {
            Some(parent) if parent.gpu == gpu => {}
            Some(_) => return Err(Status::INVALID_DEVICE),
            None => return Err(Status::INVALID_OBJECT_PARENT),
        }
        let handle = client.handle(to.0, to.1)?;
        let object = Object {
            class,
            parent,
            gpu,
            kind: Kind::Memory(id),
        };
        if let Some(client) = self.clients.get_mut(&to.0) {
            client.objects.insert(handle, object);
        }
        self.memories.name(id, (to.0, handle));
        Ok(handle)
    }
}
