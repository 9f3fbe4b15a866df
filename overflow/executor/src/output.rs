//! What kernels print: the driver writes it to the process's standard output, which is a file in
//! memory here.

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::dup2_stdout;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Bytes of one message.
const MOST: usize = 64 << 10;

/// Standard output from now on.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// Guards how much has been taken; held while it is.
    taken: Mutex<u64>,
}

impl Output {
    /// Takes the place of standard output.
    pub(crate) fn take_over() -> io::Result<Self> {
        let file: File = memfd_create(c"output", MFdFlags::MFD_CLOEXEC)?.into();
        dup2_stdout(&file)?;
        let taken = Mutex::default();
        Ok(Self { file, taken })
    }

    /// Hands over what was printed since the last time.
    pub(crate) fn drain(&self, mut to: impl FnMut(&[u8])) {
        // SAFETY: flushes all streams of the C library.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = [0; 1 << 10];
        let mut text = Vec::new();
        let from = *taken;
        loop {
            match self.file.read_at(&mut buffer, *taken) {
                Ok(0) | Err(_) => break,
                Ok(len) => {
                    *taken += len as u64;
                    text.extend_from_slice(buffer.get(..len).unwrap_or_default());
                }
            }
        }
        if !text.is_empty() {
            text.chunks(MOST).for_each(&mut to);
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let len = (*taken - from) as i64;
            // Without it the memory stays in use until the end.
            let _ = fallocate(&self.file, hole, from as i64, len);
        }
    }
}
