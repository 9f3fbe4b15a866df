//! What can happen to the books, each as the bytes that the journal keeps.

use std::collections::BTreeMap;

use ghost_model::{Bytes, GpuId, MemoryEvents, MemoryLimits, MemoryWanted, Name, ProcId};
use ghost_rm::{Client, Object};

use super::{Call, Card, CardInfo, MemoryId, SessionId, Ticket};

macro_rules! ops {
    ($($(#[$doc:meta])* $kind:literal $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {
        /// One change of the books. Decisions are made before: applying an op never refuses.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type),* }),*
        }

        impl Op {
            /// Its number in the journal.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self { $(Op::$name { .. } => $kind),* }
            }

            /// Adds its fields to `out`, numbers little-endian, in the order of declaration.
            pub fn put(&self, out: &mut Vec<u8>) {
                match self { $(Op::$name { $($field),* } => { $($field.put(out);)* }),* }
            }

            /// The op of a kind with these fields; `None` if they are not exactly those.
            #[must_use]
            pub fn take(kind: u8, fields: &[u8]) -> Option<Op> {
                let mut rest = fields;
                let from = &mut rest;
                let op = match kind {
                    $($kind => Op::$name { $($field: Field::take(from)?),* },)*
                    _ => return None,
                };
                rest.is_empty().then_some(op)
            }
        }
    };
}

ops! {
    /// A client is seen for the first time.
    1 Open {
        /// The client.
        client: Client,
        /// Who made it.
        owner: ProcId,
        /// Where it is charged.
        container: Name,
    }
    /// An allocation was granted and is about to be asked of the driver.
    2 Charge {
        /// Its number.
        ticket: Ticket,
        /// The name that was asked for; the object is 0 if the driver picks.
        id: MemoryId,
        /// Where.
        card: Card,
        /// How much.
        bytes: u64,
    }
    /// An allocation was refused.
    3 Refuse {
        /// Who asked.
        client: Client,
        /// Where.
        card: Card,
        /// Whose `max` it was.
        max: Option<Name>,
    }
    /// The driver did it.
    4 Settle {
        /// The charge, or the further name.
        ticket: Ticket,
        /// The memory's name.
        id: MemoryId,
        /// How much it took; means nothing for a further name.
        bytes: u64,
    }
    /// The driver did not do it.
    5 Cancel {
        /// The charge, or the further name.
        ticket: Ticket,
        /// Whether that is a failed allocation.
        failed: bool,
    }
    /// A further name of a memory is about to be asked of the driver.
    6 Share {
        /// Its number.
        ticket: Ticket,
        /// The memory, by the ticket of its charge.
        memory: Ticket,
        /// The name; the object is 0 if the driver picks.
        id: MemoryId,
    }
    /// A name is gone.
    7 Free {
        /// The name.
        id: MemoryId,
    }
    /// A client is gone, with all names in it.
    8 Close {
        /// The client.
        client: Client,
    }
    /// What a process holds beyond the names of its clients.
    9 Residual {
        /// The process.
        owner: ProcId,
        /// Where.
        card: Card,
        /// How much.
        bytes: u64,
        /// Where it is charged, if no client says it.
        container: Option<Name>,
    }
    /// A process has ended: it has no residual.
    10 Gone {
        /// The process.
        owner: ProcId,
    }
    /// The limits of all containers.
    11 Limits {
        /// In place of those before.
        wanted: MemoryWanted,
    }
    /// All cards.
    12 Cards {
        /// In place of those before.
        cards: Vec<CardInfo>,
    }
    /// A call for a thread is about to be done.
    13 Begin {
        /// Whose filter.
        session: SessionId,
        /// The thread.
        tid: i32,
        /// The call.
        call: Call,
    }
    /// It was done and its answer delivered, or the mark is dropped.
    14 End {
        /// Whose filter.
        session: SessionId,
        /// The thread.
        tid: i32,
    }
    /// Of a snapshot: a container and its number.
    20 Container {
        /// The number that `Memory` and `Counted` use.
        number: u32,
        /// The container.
        name: Name,
    }
    /// Of a snapshot: a memory with its first name. Further ones follow as `Name` and `Share`.
    21 Memory {
        /// Its number.
        ticket: Ticket,
        /// The name; the one asked for if it is pending.
        id: MemoryId,
        /// The container that is charged.
        container: u32,
        /// Where.
        card: Card,
        /// How much.
        bytes: u64,
        /// The ticket of the name if it is pending: the memory's own if that is, too.
        pending: Option<Ticket>,
    }
    /// Of a snapshot: a further name that a memory has.
    25 Name {
        /// The memory.
        memory: Ticket,
        /// The name.
        id: MemoryId,
    }
    /// Of a snapshot: where a process's residual is charged, and when its names last changed.
    22 Process {
        /// The process.
        owner: ProcId,
        /// The container.
        container: u32,
        /// The version.
        changed: u64,
    }
    /// Of a snapshot: what was counted.
    23 Counted {
        /// The container.
        container: u32,
        /// Where.
        card: Card,
        /// The most that was in use.
        peak: u64,
        /// With those below.
        events: MemoryEvents,
        /// Its own.
        events_local: MemoryEvents,
    }
    /// Of a snapshot: its end.
    24 Stamp {
        /// The version.
        version: u64,
        /// The next charge's number.
        ticket: Ticket,
        /// The next container's number.
        container: u32,
    }
}

/// What an op is made of.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Takes one off the front.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let (front, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*front))
            }
        }
    )*};
}
numbers!(u8, u32, i32, u64);

/// Structures, by their fields in order.
macro_rules! structures {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Field::take(from)?),* })
            }
        }
    )*};
}
structures! {
    Client { 0 }
    Object { 0 }
    Card { 0 }
    Ticket { 0 }
    Bytes { 0 }
    MemoryWanted { 0 }
    ProcId { pid, start }
    Call { number, notification, client, object, class }
    CardInfo { card, id, total, others }
    MemoryLimits { min, low, high, max }
    MemoryEvents { low, high, max, fail }
}

impl Field for MemoryId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((Field::take(from)?, Field::take(from)?))
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(some) = self {
            some.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match bool::take(from)? {
            true => Some(T::take(from)?),
            false => None,
        })
    }
}

macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let text = self.as_str().as_bytes();
                // The types bound their texts far below.
                (text.len() as u32).put(out);
                out.extend_from_slice(text);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let length = u32::take(from)? as usize;
                let (text, rest) = from.split_at_checked(length)?;
                *from = rest;
                std::str::from_utf8(text).ok()?.parse().ok()
            }
        }
    )*};
}
texts!(Name, GpuId, SessionId);

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for item in self {
            item.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        (0..u32::take(from)?).map(|_| T::take(from)).collect()
    }
}

impl<K: Field + Ord, V: Field> Field for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let pairs = 0..u32::take(from)?;
        let pair = |_| Some((K::take(from)?, V::take(from)?));
        pairs.map(pair).collect()
    }
}
