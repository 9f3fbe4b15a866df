//! How Ghost's libraries in a program, `libcuda.so.1` and `libnvidia-ml.so.1`, reach the executor:
//! the ticket, connections with or without TLS, the handshake.

mod connect;
mod stream;
mod ticket;

pub use connect::{ConnectError, Opened, drivers_variables, look, open};
pub use stream::Stream;
pub use ticket::{TicketError, path, read};
