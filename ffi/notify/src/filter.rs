//! The seccomp filter that makes ioctls of given numbers wait for a
//! supervisor's answer.
//!
//! An ioctl's *number* is the low byte of its command. Its other bits, the
//! type, direction and size, are for the driver to read or to ignore; NVIDIA's
//! ignores type and direction. A filter that compared them would miss what the
//! driver takes.

use std::collections::BTreeSet;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use crate::pidfd::new_fd;

/// `AUDIT_ARCH_X86_64` of linux/audit.h: x86-64 and x32.
pub(crate) const ARCH_X86_64: u32 = 0xC000_003E;
/// `AUDIT_ARCH_I386` of linux/audit.h.
pub(crate) const ARCH_I386: u32 = 0x4000_0003;
/// ioctl in x86-64's table; older kernels take it with x32's bit too.
pub(crate) const IOCTL_X86_64: u32 = 16;
/// ioctl in x32's table, counted without the bit below; older kernels take it
/// without that bit too.
pub(crate) const IOCTL_X32: u32 = 514;
/// ioctl in i386's table.
pub(crate) const IOCTL_I386: u32 = 54;
/// The bit that makes an x86-64 system call an x32 one.
pub(crate) const X32_BIT: u32 = 0x4000_0000;

/// Why no filter was installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A filter of this process has a listener, and the kernel allows one.
    #[error("a seccomp filter with a listener is installed already")]
    Nested,
    /// The kernel said no in another way.
    #[error("installing a seccomp filter failed")]
    System(#[from] io::Error),
}

/// The filter's program: ioctls whose number is in `numbers` are notified,
/// made through x86-64's, x32's or i386's system calls; all else is allowed,
/// other architectures included.
#[must_use]
pub fn program(numbers: &[u8]) -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

    let stmt = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = |offset: usize| stmt(BPF_LD | BPF_W | BPF_ABS, offset as u32);
    let and = |k: u32| stmt(BPF_ALU | BPF_AND | BPF_K, k);
    let ret = |action: u32| stmt(BPF_RET | BPF_K, action);
    let jump = |k: u32, yes: u8, no: u8| libc::sock_filter {
        code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
        jt: yes,
        jf: no,
        k,
    };
    let allow = ret(libc::SECCOMP_RET_ALLOW);

    let mut program = vec![
        load(offset_of!(libc::seccomp_data, arch)),
        jump(ARCH_X86_64, 4, 0),
        jump(ARCH_I386, 1, 0),
        allow,
        load(offset_of!(libc::seccomp_data, nr)),
        jump(IOCTL_I386, 5, 4),
        load(offset_of!(libc::seccomp_data, nr)),
        and(!X32_BIT),
        jump(IOCTL_X86_64, 2, 0),
        jump(IOCTL_X32, 1, 0),
        allow,
        // The command: the low half of the second argument, little-endian.
        load(offset_of!(libc::seccomp_data, args) + 8),
        and(0xFF),
    ];
    let numbers: BTreeSet<u8> = numbers.iter().copied().collect();
    for number in numbers {
        program.push(jump(number.into(), 0, 1));
        program.push(ret(libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(allow);
    program
}

/// Puts [`program`] before every system call of every thread of this process,
/// and of what it forks and executes from here on, and returns the listener
/// that answers (closed on exec). Gives up the right to gain privileges by
/// exec (`no_new_privs`) if, and only if, `CAP_SYS_ADMIN` is lacking.
///
/// # Errors
///
/// [`InstallError`]; nothing is installed then.
pub fn install(numbers: &[u8]) -> Result<OwnedFd, InstallError> {
    let program = program(numbers);
    match set_filter(&program) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: this prctl takes integers only.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error().into());
            }
            set_filter(&program)
        }
        other => other,
    }
    .map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => InstallError::Nested,
        _ => InstallError::System(error),
    })
}

fn set_filter(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // This filter is no jail: before Linux 5.16 one without that flag slows its program down by what
    // is done against speculation in one.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW
        | libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions at `filter` and writes none;
    // both live until the call returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    new_fd(fd)
}
