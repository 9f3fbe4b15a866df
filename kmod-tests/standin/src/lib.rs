//! A stand-in for NVIDIA's driver where there is no GPU, for tests of the stock backend and of
//! the guardian: a FUSE file system with `nvidiactl` and `nvidia0`… that answers the RM ioctls
//! that Ghost sends, at the same numbers and with the semantics that were measured on an H200.
//! Its GPUs are [`ghost_backend::sim::gpu::Gpu`]s in real time.
//!
//! | file | what |
//! | --- | --- |
//! | `nvidiactl` | clients and objects; alloc, free, duplicate, control, the older heap control. Lines of [`wire`] written to it say what the program would launch, and are answered at the next read |
//! | `nvidia0`… | to be open before a device is allocated |
//! | `telemetry.json` | GPUs, and processes with memory and GPU time: in place of NVML |
//! | `proc/driver/nvidia/` | `version` and `gpus/*/information` as in `/proc` |
//!
//! Memory of a card is 80 GiB; what is allocated is rounded to the driver's pages, lives until its
//! last name is gone, and is counted to the process that made the client of the oldest name. Whether
//! a caller is an administrator is seen in its thread's capabilities.
//!
//! A client lives until the *last close* of its file, duplicates by `pidfd_getfd` included.
//! Disables nest, act in list order up to the first channel that is not there, and stay when the
//! one who asked is gone. Classes and controls that are not listed in `driver` and `controls`
//! are refused as an older driver would.
//!
//! [`wire`]: ghost_backend::sim::wire

mod calls;
mod controls;
mod driver;
mod fs;
mod inventory;
mod memory;
pub mod tenant;

pub use driver::{CLASS_CHANNEL, CLASS_COMPUTE, CLASS_COPY, CLASS_SYSTEM_MEMORY};
pub use inventory::VERSION;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use ghost_model::Micros;
use ghost_rm::{Channel, Client, Object};
use nix::mount::{MntFlags, umount2};

use driver::Driver;
use fs::Files;

/// Environment variable by which a load is told a stand-in's directory.
pub const DEV_ENV: &str = "GHOST_DEV";

/// A mounted stand-in. Dropping it unmounts; files that tenants have open work until they close
/// them or this process ends.
#[derive(Debug)]
pub struct Standin {
    dir: PathBuf,
    driver: Arc<Mutex<Driver>>,
    session: Option<BackgroundSession>,
}

/// A client that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientView {
    /// Its handle.
    pub client: Client,
    /// The process that allocated it.
    pub pid: u32,
    /// How many objects it has.
    pub objects: usize,
    /// How often anybody asked what one of its handles is, there or not: a scan is many of these.
    pub asked: u64,
}

/// A channel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its client and handle.
    pub group: Channel,
    /// The process that allocated it.
    pub pid: u32,
    /// Index of the GPU.
    pub gpu: usize,
    /// Whether it computes; else it copies.
    pub compute: bool,
    /// The timeslice in force.
    pub slice: Micros,
    /// Whether all of its channels are disabled.
    pub disabled: bool,
    /// GPU time used.
    pub used: Micros,
    /// Kernels completed.
    pub completed: u64,
}

impl Standin {
    /// Mounts a stand-in with `gpus` GPUs on the directory `dir`. Root needs nothing else; others
    /// need `fusermount3`, and are then the only ones who can use it.
    ///
    /// # Errors
    /// errno of the mount, or of `/dev/fuse`.
    pub fn mount(dir: &Path, gpus: u32) -> io::Result<Self> {
        let driver = Arc::new(Mutex::new(Driver::new(gpus, fs::now())));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("ghost-standin".into())];
        if nix::unistd::geteuid().is_root() {
            config.acl = SessionACL::All;
        }
        let session = fuser::spawn_mount(Files::new(gpus, driver.clone()), dir, &config)?;
        Ok(Standin {
            dir: dir.to_owned(),
            driver,
            session: Some(session),
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.advance(fs::now());
        driver
    }

    /// The clients that are alive, by handle.
    pub fn clients(&self) -> Vec<ClientView> {
        let driver = self.driver();
        let view = |(&client, c): (&u32, &driver::Client)| ClientView {
            client: Client(client),
            pid: c.pid,
            objects: c.objects.len(),
            asked: c.asked,
        };
        driver.clients.iter().map(view).collect()
    }

    /// The channel groups, by client and handle.
    pub fn groups(&self) -> Vec<GroupView> {
        let driver = self.driver();
        let views = driver.groups().filter_map(|(client, handle, gpu, id, _)| {
            let group = driver.gpus.get(gpu)?.group(id)?;
            Some(GroupView {
                group: Channel {
                    client: Client(client),
                    object: Object(handle),
                },
                pid: driver.clients.get(&client)?.pid,
                gpu,
                compute: driver.is_compute(client, handle),
                slice: group.slice(),
                disabled: group.disables() > 0,
                used: group.used(),
                completed: group.completed(),
            })
        });
        views.collect()
    }

    /// The channels that are disabled, and how often.
    pub fn disabled_channels(&self) -> Vec<(Channel, u32)> {
        let driver = self.driver();
        let all = driver.groups().flat_map(|(client, group, ..)| {
            let disabled = driver.channels_of(client, group).filter(|c| c.3 > 0);
            disabled.map(move |(handle, _, _, disables)| {
                let channel = Channel {
                    client: Client(client),
                    object: Object(handle),
                };
                (channel, disables)
            })
        });
        all.collect()
    }

    /// Bytes of a GPU's memory that are in use, what the driver takes itself included.
    pub fn memory_used(&self, gpu: usize) -> u64 {
        self.driver().memory(gpu)
    }

    /// Bytes of a GPU's memory that are counted to a process.
    pub fn memory_of(&self, pid: u32, gpu: usize) -> u64 {
        self.driver().memory_of(pid, gpu).0
    }

    /// Enables of channels that were not disabled.
    pub fn violations(&self) -> u64 {
        self.driver().violations
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        // Tenants may have files open, and an unmount that waits for them could wait for ever.
        // Where this is refused, dropping the session asks fusermount3 to do the same.
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
        self.session = None;
    }
}
