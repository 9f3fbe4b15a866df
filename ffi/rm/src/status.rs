//! The resource manager's answers: a 32-bit status beside the ioctl's errno.

use std::fmt;

/// What the RM answered. Any number may come; those that Ghost acts on, or is
/// likely to meet, have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// The status in words, `None` for one without a name here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const NAMED: &[Status] = &[$(Status($value)),*];
    };
}

statuses! {
    /// Done.
    OK = 0x00, "ok";
    /// Busy; worth another try.
    BUSY_RETRY = 0x03, "busy, try again";
    /// The GPU fell off the bus.
    GPU_IS_LOST = 0x0F, "gpu is lost";
    /// The GPU is being reset.
    GPU_IN_FULLCHIP_RESET = 0x10, "gpu is being reset";
    /// A resource other than memory ran out.
    INSUFFICIENT_RESOURCES = 0x1A, "insufficient resources";
    /// The caller may not.
    INSUFFICIENT_PERMISSIONS = 0x1B, "insufficient permissions";
    /// The kind of access is not allowed.
    INVALID_ACCESS_TYPE = 0x1D, "invalid access type";
    /// An address in the parameters cannot be used.
    INVALID_ADDRESS = 0x1E, "invalid address";
    /// An argument, often its size, is not what the call takes.
    INVALID_ARGUMENT = 0x1F, "invalid argument";
    /// No such channel.
    INVALID_CHANNEL = 0x21, "invalid channel";
    /// The class is not known here.
    INVALID_CLASS = 0x22, "invalid class";
    /// The client is not on this file, or not there at all.
    INVALID_CLIENT = 0x23, "invalid client";
    /// The command is not known here.
    INVALID_COMMAND = 0x24, "invalid command";
    /// The device is not there, or not started.
    INVALID_DEVICE = 0x26, "invalid device";
    /// An object in the call is not valid.
    INVALID_OBJECT = 0x31, "invalid object";
    /// A handle in the call names nothing.
    INVALID_OBJECT_HANDLE = 0x33, "invalid object handle";
    /// The handle wanted for a new object cannot be had.
    INVALID_OBJECT_NEW = 0x34, "invalid new object";
    /// The object to free is not there.
    INVALID_OBJECT_OLD = 0x35, "invalid old object";
    /// The parent is not there or cannot be one.
    INVALID_OBJECT_PARENT = 0x36, "invalid parent object";
    /// Who asks for memory is none that may.
    INVALID_OWNER = 0x39, "invalid owner";
    /// The size of the parameters is wrong.
    INVALID_PARAM_STRUCT = 0x3A, "invalid parameter struct";
    /// A parameter's value is wrong.
    INVALID_PARAMETER = 0x3B, "invalid parameter";
    /// Not possible in the present state.
    INVALID_STATE = 0x40, "invalid state";
    /// Out of memory; CUDA shows it as its own out-of-memory error.
    NO_MEMORY = 0x51, "no memory";
    /// Not ready.
    NOT_READY = 0x55, "not ready";
    /// The object does not know the command (also: is another kind of object).
    NOT_SUPPORTED = 0x56, "not supported";
    /// The client has no object of this handle.
    OBJECT_NOT_FOUND = 0x57, "object not found";
    /// The operating system refused something.
    OPERATING_SYSTEM = 0x59, "operating system error";
    /// No such process.
    PID_NOT_FOUND = 0x5E, "process not found";
    /// The GPU must be reset first.
    RESET_REQUIRED = 0x62, "reset required";
    /// Took too long.
    TIMEOUT = 0x65, "timed out";
    /// Took too long; worth another try.
    TIMEOUT_RETRY = 0x66, "timed out, try again";
    /// The resource was destroyed meanwhile.
    RESOURCE_LOST = 0x6E, "resource lost";
    /// Anything else.
    GENERIC = 0xFFFF, "generic error";
}

impl Status {
    /// Whether the call did what it was asked.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Whether the answer means that a client or object named in the call is
    /// not there (any more). A channel whose process died gives one of these.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(
            self,
            Self::INVALID_CHANNEL
                | Self::INVALID_CLIENT
                | Self::INVALID_OBJECT
                | Self::INVALID_OBJECT_HANDLE
                | Self::INVALID_OBJECT_OLD
                | Self::INVALID_OBJECT_PARENT
                | Self::OBJECT_NOT_FOUND
                | Self::RESOURCE_LOST
        )
    }

    /// Whether the same call may succeed a little later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::BUSY_RETRY | Self::TIMEOUT_RETRY | Self::NOT_READY
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{:#04x} ({name})", self.0),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_only_ok_is_ok() {
        let mut names: Vec<_> = NAMED.iter().filter_map(|s| s.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMED.len());
        assert_eq!(NAMED.iter().filter(|s| s.is_ok()).count(), 1);
        for status in NAMED {
            let kinds = [status.is_ok(), status.is_gone(), status.is_transient()];
            assert!(kinds.iter().filter(|&&is| is).count() <= 1, "{status}");
        }
    }

    #[test]
    fn prints_number_and_name() {
        assert_eq!(Status::INVALID_CLIENT.to_string(), "0x23 (invalid client)");
        assert_eq!(Status(0x1234).to_string(), "0x1234");
    }
}
