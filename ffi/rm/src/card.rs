//! The container's own card: queries whose answer is made to be of the container.
//!
//! A tenant asks the driver how large a GPU's memory is, what of it is free, and who uses it.
//! [`query`] tells whether a control is such a question. The question is asked of the driver with
//! [`crate::tenant::perform`] between [`prepare`] and [`rewrite`], so that what is not the
//! container's own (capabilities, hardware facts in the same list) stays the driver's. Numbers
//! are only ever made smaller.

use std::mem::offset_of;

use crate::abi::discover;
use crate::abi::memory::{
    self, CLASS_DEVICE_MEMORY, Heap, HeapLayout, MEMORY_INFO, MEMORY_INFO_LIST, MemoryInfo,
    MemoryInfoEntry, MemoryInfoList, OldAlloc, PidInfo, PidInfos,
};
use crate::branch::Branch;
use crate::bytes::{long, put_long, put_word, word};
use crate::tenant::{Call, HeapFunction};

/// A question whose answer is the container's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// Sizes of the GPU's memory, in the parameters.
    MemoryInfo,
    /// The same, in a list that the parameters point to.
    MemoryInfoList,
    /// The processes that use the GPU.
    Pids,
    /// What each of some processes holds.
    PidInfo,
}

/// What a control is to a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The driver may answer it.
    NotOurs,
    /// It asks for what is the container's.
    Ours(Query),
    /// It does too, with parameters of a size that this branch is not known to have: its layout
    /// is not known, so it is to be refused.
    UnknownSize {
        /// Bytes that the branch is known to take.
        wanted: usize,
    },
}

/// A process of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid {
    /// As the one who asks the driver counts processes.
    pub host: u32,
    /// As the tenant that asked counts them: by its own PID namespace.
    pub seen: u32,
}

/// The container's card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Bytes of memory.
    pub total: u64,
    /// Bytes of it that are free.
    pub free: u64,
    /// Processes of the container that the tenant can see.
    pub pids: Vec<Pid>,
}

/// What a query's parameters point to: to be copied behind them for
/// [`crate::tenant::perform`], and back to its place afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Where the tenant has it.
    pub at: u64,
    /// Bytes.
    pub size: usize,
}

const QUERIES: &[(u32, Query)] = &[
    (MEMORY_INFO, Query::MemoryInfo),
    (MEMORY_INFO_LIST, Query::MemoryInfoList),
    (0x2080_018D, Query::Pids),
    (0x2080_018E, Query::PidInfo),
];

/// What control `cmd` with parameters of `params_size` bytes is, on a driver of `branch`.
#[must_use]
pub fn query(branch: &Branch, cmd: u32, params_size: u32) -> Lookup {
    let Some(&(_, query)) = QUERIES.iter().find(|(number, _)| *number == cmd) else {
        return Lookup::NotOurs;
    };
    let wanted = match query {
        Query::MemoryInfo => branch.memory_info,
        Query::MemoryInfoList => size_of::<MemoryInfoList>(),
        Query::Pids => size_of::<discover::Pids>(),
        Query::PidInfo => size_of::<PidInfos>(),
    };
    if params_size as usize == wanted {
        Lookup::Ours(query)
    } else {
        Lookup::UnknownSize { wanted }
    }
}

pub(crate) fn is_query(cmd: u32) -> bool {
    QUERIES.iter().any(|&(number, _)| number == cmd)
}

impl Query {
    /// What the parameters point to, `None` if nothing. A list that is longer than any branch
    /// takes is cut, and then refused by [`crate::tenant::perform`].
    #[must_use]
    pub fn list(self, params: &[u8]) -> Option<List> {
        if self != Self::MemoryInfoList {
            return None;
        }
        let count = word(params, offset_of!(MemoryInfoList, count))? as usize;
        Some(List {
            at: long(params, offset_of!(MemoryInfoList, entries))?,
            size: count.min(memory::MAX_MEMORY_INFOS) * size_of::<MemoryInfoEntry>(),
        })
    }
}

