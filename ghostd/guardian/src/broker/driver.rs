//! The driver as the broker asks it on its own behalf: which branch it is, which descriptors are
//! its nodes, and what is still there.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ghost_rm::{Branch, Client, DriverVersion, Object, Session};
use nix::sys::stat::{SFlag, fstat, major, stat};

/// Where the driver is, opened when it is needed.
#[derive(Debug)]
pub(super) struct Driver {
    dev_root: PathBuf,
    version: PathBuf,
    branch: OnceLock<&'static Branch>,
    nodes: OnceLock<Nodes>,
    /// Guards the one client through which the driver is asked; held while it answers, and never
    /// together with the books.
    session: Mutex<Option<Session>>,
}

/// How the driver's nodes are told from other files.
#[derive(Clone, Copy, Debug)]
enum Nodes {
    /// Character devices of one number.
    Devices(u64),
    /// Files of a stand-in's file system.
    Files(u64),
}

impl Driver {
    pub(super) fn new(dev_root: PathBuf, version: PathBuf) -> Self {
        Self {
            dev_root,
            version,
            branch: OnceLock::new(),
            nodes: OnceLock::new(),
            session: Mutex::new(None),
        }
    }

    /// The loaded driver's branch, `None` if it is not known or there is none.
    pub(super) fn branch(&self) -> Option<&'static Branch> {
        if let Some(branch) = self.branch.get() {
            return Some(branch);
        }
        let text = std::fs::read_to_string(&self.version).ok()?;
        let version: DriverVersion = text.parse().ok()?;
        let branch = version.branch().ok()?;
        Some(self.branch.get_or_init(|| branch))
    }

    /// Whether a descriptor is open on one of the driver's nodes, under whichever name: where the
    /// control node is not there to compare with, none is.
    pub(super) fn owns(&self, fd: BorrowedFd<'_>) -> bool {
        let Some(nodes) = self.nodes() else {
            return false;
        };
        let Ok(found) = fstat(fd) else {
            return false;
        };
        let is_device = is_device(found.st_mode);
        match nodes {
            Nodes::Devices(number) => is_device && major(found.st_rdev) == number,
            Nodes::Files(file_system) => found.st_dev == file_system,
        }
    }

    fn nodes(&self) -> Option<Nodes> {
        if let Some(nodes) = self.nodes.get() {
            return Some(*nodes);
        }
        let control = stat(&self.dev_root.join("nvidiactl")).ok()?;
        let nodes = match is_device(control.st_mode) {
            true => Nodes::Devices(major(control.st_rdev)),
            false => Nodes::Files(control.st_dev),
        };
        Some(*self.nodes.get_or_init(|| nodes))
    }

    /// Whether `client`, on whichever file, has `object`; `None` if the driver does not say.
    pub(super) fn exists(&self, client: Client, object: Object) -> Option<bool> {
        // A thread that has just worked for a tenant may be without them.
        ghost_notify::own_rights();
        let mut session = self.session();
        let open = match session.take() {
            Some(open) => open,
            None => Session::open(&self.dev_root, self.branch()?.alloc).ok()?,
        };
        let there = open.exists(client, object).ok();
        // A reset of the GPU ends our client too, and then everything seems to be gone.
        if there == Some(false) && open.exists(open.client(), open.client().as_object()).ok()? {
            *session = Some(open);
            return there;
        }
        if there == Some(true) {
            *session = Some(open);
            return there;
        }
        None
    }

    /// Nobody needs the driver for now: hold nothing open, so that it can be unloaded.
    pub(super) fn rest(&self) {
        *self.session() = None;
    }

    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_device(mode: u32) -> bool {
    SFlag::from_bits_truncate(mode) & SFlag::S_IFMT == SFlag::S_IFCHR
}
