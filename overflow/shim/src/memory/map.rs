//! What is known of addresses: one map of all ranges that belong to CUDA.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// What a range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Memory of the device, as `cuMemAlloc` gives it; `pool` from which it was taken, or 0.
    Device { pool: u64 },
    /// Memory of another process, opened as often as `opens` says and not closed.
    Opened { opens: u32 },
    /// Addresses without memory of their own (`cuMemAddressReserve`).
    Reserved,
    /// A variable of a module or a library, which ends with that.
    Global { of: u64 },
    /// Host memory from the shim, page-locked as the program sees it.
    Pinned { flags: u32 },
    /// The program's own memory, registered.
    Registered { flags: u32 },
    /// The address at which the device sees host memory at `host`.
    Window { host: u64 },
    /// Memory that both sides see at one address.
    Managed,
}

impl What {
    /// Whether it is memory of the far device alone.
    pub(super) fn is_there(self) -> bool {
        use What::{Device, Global, Opened};
        matches!(self, Device { .. } | Global { .. } | Opened { .. })
    }
}

/// A range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) what: What,
    /// The context it belongs to, as the program holds it.
    pub(super) context: u64,
    pub(super) device: i32,
    /// A number that no other range has had.
    pub(super) id: u64,
    /// Where the device sees host memory, once it was asked for; else 0.
    pub(super) window: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(super) sync: bool,
}

impl Range {
    /// Whether the program itself reads and writes there.
    pub(super) fn is_host(&self) -> bool {
        matches!(self.what, What::Pinned { .. } | What::Registered { .. })
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Ranges by their start; none overlaps another.
#[derive(Debug, Default)]
pub(super) struct Map {
    ranges: BTreeMap<u64, Range>,
    ids: u64,
}

impl Map {
    const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            ids: 0,
        }
    }

    /// Adds a range; those that it overlaps are over.
    pub(super) fn insert(&mut self, mut range: Range) {
        while let Some(old) = self.overlapping(range.start, range.len) {
            self.ranges.remove(&old.start);
        }
        self.ids += 1;
        range.id = self.ids;
        self.ranges.insert(range.start, range);
    }

    /// The range in which `at` lies.
    pub(super) fn find(&self, at: u64) -> Option<Range> {
        let (_, range) = self.ranges.range(..=at).next_back()?;
        (at < range.end()).then_some(*range)
    }

    /// A range that shares a byte with `len` bytes at `at`.
    pub(super) fn overlapping(&self, at: u64, len: u64) -> Option<Range> {
        let end = at.saturating_add(len);
        let (_, range) = self.ranges.range(..end).next_back()?;
        (len > 0 && range.end() > at).then_some(*range)
    }

    /// Takes the range away that starts at `at` and is one of those that `which` says.
    pub(super) fn remove(&mut self, at: u64, which: impl FnOnce(What) -> bool) -> Option<Range> {
        let range = self.ranges.get(&at)?;
        if !which(range.what) {
            return None;
        }
        self.ranges.remove(&at)
    }

    /// Changes the range in which `at` lies.
    pub(super) fn change(&mut self, at: u64, change: impl FnOnce(&mut Range)) -> bool {
        let range = self.ranges.range_mut(..=at).next_back();
        match range.filter(|(_, range)| at < range.end()) {
            Some((_, range)) => {
                change(range);
                true
            }
            None => false,
        }
    }

    /// Takes away the managed memory of a context; where it was.
    pub(super) fn take_managed(&mut self, context: u64) -> Vec<u64> {
        let is = |range: &Range| range.what == What::Managed && range.context == context;
        let gone = self.ranges.extract_if(.., |_, range| is(range));
        gone.map(|(start, _)| start).collect()
    }

    /// Whether `at` lies in memory of another process; if so, `change` says from how often it was
    /// opened how often it is now. Closed as often as opened, it is forgotten.
    pub(super) fn reopen(&mut self, at: u64, change: impl FnOnce(u32) -> u32) -> bool {
        let Some(Range { start, what, .. }) = self.find(at) else {
            return false;
        };
        let What::Opened { opens } = what else {
            return false;
        };
        match change(opens) {
            0 => drop(self.ranges.remove(&start)),
            opens => drop(self.change(start, |range| range.what = What::Opened { opens })),
        }
        true
    }

    /// Forgets the memory of other processes that a context has opened.
    pub(super) fn forget_opened(&mut self, context: u64) {
        let is = |what| matches!(what, What::Opened { .. });
        self.ranges
            .retain(|_, range| !is(range.what) || range.context != context);
    }

    /// Forgets the variables of a module or library.
    pub(super) fn forget(&mut self, module: u64) {
        self.ranges
            .retain(|_, range| range.what != What::Global { of: module });
    }
}