/// Makes a copy of the tenant's parameters into what the driver is to be asked: processes are
/// named as the one who asks counts them, and those of others as none.
pub fn prepare(query: Query, params: &mut [u8], card: &Card) {
    if query != Query::PidInfo {
        return;
    }
    for entry in entries(params, PID_INFOS) {
        let Some(pid) = word(entry, offset_of!(PidInfo, pid)) else {
            continue;
        };
        let own = card.pids.iter().find(|own| own.seen == pid);
        // The driver refuses 0, and answers with zeros for a process that is not there.
        let host = own.map_or(u32::MAX, |own| own.host);
        put_word(entry, offset_of!(PidInfo, pid), host);
    }
}

/// Makes the driver's answer into the container's. `asked` is what the tenant sent, before
/// [`prepare`]; `params` the driver's answer, and what [`Query::list`] named behind it.
pub fn rewrite(query: Query, asked: &[u8], params: &mut [u8], card: &Card) {
    match query {
        Query::MemoryInfo => sizes(params, MEMORY_INFOS, card),
        Query::MemoryInfoList => sizes(params, MEMORY_INFO_LISTS, card),
        Query::Pids => pids(params, card),
        Query::PidInfo => {
            let asked = asked.get(offset_of!(PidInfos, entries)..).unwrap_or(&[]);
            let asked = asked.chunks_exact(size_of::<PidInfo>());
            for (entry, asked) in entries(params, PID_INFOS).zip(asked) {
                if let Some(pid) = word(asked, offset_of!(PidInfo, pid)) {
                    put_word(entry, offset_of!(PidInfo, pid), pid);
                }
            }
        }
    }
}

/// As [`rewrite`], for calls that tell the card's sizes in their argument: the older heap
/// control, and the oldest allocation.
pub fn rewrite_argument(call: &Call, argument: &mut [u8], card: &Card) {
    match call {
        Call::Heap(heap) if heap.function == HeapFunction::Info => {
            least(argument, offset_of!(Heap, total), card.total);
            least(argument, offset_of!(Heap, free), card.free);
            least(argument, HeapLayout::LARGEST, card.free);
        }
        Call::OldAlloc(old) if old.class == CLASS_DEVICE_MEMORY => {
            let last = card.total.saturating_sub(1);
            least(argument, offset_of!(OldAlloc, limit), last);
        }
        _ => {}
    }
}

fn least(bytes: &mut [u8], offset: usize, most: u64) {
    if let Some(value) = long(bytes, offset) {
        put_long(bytes, offset, value.min(most));
    }
}

/// Where the entries of parameters begin, and how large one is; the count comes first.
#[derive(Clone, Copy)]
struct Entries {
    first: usize,
    size: usize,
}

const MEMORY_INFOS: Entries = Entries {
    first: offset_of!(MemoryInfo, entries),
    size: size_of::<MemoryInfoEntry>(),
};
const MEMORY_INFO_LISTS: Entries = Entries {
    first: size_of::<MemoryInfoList>(),
    size: size_of::<MemoryInfoEntry>(),
};
const PID_INFOS: Entries = Entries {
    first: offset_of!(PidInfos, entries),
    size: size_of::<PidInfo>(),
};

/// The entries of parameters; a count past the end is cut to what is there.
fn entries(params: &mut [u8], layout: Entries) -> impl Iterator<Item = &mut [u8]> {
    let count = word(params, 0).unwrap_or(0) as usize;
    let all = params.get_mut(layout.first..).unwrap_or_default();
    all.chunks_exact_mut(layout.size).take(count)
}

fn sizes(params: &mut [u8], layout: Entries, card: &Card) {
    for entry in entries(params, layout) {
        let most = match word(entry, offset_of!(MemoryInfoEntry, index)) {
            Some(
                MemoryInfoEntry::RAM_SIZE
                | MemoryInfoEntry::TOTAL_RAM_SIZE
                | MemoryInfoEntry::HEAP_SIZE
                | MemoryInfoEntry::MAPPABLE_HEAP_SIZE
                | MemoryInfoEntry::USABLE_RAM_SIZE
                | MemoryInfoEntry::PROTECTED_TOTAL,
            ) => card.total,
            Some(
                MemoryInfoEntry::HEAP_FREE
                | MemoryInfoEntry::LARGEST_FREE
                | MemoryInfoEntry::PROTECTED_FREE,
            ) => card.free,
            _ => continue,
        };
        let most = u32::try_from(most >> 10).unwrap_or(u32::MAX);
        if let Some(kib) = word(entry, offset_of!(MemoryInfoEntry, data)) {
            put_word(entry, offset_of!(MemoryInfoEntry, data), kib.min(most));
        }
    }
}

