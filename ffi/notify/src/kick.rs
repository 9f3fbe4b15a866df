//! Has a notified call asked anew that nobody will answer.
//!
//! A call that was received is not offered again, whoever else holds the
//! listener, and its thread waits. The wait ends, and the system call begins
//! again, when the thread is interrupted; by a tracer that stops it for a
//! moment, without the program's seeing anything.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::filter::{IOCTL_I386, IOCTL_X32, IOCTL_X86_64, X32_BIT};

/// How long a thread may take to stop. It does so at once, unless it waits for
/// the end of a fork by vfork, or its machine is overloaded.
const PATIENCE: Duration = Duration::from_secs(2);

/// The threads of this host that wait for the answer to an ioctl of one of
/// these numbers, by `/proc`: whoever is to answer.
#[must_use]
pub fn waiting(numbers: &[u8]) -> Vec<i32> {
    let mut found = Vec::new();
    for pid in numbers_in("/proc") {
        let tasks = format!("/proc/{pid}/task");
        found.extend(numbers_in(&tasks).filter(|&tid| waits(tid, numbers)));
    }
    found
}

/// Entries of a directory of `/proc` that are numbers.
fn numbers_in(dir: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn waits(tid: i32, numbers: &[u8]) -> bool {
    if !is_in_seccomp(tid) {
        return false;
    }
    let call = fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
    matches!(ioctl_number(&call), Some(number) if numbers.contains(&number))
}

/// Whether the kernel's function in which the thread sleeps is seccomp's.
fn is_in_seccomp(tid: i32) -> bool {
    let place = fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
    place.contains("seccomp")
}

/// The number of the ioctl that `/proc/TID/syscall` tells of.
fn ioctl_number(call: &str) -> Option<u8> {
    let mut words = call.split_ascii_whitespace();
    let nr: u32 = words.next()?.parse().ok()?;
    let command = words.nth(1)?.strip_prefix("0x")?;
    // Which table the number is of is not told: 54, i386's ioctl, is
    // setsockopt elsewhere, and one such thread more does no harm.
    matches!(nr & !X32_BIT, IOCTL_X86_64 | IOCTL_X32 | IOCTL_I386).then_some(())?;
    Some(u64::from_str_radix(command, 16).ok()? as u8)
}

/// Makes a thread's notified call begin again: it is offered anew, under
/// another id. A thread that waits for something else notices no more.
///
/// # Errors
///
/// `Unsupported` if the thread's filter has `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`:
/// nothing but its death ends the wait of a received call. Else errno, as
/// ESRCH.
pub fn kick(tid: i32) -> io::Result<()> {
    // A tracer is a thread, and lets go of what it traces when it ends.
    std::thread::scope(|scope| scope.spawn(|| interrupt(tid)).join())
        .unwrap_or_else(|_| Err(io::Error::other("the tracing thread panicked")))
        .or_else(|error| match error.raw_os_error() {
            // Traced by another, or tracing is switched off.
            Some(libc::EPERM) => signal(tid),
            _ => Err(error),
        })
}

/// Seizes the thread, stops it, and lets go.
fn interrupt(tid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, tid)?;
    ptrace(libc::PTRACE_INTERRUPT, tid)?;
    let start = Instant::now();
    let mut pause = Duration::from_micros(50);
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one integer, which lives in this frame.
        let got = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match got {
            0 if is_in_seccomp(tid) && state(tid)? == 'D' => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the thread's seccomp filter lets only a kill end the wait",
                ));
            }
            0 if start.elapsed() < PATIENCE => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            0 => return Err(io::ErrorKind::TimedOut.into()),
            _ if got < 0 => return Err(io::Error::last_os_error()),
            _ if libc::WIFSTOPPED(status) => {
                // A stop for a signal, which was there before ours, goes on
                // with that signal.
                let own = status >> 16 == libc::PTRACE_EVENT_STOP;
                let signal = if own { 0 } else { libc::WSTOPSIG(status) };
                return detach(tid, signal);
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

fn ptrace(request: libc::c_uint, tid: i32) -> io::Result<()> {
    // SAFETY: these requests take no address and no data.
    match unsafe { libc::ptrace(request, tid, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn detach(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: this request takes a signal's number and no address.
    match unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Stops the thread's process by job control, and lets it go on. Its parent is
/// told of it.
fn signal(tid: i32) -> io::Result<()> {
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // SAFETY: takes integers only.
        if unsafe { libc::syscall(libc::SYS_tkill, tid, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The letter of a thread's state.
fn state(tid: i32) -> io::Result<char> {
    let stat = fs::read(format!("/proc/{tid}/stat"))?;
    let after = stat
        .iter()
        .rposition(|&byte| byte == b')')
        .map(|end| end + 2);
    let letter = after.and_then(|at| stat.get(at));
    letter.map_or(Err(io::ErrorKind::InvalidData.into()), |&letter| {
        Ok(letter.into())
    })
}
