//! The guardian: the only process of Ghost that disables and enables channels.
//!
//! A pause of a tenant's channels outlives the process that asked the driver
//! for it. So the asking is left to this process, which is small, waits for
//! nobody, and undoes what it did: when the lease lapses, when the client that
//! asked is gone, when it is itself told to stop, and, after it was killed,
//! when it starts again. [`pauses`] says how; [`client`] is what ghostd's stock
//! backend uses; [`server`] is the loop that the program runs.

pub mod broker;
pub mod channels;
pub mod client;
#[cfg(test)]
mod double;
pub mod ledger;
pub mod pauses;
pub mod protocol;
pub mod server;

pub use client::{ClientError, Guardian};
pub use protocol::{Failure, FailureKind, Key, Keys, Listing, Outcome, Pause};
