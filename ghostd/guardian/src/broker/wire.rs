//! What ghostd and the broker say to each other, as bytes: frames as the guardian's other socket
//! has them ([`crate::protocol`]), larger ones, and with descriptors at their first byte.
//!
//! A client sends [`Ask`]s, one at a time, and gets one [`Reply`] for each. The bodies are the
//! model's own words. Whatever is wrong ends the connection.

use ghost_model::{Members, MemorySeen, MemoryWanted, Name, ProcId};
use serde::{Deserialize, Serialize};

use super::books::{Card, CardInfo, Observed, SessionId};

/// The largest body in bytes, either way: the processes of a host under attack still fit.
pub const MAX_BODY: usize = 16 << 20;

/// The most listeners in one [`Reply::Listeners`].
pub const LISTENERS: usize = 64;

/// The longest that [`Ask::Wait`] waits, ms.
pub const MAX_WAIT_MS: u32 = 60_000;

/// The most clients that one [`Usage`] names.
pub const MAX_CLIENTS_TOLD: usize = 4096;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Answer for this listener, which comes with the frame, from now on: its processes are
    /// charged to `container` where [`Ask::Members`] does not say otherwise. A session that is
    /// served already stays as it is. Answered [`Reply::Done`].
    Adopt {
        /// What both sides call it from now on.
        session: SessionId,
        /// Where its processes are charged.
        container: Name,
    },
    /// The limits of all containers, in place of those before. Kept over a restart. Name
    /// containers without limits too: what is not named is forgotten once it holds nothing.
    /// Answered [`Reply::Done`].
    Limits(MemoryWanted),
    /// All cards, in place of those before. Kept over a restart. Answered [`Reply::Done`].
    Cards(Vec<CardInfo>),
    /// Who belongs where, in place of what was before. Not kept over a restart. Clients stay where
    /// they were first seen. Answered [`Reply::Done`].
    Members(Members),
    /// What is so now. Answered [`Reply::Usage`].
    Usage,
    /// As [`Ask::Usage`], answered as soon as [`Usage::news`] is no longer `news`, or after
    /// `timeout_ms` (at most [`MAX_WAIT_MS`]). Others may ask meanwhile, on connections of their
    /// own.
    Wait {
        /// [`Usage::news`] of the last answer.
        news: u64,
        /// How long, ms.
        timeout_ms: u32,
    },
    /// What the driver says that processes hold. Answered [`Reply::Counted`].
    Observed(Vec<Observed>),
    /// The listeners of the sessions after this one, [`LISTENERS`] at most, in order of their
    /// names. Answered [`Reply::Listeners`].
    Listeners {
        /// The last one of the answer before; `None` begins.
        after: Option<SessionId>,
    },
    /// Answer for this session no longer, and close its listener: once nobody else holds it, the
    /// calls fail with `ENOSYS`. A session that is not served is no error. Answered
    /// [`Reply::Done`].
    Forget {
        /// Which.
        session: SessionId,
    },
}

/// What the broker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is so.
    Done,
    /// What is so now.
    Usage(Box<Usage>),
    /// How many of the readings counted: see [`Observed`].
    Counted {
        /// Readings.
        counted: usize,
    },
    /// Sessions, with as many descriptors in the same order.
    Listeners {
        /// The sessions, and where their processes are charged.
        sessions: Vec<(SessionId, Name)>,
    },
    /// It was not done.
    Refused {
        /// Why, and what to do.
        detail: String,
    },
}

/// What is so now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// For [`Observed::version`]: read it before the driver is asked.
    pub version: u64,
    /// Moves when something happened that ghostd should look at: a client, channel group or
    /// session came or went, an allocation was refused, a note was made, or use changed.
    pub news: u64,
    /// What containers hold.
    pub seen: MemorySeen,
    /// Processes with their clients.
    pub tenants: Vec<TenantInfo>,
    /// Whether there are more clients than [`MAX_CLIENTS_TOLD`], and some are not in `tenants`.
    pub more: bool,
    /// The listeners that are served.
    pub sessions: Vec<SessionInfo>,
    /// What was counted since the guardian started.
    pub counts: Counts,
    /// What a person should know, each kind once since the guardian started.
    pub notes: Vec<String>,
}

/// A process with its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantInfo {
    /// The process.
    pub owner: ProcId,
    /// Where its first client is charged.
    pub container: Name,
    /// Its clients.
    pub clients: Vec<ClientInfo>,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Its handle.
    pub client: u32,
    /// The channel groups that it asked for since the guardian started, by the card and their
    /// handle. The driver may have refused, and they may be gone: look.
    pub groups: Vec<(Card, u32)>,
    /// Those of them on which it asked for a compute engine.
    #[serde(default)]
    pub computing: Vec<u32>,
}

/// A listener that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its name.
    pub session: SessionId,
    /// Where its processes are charged.
    pub container: Name,
    /// Whether the kernel gives answers without a detour by its scheduler.
    pub sync: bool,
}

/// What was counted since the guardian started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Calls that were asked about.
    pub notifications: u64,
    /// Of them, those that the broker did itself.
    pub done: u64,
    /// Allocations refused, for whatever reason of the broker's.
    pub refused: u64,
    /// Answers that did not reach their call.
    pub undelivered: u64,
    /// Calls that were made again after such an answer, or after a restart.
    pub repeated: u64,
    /// Calls answered `EIO` because they took too long.
    pub late: u64,
    /// Time from the receipt of a call to its answer, the driver's included, ns.
    pub spent_ns: u64,
    /// Of it, time in the driver, ns.
    pub driver_ns: u64,
}
