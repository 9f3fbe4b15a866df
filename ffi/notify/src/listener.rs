//! A seccomp listener: receives the system calls that a filter notifies, and
//! answers them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::filter::{ARCH_I386, ARCH_X86_64, IOCTL_I386, IOCTL_X32, IOCTL_X86_64, X32_BIT};

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` of linux/seccomp.h.
const SYNC_WAKE_UP: u64 = 1;

/// Why a listener cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The descriptor is something else.
    #[error("descriptor {fd} is no seccomp listener but {found}")]
    NotAListener {
        /// The descriptor.
        fd: RawFd,
        /// What `/proc/self/fd` says that it is.
        found: String,
    },
    /// A system call failed.
    #[error("seccomp listener: {call} failed")]
    System {
        /// The call.
        call: &'static str,
        /// errno.
        #[source]
        source: io::Error,
    },
}

/// A listener. Several threads may receive and answer at once.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    sync: bool,
    /// Guards that who saw a call by `poll` is the one who receives it: the
    /// kernel's receiving call cannot be told to stop waiting.
    receiving: Mutex<()>,
}

/// What [`Listener::receive`] ended with.
#[derive(Debug)]
pub enum Received {
    /// A call that waits for its answer.
    Call(Notification),
    /// No process has the filter any more, nor ever will.
    Ended,
    /// The descriptor `stop` is readable, or its other end is closed.
    Stopped,
}

/// A system call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Which one, for this listener.
    pub id: u64,
    /// The thread, in this process's pid namespace; 0 if it is not in it.
    pub tid: i32,
    /// `AUDIT_ARCH_*` of the call.
    pub arch: u32,
    /// The call's number in that architecture.
    pub nr: i32,
    /// Its arguments.
    pub args: [u64; 6],
}

/// The arguments of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// The caller's descriptor.
    pub fd: RawFd,
    /// The command.
    pub cmd: u32,
    /// The argument, usually an address in the caller.
    pub arg: u64,
}

/// Whether an answer reached its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It did.
    Yes,
    /// The call waits no more: a signal ended it, or its thread is gone. It may
    /// be made anew, under another id.
    No,
}

impl Notification {
    /// The call as an ioctl, if it is one.
    #[must_use]
    pub fn ioctl(&self) -> Option<Ioctl> {
        let nr = self.nr as u32;
        let [fd, cmd, arg, ..] = self.args;
        let arg = match self.arch {
            ARCH_X86_64 if matches!(nr & !X32_BIT, IOCTL_X86_64 | IOCTL_X32) => arg,
            ARCH_I386 if nr == IOCTL_I386 => u64::from(arg as u32),
            _ => return None,
        };
        Some(Ioctl {
            fd: fd as RawFd,
            cmd: cmd as u32,
            arg,
        })
    }
}

impl Listener {
    /// Takes over a listener, from whomever it came: nothing else than its kind
    /// is asked of a descriptor before it is known to be one. Has answers given
    /// without a detour by the scheduler where the kernel can (Linux 6.6).
    ///
    /// # Errors
    ///
    /// [`NotifyError::NotAListener`], [`NotifyError::System`].
    pub fn new(fd: OwnedFd) -> Result<Self, NotifyError> {
        let raw = fd.as_raw_fd();
        // The kernel's own name for the file: a file of a user's has a path,
        // which begins otherwise.
        let name = std::fs::read_link(format!("/proc/self/fd/{raw}"))
            .map_err(system("reading /proc/self/fd"))?;
        if name.as_os_str() != "anon_inode:seccomp notify" {
            return Err(NotifyError::NotAListener {
                fd: raw,
                found: name.display().to_string(),
            });
        }
        // SAFETY: this ioctl takes an integer.
        let set = unsafe { libc::ioctl(raw, libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        Ok(Self {
            fd,
            sync: set == 0,
            receiving: Mutex::new(()),
        })
    }

    /// Whether the kernel hands over to the other side at once.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// Waits for a call, until `stop` is readable or hung up.
    ///
    /// Whoever else holds the listener must not receive from it: a call that
    /// another took after this one saw it leaves this waiting for the next,
    /// whatever `stop` says.
    ///
    /// # Errors
    ///
    /// [`NotifyError::System`].
    pub fn receive(&self, stop: BorrowedFd<'_>) -> Result<Received, NotifyError> {
        let _alone = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            let [stopped, ready] = poll([stop, self.fd.as_fd()]).map_err(system("poll"))?;
            if stopped != 0 {
                return Ok(Received::Stopped);
            }
            if ready & libc::POLLIN != 0 {
                if let Some(call) = self.take()? {
                    return Ok(Received::Call(call));
                }
            } else if ready != 0 {
                return Ok(Received::Ended);
            }
        }
    }

    /// `None`: the call that was seen is gone, or this was interrupted.
    fn take(&self) -> Result<Option<Notification>, NotifyError> {
        // On the stack as long as the kernel's is not much longer than what is known.
        let (mut few, mut many) = ([0_u64; 32], Vec::new());
        let buffer = match notification_size()?.div_ceil(8) {
            words if words <= few.len() => &mut few[..],
            words => {
                many.resize(words, 0);
                &mut many[..]
            }
        };
        // SAFETY: the kernel writes one notification of the size it named;
        // the buffer is that long, zeroed as it asks, and aligned.
        let got = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                buffer.as_mut_ptr(),
            )
        };
        if got != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(system("SECCOMP_IOCTL_NOTIF_RECV")(error)),
            };
        }
        // SAFETY: the buffer is at least as long as the structure, as aligned,
        // and every bit pattern is a value of it.
        let raw = unsafe { buffer.as_ptr().cast::<libc::seccomp_notif>().read() };
        Ok(Some(Notification {
            id: raw.id,
            tid: raw.pid as i32,
            arch: raw.data.arch,
            nr: raw.data.nr,
            args: raw.data.args,
        }))
    }

    /// Whether the call waits still. A thread that was looked up by a
    /// notification's number, and memory opened through it, are the caller's
    /// own if its call waits after they were opened.
    #[must_use]
    pub fn still_waits(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one u64, which lives in this frame.
        let valid = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const id,
            )
        };
        valid == 0
    }

    /// Lets the kernel do the call, with its arguments as they are then.
    ///
    /// # Errors
    ///
    /// [`NotifyError::System`], as when it was answered already.
    pub fn allow(&self, id: u64) -> Result<Delivered, NotifyError> {
        self.send(libc::seccomp_notif_resp {
            id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        })
    }

    /// Has the call return `result`, a value or an errno, without being done.
    ///
    /// # Errors
    ///
    /// [`NotifyError::System`], as when it was answered already.
    pub fn answer(&self, id: u64, result: Result<i64, i32>) -> Result<Delivered, NotifyError> {
        let (val, error) = match result {
            Ok(value) => (value, 0),
            Err(errno) => (0, -errno),
        };
        self.send(libc::seccomp_notif_resp {
            id,
            val,
            error,
            flags: 0,
        })
    }

    fn send(&self, answer: libc::seccomp_notif_resp) -> Result<Delivered, NotifyError> {
        // SAFETY: the kernel reads one answer, which lives in this frame.
        let sent = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const answer,
            )
        };
        if sent == 0 {
            return Ok(Delivered::Yes);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(Delivered::No),
            _ => Err(system("SECCOMP_IOCTL_NOTIF_SEND")(error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> NotifyError {
    move |source| NotifyError::System { call, source }
}

/// What each descriptor is ready for, once one is.
fn poll(fds: [BorrowedFd<'_>; 2]) -> io::Result<[i16; 2]> {
    let mut fds = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        // SAFETY: an array of as many pollfd as said, which lives in this frame.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        if ready >= 0 {
            return Ok(fds.map(|fd| fd.revents));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Bytes that this kernel writes for a notification, at least as many as are
/// known here.
fn notification_size() -> Result<usize, NotifyError> {
    static SIZE: OnceLock<usize> = OnceLock::new();
    if let Some(&size) = SIZE.get() {
        return Ok(size);
    }
    let mut sizes = libc::seccomp_notif_sizes {
        seccomp_notif: 0,
        seccomp_notif_resp: 0,
        seccomp_data: 0,
    };
    // SAFETY: the kernel writes one structure, which lives in this frame.
    let got = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_NOTIF_SIZES,
            0,
            &raw mut sizes,
        )
    };
    if got != 0 {
        return Err(system("SECCOMP_GET_NOTIF_SIZES")(io::Error::last_os_error()));
    }
    let size = usize::from(sizes.seccomp_notif).max(size_of::<libc::seccomp_notif>());
    Ok(*SIZE.get_or_init(|| size))
}
