//! Names of processes: a pid together with when it started.

use std::fmt;
use std::io;

/// A process, told apart from a later one that got the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcId {
    /// The pid in this process's pid namespace.
    pub pid: i32,
    /// When it started, in clock ticks since boot: field 22 of
    /// `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// Why a process, or a descriptor of it, cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// There is no such process, or it has exited.
    #[error("process {pid}: it has exited or was never there")]
    Gone {
        /// The pid asked for.
        pid: i32,
    },
    /// The pid is another process's by now.
    #[error("process {wanted}: the pid belongs to a later process, started at {found} ticks")]
    Reused {
        /// The process asked for.
        wanted: ProcId,
        /// When the one that has its pid now started.
        found: u64,
    },
    /// The process has no descriptor of this number.
    #[error("process {pid}: no descriptor {fd}")]
    NoSuchFd {
        /// The process.
        pid: i32,
        /// The number asked for.
        fd: i32,
    },
    /// The kernel does not let us.
    #[error("process {pid}: not permitted; CAP_SYS_PTRACE is needed")]
    Denied {
        /// The process.
        pid: i32,
    },
    /// `/proc/PID/stat` is not as the kernel writes it.
    #[error("process {pid}: /proc/{pid}/stat has no start time in field 22")]
    BadStat {
        /// The process.
        pid: i32,
    },
    /// A system call failed in another way.
    #[error("process {pid}: {call} failed")]
    System {
        /// The process.
        pid: i32,
        /// The call.
        call: &'static str,
        /// errno.
        #[source]
        source: io::Error,
    },
}

impl fmt::Display for ProcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (started at {} ticks)", self.pid, self.start_ticks)
    }
}

impl ProcId {
    /// The process that has `pid` at this moment, by `/proc`. Where the name
    /// is to be kept, take it from [`crate::PidFd::open_pid`], which checks
    /// that the process was still there afterwards.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::BadStat`], [`ProcError::System`].
    pub fn of_pid(pid: i32) -> Result<Self, ProcError> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => ProcError::Gone { pid },
                _ => ProcError::System {
                    pid,
                    call: "reading /proc/PID/stat",
                    source,
                },
            }
        })?;
        Self::of_stat(pid, &stat)
    }

    /// The process whose `/proc/PID/stat` was read.
    ///
    /// # Errors
    ///
    /// [`ProcError::BadStat`].
    pub fn of_stat(pid: i32, stat: &[u8]) -> Result<Self, ProcError> {
        let start_ticks = parse_start(stat).ok_or(ProcError::BadStat { pid })?;
        Ok(Self { pid, start_ticks })
    }
}

/// Field 22 of a line of `/proc/PID/stat`. The second field is the program's
/// name in parentheses and may hold anything, parentheses and spaces included,
/// so fields are counted from the last `)`.
fn parse_start(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_started_before_init() {
        let own = ProcId::of_pid(std::process::id() as i32).unwrap();
        let init = ProcId::of_pid(1).unwrap();
        assert!(own.start_ticks > 0);
        assert!(init.start_ticks <= own.start_ticks);
    }

    #[test]
    fn no_process_is_gone() {
        assert!(matches!(
            ProcId::of_pid(i32::MAX),
            Err(ProcError::Gone { .. })
        ));
        assert!(matches!(ProcId::of_pid(-5), Err(ProcError::Gone { .. })));
    }

    proptest! {
        #[test]
        fn any_name_leaves_the_start_time(
            name in proptest::collection::vec(any::<u8>(), 0..16),
            start: u64,
        ) {
            let mut stat = b"4711 (".to_vec();
            stat.extend(&name);
            stat.extend(b") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 ");
            stat.extend(start.to_string().as_bytes());
            stat.extend(b" 23 24 25\n");
            prop_assert_eq!(parse_start(&stat), Some(start));
        }

        #[test]
        fn rubbish_is_refused_quietly(stat in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_start(&stat);
        }
    }

    #[test]
    fn a_cut_line_has_no_start_time() {
        for stat in [
            "",
            "1 (a",
            "1 (a)",
            "1 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18",
        ] {
            assert_eq!(parse_start(stat.as_bytes()), None, "{stat}");
        }
    }
}
