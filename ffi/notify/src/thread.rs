//! A thread of another process: its descriptors, memory and credentials, while
//! a call of its waits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::as_tenant::own_rights;
use crate::pidfd::{info, new_fd};
use crate::procid::{ProcError, ProcId};

/// A held thread: it can exit, but nothing else can take its place. It may be
/// kept from call to call; its program may change by exec meanwhile, which shows
/// where that comes with other rights.
#[derive(Debug)]
pub struct Thread {
    tid: i32,
    process: ProcId,
    fd: OwnedFd,
    /// Where `fd` is its process's, not its own (before Linux 6.9): when the
    /// thread started, in ticks.
    by_process: Option<u64>,
    /// Its rights when it was opened.
    who: Credentials,
    /// See [`Thread::memory`].
    memory: OnceLock<Option<Memory>>,
}

/// The address space that a thread had when this was opened. It stays that one
/// through an exec, so that nothing meant for one program reaches another.
#[derive(Debug)]
pub struct Memory {
    tid: i32,
    file: File,
}

/// A page of memory of x86-64.
const PAGE: usize = 4096;

/// Address spaces, and tables of descriptors, to `kcmp`: linux/kcmp.h.
const KCMP_VM: libc::c_int = 1;
const KCMP_FILES: libc::c_int = 2;

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
        match pidfd_open(tid, libc::PIDFD_THREAD) {
            Ok(fd) => {
                let process = match info(&fd, libc::PIDFD_INFO_PID) {
                    Some(info) => info.tgid as i32,
                    None => status_field(tid, "Tgid:", 0)? as i32,
                };
                Self::hold(tid, process, fd, None)
            }
            // An older kernel, which has descriptors of whole processes only.
            Err(e) if tid > 0 && e.raw_os_error() == Some(libc::EINVAL) => Self::open_process(tid),
            Err(e) => Err(error(tid, "pidfd_open", e)),
        }
    }

    /// Holds the thread by its process and the time when it started.
    fn open_process(tid: i32) -> Result<Self, ProcError> {
        let process = status_field(tid, "Tgid:", 0)? as i32;
        let fd = pidfd_open(process, 0).map_err(|e| error(tid, "pidfd_open", e))?;
        let start = start_of(process, tid)?;
        Self::hold(tid, process, fd, Some(start))
    }

    fn hold(
        tid: i32,
        process: i32,
        fd: OwnedFd,
        by_process: Option<u64>,
    ) -> Result<Self, ProcError> {
        let mut held = Self {
            tid,
            process: ProcId::of_pid(process)?,
            fd,
            by_process,
            who: Credentials { uid: 0, gid: 0 },
            memory: OnceLock::new(),
        };
        held.who = held.effective()?;
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
        let is_it = |start| start_of(self.process.pid, self.tid).is_ok_and(|now| now == start);
        !exited && self.by_process.is_none_or(is_it)
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
        if self.by_process.is_some() && !self.shares(KCMP_FILES, self.process.pid)? {
            return Err(ProcError::NoSuchFd { pid: self.tid, fd });
        }
        // SAFETY: pidfd_getfd takes three integers and touches no memory of
        // ours; the first is an open pidfd.
        let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), fd, 0) };
        let duplicate = new_fd(got).map_err(|e| match e.raw_os_error() {
            Some(libc::EBADF) => ProcError::NoSuchFd { pid: self.tid, fd },
            _ => error(self.tid, "pidfd_getfd", e),
        })?;
        // It was the held thread's, who lived; one held by its process may have
        // been another by then.
        if self.by_process.is_none() || self.is_alive() {
            Ok(f(duplicate.as_fd()))
        } else {
            Err(ProcError::Gone { pid: self.tid })
        }
    }

    fn info(&self, wanted: libc::c_uint) -> Option<libc::pidfd_info> {
        let own = self.by_process.is_none();
        own.then(|| info(&self.fd, wanted)).flatten()
    }

    /// Whether it and `other` have the same `what`, a `KCMP_*` of linux/kcmp.h.
    fn shares(&self, what: libc::c_int, other: i32) -> Result<bool, ProcError> {
        let tid = self.tid;
        // SAFETY: kcmp takes integers and touches no memory of ours.
        match unsafe { libc::syscall(libc::SYS_kcmp, other, tid, what, 0, 0) } {
            0 => Ok(true),
            1.. => Ok(false),
            _ => Err(error(tid, "kcmp", io::Error::last_os_error())),
        }
    }

    /// The memory that it had when this was first asked, held from then on: to open
    /// it for each call costs more than to write there. It is what a waiting call's
    /// addresses mean if that call waits still after this returned; a program that
    /// was executed since has another, and this one is gone.
    ///
    /// `None` where it is not held, and is to be opened: another process may share
    /// it, as the one that made this one by `vfork`, and would keep it through an
    /// exec; or the kernel does not tell (before Linux 6.13).
    pub fn memory(&self) -> Option<&Memory> {
        let open = || {
            let parent = self.info(libc::PIDFD_INFO_PID)?.ppid as i32;
            let shared = self.shares(KCMP_VM, parent).unwrap_or(true);
            (!shared).then(|| Memory::open(self.tid).ok()).flatten()
        };
        self.memory.get_or_init(open).as_ref()
    }

    /// The effective user and group that it has.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`] also where they are others than when it was opened: it may
    /// have executed another program. [`ProcError::System`].
    pub fn credentials(&self) -> Result<Credentials, ProcError> {
        match self.effective()? {
            now if now == self.who => Ok(now),
            _ => Err(ProcError::Gone { pid: self.tid }),
        }
    }

    fn effective(&self) -> Result<Credentials, ProcError> {
        if let Some(info) = self.info(libc::PIDFD_INFO_CREDS) {
            return Ok(Credentials {
                uid: info.euid,
                gid: info.egid,
            });
        }
        let found = Credentials {
            uid: status_field(self.tid, "Uid:", 1)?,
            gid: status_field(self.tid, "Gid:", 1)?,
        };
        if self.is_alive() {
            Ok(found)
        } else {
            Err(ProcError::Gone { pid: self.tid })
        }
    }
}

