//! Work done with another user's rights, on one thread.

use std::cell::Cell;
use std::io;

use crate::thread::Credentials;

/// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// `CAP_SYS_PTRACE` of linux/capability.h, as a set.
const SYS_PTRACE: u32 = 1 << 19;
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

/// What this thread's rights are while it does nothing for a tenant. Nobody else
/// changes them, so the kernel is asked once.
#[derive(Clone, Copy)]
struct Own {
    uid: u32,
    gid: u32,
    capabilities: [Capabilities; 2],
    /// Whether the kernel takes the effective capabilities with root's user, and
    /// gives back the same with it.
    by_user: bool,
    /// Whether all but `CAP_SYS_PTRACE` are down.
    lowered: bool,
}

thread_local! {
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
}

/// Calls `f` on this thread with the effective user and group of `who` and
/// without capabilities; other threads keep theirs. Whoever may ask the kernel
/// about this process's *real* user is not deceived, and `who` may not signal
/// or trace it.
///
/// The group stays afterwards, until the thread works for another one: a change
/// costs as much as the call that it is for. What the thread must not do with
/// another's group, as to make files for that group to read, it must not do.
///
/// The process is aborted if its own rights cannot be had back, also after a
/// panic of `f`.
///
/// # Errors
///
/// errno, if the rights cannot be taken; `f` was not called then.
pub fn as_tenant<R>(who: Credentials, f: impl FnOnce() -> R) -> io::Result<R> {
    own_rights();
    let own = own()?;
    // The group first, while there is a right to change it.
    if own.gid != who.gid {
        set_group(who.gid)?;
    }
    let mut restore = Restore {
        own,
        user: false,
        capabilities: false,
    };
    OWN.set(Some(Own {
        gid: who.gid,
        ..own
    }));
    if own.uid != who.uid {
        set_user(who.uid)?;
        restore.user = true;
    }
    if !(restore.user && own.by_user) {
        set_capabilities(&own.but(0))?;
        restore.capabilities = true;
    }
    let result = f();
    drop(restore);
    Ok(result)
}

/// As [`as_tenant`], for one call after another: a tenant whose user is this
/// process's own is not worth two changes of the capabilities for each. They stay
/// down, `f` included, but for `CAP_SYS_PTRACE`, by which tenants are reached. What
/// needs another one calls [`own_rights`] first.
///
/// # Errors
///
/// As [`as_tenant`].
pub fn as_tenant_lasting<R>(who: Credentials, f: impl FnOnce() -> R) -> io::Result<R> {
    let own = own()?;
    if (own.uid, own.gid) != (who.uid, who.gid) {
        return as_tenant(who, f);
    }
    if !own.lowered {
        set_capabilities(&own.but(SYS_PTRACE))?;
        OWN.set(Some(Own {
            lowered: true,
            ..own
        }));
    }
    Ok(f())
}

/// Gives the thread back what [`as_tenant_lasting`] has left down; whether it was.
/// The process is aborted if it cannot be had back.
pub fn own_rights() -> bool {
    let Some(own) = OWN.get().filter(|own| own.lowered) else {
        return false;
    };
    if set_capabilities(&own.capabilities).is_err() {
        std::process::abort();
    }
    OWN.set(Some(Own {
        lowered: false,
        ..own
    }));
    true
}

impl Own {
    /// The capabilities with those of `kept` effective at most.
    fn but(&self, kept: u32) -> [Capabilities; 2] {
        let [mut low, mut high] = self.capabilities;
        low.effective &= kept;
        high.effective = 0;
        [low, high]
    }
}

fn own() -> io::Result<Own> {
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    // SAFETY: these take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let capabilities = capabilities()?;
    // SAFETY: this prctl takes an integer.
    let bits = unsafe { libc::prctl(libc::PR_GET_SECUREBITS) };
    let all = capabilities.iter().all(|c| c.effective == c.permitted);
    let own = Own {
        uid,
        gid,
        capabilities,
        by_user: uid == 0 && all && bits & libc::SECBIT_NO_SETUID_FIXUP == 0,
        lowered: false,
    };
    OWN.set(Some(own));
    Ok(own)
}

struct Restore {
    own: Own,
    user: bool,
    capabilities: bool,
}

impl Drop for Restore {
    fn drop(&mut self) {
        let Own {
            uid, capabilities, ..
        } = self.own;
        // Capabilities first, for the right to the rest, and again, because a
        // change of the user changes them.
        let all = || set_capabilities(&capabilities);
        let restored = match (self.user, self.capabilities) {
            (true, true) => all().and_then(|()| set_user(uid)).and_then(|()| all()),
            (true, false) => set_user(uid),
            (false, true) => all(),
            (false, false) => Ok(()),
        };
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
