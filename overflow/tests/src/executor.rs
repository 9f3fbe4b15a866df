//! An executor of one's own, without ghostd.

use crate::{Process, built};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// A listening executor; it ends when dropped, its sessions with their clients.
pub struct Executor {
    process: Process,
    address: String,
}

impl Executor {
    /// Starts one on a free port of the loopback; its output goes to `folder`.
    ///
    /// # Errors
    /// If it is not built or does not listen.
    pub fn start(folder: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(built("ghost-executor")?);
        command.args(["--listen", "127.0.0.1:0"]).args(args);
        let mut process = Process::start(&mut command, folder)?;
        process.says("listening on ")?;
        let out = process.out();
        let address = out
            .lines()
            .find_map(|line| line.strip_prefix("listening on "))
            .context("the executor does not say where it listens")?;
        Ok(Self {
            address: address.trim().to_owned(),
            process,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The processes of its sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<u32> {
        let me = self.process.pid();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(*pid) == Some(me)).collect()
    }
}

/// Whose child a live process is.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}
