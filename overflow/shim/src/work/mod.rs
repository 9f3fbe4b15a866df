//! Work: modules, launches, streams, events, callbacks, graphs.

mod callbacks;
mod events;
mod functions;
mod graphs;
mod image;
mod launch;
mod load;
mod modules;
mod occupancy;
mod params;
mod streams;
mod values;

pub(crate) use callbacks::*;
pub(crate) use events::*;
pub(crate) use functions::*;
pub(crate) use graphs::*;
pub(crate) use launch::*;
pub(crate) use load::*;
pub(crate) use occupancy::*;
pub(crate) use streams::*;
pub(crate) use values::*;

use crate::link::Link;
use ghost_wire::message::{Field, Message, Wait};
use ghost_wire::result::Code;

/// Waits for a context, a stream or an event ([`ghost_wire::message::wait`]).
pub(crate) fn wait_for(link: &Link, what: u32, handle: u64) -> Result<(), Code> {
    ask(link, what, handle, false)
}

fn ask(link: &Link, what: u32, handle: u64, query: bool) -> Result<(), Code> {
    let message = Wait {
        what,
        handle,
        query,
    };
    link.wait_sync(Wait::OP, |to| message.put(to), |_| Ok(()))
}
