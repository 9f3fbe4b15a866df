//! A thread of another process: its descriptors, memory and credentials, while
//! a call of its waits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use crate::procid::{ProcError, ProcId};

/// A held thread: it can exit, but nothing else can take its place. It may be
/// kept from call to call; its program may change by exec meanwhile.
#[derive(Debug)]
pub struct Thread {
    tid: i32,
    process: ProcId,
    fd: OwnedFd,
    /// `fd` is the thread's own, not its process's (before Linux 6.9).
    own: bool,
    /// When the thread itself started, in ticks.
    start_ticks: u64,
}

/// The address space that a thread had when this was opened. It stays that one
/// through an exec, so that nothing meant for one program reaches another.
#[derive(Debug)]
pub struct Memory {
    tid: i32,
    file: File,
}

/// Whose rights a call is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user, in this process's user namespace.
    pub uid: u32,
    /// Effective group, likewise.
    pub gid: u32,
}

impl Thread {
    /// Holds whichever thread has `tid` now. It is the one that a notification
    /// tells of if that one waits still after this returned.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::System`].
    pub fn open(tid: i32) -> Result<Self, ProcError> {
        let (fd, own) = match pidfd_open(tid, libc::PIDFD_THREAD) {
            Ok(fd) => (fd, true),
            // Before Linux 6.9 there are descriptors of whole processes only.
            Err(e) if tid > 0 && e.raw_os_error() == Some(libc::EINVAL) => {
                let tgid = status_field(tid, "Tgid:", 0)?;
                let fd = pidfd_open(tgid as i32, 0).map_err(|e| error(tid, "pidfd_open", e))?;
                (fd, false)
            }
            Err(e) => return Err(error(tid, "pidfd_open", e)),
        };
        let tgid = match own.then(|| info(&fd)).flatten() {
            Some(info) => info.tgid,
            None => status_field(tid, "Tgid:", 0)?,
        };
        let process = ProcId::of_pid(tgid as i32)?;
        let start_ticks = if tgid as i32 == tid {
            process.start_ticks
        } else {
            start_of(process.pid, tid)?
        };
        let held = Self {
            tid,
            process,
            fd,
            own,
            start_ticks,
        };
        // What was read under the number is the held thread's if it lives yet.
        if held.is_alive() {
            Ok(held)
        } else {
            Err(ProcError::Gone { pid: tid })
        }
    }

    /// The process that it is a thread of.
    #[must_use]
    pub fn process(&self) -> ProcId {
        self.process
    }

    /// Its number in this process's pid namespace.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Whether it has not exited.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut fd = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, which lives in this frame.
        let exited = unsafe { libc::poll(&raw mut fd, 1, 0) } != 0;
        !exited && (self.own || start_of(self.process.pid, self.tid).ok() == Some(self.start_ticks))
    }

    /// Calls `f` with a duplicate of the thread's descriptor `fd`, which is
    /// closed before this returns. See [`crate::PidFd::with_fd`]. It is what a
    /// waiting call means if that call waits still when `f` begins.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::NoSuchFd`], [`ProcError::Denied`],
    /// [`ProcError::System`].
    pub fn with_fd<R>(
        &self,
        fd: RawFd,
        f: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> Result<R, ProcError> {
        if !self.own && self.tid != self.process.pid && !self.shares_descriptors()? {
            return Err(ProcError::NoSuchFd { pid: self.tid, fd });
        }
        // SAFETY: pidfd_getfd takes three integers and touches no memory of
        // ours; the first is an open pidfd.
        let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), fd, 0) };
        let duplicate = new_fd(got).map_err(|e| match e.raw_os_error() {
            Some(libc::EBADF) => ProcError::NoSuchFd { pid: self.tid, fd },
            _ => error(self.tid, "pidfd_getfd", e),
        })?;
        if self.is_alive() {
            Ok(f(duplicate.as_fd()))
        } else {
            Err(ProcError::Gone { pid: self.tid })
        }
    }

    /// Whether its descriptors are its process's.
    fn shares_descriptors(&self) -> Result<bool, ProcError> {
        const KCMP_FILES: libc::c_int = 2;
        let (leader, tid) = (self.process.pid, self.tid);
        // SAFETY: kcmp takes integers and touches no memory of ours.
        match unsafe { libc::syscall(libc::SYS_kcmp, leader, tid, KCMP_FILES, 0, 0) } {
            0 => Ok(true),
            1.. => Ok(false),
            _ => Err(error(tid, "kcmp", io::Error::last_os_error())),
        }
    }

    /// Its memory, as of now. It is the memory that a waiting call's addresses
    /// mean if the call waits still after this returned.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::Denied`], [`ProcError::System`].
    pub fn memory(&self) -> Result<Memory, ProcError> {
        let (pid, tid) = (self.process.pid, self.tid);
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/task/{tid}/mem"))
            .map_err(|e| error(tid, "opening /proc/PID/task/TID/mem", e))?;
        if self.is_alive() {
            Ok(Memory { tid, file })
        } else {
            Err(ProcError::Gone { pid: tid })
        }
    }

    /// The effective user and group that it has now.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::System`].
    pub fn credentials(&self) -> Result<Credentials, ProcError> {
        let found = match self.own.then(|| info(&self.fd)).flatten() {
            Some(info) => Credentials {
                uid: info.euid,
                gid: info.egid,
            },
            None => Credentials {
                uid: status_field(self.tid, "Uid:", 1)?,
                gid: status_field(self.tid, "Gid:", 1)?,
            },
        };
        if self.is_alive() {
            Ok(found)
        } else {
            Err(ProcError::Gone { pid: self.tid })
        }
    }
}

