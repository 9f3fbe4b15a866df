//! The device: each request as a method.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::event::Event;
use crate::list::{self, Cgroup, Client, Container, Gpu, Group, Item, text};
use crate::{ContainerId, GpuNumber, GroupNumber, request, sys};

/// Records that are read at once.
const EVENTS: usize = 64;

/// What a container is and holds of one GPU; fields as the header says.
pub use crate::sys::ghost_stat as Stat;

/// What the module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version of the interface.
    pub abi: u32,
    /// `GHOST_HOOKS_*`: what is held.
    pub hooks: u32,
    /// Whether it has the entry for tests, and is no release.
    pub is_test: bool,
    /// Ghost's version.
    pub build: String,
    /// The driver's version.
    pub driver: String,
}

impl Version {
    /// Whether the module holds `hook`, one of `GHOST_HOOKS_*`.
    pub fn holds(&self, hook: u32) -> bool {
        self.hooks & hook != 0
    }
}

/// GPU time in each period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Max {
    /// `None`: no limit.
    pub max_us: Option<u64>,
    /// The length of a period.
    pub period_us: u64,
}

/// Limits to set; those that are `None` stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `GHOST_WEIGHT_MIN` to `GHOST_WEIGHT_MAX`.
    pub weight: Option<u32>,
    /// GPU time.
    pub max: Option<Max>,
    /// Bytes that others cannot take.
    pub memory_min: Option<u64>,
    /// Bytes that others are counted for taking.
    pub memory_low: Option<u64>,
    /// Bytes beyond which it gets less time; [`u64::MAX`] is no limit.
    pub memory_high: Option<u64>,
    /// Bytes beyond which allocations fail; [`u64::MAX`] is no limit.
    pub memory_max: Option<u64>,
}

/// How long what a file asked for lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// As long as the file is open.
    Open,
    /// Unless it is renewed before that has passed.
    For(Duration),
}

impl Lease {
    fn us(self) -> u64 {
        match self {
            Self::Open => 0,
            // 0 would be no end.
            Self::For(time) => u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1),
        }
    }
}

/// `/dev/nvidia-ghost`, open. What was paused or led on it ends when it is dropped.
#[derive(Debug)]
pub struct Device {
    file: File,
}

/// A structure of the module's, which begins with its size.
///
/// # Safety
/// It is `repr(C)`, as the header has it, holds no padding, and any bytes are a value of it.
unsafe trait Argument: Default {
    fn set_size(&mut self, size: u32);
}

macro_rules! arguments {
    ($($type:ident)*) => {
        $(
            // SAFETY: made from the header by bindgen; all fields are integers, and a test
            // compares that their sizes add up to the structure's.
            unsafe impl Argument for sys::$type {
                fn set_size(&mut self, size: u32) {
                    self.size = size;
                }
            }
        )*
    };
}

arguments! {
    ghost_version ghost_create ghost_delete ghost_limit ghost_stat ghost_list ghost_bind
    ghost_attach ghost_pause ghost_lead ghost_slice
}
#[cfg(feature = "test-entry")]
arguments! { ghost_test }

