//! What processes share: memory in files without a name in any folder, and handles of 64 bytes that
//! say where such a file is to be found. A handle has the file's random name too, so one that was
//! made up finds nothing.

use crate::context::Res;
use crate::result::{INVALID_CONTEXT, INVALID_HANDLE, OUT_OF_MEMORY};
use std::ffi::CString;
use std::fs::{File, OpenOptions, read_link};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

pub(crate) const PAGE: usize = 4096;

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) name: [u64; 2],
    process: u32,
    file: i32,
    /// Where in the file, and how much.
    pub(crate) at: u64,
    pub(crate) len: u64,
    rest: [u64; 3],
}

/// A file that other processes can open.
#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    name: [u64; 2],
}

fn text(name: [u64; 2]) -> String {
    format!("ghost-cpu-{:016x}{:016x}", name[0], name[1])
}

impl Shared {
    /// One of `len` bytes, all zero.
    pub(crate) fn new(len: u64) -> Res<Self> {
        let mut name = [0_u64; 2];
        // SAFETY: room for as many bytes.
        let got = unsafe { libc::getrandom(name.as_mut_ptr().cast(), size_of_val(&name), 0) };
        let path = CString::new(text(name)).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: a text that ends.
        let made = unsafe { libc::memfd_create(path.as_ptr(), libc::MFD_CLOEXEC) };
        if got != size_of_val(&name) as isize || made < 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: opened just now, and nobody else's.
        let file = unsafe { File::from_raw_fd(made) };
        file.set_len(len).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Self { file, name })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// For another process.
    pub(crate) fn handle(&self, at: u64, len: u64) -> Handle {
        Handle {
            name: self.name,
            process: std::process::id(),
            file: self.file.as_raw_fd(),
            at,
            len,
            rest: [0; 3],
        }
    }
}

impl Handle {
    /// Opens the file of another process.
    pub(crate) fn open(&self) -> Res<File> {
        if self.process == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        let path = format!("/proc/{}/fd/{}", self.process, self.file);
        let wanted = format!("/memfd:{} (deleted)", text(self.name));
        let found = read_link(&path).map_err(|_| INVALID_HANDLE)?;
        if found != Path::new(&wanted) {
            return Err(INVALID_HANDLE);
        }
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|_| INVALID_HANDLE)?;
        let size = file.metadata().map_err(|_| INVALID_HANDLE)?.len();
        let fits = self.at.checked_add(self.len).is_some_and(|end| end <= size);
        (fits && self.len > 0).then_some(file).ok_or(INVALID_HANDLE)
    }
}

/// Maps `len` bytes of a file; at `over` in place of what is there, or where it fits if that is 0.
///
/// # Safety
/// What is at `over` is the caller's.
pub(crate) unsafe fn map(file: &File, at: u64, len: usize, over: usize) -> Res<usize> {
    let how = if over == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | how;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (file, at) = (file.as_raw_fd(), at.cast_signed());
    // SAFETY: a new mapping, or in place of the caller's own.
    let mapped = unsafe { libc::mmap(over as *mut _, len, access, flags, file, at) };
    match mapped {
        libc::MAP_FAILED => Err(OUT_OF_MEMORY),
        mapped => Ok(mapped as usize),
    }
}

/// What of an event processes share: how often it was recorded, and the last record that was
/// reached.
#[derive(Debug)]
pub(crate) struct Point {
    /// Of the process that made it.
    made: Option<Shared>,
    words: usize,
}

impl Point {
    fn over(file: &File, made: Option<Shared>) -> Res<Self> {
        // SAFETY: in place of nothing.
        let words = unsafe { map(file, 0, PAGE, 0) }?;
        Ok(Self { made, words })
    }

    pub(crate) fn new() -> Res<Self> {
        let made = Shared::new(PAGE as u64)?;
        let file = made.file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        Self::over(&file, Some(made))
    }

    pub(crate) fn open(handle: &Handle) -> Res<Self> {
        if handle.at != 0 || handle.len != PAGE as u64 {
            return Err(INVALID_HANDLE);
        }
        Self::over(&handle.open()?, None)
    }

    pub(crate) fn handle(&self) -> Res<Handle> {
        let made = self.made.as_ref().ok_or(INVALID_HANDLE)?;
        Ok(made.handle(0, PAGE as u64))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: a page that stays mapped as long as this lives, and is only used so.
        unsafe { &*(self.words as *const AtomicU64).add(at) }
    }

    /// The number of a new record.
    pub(crate) fn record(&self) -> u64 {
        self.word(0).fetch_add(1, AcqRel) + 1
    }

    pub(crate) fn recorded(&self) -> u64 {
        self.word(0).load(Acquire)
    }

    pub(crate) fn reach(&self, record: u64) {
        self.word(1).fetch_max(record, AcqRel);
    }

    pub(crate) fn reached(&self, record: u64) -> bool {
        self.word(1).load(Acquire) >= record
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // SAFETY: this one's own page, which nobody uses any more.
        unsafe { libc::munmap(self.words as *mut _, PAGE) };
    }
}
