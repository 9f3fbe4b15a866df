//! The container's own card: queries whose answer is made to be of the container.
//!
//! A tenant asks the driver how large a GPU's memory is, what of it is free, and who uses it.
//! [`query`] tells whether a control is such a question. The question is asked of the driver with
//! [`crate::tenant::perform`] between [`prepare`] and [`rewrite`], so that what is not the
//! container's own (capabilities, hardware facts in the same list) stays the driver's. Numbers
//! are only ever made smaller.

use std::mem::offset_of;

use crate::Status;
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

/// The status for a query that cannot be answered as the container's: the driver says so of
/// parameters that it does not know.
pub const REFUSED: Status = Status::INVALID_PARAM_STRUCT;