impl Device {
    /// Opens the device at `path`, to change things and to read events without waiting.
    ///
    /// # Errors
    /// [`Error::Open`]
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK);
        let file = options.open(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { file })
    }

    fn ask<T: Argument>(
        &self,
        number: libc::Ioctl,
        argument: &mut T,
        asked: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        argument.set_size(size_of::<T>() as u32);
        loop {
            // SAFETY: the argument is a structure of the size that stands in it, and the module
            // writes no more than that. Where it holds a pointer, to list items, whoever made it
            // keeps what it points to.
            let done = unsafe { libc::ioctl(self.file.as_raw_fd(), number, argument as *mut T) };
            if done == 0 {
                return Ok(());
            }
            let source = io::Error::last_os_error();
            // A request that fails has changed nothing.
            if source.kind() != io::ErrorKind::Interrupted {
                let asked = asked();
                return Err(Error::Refused { asked, source });
            }
        }
    }

    /// What the module is.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn version(&self) -> Result<Version, Error> {
        let mut version = sys::ghost_version::default();
        self.ask(request::VERSION, &mut version, || {
            "tell the module's version".into()
        })?;
        Ok(Version {
            abi: version.abi,
            hooks: version.hooks,
            is_test: version.features & sys::GHOST_FEATURE_TEST != 0,
            build: text(&version.build),
            driver: text(&version.driver),
        })
    }

    /// Makes a container below `parent`.
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Refused`]: EEXIST, ENOENT, ENOSPC, EOVERFLOW.
    pub fn create(&self, parent: ContainerId, name: &str) -> Result<ContainerId, Error> {
        let mut create = sys::ghost_create {
            parent: parent.0,
            ..Default::default()
        };
        let wrong = || Error::Name {
            name: name.to_owned(),
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        // One byte is left for the NUL.
        if name.is_empty() || name.len() >= create.name.len() || !name.bytes().all(good) {
            return Err(wrong());
        }
        if name.starts_with(['.', '-']) {
            return Err(wrong());
        }
        for (to, byte) in create.name.iter_mut().zip(name.bytes()) {
            *to = byte as std::ffi::c_char;
        }
        self.ask(request::CREATE, &mut create, || {
            format!("make the container {name} below {parent}")
        })?;
        Ok(ContainerId(create.id))
    }

    /// Removes a container.
    ///
    /// # Errors
    /// [`Error::Refused`]: ENOENT, ENOTEMPTY, EBUSY.
    pub fn delete(&self, id: ContainerId) -> Result<(), Error> {
        let mut delete = sys::ghost_delete {
            id: id.0,
            ..Default::default()
        };
        self.ask(request::DELETE, &mut delete, || format!("remove {id}"))
    }

    /// Sets, all at once, what a container may have of a GPU, or of [`GpuNumber::ALL`].
    ///
    /// # Errors
    /// [`Error::Value`]; [`Error::Refused`]: ENOENT, ENODEV.
    pub fn set_limits(
        &self,
        id: ContainerId,
        gpu: GpuNumber,
        limits: &Limits,
    ) -> Result<(), Error> {
        let mut limit = sys::ghost_limit {
            id: id.0,
            gpu: gpu.0,
            ..Default::default()
        };
        if let Some(weight) = limits.weight {
            limit.set |= sys::GHOST_SET_WEIGHT;
            limit.weight = weight;
        }
        if let Some(max) = limits.max {
            limit.set |= sys::GHOST_SET_MAX;
            limit.max_us = max.max_us.unwrap_or(u64::MAX);
            limit.period_us = max.period_us;
        }
        let memory = [
            (
                sys::GHOST_SET_MEMORY_MIN,
                limits.memory_min,
                &mut limit.memory_min,
            ),
            (
                sys::GHOST_SET_MEMORY_LOW,
                limits.memory_low,
                &mut limit.memory_low,
            ),
            (
                sys::GHOST_SET_MEMORY_HIGH,
                limits.memory_high,
                &mut limit.memory_high,
            ),
            (
                sys::GHOST_SET_MEMORY_MAX,
                limits.memory_max,
                &mut limit.memory_max,
            ),
        ];
        for (bit, value, to) in memory {
            if let Some(value) = value {
                limit.set |= bit;
                *to = value;
            }
        }
        let asked = || format!("limit {id} on {gpu}");
        let done = self.ask(request::LIMIT, &mut limit, asked);
        match wrong(limit.wrong) {
            Some(key) if done.is_err() => Err(Error::Value {
                asked: asked(),
                key,
            }),
            _ => done,
        }
    }

    /// What a container is and holds of one GPU.
    ///
    /// # Errors
    /// [`Error::Refused`]: ENOENT, ENODEV.
    pub fn stat(&self, id: ContainerId, gpu: GpuNumber) -> Result<Stat, Error> {
        let mut stat = Stat {
            id: id.0,
            gpu: gpu.0,
            ..Default::default()
        };
        self.ask(request::STAT, &mut stat, || {
            format!("tell of {id} on {gpu}")
        })?;
        Ok(stat)
    }

    fn list<T: Item, R: From<T>>(&self, what: &str) -> Result<Vec<R>, Error> {
        let items = list::all(|list, page: &mut [T]| {
            list.items = page.as_mut_ptr() as u64;
            self.ask(request::LIST, list, || format!("list {what}"))
        })?;
        Ok(items.into_iter().map(R::from).collect())
    }

    /// All containers, in the order in which they were made: who is above comes first.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn containers(&self) -> Result<Vec<Container>, Error> {
        self.list::<sys::ghost_container, _>("containers")
    }

    /// All clients of the driver.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn clients(&self) -> Result<Vec<Client>, Error> {
        self.list::<sys::ghost_client, _>("clients")
    }

    /// All compute channel groups.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn groups(&self) -> Result<Vec<Group>, Error> {
        self.list::<sys::ghost_group, _>("channel groups")
    }

    /// All GPUs, in the order in which they were found.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        self.list::<sys::ghost_gpu, _>("gpus")
    }

    /// All cgroups that are bound.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn cgroups(&self) -> Result<Vec<Cgroup>, Error> {
        self.list::<sys::ghost_cgroup, _>("cgroups")
    }

    /// Binds the cgroup whose directory is `cgroup`, with all below, to a container or to none.
    ///
    /// # Errors
    /// [`Error::Refused`]: ENOENT, EBADF, EINVAL.
    pub fn bind(&self, id: ContainerId, cgroup: BorrowedFd<'_>) -> Result<(), Error> {
        let mut bind = sys::ghost_bind {
            id: id.0,
            cgroup_fd: cgroup.as_raw_fd(),
            ..Default::default()
        };
        self.ask(request::BIND, &mut bind, || {
            format!("bind a cgroup to {id}")
        })
    }

    /// Puts the process of a pidfd into a container, or with none back to where its cgroup is.
    ///
    /// # Errors
    /// [`Error::Refused`]: ENOENT, EBADF, ESRCH.
    pub fn attach(&self, id: ContainerId, pidfd: BorrowedFd<'_>) -> Result<(), Error> {
        let mut attach = sys::ghost_attach {
            id: id.0,
            pidfd: pidfd.as_raw_fd(),
            ..Default::default()
        };
        self.ask(request::ATTACH, &mut attach, || {
            format!("put a process into {id}")
        })
    }

    /// Stops the channel groups of a container and of all below it, until [`Device::resume`], or
    /// the end of this device or its lease.
    ///
    /// # Errors
    /// [`Error::Refused`]: ENOENT, ENODEV, EIO.
    pub fn pause(&self, id: ContainerId, gpu: GpuNumber) -> Result<(), Error> {
        self.switch(id, gpu, 0, "pause")
    }

    /// Lets run what this device has paused.
    ///
    /// # Errors
    /// As [`Device::pause`].
    pub fn resume(&self, id: ContainerId, gpu: GpuNumber) -> Result<(), Error> {
        self.switch(id, gpu, sys::GHOST_PAUSE_RESUME, "resume")
    }

    fn switch(&self, id: ContainerId, gpu: GpuNumber, flags: u32, verb: &str) -> Result<(), Error> {
        let mut pause = sys::ghost_pause {
            flags,
            id: id.0,
            gpu: gpu.0,
            ..Default::default()
        };
        self.ask(request::PAUSE, &mut pause, || {
            format!("{verb} {id} on {gpu}")
        })
    }

    /// Takes the lead, so that timeslices and budgets are this device's to set.
    ///
    /// # Errors
    /// [`Error::Refused`]: EBUSY.
    pub fn lead(&self, lease: Lease) -> Result<(), Error> {
        self.ask_lead(0, lease, "take the lead")
    }

    /// Renews the lease, of the lead and of what is paused.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn renew(&self, lease: Lease) -> Result<(), Error> {
        self.ask_lead(sys::GHOST_LEAD_RENEW, lease, "renew the lease")
    }

    /// Leaves timeslices and budgets to the module.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn resign(&self) -> Result<(), Error> {
        self.ask_lead(sys::GHOST_LEAD_RESIGN, Lease::Open, "give up the lead")
    }

    fn ask_lead(&self, flags: u32, lease: Lease, asked: &str) -> Result<(), Error> {
        let mut lead = sys::ghost_lead {
            flags,
            lease_us: lease.us(),
            ..Default::default()
        };
        self.ask(request::LEAD, &mut lead, || asked.to_owned())
    }

    /// Sets a channel group's timeslice, which a leader may.
    ///
    /// # Errors
    /// [`Error::Refused`]: EACCES, ENOENT, EIO.
    pub fn set_slice(&self, group: GroupNumber, slice_us: u64) -> Result<(), Error> {
        let mut slice = sys::ghost_slice {
            group: group.0,
            slice_us,
            ..Default::default()
        };
        self.ask(request::SLICE, &mut slice, || {
            let group = group.0;
            format!("give channel group {group} a timeslice of {slice_us} us")
        })
    }

    /// What happened since the last call, at most 64 records; none if nothing did. The device is
    /// readable while there are any.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn events(&self) -> Result<Vec<Event>, Error> {
        const SIZE: usize = size_of::<sys::ghost_event>();
        let mut bytes = [0; EVENTS * SIZE];
        let length = loop {
            match (&self.file).read(&mut bytes) {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let asked = "read events".to_owned();
                    return Err(Error::Refused { asked, source });
                }
            }
        };
        let records = bytes.get(..length).unwrap_or_default().chunks_exact(SIZE);
        let event = |record: &[u8]| {
            // SAFETY: the record is as long as the structure, any bytes are a value of it, and it
            // is read where it lies, aligned or not.
            let raw = unsafe { record.as_ptr().cast::<sys::ghost_event>().read_unaligned() };
            Event::from(raw)
        };
        Ok(records.map(event).collect())
    }

    /// The entry for tests; see `GHOST_TEST_*`.
    ///
    /// # Errors
    /// [`Error::Refused`]
    #[cfg(feature = "test-entry")]
    pub fn test(&self, test: &mut sys::ghost_test) -> Result<(), Error> {
        let op = test.op;
        self.ask(request::TEST, test, || {
            format!("do operation {op} of the entry for tests")
        })
    }
}

impl From<OwnedFd> for Device {
    /// A device that was opened elsewhere, with `O_NONBLOCK`.
    fn from(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The value that the module named as wrong.
fn wrong(bits: u32) -> Option<&'static str> {
    let keys = [
        (sys::GHOST_SET_WEIGHT, "weight"),
        (sys::GHOST_SET_MAX, "max and period"),
        (sys::GHOST_SET_MEMORY_MIN, "memory_min"),
        (sys::GHOST_SET_MEMORY_LOW, "memory_low"),
        (sys::GHOST_SET_MEMORY_HIGH, "memory_high"),
        (sys::GHOST_SET_MEMORY_MAX, "memory_max"),
    ];
    let found = keys.iter().find(|(bit, _)| bits & bit != 0);
    found.map(|(_, key)| *key)
}
