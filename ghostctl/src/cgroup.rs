//! The kernel cgroup that `run` gives to a program where systemd gives none.
//!
//! This is not done with cgroups-rs: on a hybrid host, where cgroup v2 is mounted beside v1
//! (`/sys/fs/cgroup/unified`), it takes the v1 tree for the only one. What is needed here is one
//! directory and one write.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ghost_model::Name;

/// Where cgroup v2 is mounted, also on hybrid hosts; `None` if it is not.
pub fn mount() -> Option<PathBuf> {
    mount_in(&fs::read("/proc/self/mountinfo").ok()?)
}

/// The cgroup v2 path of this process, below the mount; `None` on hosts without cgroup v2.
pub fn own() -> Option<String> {
    own_in(&fs::read("/proc/self/cgroup").ok()?)
}

/// As [`mount`], from `/proc/self/mountinfo`. A line of `mountinfo` is `ID PARENT DEV ROOT POINT OPTIONS [FIELD]... - TYPE SOURCE OPTIONS`
/// (proc_pid_mountinfo(5)). Others may have mounted at places whose names are not UTF-8.
pub fn mount_in(mountinfo: &[u8]) -> Option<PathBuf> {
    String::from_utf8_lossy(mountinfo).lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let is_v2 = filesystem.split(' ').next() == Some("cgroup2");
        is_v2.then(|| unescape(mount.split(' ').nth(4)?))?
    })
}

/// Spaces and the like stand as `\040` in `mountinfo`.
fn unescape(text: &str) -> Option<PathBuf> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out += before;
        let octal = after.get(..3)?;
        out.push(char::from(u8::from_str_radix(octal, 8).ok()?));
        rest = after.get(3..)?;
    }
    Some(PathBuf::from(out + rest))
}

/// As [`own`], from `/proc/self/cgroup`. A cgroup's name may be any bytes.
pub fn own_in(cgroup: &[u8]) -> Option<String> {
    String::from_utf8_lossy(cgroup)
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

/// Moves this process into the cgroup at `dir`.
///
/// # Errors
/// What the kernel says.
pub fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), "0")
}

/// A cgroup made for one run of one program.
#[derive(Debug)]
pub struct Made {
    top: PathBuf,
    dir: PathBuf,
}

impl Made {
    /// Makes `ghost/NAME/run-PID` below `mount`.
    ///
    /// # Errors
    /// What the kernel says, if this process may not.
    pub fn new(mount: &Path, name: &Name, pid: u32) -> io::Result<Made> {
        let top = mount.join("ghost");
        let dir = top.join(name.as_str()).join(format!("run-{pid}"));
        let made = Made { top, dir };
        made.sweep();
        // The directory may be ours and its processes not: then the cgroup was not delegated.
        let may = || {
            fs::create_dir_all(&made.dir)?;
            fs::OpenOptions::new()
                .write(true)
                .open(made.dir.join("cgroup.procs"))
        };
        may().inspect_err(|_| made.remove())?;
        Ok(made)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes what runs left behind whose program outlived them: their cgroups are empty now.
    fn sweep(&self) {
        let siblings = self.dir.parent().and_then(|d| fs::read_dir(d).ok());
        for entry in siblings.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|n| n.strip_prefix("run-"));
            // One whose `run` still lives may be empty because nobody has joined it yet.
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove_tree(&entry.path());
            }
        }
    }

    /// Removes it, what the program made below it, and the directories above it that only it
    /// needed. What still has processes stays.
    pub fn remove(&self) {
        remove_tree(&self.dir);
        for above in self.dir.ancestors().skip(1) {
            if !above.starts_with(&self.top) {
                break;
            }
            let _ = fs::remove_dir(above);
        }
    }
}

fn remove_tree(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // A cgroup with processes refuses, and is right.
    let _ = fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 30 0:23 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:25 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,name=systemd
";

    #[test]
    fn finds_v2_on_hybrid_unified_and_odd_hosts() {
        assert_eq!(
            mount_in(HYBRID.as_bytes()),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        let unified = "26 25 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            mount_in(unified.as_bytes()),
            Some(PathBuf::from("/sys/fs/cgroup"))
        );
        let space = "26 25 0:24 / /mnt/a\\040b rw - cgroup2 none rw\n";
        assert_eq!(mount_in(space.as_bytes()), Some(PathBuf::from("/mnt/a b")));
        for none in [
            "",
            "garbage",
            "27 25 0:25 / /c rw - cgroup cgroup rw",
            "1 2 3 - cgroup2",
            "26 25 0:24 / /mnt/\\0 rw - cgroup2 none rw",
            "26 25 0:24 / /mnt/\\0é9 rw - cgroup2 none rw",
        ] {
            assert_eq!(mount_in(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn own_is_the_v2_line() {
        let hybrid = b"12:pids:/user.slice\n1:name=systemd:/x\n0::/user.slice/run.scope\n";
        assert_eq!(own_in(hybrid), Some("/user.slice/run.scope".into()));
        let odd = own_in(b"0::/job/\xff\n");
        assert_eq!(odd, Some("/job/\u{fffd}".into()));
        assert_eq!(own_in(b"12:pids:/\n"), None);
    }

    #[test]
    fn what_is_made_goes_and_leaves_what_others_use() {
        // A plain directory lacks `cgroup.procs`, so that one is put there first.
        let mount = tempfile::tempdir().unwrap();
        let name: Name = "team/job".parse().unwrap();
        assert!(Made::new(mount.path(), &name, 7).is_err());
        assert!(!mount.path().join("ghost").exists());

        let dir = mount.path().join("ghost/team/job/run-7");
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir_all(mount.path().join("ghost/team/other")).unwrap();
        fs::write(dir.join("cgroup.procs"), "").unwrap();
        // No pid is that large.
        let left = mount.path().join("ghost/team/job/run-4194305");
        fs::create_dir(&left).unwrap();
        let made = Made::new(mount.path(), &name, 7).unwrap();
        fs::remove_file(dir.join("cgroup.procs")).unwrap();
        assert!(!left.exists());
        fs::create_dir(dir.join("below")).unwrap();
        made.remove();
        assert!(!mount.path().join("ghost/team/job").exists());
        assert!(mount.path().join("ghost/team/other").exists());
    }
}
