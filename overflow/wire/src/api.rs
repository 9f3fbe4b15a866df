//! What the table says, as data: names, versions, classes. The shim resolves
//! `cuGetProcAddress` with it, both sides number their messages by it.

use crate::driver_api;

/// How a call is answered where its process computes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// By the shim's own code, which may send messages of its own.
    Local,
    /// As `Local`, and it can report the error of an earlier call that was not waited for.
    Syncs,
    /// Sent and not waited for; its error comes late, once.
    Posted,
    /// Sent and waited for.
    Waited,
    /// Waited for the first time, then answered from what came back.
    Cached,
    /// As `Posted`, from code of the shim's own that keeps account of it.
    HandPosted,
    /// As `Waited`, from code of the shim's own that keeps account of it.
    HandWaited,
    /// Answered with `CUDA_ERROR_NOT_SUPPORTED`, counted, and named in the log once.
    Refused,
}

impl Class {
    /// Whether the executor has a dispatch for it.
    #[must_use]
    pub const fn crosses(self) -> bool {
        !matches!(self, Self::Local | Self::Syncs | Self::Refused)
    }

    /// Whether an error of it comes late: with a later call, or the next that waits.
    #[must_use]
    pub const fn late(self) -> bool {
        matches!(self, Self::Posted | Self::HandPosted)
    }
}

/// The second export of an entry point, for the per-thread default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// None.
    Plain,
    /// `_ptsz`: it names a stream, and 0 means the thread's own.
    Ptsz,
    /// `_ptds`: it works on the default stream, and that is the thread's own.
    Ptds,
}

impl Variant {
    /// What is appended to the symbol.
    #[must_use]
    pub const fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Ptsz => Some("_ptsz"),
            Self::Ptds => Some("_ptds"),
        }
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What `libcuda.so.1` exports.
    pub symbol: &'static str,
    /// What `cuGetProcAddress` is asked for.
    pub name: &'static str,
    /// The first version of CUDA with this form: 12080 is 12.8.
    pub since: u32,
    /// The per-thread form.
    pub variant: Variant,
    /// How it is answered.
    pub class: Class,
    /// Its arguments, as the table writes them; for the fingerprint.
    pub arguments: &'static str,
}

/// The number of a message: of a row of the table, or of one of [`crate::message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(pub u16);

impl Op {
    /// The row, if it is one.
    #[must_use]
    pub fn entry(self) -> Option<&'static Entry> {
        ENTRIES.get(usize::from(self.0))
    }

    /// For people: the symbol, or the message's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry()
            .map(|entry| entry.symbol)
            .or_else(|| crate::message::name(self))
            .unwrap_or("an unknown message")
    }
}

macro_rules! class {
    (local) => {
        Class::Local
    };
    (syncs) => {
        Class::Syncs
    };
    (posted) => {
        Class::Posted
    };
    (waited) => {
        Class::Waited
    };
    (cached) => {
        Class::Cached
    };
    (hand_posted) => {
        Class::HandPosted
    };
    (hand_waited) => {
        Class::HandWaited
    };
    (refused) => {
        Class::Refused
    };
}

macro_rules! variant {
    (plain) => {
        Variant::Plain
    };
    (ptsz) => {
        Variant::Ptsz
    };
    (ptds) => {
        Variant::Ptds
    };
}

macro_rules! entries {
    ({} $($symbol:ident $name:literal $since:literal $variant:ident $class:ident
        $(($($arg:ident : $kind:ty),*))?;)*) => {
        /// The table, in the order of its numbers.
        pub const ENTRIES: &[Entry] = &[$(Entry {
            symbol: stringify!($symbol),
            name: $name,
            since: $since,
            variant: variant!($variant),
            class: class!($class),
            arguments: concat!($($(stringify!($kind), ","),*)?),
        }),*];

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($symbol),* }

        /// The number of each row.
        #[allow(non_upper_case_globals, missing_docs)]
        pub mod op {
            use super::{Number, Op};
            $(pub const $symbol: Op = Op(Number::$symbol as u16);)*
        }
    };
}

driver_api!(entries {});

/// The highest version of CUDA whose entry points the table knows.
pub const KNOWN: u32 = 13000;

