//! What lists are of.

use crate::{ContainerId, Error, GpuNumber, GroupNumber, sys};

/// Items that are asked for at once.
const ROOM: usize = 128;

/// An item as the module writes it.
pub(crate) trait Item: Copy + Default {
    /// `GHOST_LIST_*`
    const WHAT: u32;

    /// That by which the list is ordered.
    fn key(&self) -> u64;
}

macro_rules! items {
    ($($type:ident $what:ident)*) => {
        $(impl Item for sys::$type {
            const WHAT: u32 = sys::$what;

            fn key(&self) -> u64 {
                self.id
            }
        })*
    };
}

items! {
    ghost_container GHOST_LIST_CONTAINERS
    ghost_client GHOST_LIST_CLIENTS
    ghost_group GHOST_LIST_GROUPS
    ghost_gpu GHOST_LIST_GPUS
    ghost_cgroup GHOST_LIST_CGROUPS
}

/// All items of a list, of which `ask` writes as many as fit.
pub(crate) fn all<T: Item>(
    mut ask: impl FnMut(&mut sys::ghost_list, &mut [T]) -> Result<(), Error>,
) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let mut page = [T::default(); ROOM];
        let mut list = sys::ghost_list {
            size: size_of::<sys::ghost_list>() as u32,
            what: T::WHAT,
            item_size: size_of::<T>() as u32,
            after,
            count: ROOM as u32,
            ..Default::default()
        };
        ask(&mut list, &mut page)?;
        let written = page.get(..list.written as usize).unwrap_or(&page);
        all.extend_from_slice(written);
        match written.last() {
            // A key that does not rise would have no end.
            Some(last) if list.count > list.written && last.key() > after => after = last.key(),
            _ => return Ok(all),
        }
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Which.
    pub id: ContainerId,
    /// That above it, or [`ContainerId::NONE`].
    pub parent: ContainerId,
    /// The last part of its name.
    pub name: String,
}

impl From<sys::ghost_container> for Container {
    fn from(raw: sys::ghost_container) -> Self {
        Self {
            id: ContainerId(raw.id),
            parent: ContainerId(raw.parent),
            name: text(&raw.name),
        }
    }
}

/// A client of the driver; a process may have several, and a client may outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The module's own number.
    pub id: u64,
    /// Where it is charged.
    pub container: ContainerId,
    /// The driver's handle.
    pub handle: u32,
    /// Its process, in the initial pid namespace.
    pub pid: u32,
    /// Bytes on all GPUs that it was the first to name.
    pub memory: u64,
}

impl From<sys::ghost_client> for Client {
    fn from(raw: sys::ghost_client) -> Self {
        Self {
            id: raw.id,
            container: ContainerId(raw.container),
            handle: raw.handle,
            pid: raw.pid,
            memory: raw.memory,
        }
    }
}

/// A compute channel group: the unit to which the GPU gives timeslices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which.
    pub id: GroupNumber,
    /// Where its client is charged.
    pub container: ContainerId,
    /// The GPU.
    pub gpu: GpuNumber,
    /// Its process, in the initial pid namespace.
    pub pid: u32,
    /// The driver's handle of its client.
    pub client: u32,
    /// The driver's handle of it.
    pub handle: u32,
    /// The timeslice in force, microseconds.
    pub slice_us: u64,
    /// Whether its channels are disabled.
    pub paused: bool,
}

impl From<sys::ghost_group> for Group {
    fn from(raw: sys::ghost_group) -> Self {
        Self {
            id: GroupNumber(raw.id),
            container: ContainerId(raw.container),
            gpu: GpuNumber(raw.gpu),
            pid: raw.pid,
            client: raw.client,
            handle: raw.handle,
            slice_us: raw.slice_us,
            paused: raw.paused != 0,
        }
    }
}

/// A GPU that the module has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Which.
    pub number: GpuNumber,
    /// Bytes that can be charged; `None` where that is not known.
    pub memory_total: Option<u64>,
    /// Bytes charged, of all containers together.
    pub memory_charged: u64,
}

impl From<sys::ghost_gpu> for Gpu {
    fn from(raw: sys::ghost_gpu) -> Self {
        Self {
            number: GpuNumber(raw.gpu),
            memory_total: (raw.memory_total != 0).then_some(raw.memory_total),
            memory_charged: raw.memory_charged,
        }
    }
}

/// A cgroup that is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The inode number of its directory.
    pub id: u64,
    /// To which container.
    pub container: ContainerId,
}

impl From<sys::ghost_cgroup> for Cgroup {
    fn from(raw: sys::ghost_cgroup) -> Self {
        Self {
            id: raw.id,
            container: ContainerId(raw.container),
        }
    }
}

/// Text up to its NUL.
pub(crate) fn text(raw: &[std::ffi::c_char]) -> String {
    let bytes = raw.iter().map(|c| *c as u8);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with containers 1..=`last`.
    fn listed(last: u64) -> (usize, Vec<u64>) {
        let mut calls = 0;
        let ask = |list: &mut sys::ghost_list, page: &mut [sys::ghost_container]| {
            calls += 1;
            assert_eq!(list.item_size as usize, size_of::<sys::ghost_container>());
            let ids = list.after + 1..=last;
            list.written = 0;
            for (item, id) in page.iter_mut().zip(ids.clone()) {
                item.id = id;
                list.written += 1;
            }
            list.count = ids.count() as u32;
            Ok(())
        };
        let all = all(ask).unwrap();
        (calls, all.into_iter().map(|c| c.id).collect())
    }

    #[test]
    fn a_list_goes_on_until_its_end() {
        let room = ROOM as u64;
        for (last, calls) in [(0, 1), (1, 1), (room, 1), (room + 1, 2), (3 * room + 5, 4)] {
            assert_eq!(listed(last), (calls, (1..=last).collect()), "{last}");
        }
    }

    #[test]
    fn a_list_whose_keys_stand_still_ends() {
        let ask = |list: &mut sys::ghost_list, _: &mut [sys::ghost_group]| {
            list.written = u32::MAX;
            list.count = u32::MAX;
            Ok(())
        };
        assert_eq!(all(ask).unwrap().len(), ROOM);
    }

    #[test]
    fn text_ends_at_its_nul_or_with_its_room() {
        let raw = |text: &str| -> Vec<std::ffi::c_char> {
            text.bytes().map(|byte| byte as std::ffi::c_char).collect()
        };
        assert_eq!(text(&raw("ab\0c")), "ab");
        assert_eq!(text(&raw("ab")), "ab");
    }
}
