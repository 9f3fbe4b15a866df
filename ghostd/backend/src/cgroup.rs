//! Where a process is in the cgroup v2 tree.
//!
//! `cgroups-rs` is not used: it takes the version of the hierarchy from what is mounted at
//! `/sys/fs/cgroup`, so that on a hybrid host, where v2 is mounted below that, it speaks v1. All
//! that is needed is to read two files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};

/// The most processes that are listed below one cgroup, and the deepest that is looked.
const MAX_PIDS: usize = 100_000;
const MAX_DEPTH: usize = 32;
/// The size of a file that says where a process is, as a rule and at most.
const LIKELY_BYTES: usize = 1024;
const MAX_BYTES: u64 = 1 << 20;

/// The v2 hierarchy of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// Which of its cgroups is mounted there: `/`, but in a cgroup namespace.
    root: String,
}

impl Hierarchy {
    /// The one that is mounted, on hybrid hosts too.
    pub(crate) fn find() -> Option<Self> {
        Self::parse(&fs::read("/proc/self/mountinfo").ok()?)
    }

    /// The one in `/proc/PID/mountinfo`, whose lines are
    /// `ID PARENT MAJ:MIN ROOT MOUNT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`. Others may have
    /// mounted at places whose names are not UTF-8.
    pub fn parse(mountinfo: &[u8]) -> Option<Self> {
        String::from_utf8_lossy(mountinfo).lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let (kind, _) = after.split_once(' ')?;
            let mut fields = before.split(' ').skip(3);
            let (root, mount) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| Self {
                mount: PathBuf::from(unescape(mount)),
                root: unescape(root),
            })
        })
    }

    /// The directory of a cgroup, if it can be seen from here.
    pub(crate) fn directory(&self, path: &str) -> Option<PathBuf> {
        let inside = if self.root == "/" {
            path
        } else {
            path.strip_prefix(self.root.as_str())?
        };
        Some(self.mount.join(inside.trim_start_matches('/')))
    }

    /// The processes in `path` and below, no more than 100,000.
    pub(crate) fn pids_below(&self, path: &str) -> Vec<u32> {
        let mut pids = Vec::new();
        if let Some(directory) = self.directory(path) {
            collect(&directory, MAX_DEPTH, &mut pids);
        }
        pids
    }

    /// The directories of the cgroups that have one of these inode numbers.
    pub(crate) fn with_inodes(&self, inodes: &BTreeSet<u64>) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if !inodes.is_empty() {
            find(&self.mount, MAX_DEPTH, inodes, &mut found);
        }
        found
    }
}

fn find(cgroup: &Path, depth: usize, inodes: &BTreeSet<u64>, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if inodes.contains(&entry.ino()) {
                found.push(entry.path());
            }
            if depth > 0 && found.len() < inodes.len() {
                find(&entry.path(), depth - 1, inodes, found);
            }
        }
    }
}

fn collect(cgroup: &Path, depth: usize, pids: &mut Vec<u32>) {
    let listed = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of another pid namespace.
    let here = listed.lines().filter_map(|line| line.parse::<u32>().ok());
    pids.extend(here.filter(|&pid| pid != 0));
    if depth == 0 || pids.len() >= MAX_PIDS {
        pids.truncate(MAX_PIDS);
        return;
    }
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), depth - 1, pids);
        }
    }
}

/// The path of a process in the v2 hierarchy; `None` if it has exited.
pub(crate) fn path_of(pid: u32) -> Option<String> {
    let file = fs::File::open(format!("/proc/{pid}/cgroup")).ok()?;
    // Its size is not told, and read blindly it would take many calls.
    let mut text = Vec::with_capacity(LIKELY_BYTES);
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    path_in(&text)
}

/// The v2 path in `/proc/PID/cgroup`. A cgroup's name may be any bytes: one that is not UTF-8
/// must not take its processes out of the cgroups above.
pub fn path_in(cgroup: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(cgroup);
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The kernel marks a cgroup that was removed with its processes still dying.
    Some(path.strip_suffix(" (deleted)").unwrap_or(path).to_owned())
}

/// Spaces and the like are octal in mountinfo.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let octal = part.get(..3).and_then(|o| u8::from_str_radix(o, 8).ok());
        match (octal, part.get(3..)) {
            (Some(byte), Some(rest)) if byte.is_ascii() => {
                out.push(char::from(byte));
                out.push_str(rest);
            }
            _ => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_v2_on_pure_and_hybrid_hosts() {
        let pure = "32 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw shared:9 - cgroup2 none rw\n";
        let found = |text: &str| Hierarchy::parse(text.as_bytes()).unwrap();
        assert_eq!(found(pure).mount, Path::new("/sys/fs/cgroup"));
        assert_eq!(found(hybrid).mount, Path::new("/sys/fs/cgroup/uni fied"));
        assert_eq!(
            Hierarchy::parse(b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw"),
            None
        );
    }

    #[test]
    fn the_v2_path_is_the_line_that_begins_with_0() {
        let hybrid = b"9:name=systemd:/x\n4:memory:/y\n0::/team/job\n";
        assert_eq!(path_in(hybrid).as_deref(), Some("/team/job"));
        assert_eq!(path_in(b"0::/a (deleted)\n").as_deref(), Some("/a"));
        assert_eq!(path_in(b"4:memory:/y\n"), None);
    }

    #[test]
    fn names_that_are_not_utf8_hide_nothing() {
        let mounts = b"30 23 0:5 / /home/x/\xff rw - fuse none rw\n\
                       32 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert!(Hierarchy::parse(mounts).is_some());
        let path = path_in(b"0::/team/job/\xff\xfe\n").unwrap();
        let job: ghost_model::value::CgroupPath = "/team/job".parse().unwrap();
        assert!(job.covers(&path));
    }

    proptest! {
        #[test]
        fn no_mountinfo_panics(text: Vec<u8>, word in "[\\\\0-9a-z]{0,9}") {
            let _ = Hierarchy::parse(&text);
            let _ = unescape(&word);
        }
    }
}
