//! The numbers of the requests. They carry no size, for structures grow.

use crate::sys;

const fn number(nr: u32) -> libc::Ioctl {
    ((sys::GHOST_IOC_MAGIC << 8) | nr) as libc::Ioctl
}

/// [`sys::ghost_version`]
pub const VERSION: libc::Ioctl = number(0);
/// [`sys::ghost_create`]
pub const CREATE: libc::Ioctl = number(1);
/// [`sys::ghost_delete`]
pub const DELETE: libc::Ioctl = number(2);
/// [`sys::ghost_limit`]
pub const LIMIT: libc::Ioctl = number(3);
/// [`sys::ghost_stat`]
pub const STAT: libc::Ioctl = number(4);
/// [`sys::ghost_list`]
pub const LIST: libc::Ioctl = number(5);
/// [`sys::ghost_bind`]
pub const BIND: libc::Ioctl = number(6);
/// [`sys::ghost_attach`]
pub const ATTACH: libc::Ioctl = number(7);
/// [`sys::ghost_pause`]
pub const PAUSE: libc::Ioctl = number(8);
/// [`sys::ghost_lead`]
pub const LEAD: libc::Ioctl = number(9);
/// [`sys::ghost_slice`]
pub const SLICE: libc::Ioctl = number(10);
/// [`sys::ghost_test`]
pub const TEST: libc::Ioctl = number(63);
