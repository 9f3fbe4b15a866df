//! The directory of container files. A file that cannot be read or understood is named, and what
//! it said when it was last good stays in force.

use crate::store::{SavedDeclared, SavedFile};
use ghost_model::{GpuInfo, Name, config};
use nix::unistd::User;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// No container file is larger.
const MOST: u64 = 1 << 20;

/// Good files by path, and what is wrong with the others, a sentence each.
pub(super) type Scan = (BTreeMap<String, SavedFile>, Vec<String>);

/// Reads `*.toml` in `directory`. `last` is what was in force until now.
pub(super) fn scan(directory: &Path, last: &BTreeMap<String, SavedFile>, gpus: &[GpuInfo]) -> Scan {
    let mut notes = Vec::new();
    let paths = match list(directory) {
        Ok(paths) => paths,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Scan::default(),
        Err(e) => {
            notes.push(format!(
                "{}: {e}: the container files read before stay in force",
                directory.display()
            ));
            return (last.clone(), notes);
        }
    };
    let mut good: BTreeMap<String, SavedFile> = BTreeMap::new();
    for path in paths {
        let shown = ghost_model::name::sanitize(&path.display().to_string());
        let read = read(&path, gpus).and_then(|(file, mut more)| {
            if let Some((name, other)) = claimed(&good, &file) {
                return Err(format!(
                    "container {name} is declared in {other} too: remove it from one of them"
                ));
            }
            notes.append(&mut more);
            Ok(file)
        });
        match read {
            Ok(file) => {
                good.insert(shown, file);
            }
            Err(why) => {
                let mut before = last.get(&shown).cloned();
                if let Some(before) = &mut before {
                    before
                        .containers
                        .retain(|name, _| good.values().all(|f| !f.containers.contains_key(name)));
                }
                notes.push(match &before {
                    Some(_) => format!("{shown}: {why}; what it said before stays in force"),
                    None => format!("{shown}: {why}; nothing of it is in force"),
                });
                good.extend(before.map(|file| (shown, file)));
            }
        }
    }
    (good, notes)
}

fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path, gpus: &[GpuInfo]) -> Result<(SavedFile, Vec<String>), String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("is not a file".into());
    }
    if meta.len() > MOST {
        return Err(format!("is larger than {MOST} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let mut out = SavedFile::default();
    let mut notes = Vec::new();
    for (name, declared) in config::parse(&text).map_err(|p| p.detail)? {
        if let Some(text) = declared.labels.get(OWNER) {
            owner(text).map_err(|e| format!("{name}: label.{OWNER}: {e}"))?;
        }
        if name.is_system() && declared.spec.cgroup().is_some() {
            return Err("system: ghost.cgroup: it holds what belongs to no other container".into());
        }
        // A GPU may be out for repair; what is asked for it waits until it is back.
        let spec = declared.spec.resolved(gpus).unwrap_or_else(|e| {
            notes.push(format!("{}: {name}: {e}", path.display()));
            declared.spec.clone()
        });
        let labels = declared.labels;
        out.containers.insert(name, SavedDeclared { spec, labels });
    }
    Ok((out, notes))
}

fn claimed<'a>(
    good: &'a BTreeMap<String, SavedFile>,
    file: &'a SavedFile,
) -> Option<(&'a Name, &'a str)> {
    good.iter().find_map(|(path, other)| {
        let name = file
            .containers
            .keys()
            .find(|n| other.containers.contains_key(*n))?;
        Some((name, path.as_str()))
    })
}

/// The label that gives a container of a file its owner.
pub(super) const OWNER: &str = "owner";

/// The user that an owner label names: a number or a name.
pub(super) fn owner(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let quoted = ghost_model::name::sanitize(text);
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("no user {quoted:?} on this host")),
        Err(e) => Err(format!("user {quoted:?}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_keeps_what_was_good_and_two_files_may_not_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.toml", "[container.x]\ngpu.weight = 200\n");
        write(
            "b.toml",
            "[container.y]\ngpu.weight = 300\nlabel.owner = \"7\"\n",
        );
        write(".hidden.toml", "rubbish");
        write("note.txt", "rubbish");
        let (first, notes) = scan(dir.path(), &BTreeMap::new(), &[]);
        assert_eq!(notes, [""; 0]);
        assert_eq!(first.len(), 2);

        write("a.toml", "[container.x]\ngpu.wieght = 200\n");
        let (second, notes) = scan(dir.path(), &first, &[]);
        assert_eq!(second, first);
        assert!(
            notes[0].contains("a.toml") && notes[0].contains("gpu.wieght"),
            "{notes:?}"
        );

        write("a.toml", "[container.y]\ngpu.weight = 1\n");
        let (third, notes) = scan(dir.path(), &first, &[]);
        assert!(
            notes[0].contains("a.toml") && notes[0].contains("b.toml"),
            "{notes:?}"
        );
        let names = |s: &BTreeMap<String, SavedFile>| -> Vec<String> {
            let all = s.values().flat_map(|f| f.containers.keys());
            all.map(Name::to_string).collect()
        };
        assert_eq!(
            names(&third),
            ["y"],
            "a.toml's is in force, b.toml gave it up"
        );

        std::fs::remove_file(dir.path().join("a.toml")).unwrap();
        let (fourth, _) = scan(dir.path(), &third, &[]);
        assert_eq!(names(&fourth), ["y"]);
        assert_eq!(
            scan(&dir.path().join("none"), &fourth, &[]),
            Scan::default()
        );
    }

    #[test]
    fn unknown_owners_and_gpus_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("a.toml"),
            "[container.x]\nlabel.owner = \"no-such-user-here\"\n",
        )
        .unwrap();
        std::fs::write(
            dir.path().join("b.toml"),
            "[container.y.device.\"GPU-aaaa\"]\ngpu.weight = 5\n",
        )
        .unwrap();
        let (good, notes) = scan(dir.path(), &BTreeMap::new(), &[]);
        assert_eq!(good.len(), 1);
        assert!(
            notes.iter().any(|n| n.contains("no-such-user-here")),
            "{notes:?}"
        );
        assert!(notes.iter().any(|n| n.contains("GPU-aaaa")), "{notes:?}");
    }
}
