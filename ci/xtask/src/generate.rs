//! Files that are made from the code: man pages, completions, the key table of the documents, the
//! bindings of the kernel module's header.
//! They are checked in, and `--check` (which CI runs) fails where one is not what it would be.

mod bindings;
mod keys;
mod pages;

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Directories in which nothing is written by hand.
const OWNED: [&str; 2] = ["docs/man", "docs/completions"];
const SHELLS: [(&str, &str); 3] = [
    ("bash", "ghostctl.bash"),
    ("zsh", "_ghostctl"),
    ("fish", "ghostctl.fish"),
];

/// Writes the files, or with `check` compares them.
pub fn run(check: bool) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("xtask is not in the workspace")?;
    let files = files(root)?;
    let stale = stale(root, &files)?;
    if check {
        let wrong: Vec<String> = files
            .iter()
            .filter(|(path, text)| fs::read_to_string(root.join(path)).ok().as_ref() != Some(text))
            .map(|(path, _)| path)
            .chain(&stale)
            .map(|p| p.display().to_string())
            .collect();
        if !wrong.is_empty() {
            bail!(
                "not as the code would have it: {}\nhint: `cargo run -p xtask -- gen`",
                wrong.join(", ")
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    for path in stale {
        fs::remove_file(root.join(&path)).with_context(|| path.display().to_string())?;
    }
    for (path, text) in files {
        let to = root.join(&path);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::write(to, text).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Each file by its path below the root.
fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for (name, text) in pages::all()? {
        files.insert(Path::new("docs/man").join(name), text);
    }
    for (shell, name) in SHELLS {
        let script = ghostctl::complete::script(shell)?;
        files.insert(Path::new("docs/completions").join(name), script);
    }
    let interface = PathBuf::from("docs/interface.md");
    let text = fs::read_to_string(root.join(&interface)).context("docs/interface.md")?;
    files.insert(interface, keys::fill_in(&text)?);
    files.insert(PathBuf::from(bindings::FILE), bindings::text(root)?);
    Ok(files)
}

/// Files in our directories that nothing makes any more.
fn stale(root: &Path, files: &BTreeMap<PathBuf, String>) -> Result<BTreeSet<PathBuf>> {
    let mut stale = BTreeSet::new();
    for dir in OWNED {
        let Ok(entries) = fs::read_dir(root.join(dir)) else {
            continue;
        };
        for entry in entries {
            let path = Path::new(dir).join(entry?.file_name());
            if !files.contains_key(&path) {
                stale.insert(path);
            }
        }
    }
    Ok(stale)
}
