//! Work done with another user's rights, on one thread.

use std::io;

use crate::thread::Credentials;

/// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// setresuid's "leave it".
const SAME: u32 = u32::MAX;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Calls `f` on this thread with the effective user and group of `who` and
/// without capabilities; other threads keep theirs. Whoever may ask the kernel
/// about this process's *real* user is not deceived, and `who` may not signal
/// or trace it.
///
/// The process is aborted if its own rights cannot be had back, also after a
/// panic of `f`.
///
/// # Errors
///
/// errno, if the rights cannot be taken; `f` was not called then.
pub fn as_tenant<R>(who: Credentials, f: impl FnOnce() -> R) -> io::Result<R> {
    let restore = Restore {
        // SAFETY: these take nothing and cannot fail.
        uid: unsafe { libc::geteuid() },
        // SAFETY: as above.
        gid: unsafe { libc::getegid() },
        capabilities: capabilities()?,
    };
    // The group first, while there is a right to change it.
    set_group(who.gid)?;
    set_user(who.uid)?;
    let mut none = restore.capabilities;
    for word in &mut none {
        word.effective = 0;
    }
    set_capabilities(&none)?;
    let result = f();
    drop(restore);
    Ok(result)
}

struct Restore {
    uid: u32,
    gid: u32,
    capabilities: [Capabilities; 2],
}

impl Drop for Restore {
    fn drop(&mut self) {
        // Capabilities first, for the right to the rest, and again, because a
        // change of the user changes them.
        let restored = set_capabilities(&self.capabilities)
            .and_then(|()| set_user(self.uid))
            .and_then(|()| set_group(self.gid))
            .and_then(|()| set_capabilities(&self.capabilities));
        if restored.is_err() {
            std::process::abort();
        }
    }
}

// The C library's wrappers change all threads of a process; the system calls
// change the calling one.

fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: takes integers only.
    done(unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) })
}

fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: takes integers only.
    done(unsafe { libc::syscall(libc::SYS_setresgid, SAME, gid, SAME) })
}

fn header() -> Header {
    Header {
        version: CAPABILITY_VERSION,
        pid: 0,
    }
}

fn capabilities() -> io::Result<[Capabilities; 2]> {
    let mut header = header();
    let mut sets = [Capabilities::default(); 2];
    // SAFETY: of this version the kernel writes two sets, and the header; both
    // live in this frame.
    done(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    Ok(sets)
}

fn set_capabilities(sets: &[Capabilities; 2]) -> io::Result<()> {
    let mut header = header();
    // SAFETY: of this version the kernel reads two sets, and may write the
    // header, which lives in this frame.
    done(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })
}

fn done(returned: libc::c_long) -> io::Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
