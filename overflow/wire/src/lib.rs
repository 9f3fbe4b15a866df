//! The protocol between the shim (`libcuda.so.1` of a program that runs here) and the executor
//! (where it computes): the table of the driver API, the messages, their encoding, the handshake.
//! No sockets, no CUDA, nothing unsafe.
//!
//! A session is four connections, each of one direction once it is open ([`hello::Role`]):
//!
//! | connection | direction | carries |
//! | --- | --- | --- |
//! | commands | to the executor | [`frame::Command`] frames, in the one order that counts |
//! | replies | to the client | [`frame::Reply`] frames |
//! | up | to the executor | bulk data of the commands that name it, in their order |
//! | down | to the client | bulk data of copies to the host, changes of shared memory |
//!
//! A fifth kind of connection stands alone: it asks what is free on a host.
//!
//! One direction each, so that neither side ever has to read in order to be able to write, and so
//! that a side that only receives notices a cut link by keepalive alone.
#![forbid(unsafe_code)]

pub mod api;
pub mod codec;
pub mod frame;
pub mod hello;
pub mod id;
pub mod kind;
pub mod message;
pub mod result;
pub mod stats;
mod table;

pub use api::{Class, Entry, Op, Variant};
pub use codec::{Decoder, Encoder, Malformed};
pub use id::{Id, Object};

/// The protocol's version; [`api::fingerprint`] guards the table besides.
pub const VERSION: u32 = 4;

/// Most bytes of data that travel inside a command; more goes by the connection `up`.
pub const INLINE_MAX: usize = 64 << 10;

/// Most bytes of one frame of bulk data.
pub const CHUNK: usize = 4 << 20;