impl Memory {
    /// Reads `into.len()` bytes at `addr`, all or an error. What the memory's
    /// protection says is not asked.
    ///
    /// # Errors
    ///
    /// [`ProcError::System`]: no memory there, or the program is gone.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ProcError> {
        let (pid, call) = (self.tid, "reading its memory");
        let read = self.file.read_exact_at(into, addr);
        read.map_err(|source| ProcError::System { pid, call, source })
    }

    /// Writes all of `from` at `addr`, or an error; it may be in part then.
    ///
    /// # Errors
    ///
    /// [`ProcError::System`]: no memory there, or the program is gone.
    pub fn write(&self, addr: u64, from: &[u8]) -> Result<(), ProcError> {
        let (pid, call) = (self.tid, "writing its memory");
        let written = self.file.write_all_at(from, addr);
        written.map_err(|source| ProcError::System { pid, call, source })
    }
}

fn error(pid: i32, call: &'static str, source: io::Error) -> ProcError {
    match source.raw_os_error() {
        // EINVAL: not a number that a thread can have.
        Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => ProcError::Gone { pid },
        Some(libc::EPERM | libc::EACCES) => ProcError::Denied { pid },
        _ => ProcError::System { pid, call, source },
    }
}

fn pidfd_open(pid: i32, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    new_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })
}

fn new_fd(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the kernel has just made this descriptor for us alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel says of a held thread (Linux 6.13), `None` where it cannot.
fn info(fd: &OwnedFd) -> Option<libc::pidfd_info> {
    // SAFETY: every bit pattern is a value of this structure of integers.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    let wanted = u64::from(libc::PIDFD_INFO_PID | libc::PIDFD_INFO_CREDS);
    info.mask = wanted;
    // SAFETY: the kernel reads and writes one structure, of the size that is
    // in the ioctl's number, which lives in this frame.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
    (got == 0 && info.mask & wanted == wanted).then_some(info)
}

/// When a thread started.
fn start_of(pid: i32, tid: i32) -> Result<u64, ProcError> {
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat"))
        .map_err(|e| error(tid, "reading /proc/PID/task/TID/stat", e))?;
    Ok(ProcId::of_stat(tid, &stat)?.start_ticks)
}

/// The number at `place` of a line of `/proc/TID/status`.
fn status_field(tid: i32, key: &str, place: usize) -> Result<u32, ProcError> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))
        .map_err(|e| error(tid, "reading /proc/TID/status", e))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_ascii_whitespace().nth(place)?.parse().ok())
        .ok_or(ProcError::System {
            pid: tid,
            call: "reading /proc/TID/status",
            source: io::ErrorKind::InvalidData.into(),
        })
}
