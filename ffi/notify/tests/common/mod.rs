//! Children that make real calls under the real filter.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ghost_notify::{Delivered, Listener, Notification, Received, filter, pass};

/// The only number that these tests notify.
pub(crate) const NUMBER: u8 = 0x2B;
/// No driver's command, with that number.
pub(crate) const COMMAND: u64 = 0xC030_462B;

/// A forked child; killed when dropped.
pub(crate) struct Child {
    pub(crate) pid: i32,
    waited: bool,
}

/// Runs `f` in a child, which exits with what it returns.
pub(crate) fn fork(f: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child runs `f` alone and leaves without unwinding; the C
    // library keeps its allocator usable in it.
    match unsafe { libc::fork() } {
        0 => {
            let code = f();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        pid if pid > 0 => Child { pid, waited: false },
        _ => panic!("fork: {}", std::io::Error::last_os_error()),
    }
}

impl Child {
    /// Its exit code, or minus the signal that killed it.
    pub(crate) fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        let got = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(got, self.pid);
        self.waited = true;
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            -libc::WTERMSIG(status)
        }
    }

    pub(crate) fn kill(&mut self) {
        // SAFETY: takes integers only; the child has not been waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.waited {
            self.kill();
            self.wait();
        }
    }
}

/// A child that installs the filter, hands the listener over, and goes on with
/// `f` once it was told to (by [`Tenant::go`]).
pub(crate) struct Tenant {
    pub(crate) child: Child,
    pub(crate) listener: Listener,
    pub(crate) stream: UnixStream,
    /// Keeps [`Tenant::receive`] from being stopped.
    _stop: UnixStream,
    stop: UnixStream,
}

pub(crate) fn tenant(f: impl FnOnce() -> i32) -> Tenant {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = fork(|| {
        if hand_over(&theirs, install()).is_none() {
            return 99;
        }
        f()
    });
    drop(theirs);
    let (count, mut fds) = pass::receive(&ours, &mut [0]).unwrap();
    assert_eq!((count, fds.len()), (1, 1));
    let listener = Listener::new(fds.remove(0)).unwrap();
    pass::send(&ours, b"g", &[]).unwrap();
    let (hold, stop) = UnixStream::pair().unwrap();
    Tenant {
        child,
        listener,
        stream: ours,
        _stop: hold,
        stop,
    }
}

pub(crate) fn install() -> Option<OwnedFd> {
    filter::install(&[NUMBER]).ok()
}

/// Sends the listener, closes it, and waits for the word to go on.
pub(crate) fn hand_over(stream: &UnixStream, listener: Option<OwnedFd>) -> Option<()> {
    let listener = listener?;
    pass::send(stream, b"l", &[listener.as_fd()]).ok()?;
    drop(listener);
    let (count, _) = pass::receive(stream, &mut [0]).ok()?;
    (count == 1).then_some(())
}

impl Tenant {
    pub(crate) fn next(&self) -> Received {
        self.listener.receive(self.stop.as_fd()).unwrap()
    }

    pub(crate) fn call(&self) -> Notification {
        match self.next() {
            Received::Call(call) => call,
            other => panic!("no call: {other:?}"),
        }
    }

    /// Answers the next call with a value.
    pub(crate) fn answer(&self, value: i64) -> Notification {
        let call = self.call();
        let delivered = self.listener.answer(call.id, Ok(value)).unwrap();
        assert_eq!(delivered, Delivered::Yes);
        call
    }
}

/// ioctl by the system call, so that any command and number are passed on.
/// Returns the value or minus errno.
pub(crate) fn ioctl_by(nr: i64, fd: i32, command: u64, argument: u64) -> i64 {
    // SAFETY: the filter answers in the kernel's place, or the descriptor has
    // no such command.
    match unsafe { libc::syscall(nr, fd, command, argument) } {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        value => value,
    }
}

pub(crate) fn ioctl(fd: i32, command: u64, argument: u64) -> i64 {
    ioctl_by(libc::SYS_ioctl, fd, command, argument)
}

/// Polls until `f` is true; panics after a time that no machine needs.
pub(crate) fn until(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