fn pids(params: &mut [u8], card: &Card) {
    let layout = Entries {
        first: offset_of!(discover::Pids, pids),
        size: size_of::<u32>(),
    };
    let count = word(params, offset_of!(discover::Pids, count)).unwrap_or(0) as usize;
    let all = params.get_mut(layout.first..).unwrap_or_default();
    let found = all.chunks_exact(layout.size).take(count);
    let found = found.filter_map(|host| word(host, 0));
    let own = |host: u32| card.pids.iter().find(|own| own.host == host);
    let seen: Vec<u32> = found.filter_map(|h| own(h).map(|own| own.seen)).collect();
    all.fill(0);
    for (slot, pid) in all.chunks_exact_mut(layout.size).zip(&seen) {
        put_word(slot, 0, *pid);
    }
    put_word(params, offset_of!(discover::Pids, count), seen.len() as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::BRANCHES;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn card() -> Card {
        let pid = |host, seen| Pid { host, seen };
        Card {
            total: 24 * GIB,
            free: 10 * GIB,
            pids: vec![pid(1000, 1), pid(1007, 8)],
        }
    }

    fn infos(first: usize, infos: &[(u32, u32)]) -> Vec<u8> {
        let mut params = vec![0; first];
        put_word(&mut params, 0, infos.len() as u32);
        for (index, data) in infos {
            params.extend(index.to_ne_bytes());
            params.extend(data.to_ne_bytes());
        }
        params
    }

    #[test]
    fn sizes_that_a_branch_does_not_have_are_not_guessed() {
        for branch in BRANCHES {
            for (number, kind) in QUERIES {
                let taken = (0..20_000).filter(|&size| {
                    let found = query(branch, *number, size);
                    assert_ne!(found, Lookup::NotOurs);
                    found == Lookup::Ours(*kind)
                });
                assert_eq!(taken.count(), 1, "{} {number:#x}", branch.major);
            }
            assert_eq!(query(branch, 0x2080_1302, 1028), Lookup::NotOurs);
        }
        let at = |major: u32| BRANCHES.iter().find(|b| b.major == major).unwrap();
        let of = |major| query(at(major), MEMORY_INFO, 1028);
        assert_eq!(of(580), Lookup::Ours(Query::MemoryInfo));
        assert_eq!(of(570), Lookup::UnknownSize { wanted: 460 });
        assert_eq!(of(535), Lookup::UnknownSize { wanted: 436 });
    }

    #[test]
    fn total_and_free_are_the_containers_in_both_forms_and_the_rest_is_the_drivers() {
        // As NVML asks, and more (H200).
        let real = [
            (0x16, 140_000_000),
            (8, 0x8C6_6C00),
            (9, 0x8BC_CFC0),
            (7, 0x8C6_6C00),
            (0x20, 0x8C6_6C00),
            (0x12, 139_000_000),
            (5, 0x1000_0000),
            (0x1D, 123),
        ];
        let (total, free) = (24 << 20, 10 << 20);
        let own = [
            (0x16, free),
            (8, total),
            (9, total),
            (7, total),
            (0x20, total),
            (0x12, free),
            (5, 0x1000_0000),
            (0x1D, 123),
        ];
        for (kind, first) in [(Query::MemoryInfo, 4), (Query::MemoryInfoList, 16)] {
            let mut params = infos(first, &real);
            rewrite(kind, &[], &mut params, &card());
            assert_eq!(params, infos(first, &own));
            let wide = Card {
                total: u64::MAX,
                free: u64::MAX,
                pids: Vec::new(),
            };
            let mut params = infos(first, &real);
            rewrite(kind, &[], &mut params, &wide);
            assert_eq!(params, infos(first, &real), "never more than there is");
            // What is behind the count was not asked for.
            let mut params = infos(first, &real);
            put_word(&mut params, 0, 1);
            rewrite(kind, &[], &mut params, &card());
            assert_eq!(params[first + 8..], infos(first, &real)[first + 8..]);
        }
        let params = infos(16, &real);
        assert_eq!(Query::MemoryInfo.list(&params), None);
        let list = Query::MemoryInfoList.list(&params[..16]);
        assert_eq!(list, Some(List { at: 0, size: 64 }));
        let list = Query::MemoryInfoList.list(&[0xff; 16]).unwrap();
        assert_eq!(list.size, 1024);
        assert_eq!(Query::MemoryInfoList.list(&[0; 8]), None);
    }

    #[test]
    fn only_the_containers_processes_are_listed_by_the_pids_it_knows() {
        let mut params = vec![0; 12 + 950 * 4];
        let fill = |params: &mut [u8], pids: &[u32]| {
            put_word(params, 8, pids.len() as u32);
            for (i, pid) in pids.iter().enumerate() {
                put_word(params, 12 + 4 * i, *pid);
            }
        };
        put_word(&mut params, 4, 0xCBC0);
        let mut wanted = params.clone();
        fill(&mut params, &[5, 1007, 8, 1000, 1]);
        fill(&mut wanted, &[8, 1]);
        rewrite(Query::Pids, &[], &mut params, &card());
        assert_eq!(params, wanted, "of the others, nothing is left behind");

        let entry = |pid: u32, held: u64| {
            let mut bytes = [0; 72];
            put_word(&mut bytes, 0, pid);
            put_long(&mut bytes, 24, held);
            bytes
        };
        let list = |entries: &[[u8; 72]]| {
            let mut params = vec![0; 14408];
            put_word(&mut params, 0, entries.len() as u32);
            params[8..8 + 72 * entries.len()].copy_from_slice(&entries.concat());
            params
        };
        let asked = list(&[entry(8, 0), entry(1000, 0), entry(1, 0)]);
        let mut params = asked.clone();
        prepare(Query::PidInfo, &mut params, &card());
        let sent = [entry(1007, 0), entry(u32::MAX, 0), entry(1000, 0)];
        assert_eq!(params, list(&sent));
        let mut params = list(&[entry(1007, 70), entry(u32::MAX, 0), entry(1000, 80)]);
        rewrite(Query::PidInfo, &asked, &mut params, &card());
        let told = [entry(8, 70), entry(1000, 0), entry(1, 80)];
        assert_eq!(params, list(&told));
    }

    #[test]
    fn the_older_calls_tell_the_same() {
        use crate::abi::iowr;
        use crate::tenant::parse;
        let cmd = iowr(memory::ESC_RM_VID_HEAP_CONTROL, size_of::<Heap>()) as u32;
        let mut heap = vec![0; size_of::<Heap>()];
        put_word(&mut heap, offset_of!(Heap, function), memory::HEAP_INFO);
        for offset in [24, 32, 56] {
            put_long(&mut heap, offset, 140 * GIB);
        }
        let call = parse(cmd, &heap).unwrap();
        rewrite_argument(&call, &mut heap, &card());
        let told = [24, 32, 56].map(|offset| long(&heap, offset).unwrap() / GIB);
        assert_eq!(told, [24, 10, 10]);

        let cmd = iowr(memory::ESC_RM_ALLOC_MEMORY, size_of::<OldAlloc>()) as u32;
        let mut old = vec![0; size_of::<OldAlloc>()];
        put_word(&mut old, offset_of!(OldAlloc, class), CLASS_DEVICE_MEMORY);
        put_long(&mut old, offset_of!(OldAlloc, limit), 140 * GIB - 1);
        let call = parse(cmd, &old).unwrap();
        rewrite_argument(&call, &mut old, &card());
        let limit = long(&old, offset_of!(OldAlloc, limit));
        assert_eq!(limit, Some(24 * GIB - 1));
    }

    proptest! {
        #[test]
        fn no_answer_is_too_odd(
            mut params in proptest::collection::vec(any::<u8>(), 0..300),
            asked in proptest::collection::vec(any::<u8>(), 0..300),
            count in 0u32..40,
            total: u64,
            free: u64,
        ) {
            let card = Card { total, free, ..card() };
            for counted in [false, true] {
                if counted {
                    put_word(&mut params, 0, count);
                    put_word(&mut params, 8, count);
                }
                for (_, kind) in QUERIES {
                    let length = params.len();
                    let _ = kind.list(&params);
                    prepare(*kind, &mut params, &card);
                    rewrite(*kind, &asked, &mut params, &card);
                    prop_assert_eq!(params.len(), length);
                }
            }
        }
    }
}
