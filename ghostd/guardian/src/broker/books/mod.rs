//! Who holds how much of each card's memory, and who may take more. Pure: no clock, file or lock.
//!
//! The words are cgroup v2's. A container's use is its own and that of all below it, and every
//! container from the asking one to the top must have room: `max` refuses. Charges and what is
//! counted are made by [`Op`]s, which the [journal](super::journal) writes down before they take
//! effect; its [`Keeper`](super::journal::Keeper) is how the broker changes the books.
//!
//! - A *client* is charged where it was first seen; a process that moves is charged where it went
//!   for the clients that it makes from then on.
//! - A *memory* is charged to the container of the client that allocated it until its last name
//!   (client and object) is gone, also when that client went first. A name counts from before the
//!   driver is asked for it, so that no free in between loses the memory.
//! - *Pending* memory is charged and not settled yet: it counts against limits, and in no peak or
//!   event, since the driver may refuse it.
//! - *Residual* is what the driver says a process holds beyond all memories that its clients have
//!   names for, those allocated elsewhere included (the driver may count an import twice, Ghost
//!   does not). A reading counts only if no name of that process changed after the version at
//!   which the reading began; what others do in the meantime does not matter.
//! - *Protection*: `min` of a container is effective up to what the container above it is
//!   protected. What it lacks to that is kept free: allocations of containers outside of its
//!   subtree's lineage are refused when they would leave less. All children's needs together count
//!   up to their parent's effective `min`. `low` is the same, counted and not refused.

mod apply;
mod op;
mod read;
mod snapshot;
#[cfg(test)]
mod tests;
mod tree;
mod valid;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ghost_model::{Bytes, GpuId, MemoryWanted, Name, ProcId};
use ghost_rm::{Client, Object};
use serde::{Deserialize, Serialize};

pub use op::Op;
pub use read::{Tenant, View};
pub use valid::Violation;

/// A GPU by the driver's own `gpu_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Card(pub u32);

/// A name of a memory: the client and the object in it.
pub type MemoryId = (Client, Object);

/// A card and what the books cannot see of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardInfo {
    /// Which.
    pub card: Card,
    /// What limits call it.
    pub id: GpuId,
    /// All of its memory.
    pub total: Bytes,
    /// In use by nobody whom the books know: neither charged nor residual.
    pub others: Bytes,
}

/// What the driver says a process holds on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// The process.
    pub owner: ProcId,
    /// Where.
    pub card: Card,
    /// All that it holds; 0 when it is in the driver's list no longer.
    pub bytes: Bytes,
    /// [`Books::version`] before the driver was asked.
    pub version: u64,
    /// Where to charge a process that has no client in the books, as one that runs without a
    /// filter; with `None` such a process is not counted.
    pub container: Option<Name>,
}

/// A charge, or a further name, from before the driver is asked until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A listener: a filter and all threads under it. 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(Arc<str>);

/// Why a text names no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session's name is 1 to 64 visible ASCII characters; this one has {0} bytes or others")]
pub struct SessionIdError(usize);

impl SessionId {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<Self, SessionIdError> {
        let fine = (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        fine.then(|| SessionId(text.into()))
            .ok_or(SessionIdError(text.len()))
    }
}

impl TryFrom<String> for SessionId {
    type Error = SessionIdError;

