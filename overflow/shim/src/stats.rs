//! The process's counters: in a file that ghostd reads, where the ticket names a directory.

use ghost_wire::Op;
use ghost_wire::stats::{COUNTERS, Counter, FILE_SIZE, WAITS, waits_at};
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

type Counters = [AtomicU64; COUNTERS + WAITS];

static UNSEEN: Counters = [const { AtomicU64::new(0) }; COUNTERS + WAITS];
static FILE: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

#[inline]
fn counters() -> &'static Counters {
    let file = FILE.load(Ordering::Acquire);
    // SAFETY: null, or a mapping that stays for good.
    unsafe { file.as_ref() }.unwrap_or(&UNSEEN)
}

/// Adds to a counter.
#[inline]
pub(crate) fn count(counter: Counter, by: u64) {
    counters()[counter as usize].fetch_add(by, Ordering::Relaxed);
}

/// A call was waited for, for this long.
pub(crate) fn waited(op: Op, micros: u64) {
    count(Counter::Waited, 1);
    count(Counter::WaitedMicros, micros);
    if let Some(at) = waits_at(op) {
        counters()[COUNTERS + at].fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps the counters in the file of this process in `directory` from now on.
///
/// # Errors
/// Those of making the file, and of mapping it.
pub(crate) fn keep_in(directory: &Path) -> io::Result<()> {
    let path = directory.join(std::process::id().to_string());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    // ghostd reads it, whatever the program's umask.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_len(FILE_SIZE as u64)?;
    // SAFETY: a fresh mapping of a file that is long enough.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            FILE_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    FILE.store(map.cast(), Ordering::Release);
    Ok(())
}

/// Counts for itself only: a forked child is another process than the file's.
pub(crate) fn leave() {
    FILE.store(std::ptr::null_mut(), Ordering::Release);
}
