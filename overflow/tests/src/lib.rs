//! What runs a program under a `libcuda.so.1` of choice: the CPU device itself, the shim *here*,
//! or the shim *there* with an executor at the other end of real TCP connections.
//!
//! The tests of this package, `ci/bench` and `ci/device` use it.
#![forbid(unsafe_code)]

pub mod cuda;
mod executor;
mod process;
pub mod pytorch;

pub use executor::Executor;
pub use ghost_wire::hello::{Inject, Ticket};
pub use process::{Process, Said};

use anyhow::{Context, Result, bail};
use ghost_wire::Op;
use ghost_wire::hello::TICKET_ENV;
use ghost_wire::stats::{self, COUNTERS, Counter};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SHIM: &str = "libghost_shim.so";
const NVML: &str = "libghost_nvml.so";
const DEVICE: &str = "libghost_cpu_device.so";

/// Which library a program gets for `libcuda.so.1`.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The CPU device itself.
    Device,
    /// The shim, which passes calls on to the CPU device.
    Here,
    /// The driver of this host.
    Local,
    /// The shim, which sends calls where the ticket says.
    There(&'a Ticket),
}

/// A C program of this package.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("GHOST_TEST_PROGRAMS")).join(name)
}

/// A file of the workspace's build, beside this process's program or above it.
///
/// # Errors
/// If it is not there.
pub fn built(name: &str) -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let found = me.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = found.into_iter().find(|path| path.exists());
    found.with_context(|| format!("{name} is not built: run `cargo build --workspace`"))
}

/// A folder with the libraries, tickets and counters of a run.
pub struct Stage {
    dir: TempDir,
}

impl Stage {
    /// Lays it out.
    ///
    /// # Errors
    /// If a library is not built.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("ghost-overflow-")
            .tempdir()?;
        std::fs::create_dir(dir.path().join("stats"))?;
        for folder in ["shim", "device"] {
            std::fs::create_dir(dir.path().join(folder))?;
        }
        for (name, library) in [
            ("shim/libcuda.so.1", SHIM),
            ("shim/libnvidia-ml.so.1", NVML),
            ("device/libcuda.so.1", DEVICE),
        ] {
            // Where one is not built, only what needs it fails.
            if let Ok(library) = built(library) {
                symlink(library, dir.path().join(name))?;
            }
        }
        Ok(Self { dir })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A ticket for an executor on this host, with counters in this stage.
    #[must_use]
    pub fn ticket(&self, address: &str) -> Ticket {
        Ticket {
            address: address.to_owned(),
            container: "test".to_owned(),
            stats: Some(self.path().join("stats").display().to_string()),
            ..Ticket::default()
        }
    }

    /// A command that will run in `place`.
    ///
    /// # Errors
    /// If a library is not built or the ticket can't be written.
    pub fn command(&self, place: Place<'_>, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        let folder = match place {
            Place::Local => return Ok(command),
            Place::Device => "device",
            Place::Here | Place::There(_) => "shim",
        };
        let library = self.path().join(folder).join("libcuda.so.1");
        if !library.exists() {
            bail!("{} is not built", library.display());
        }
        let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = std::env::split_paths(&folders).filter(|p| !p.as_os_str().is_empty());
        let folders = std::iter::once(self.path().join(folder)).chain(folders);
        command.env("LD_LIBRARY_PATH", std::env::join_paths(folders)?);
        command.env_remove(TICKET_ENV).env_remove("GHOST_LIBCUDA");
        match place {
            Place::Local | Place::Device => {}
            Place::Here => {
                command.env("GHOST_LIBCUDA", self.path().join("device/libcuda.so.1"));
            }
            Place::There(ticket) => {
                let mut file = tempfile::Builder::new()
                    .prefix("ticket-")
                    .suffix(".json")
                    .tempfile_in(self.path())?;
                serde_json::to_writer(&mut file, ticket)?;
                // It goes with the stage.
                command.env(TICKET_ENV, file.into_temp_path().keep()?);
            }
        }
        Ok(command)
    }

    /// Starts a command.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(&self, command: &mut Command) -> Result<Process> {
        Process::start(command, self.path())
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// If it can't be started or has not ended after two minutes.
    pub fn run(&self, place: Place<'_>, program: &Path, args: &[&str]) -> Result<Said> {
        let mut command = self.command(place, program)?;
        self.start(command.args(args))?
            .end(Duration::from_secs(120))
    }

    /// A counter of a process, also after its end.
    ///
    /// # Errors
    /// If it has no file of counters.
    pub fn counter(&self, pid: u32, counter: Counter) -> Result<u64> {
        let counters: [u64; COUNTERS] = stats::read(&self.counters(pid)?);
        counters
            .get(counter as usize)
            .copied()
            .context("no such counter")
    }

    /// How often a process waited for a call, also after its end.
    ///
    /// # Errors
    /// As [`Stage::counter`].
    pub fn waits(&self, pid: u32, call: Op) -> Result<u64> {
        let at = stats::waits_at(call).context("no such call")?;
        let bytes = self.counters(pid)?;
        let waits = bytes.get(stats::SIZE..).unwrap_or_default();
        let word = waits.as_chunks::<8>().0.get(at);
        Ok(u64::from_le_bytes(*word.context("the file is short")?))
    }

    fn counters(&self, pid: u32) -> Result<Vec<u8>> {
        let path = self.path().join("stats").join(pid.to_string());
        std::fs::read(&path).with_context(|| format!("no {}", path.display()))
    }
}

/// Looks again and again until `is` is so; false where it is not by then.
pub fn until(within: Duration, mut is: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is() {
            return true;
        }
        if begun.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
