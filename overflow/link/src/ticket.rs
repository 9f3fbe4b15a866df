//! The ticket, which says where the program computes.

use ghost_wire::hello::{TICKET_ENV, Ticket};
use std::ffi::{OsStr, OsString};

/// Why a ticket can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// Its file can't be read.
    #[error("the ticket {path:?} can't be read: {source}")]
    Unread {
        /// The file.
        path: OsString,
        /// Why.
        source: std::io::Error,
    },
    /// Its file is none.
    #[error("the ticket {path:?} is broken: {source}")]
    Broken {
        /// The file.
        path: OsString,
        /// Why.
        source: serde_json::Error,
    },
}

/// The ticket's file, as the environment names it. None where it does not, or where the program has
/// more rights than who started it: then its environment is not to be trusted.
#[must_use]
pub fn path() -> Option<OsString> {
    let path = std::env::var_os(TICKET_ENV).filter(|path| !path.is_empty())?;
    // SAFETY: asks the kernel's word at the start of the process.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    (!secure).then_some(path)
}

/// Reads a ticket.
///
/// # Errors
/// [`TicketError`].
pub fn read(path: &OsStr) -> Result<Ticket, TicketError> {
    let text = std::fs::read(path).map_err(|source| TicketError::Unread {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|source| TicketError::Broken {
        path: path.to_owned(),
        source,
    })
}