/// Guards the map. Held for moments only; no other lock is taken under it.
static MAP: RwLock<Map> = RwLock::new(Map::new());

/// Looks at the map.
pub(super) fn read<R>(with: impl FnOnce(&Map) -> R) -> R {
    with(&MAP.read().unwrap_or_else(PoisonError::into_inner))
}

/// Changes the map.
pub(super) fn write<R>(with: impl FnOnce(&mut Map) -> R) -> R {
    with(&mut MAP.write().unwrap_or_else(PoisonError::into_inner))
}

/// The range in which `at` lies.
pub(super) fn find(at: u64) -> Option<Range> {
    read(|map| map.find(at))
}

/// A new range of the current context.
pub(super) fn range(start: u64, len: u64, what: What) -> Range {
    let current = crate::thread::context().unwrap_or_default();
    Range {
        start,
        len,
        what,
        context: current.handle,
        device: current.device,
        id: 0,
        window: 0,
        sync: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(start: u64, len: u64) -> Range {
        range(start, len, What::Device { pool: 0 })
    }

    proptest! {
        #[test]
        fn the_last_range_over_an_address_is_found(
            inserts in prop::collection::vec((0u64..200, 1u64..40), 1..30),
        ) {
            let mut map = Map::default();
            // What a map of single addresses says.
            let mut owner = vec![None; 300];
            for (n, &(start, len)) in inserts.iter().enumerate() {
                map.insert(at(start, len));
                let over: Vec<_> = owner[start as usize..(start + len) as usize].iter().flatten().copied().collect();
                for entry in &mut owner {
                    if entry.is_some_and(|o| over.contains(&o)) {
                        *entry = None;
                    }
                }
                owner[start as usize..(start + len) as usize].fill(Some(n as u64 + 1));
            }
            for (address, owner) in owner.iter().enumerate() {
                prop_assert_eq!(map.find(address as u64).map(|range| range.id), *owner);
            }
            for start in 0..250 {
                let any = owner[start..start + 20].iter().any(Option::is_some);
                prop_assert_eq!(map.overlapping(start as u64, 20).is_some(), any);
            }
        }
    }

    #[test]
    fn what_was_opened_twice_is_closed_twice() {
        let mut map = Map::default();
        map.insert(at(0x1000, 0x100));
        map.insert(range(0x2000, 0x100, What::Opened { opens: 1 }));
        assert!(!map.reopen(0x1000, |n| n + 1) && !map.reopen(0x3000, |n| n + 1));
        assert!(map.reopen(0x2010, |n| n + 1));
        assert!(map.reopen(0x2000, |n| n - 1));
        let what = map.find(0x2000).map(|range| range.what);
        assert_eq!(what, Some(What::Opened { opens: 1 }));
        assert!(map.reopen(0x2010, |n| n - 1));
        assert_eq!(map.find(0x2000), None);
        map.insert(range(0x2000, 0x100, What::Opened { opens: 1 }));
        map.forget_opened(range(0, 0, What::Managed).context + 1);
        assert!(map.find(0x2000).is_some());
        map.forget_opened(range(0, 0, What::Managed).context);
        assert!(map.find(0x2000).is_none() && map.find(0x1000).is_some());
    }

    #[test]
    fn only_what_starts_there_is_taken_away() {
        let mut map = Map::default();
        map.insert(at(0x1000, 0x100));
        assert_eq!(map.remove(0x1001, |_| true), None);
        assert_eq!(map.remove(0x1000, |what| what == What::Managed), None);
        assert!(map.change(0x10ff, |range| range.sync = true));
        assert!(!map.change(0x1100, |range| range.sync = true));
        let gone = map.remove(0x1000, |_| true);
        assert!(gone.is_some_and(|range| range.sync));
        assert_eq!(map.find(0x1000), None);
    }

    #[test]
    fn managed_memory_ends_with_its_context() {
        let mut map = Map::default();
        let of = |start, context, what| Range {
            context,
            ..range(start, 4, what)
        };
        map.insert(of(0x1000, 7, What::Managed));
        map.insert(of(0x2000, 8, What::Managed));
        map.insert(of(0x3000, 7, What::Pinned { flags: 0 }));
        assert_eq!(map.take_managed(7), [0x1000]);
        assert!(map.find(0x1000).is_none() && map.find(0x2000).is_some());
        assert!(map.find(0x3000).is_some());
    }

    #[test]
    fn variables_end_with_their_module() {
        let mut map = Map::default();
        map.insert(range(0x1000, 4, What::Global { of: 7 }));
        map.insert(range(0x2000, 4, What::Global { of: 8 }));
        map.forget(7);
        assert_eq!(map.find(0x1000), None);
        assert!(map.find(0x2003).is_some());
    }
}