/// The version from which the per-thread form of an entry point exists.
const PER_THREAD_SINCE: u32 = 7000;

/// The row that serves `name` for a caller built for `version` of CUDA; with `per_thread`, one that
/// has a per-thread form is asked for by it (and one that has none serves both).
#[must_use]
pub fn find(name: &str, version: u32, per_thread: bool) -> Option<(Op, &'static Entry)> {
    let rows = ENTRIES.iter().enumerate().filter(|(_, e)| e.name == name);
    let served = rows.filter(|(_, e)| {
        let per_thread = per_thread && e.variant != Variant::Plain;
        let since = if per_thread {
            e.since.max(PER_THREAD_SINCE)
        } else {
            e.since
        };
        since <= version
    });
    served
        .max_by_key(|(_, e)| e.since)
        .and_then(|(at, e)| Some((Op(u16::try_from(at).ok()?), e)))
}

/// Whether a form of `name` is in the table that `version` of CUDA has.
#[must_use]
pub fn known(name: &str, version: u32) -> bool {
    ENTRIES.iter().any(|e| e.name == name && e.since <= version)
}

/// A number that changes when the table does (FNV-1a over its rows): two sides that differ in it
/// number their messages differently.
#[must_use]
pub fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for e in ENTRIES {
        add(e.symbol.as_bytes());
        add(e.arguments.as_bytes());
        add(&[e.class as u8, e.variant as u8, 0xff]);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_symbol_and_each_version_of_a_name_stand_once() {
        let symbols: HashSet<_> = ENTRIES.iter().map(|e| e.symbol).collect();
        assert_eq!(symbols.len(), ENTRIES.len());
        let versions: HashSet<_> = ENTRIES.iter().map(|e| (e.name, e.since)).collect();
        assert_eq!(versions.len(), ENTRIES.len());
        assert!(ENTRIES.len() < usize::from(crate::message::FIRST.0));
    }

    #[test]
    fn a_name_is_resolved_by_the_version_of_its_caller() {
        let symbol = |name, version| find(name, version, false).map(|(_, e)| e.symbol);
        assert_eq!(symbol("cuMemAlloc", 2000), Some("cuMemAlloc"));
        assert_eq!(symbol("cuMemAlloc", 3020), Some("cuMemAlloc_v2"));
        assert_eq!(symbol("cuCtxGetDevice", 12080), Some("cuCtxGetDevice"));
        assert_eq!(symbol("cuCtxGetDevice", 13000), Some("cuCtxGetDevice_v2"));
        assert_eq!(
            symbol("cuStreamGetCaptureInfo", 11040),
            Some("cuStreamGetCaptureInfo_v2")
        );
        assert_eq!(symbol("cuLibraryLoadData", 11080), None);
        assert_eq!(symbol("cuNoSuchThing", 13000), None);
        assert!(known("cuLibraryLoadData", 12000) && !known("cuLibraryLoadData", 11080));
        assert!(!known("cuNoSuchThing", KNOWN) && !known("", KNOWN));
    }

    #[test]
    fn the_per_thread_form_has_a_version_of_its_own() {
        let form = |name, version| find(name, version, true).map(|(_, e)| (e.symbol, e.variant));
        assert_eq!(
            form("cuMemcpyHtoD", 7000),
            Some(("cuMemcpyHtoD_v2", Variant::Ptds))
        );
        assert_eq!(form("cuStreamGetId", 7000), None);
        assert_eq!(
            form("cuLaunchKernel", 12000),
            Some(("cuLaunchKernel", Variant::Ptsz))
        );
        assert_eq!(
            form("cuMemAlloc", 3020),
            Some(("cuMemAlloc_v2", Variant::Plain))
        );
    }

    #[test]
    fn a_number_finds_its_row() {
        assert_eq!(op::cuMemAlloc_v2.name(), "cuMemAlloc_v2");
        assert_eq!(
            op::cuMemAlloc_v2.entry().map(|e| e.class),
            Some(Class::HandWaited)
        );
        assert!(Class::HandPosted.late() && !Class::Cached.late());
        assert!(Class::Cached.crosses() && !Class::Syncs.crosses());
    }
}