    fn try_from(text: String) -> Result<Self, SessionIdError> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> String {
        id.as_str().to_owned()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call that the broker does for a thread, as far as it takes to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The ioctl's number.
    pub number: u8,
    /// The notification's id.
    pub notification: u64,
    /// The client.
    pub client: Client,
    /// The object that it names; 0 if the driver picks one.
    pub object: Object,
    /// The object's class; 0 where the call has none.
    pub class: u32,
}

impl Call {
    /// Whether a thread that makes `other` makes this call again.
    #[must_use]
    pub fn is_again(&self, other: &Call) -> bool {
        let key = |c: &Call| (c.number, c.client, c.object, c.class);
        key(self) == key(other)
    }
}

/// Most clients at once; a quarter of it for one container.
pub const MAX_CLIENTS: usize = 1 << 16;
/// Most names of memories at once; half of it for one container.
pub const MAX_NAMES: usize = 1 << 20;
/// Most calls begun and not ended; an eighth of it for one session.
pub const MAX_CALLS: usize = 1 << 16;
/// No card and no memory is larger, so that no sum overflows: 4 TiB.
pub const MAX_BYTES: u64 = 1 << 42;

/// Why an allocation, a client or a call was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A container's `gpu.memory.max`.
    #[error(
        "{container}: {asked} bytes more on {gpu} would exceed gpu.memory.max {limit} ({current} in use); free memory or raise the limit"
    )]
    Max {
        /// Whose limit.
        container: Name,
        /// Where.
        gpu: GpuId,
        /// The limit.
        limit: Bytes,
        /// In use before.
        current: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// Another container's `gpu.memory.min`.
    #[error(
        "{asked} bytes on {gpu} ({free} free) would leave less than others' gpu.memory.min needs ({needed}, most of it {container}); free memory or lower the min"
    )]
    Min {
        /// Whose protection lacks most.
        container: Name,
        /// Where.
        gpu: GpuId,
        /// What all protected containers lack together.
        needed: Bytes,
        /// Free on the card before.
        free: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// More than the card has.
    #[error("{asked} bytes are more than all memory of {gpu} ({total}); ask for less")]
    Total {
        /// Where.
        gpu: GpuId,
        /// All that it has.
        total: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// The books know no such card.
    #[error("no card {card:#x} is known; ghostd tells the cards when it starts, is it running?")]
    NoCard {
        /// The driver's number of it.
        card: u32,
    },
    /// The books know no such client.
    #[error("client {client} is not known; it was not accepted when it was made")]
    NoClient {
        /// The client.
        client: Client,
    },
    /// A bound that keeps the broker's own memory small.
    #[error("no more {what} than {most} are kept {whose}; close some")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        most: usize,
        /// Of whom.
        whose: &'static str,
    },
}

/// The books. Changed by [`Op`]s only; two books to which the same ops were applied are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    version: u64,
    next_ticket: u64,
    cards: BTreeMap<Card, CardInfo>,
    wanted: MemoryWanted,
    tree: tree::Tree,
    clients: BTreeMap<Client, Owned>,
    processes: BTreeMap<ProcId, Process>,
    memories: BTreeMap<Ticket, Memory>,
    names: BTreeMap<MemoryId, Ticket>,
    pending: BTreeMap<Ticket, Pending>,
    calls: BTreeMap<(SessionId, i32), Call>,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owned {
    owner: ProcId,
    container: u32,
}

/// A process with a client or a residual.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    /// Where its residual is charged: its first client's container.
    container: u32,
    clients: u32,
    /// The version at which a name of its changed last.
    changed: u64,
    /// Bytes of the memories that it has names of, and beyond them, by card.
    held: PerCard,
    residual: PerCard,
}

/// A memory, charged once however many names it has. Its number is the ticket it was charged under.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Memory {
    container: u32,
    card: Card,
    bytes: u64,
    /// Whether the driver gave it. Until then it has one name, which is pending.
    settled: bool,
    /// How many names of it each process has, pending ones included.
    holders: Vec<(ProcId, u32)>,
}

/// A name that the driver was asked for and has not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    /// The object is 0 if the driver picks.
    id: MemoryId,
    memory: Ticket,
}

/// Bytes by card, without those that are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PerCard(BTreeMap<Card, u64>);

impl PerCard {
    fn get(&self, card: Card) -> u64 {
        self.0.get(&card).copied().unwrap_or_default()
    }

    /// Sets it and gives what was.
    fn set(&mut self, card: Card, bytes: u64) -> u64 {
        let before = match bytes {
            0 => self.0.remove(&card),
            _ => self.0.insert(card, bytes),
        };
        before.unwrap_or_default()
    }

    fn add(&mut self, card: Card, bytes: u64) {
        self.set(card, self.get(card) + bytes);
    }

    fn sub(&mut self, card: Card, bytes: u64) {
        self.set(card, self.get(card) - bytes);
    }
}
