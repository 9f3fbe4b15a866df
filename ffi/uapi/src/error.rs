//! What may go wrong, with what was asked for.

use std::io;
use std::path::PathBuf;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device cannot be opened.
    #[error("{path}: cannot be opened; it needs root, and the driver with Ghost loaded")]
    Open {
        /// Which.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The module did not do it, and changed nothing.
    #[error("cannot {asked}{}", hint(source))]
    Refused {
        /// What was asked of it, with its object.
        asked: String,
        /// errno; the header says what each means.
        #[source]
        source: io::Error,
    },
    /// A value that the module does not take.
    #[error("cannot {asked}: {key} is out of range; see GHOST_SET_* in uapi/ghost.h")]
    Value {
        /// What was asked of it, with its object.
        asked: String,
        /// Which value.
        key: &'static str,
    },
    /// A name that no container may have.
    #[error(
        "container name {name:?}: not 1 to 64 letters, digits, '.', '_' or '-', beginning with \
         none of the last three but '_'"
    )]
    Name {
        /// The name.
        name: String,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM) => ": it needs CAP_SYS_ADMIN and the device open for writing",
        Some(libc::ENODEV) => ": the hooks are off, or there is no such gpu",
        Some(libc::ENOTTY) => ": the module is of a version that does not know this",
        Some(libc::ENOENT) => ": it is gone",
        _ => "",
    }
}

impl Error {
    /// errno, where the kernel said one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Value { .. } | Self::Name { .. } => None,
        }
    }

    /// Whether its object is not there, or no more.
    pub fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ESRCH))
    }
}