impl Memory {
    /// The memory that whichever thread has `tid` now has now. It is the one that
    /// a waiting call's addresses mean if the call waits still after this returned.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::Denied`], [`ProcError::System`].
    pub fn open(tid: i32) -> Result<Self, ProcError> {
        let path = format!("/proc/{tid}/mem");
        let open = || File::options().read(true).write(true).open(&path);
        let file = open().or_else(|e| match e.kind() {
            // Another's file, for which it takes more than the right to trace.
            io::ErrorKind::PermissionDenied if own_rights() => open(),
            _ => Err(e),
        });
        let file = file.map_err(|e| error(tid, "opening /proc/TID/mem", e))?;
        Ok(Self { tid, file })
    }

    /// Reads `into.len()` bytes at `addr`, all or an error, of whichever thread has
    /// `tid` now. They are what a waiting call's address means if the call waits
    /// still after this returned. Cheaper than to open it, where it is to be read
    /// only; memory that the thread itself may not read is none.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`], [`ProcError::Denied`]; [`ProcError::System`]: no memory
    /// there.
    pub fn peek(tid: i32, addr: u64, into: &mut [u8]) -> Result<(), ProcError> {
        Self::peek_ahead(tid, addr, into.len(), into).map(drop)
    }

    /// The same, of `least` bytes, and of what follows in the same page as far as
    /// `into` has room: how many bytes were read in all.
    ///
    /// # Errors
    ///
    /// As [`Memory::peek`], of the `least` bytes.
    pub fn peek_ahead(
        tid: i32,
        addr: u64,
        least: usize,
        into: &mut [u8],
    ) -> Result<usize, ProcError> {
        let call = "process_vm_readv";
        // No kernel that this is for has smaller pages.
        let page_left = PAGE - (addr as usize & (PAGE - 1));
        let most = into.len().min(page_left.max(least));
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: most,
        };
        let remote = libc::iovec {
            iov_base: addr as *mut libc::c_void,
            iov_len: most,
        };
        // SAFETY: the kernel writes at most `most` bytes, no more than `into` has;
        // the other address is another's, and read by the kernel with that one's
        // rights.
        let read =
            unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read >= least => Ok(read),
            Ok(_) => Err(ProcError::System {
                pid: tid,
                call,
                source: io::Error::from_raw_os_error(libc::EFAULT),
            }),
            Err(_) => Err(error(tid, call, io::Error::last_os_error())),
        }
    }

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
    /// [`ProcError::Gone`]: the program is; [`ProcError::System`]: no memory there.
    pub fn write(&self, addr: u64, from: &[u8]) -> Result<(), ProcError> {
        let (pid, call) = (self.tid, "writing its memory");
        let written = self.file.write_all_at(from, addr);
        written.map_err(|source| match source.kind() {
            // Nothing, which is how the kernel tells it.
            io::ErrorKind::WriteZero => ProcError::Gone { pid },
            _ => ProcError::System { pid, call, source },
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Calls `f` with the number of a thread of this process, which then ends.
    fn with_thread<R>(setup: fn(), f: impl FnOnce(i32) -> R) -> R {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            setup();
            // SAFETY: takes nothing.
            tell.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let result = f(told.recv().unwrap());
        drop(end);
        thread.join().unwrap();
        result
    }

    #[test]
    fn an_older_kernels_way_tells_the_same() {
        let held = with_thread(
            || (),
            |tid| {
                let own = Thread::open(tid).unwrap();
                let held = Thread::open_process(tid).unwrap();
                assert!(held.by_process.is_some());
                assert_eq!(held.process(), own.process());
                assert_eq!(held.credentials().unwrap(), own.credentials().unwrap());
                let file = held.with_fd(0, file_of).unwrap();
                assert_eq!(file, own.with_fd(0, file_of).unwrap());
                let word = 0x6768_6f73_u32;
                let mut read = [0; 4];
                let memory = Memory::open(tid).unwrap();
                memory.read(&raw const word as u64, &mut read).unwrap();
                assert_eq!(u32::from_ne_bytes(read), word);
                held
            },
        );
        // Its process, by which it is held, is alive.
        assert!(!held.is_alive());
        let gone = held.with_fd(0, |_| ()).unwrap_err();
        assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
    }

    #[test]
    fn an_older_kernels_way_lends_no_other_threads_descriptors() {
        fn apart() {
            // SAFETY: takes an integer; this thread has its own table then.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        }
        with_thread(apart, |tid| {
            let held = Thread::open_process(tid).unwrap();
            let refused = held.with_fd(0, |_| ()).unwrap_err();
            assert!(
                matches!(refused, ProcError::NoSuchFd { fd: 0, .. }),
                "{refused:?}"
            );
        });
    }

    /// Which file a descriptor is of.
    fn file_of(fd: BorrowedFd<'_>) -> (u64, u64) {
        use std::os::unix::fs::MetadataExt;
        let file = File::from(fd.try_clone_to_owned().unwrap());
        let data = file.metadata().unwrap();
        (data.dev(), data.ino())
    }
}
