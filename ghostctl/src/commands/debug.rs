//! `debug`: ghostd's journal, its replay, and what a bug report needs.

use crate::cli::Debug;
use crate::client::{Client, Target};
use crate::error::Error;
use crate::output;
use serde_json::{Value as Json, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::runtime::Runtime;

/// Lines of the journal in a bundle.
const TAIL: usize = 200;

pub(super) fn debug(client: &Client, runtime: &Runtime, args: Debug) -> Result<(), Error> {
    match args {
        Debug::Journal { state_dir, lines } => journal(&state_dir_of(state_dir), lines),
        Debug::Replay { file } => Err(replay(&file)),
        Debug::Bundle { output, state_dir } => {
            runtime.block_on(bundle(client, &output, &state_dir_of(state_dir)))
        }
    }
}

/// ghostd's own rule, for the daemon of the system and for one of a user.
fn state_dir_of(given: Option<PathBuf>) -> PathBuf {
    let user = || {
        if nix::unistd::Uid::effective().is_root() {
            return None;
        }
        let home = std::env::var_os("HOME").map(|h| Path::new(&h).join(".local/state"));
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let own = state.or(home)?.join("ghost");
        own.exists().then_some(own)
    };
    given
        .or_else(user)
        .unwrap_or_else(|| "/var/lib/ghost".into())
}

/// The journal's files, oldest first.
fn journal_files(state_dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let dir = state_dir.join("journal");
    let entries = fs::read_dir(&dir).map_err(|e| Error::io(dir.display().to_string(), e))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.is_file())
        .collect();
    files.sort();
    Ok(files)
}

fn tail(file: &Path, lines: usize) -> Result<Vec<String>, Error> {
    let text = fs::read(file).map_err(|e| Error::io(file.display().to_string(), e))?;
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    Ok(all.iter().skip(from).map(|l| (*l).to_owned()).collect())
}

fn journal(state_dir: &Path, lines: usize) -> Result<(), Error> {
    for file in journal_files(state_dir)?.iter().rev().take(1) {
        output::line(format!("# {}", file.display()))?;
        tail(file, lines)?.iter().try_for_each(output::line)?;
    }
    Ok(())
}

/// Becomes `ghostd --replay FILE`; returns only if it cannot.
fn replay(file: &Path) -> Error {
    let beside = std::env::current_exe()
        .ok()
        .map(|exe| exe.with_file_name("ghostd"))
        .filter(|ghostd| ghostd.exists());
    let ghostd = beside.unwrap_or_else(|| "ghostd".into());
    let error = Command::new(&ghostd).arg("--replay").arg(file).exec();
    Error::io(
        format!("{}: ghostd is needed to replay a journal", ghostd.display()),
        error,
    )
}

async fn bundle(client: &Client, path: &Path, state_dir: &Path) -> Result<(), Error> {
    let ask = async |path: &str| match client.get(Target::new(path)).await {
        Ok(document) => document,
        Err(e) => json!({ "error": e.to_string() }),
    };
    let containers = match client.containers(None).await {
        Ok(all) => Json::Array(all),
        Err(e) => json!({ "error": e.to_string() }),
    };
    let events = match super::events::kept(client).await {
        Ok(all) => json!(all),
        Err(e) => json!({ "error": e.to_string() }),
    };
    let journal = journal_files(state_dir).and_then(|files| match files.last() {
        Some(file) => tail(file, TAIL),
        None => Ok(Vec::new()),
    });
    let document = json!({
        "ghostctl": env!("CARGO_PKG_VERSION"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").ok(),
        "driver": fs::read_to_string("/proc/driver/nvidia/version").ok(),
        "node": ask("/v1/node").await,
        "containers": containers,
        "events": events,
        "journal": journal.map_or_else(|e| json!({ "error": e.to_string() }), Json::from),
    });
    if path.as_os_str() == "-" {
        return output::document(&document);
    }
    fs::write(path, format!("{document:#}\n"))
        .map_err(|e| Error::io(path.display().to_string(), e))?;
    output::line(format!("{}: written", path.display()))
}
