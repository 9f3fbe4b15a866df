//! Descriptors of processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::procid::{ProcError, ProcId};

/// A held process: it can exit, but nothing else can take its place. Readable,
/// in the sense of `poll`, once the whole process has exited.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    id: ProcId,
}

impl PidFd {
    /// Holds the process `id`.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`] if it has exited, [`ProcError::Reused`] if its pid
    /// is another's by now.
    pub fn open(id: ProcId) -> Result<Self, ProcError> {
        let held = Self::open_pid(id.pid)?;
        if held.id.start_ticks == id.start_ticks {
            Ok(held)
        } else {
            Err(ProcError::Reused {
                wanted: id,
                found: held.id.start_ticks,
            })
        }
    }

    /// Holds whichever process has `pid` now, and learns its name.
    ///
    /// # Errors
    ///
    /// [`ProcError::Gone`]; [`ProcError::System`] otherwise.
    pub fn open_pid(pid: i32) -> Result<Self, ProcError> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = new_fd(fd).map_err(|source| match source.raw_os_error() {
            // EINVAL: not a number that a process can have, or a thread's.
            Some(libc::ESRCH | libc::EINVAL) => ProcError::Gone { pid },
            _ => ProcError::System {
                pid,
                call: "pidfd_open",
                source,
            },
        })?;
        // A pid is not reused before its process has exited: if the held one
        // has not when the name was read, the name is its own.
        let id = ProcId::of_pid(pid)?;
        let held = Self { fd, id };
        held.check_alive()?;
        Ok(held)
    }

    /// The process's name.
    #[must_use]
    pub fn id(&self) -> ProcId {
        self.id
    }

    /// Whether it has not exited. A zombie has.
    ///
    /// # Errors
    ///
    /// [`ProcError::System`].
    pub fn is_alive(&self) -> Result<bool, ProcError> {
        let exited = poll_exits([self], Some(Duration::ZERO)).map_err(|source| {
            let pid = self.id.pid;
            let call = "poll";
            ProcError::System { pid, call, source }
        })?;
        Ok(exited.is_empty())
    }

    /// A number that its cgroup (v2) has and no other ever had; `None` where the kernel does not
    /// tell (before Linux 6.13), or the process is gone.
    #[must_use]
    pub fn cgroup_id(&self) -> Option<u64> {
        Some(info(&self.fd, libc::PIDFD_INFO_CGROUPID)?.cgroupid)
    }

    /// Calls `f` with a duplicate of the process's descriptor `fd`, which is
    /// closed before this returns: a duplicate that outlives its owner keeps
    /// what the owner held (all of a dead tenant's GPU memory, for one). `f`
    /// is not called if the owner has exited by then; keep it short, and never
    /// duplicate what it is given.
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
        self.check_alive()?;
        let duplicate = self.getfd(fd)?;
        self.check_alive()?;
        Ok(f(duplicate.as_fd()))
    }

    fn getfd(&self, fd: RawFd) -> Result<OwnedFd, ProcError> {
        // SAFETY: pidfd_getfd takes three integers and touches no memory of
        // ours; the first is an open pidfd.
        let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), fd, 0) };
        let pid = self.id.pid;
        new_fd(got).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => ProcError::Gone { pid },
            Some(libc::EBADF) => ProcError::NoSuchFd { pid, fd },
            Some(libc::EPERM) => ProcError::Denied { pid },
            _ => ProcError::System {
                pid,
                call: "pidfd_getfd",
                source,
            },
        })
    }

    fn check_alive(&self) -> Result<(), ProcError> {
        if self.is_alive()? {
            Ok(())
        } else {
            Err(ProcError::Gone { pid: self.id.pid })
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What the kernel says of a held process or thread; `None` where it does not say all of `wanted`
/// (before Linux 6.13), or it is gone.
pub(crate) fn info(fd: &OwnedFd, wanted: libc::c_uint) -> Option<libc::pidfd_info> {
    let wanted = u64::from(wanted);
    // SAFETY: every bit pattern is a value of this structure of integers.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = wanted;
    // SAFETY: the kernel reads and writes one structure, of the size that is
    // in the ioctl's number, which lives in this frame.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
    (got == 0 && info.mask & wanted == wanted).then_some(info)
}

pub(crate) fn new_fd(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the kernel has just made this descriptor for us alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until at least one of `processes` has exited, at most `timeout`
/// (`None`: without end), and returns the places in the list of those that
/// have; empty when the time ran out.
///
/// # Errors
///
/// The errno of `poll`.
pub fn poll_exits<'a>(
    processes: impl IntoIterator<Item = &'a PidFd>,
    timeout: Option<Duration>,
) -> io::Result<Vec<usize>> {
    let mut fds: Vec<libc::pollfd> = processes
        .into_iter()
        .map(|process| libc::pollfd {
            fd: process.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let start = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let left = left.map(|left| libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let left: *const libc::timespec = left.as_ref().map_or(std::ptr::null(), |left| left);
        // SAFETY: `fds` is an array of as many pollfd as said, `left` is null
        // or lives in this frame, and no signal mask is given.
        let ready = unsafe {
            libc::ppoll(
                fds.as_mut_ptr(),
                fds.len() as libc::nfds_t,
                left,
                std::ptr::null(),
            )
        };
        if ready >= 0 {
            let places = fds.iter().enumerate();
            return Ok(places
                .filter(|(_, fd)| fd.revents != 0)
                .map(|(place, _)| place)
                .collect());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn another_start_time_is_a_reused_pid() {
        let mut child = sleeper();
        let held = PidFd::open_pid(child.id() as i32).unwrap();
        assert_eq!(PidFd::open(held.id()).unwrap().id(), held.id());
        let other = ProcId {
            start_ticks: held.id().start_ticks.wrapping_sub(1),
            ..held.id()
        };
        assert!(matches!(
            PidFd::open(other),
            Err(ProcError::Reused { found, .. }) if found == held.id().start_ticks
        ));
        end(&mut child);
        assert!(matches!(
            PidFd::open(held.id()),
            Err(ProcError::Gone { .. })
        ));
    }

    #[test]
    fn pids_that_cannot_be_are_gone() {
        for pid in [0, -1, i32::MIN, i32::MAX] {
            assert!(
                matches!(PidFd::open_pid(pid), Err(ProcError::Gone { .. })),
                "{pid}"
            );
        }
    }

    #[test]
    fn a_cgroup_has_a_number() {
        let mut children = [sleeper(), sleeper()];
        let ids = children.each_ref().map(|child| {
            let held = PidFd::open_pid(child.id() as i32).unwrap();
            held.cgroup_id()
        });
        // Both are where we are; an old kernel says so of neither.
        assert_eq!(ids[0], ids[1]);
        assert_ne!(ids[0], Some(0));
        let held = PidFd::open_pid(children[0].id() as i32).unwrap();
        children.iter_mut().for_each(end);
        assert_eq!(held.cgroup_id(), None);
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = sleeper();
        let held = PidFd::open_pid(child.id() as i32).unwrap();
        assert!(held.is_alive().unwrap());
        child.kill().unwrap();
        assert_eq!(poll_exits([&held], None).unwrap(), [0]);
        assert!(!held.is_alive().unwrap());
        assert!(matches!(
            held.with_fd(0, |_| unreachable!()),
            Err::<(), _>(ProcError::Gone { .. })
        ));
        child.wait().unwrap();
    }

    #[test]
    fn poll_names_the_one_that_exited_and_waits_for_none_else() {
        let mut children = [sleeper(), sleeper(), sleeper()];
        let held: Vec<PidFd> = children
            .iter()
            .map(|child| PidFd::open_pid(child.id() as i32).unwrap())
            .collect();
        let start = Instant::now();
        let wait = Duration::from_millis(30);
        assert!(poll_exits(&held, Some(wait)).unwrap().is_empty());
        assert!(start.elapsed() >= wait);
        end(&mut children[1]);
        assert_eq!(
            poll_exits(&held, Some(Duration::from_secs(5))).unwrap(),
            [1]
        );
        end(&mut children[0]);
        end(&mut children[2]);
        assert_eq!(poll_exits(&held, None).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn a_lent_descriptor_is_the_same_file_and_is_closed_after() {
        let mut file = tempfile();
        file.write_all(b"shared").unwrap();
        file.rewind().unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(file.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let held = PidFd::open_pid(child.id() as i32).unwrap();
        let lent = held
            .with_fd(0, |fd| {
                let mut same = File::from(fd.try_clone_to_owned().unwrap());
                let mut text = String::new();
                same.read_to_string(&mut text).unwrap();
                assert_eq!(text, "shared");
                fd.as_raw_fd()
            })
            .unwrap();
        // One offset for both: it is the child's own open file.
        assert_eq!(file.stream_position().unwrap(), 6);
        // The number may be another test's by now, but not that open file.
        let link = std::fs::read_link(format!("/proc/self/fd/{lent}"));
        let own = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(link.map_or(true, |link| link != own));
        assert!(matches!(
            held.with_fd(999, |_| ()),
            Err(ProcError::NoSuchFd { fd: 999, .. })
        ));
        end(&mut child);
    }

    fn tempfile() -> File {
        // SAFETY: memfd_create reads one C string.
        let fd = unsafe { libc::memfd_create(c"ghost-notify".as_ptr(), libc::MFD_CLOEXEC) };
        File::from(new_fd(fd.into()).unwrap())
    }
}
