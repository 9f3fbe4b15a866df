//! The executor as a process, and a client that speaks the wire by hand.

mod client;
mod handshake;
mod hostile;
mod session;
