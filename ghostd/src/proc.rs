//! What `/proc` and the cgroup v2 mount say of processes and their owners.

use ghost_model::ProcId;
use ghost_model::name::sanitize;
use ghost_model::value::CgroupPath;
use std::path::{Path, PathBuf};

/// A process that is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Pid and start.
    pub id: ProcId,
    /// Effective user.
    pub uid: u32,
    /// Its name, made fit for a terminal.
    pub command: String,
}

/// Where ghostd reads processes and cgroups; tests put their own roots here.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
    cgroups: Option<PathBuf>,
}

impl Proc {
    /// This host's.
    pub fn host() -> Self {
        let root = PathBuf::from("/proc");
        let cgroups = read(&root.join("self/mountinfo")).and_then(|text| cgroup2_mount(&text));
        Proc { root, cgroups }
    }

    /// The process with this pid, unless it is gone or a zombie.
    pub fn find(&self, pid: u32) -> Option<Seen> {
        let (id, command) = self.stat(pid)?;
        let status = read(&self.file(pid, "status"))?;
        let uid = status
            .lines()
            .find_map(|l| l.strip_prefix("Uid:"))?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()?;
        // The pid may have gone to another process between the two readings.
        (self.stat(pid)?.0 == id).then_some(Seen { id, uid, command })
    }

    /// Whether it still runs.
    pub fn is_alive(&self, process: ProcId) -> bool {
        self.stat(process.pid).is_some_and(|(id, _)| id == process)
    }

    /// Whether a process with this pid runs.
    pub fn is_there(&self, pid: u32) -> bool {
        self.stat(pid).is_some()
    }

    /// The path of its cgroup, below the cgroup v2 mount.
    pub fn cgroup_of(&self, pid: u32) -> Option<String> {
        let text = read(&self.file(pid, "cgroup"))?;
        let path = text.lines().find_map(|l| l.strip_prefix("0::"))?;
        Some(path.to_owned())
    }

    /// Whether this host has a cgroup v2 mount.
    pub fn has_cgroups(&self) -> bool {
        self.cgroups.is_some()
    }

    /// Changes with each boot.
    ///
    /// # Errors
    /// No `/proc` is mounted.
    pub fn boot_id(&self) -> std::io::Result<String> {
        self.random("boot_id")
    }

    /// A text that is given out once.
    ///
    /// # Errors
    /// No `/proc` is mounted.
    pub fn new_uid(&self) -> std::io::Result<String> {
        self.random("uuid")
    }

    fn random(&self, name: &str) -> std::io::Result<String> {
        let path = self.root.join("sys/kernel/random").join(name);
        std::fs::read_to_string(path).map(|s| s.trim().to_owned())
    }

    /// The user to whom a cgroup is delegated: `None` where it does not exist, or no cgroup v2 is
    /// mounted.
    pub fn cgroup_owner(&self, path: &CgroupPath) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        let mount = self.cgroups.as_ref()?;
        let directory = mount.join(path.as_str().trim_start_matches('/'));
        std::fs::metadata(directory)
            .ok()
            .filter(std::fs::Metadata::is_dir)
            .map(|m| m.uid())
    }

    fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    fn stat(&self, pid: u32) -> Option<(ProcId, String)> {
        parse_stat(&read(&self.file(pid, "stat"))?)
            .map(|(start, command)| (ProcId { pid, start }, command))
    }
}

/// Names of programs, cgroups and mount points are any bytes that a tenant likes.
fn read(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Start time and command of a process that runs, from its `stat`. The command may hold spaces
/// and parentheses, so fields are counted from the last one.
fn parse_stat(stat: &str) -> Option<(u64, String)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, command) = head.split_once('(')?;
    let mut fields = tail.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // The state was field 3.
    let start = fields.nth(22 - 3 - 1)?.parse().ok()?;
    Some((start, sanitize(command)))
}

fn cgroup2_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let is_cgroup2 = source.split(' ').next() == Some("cgroup2");
        let point = mount.split(' ').nth(4)?;
        is_cgroup2.then(|| Path::new(point).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_itself_and_not_the_absent() {
        let proc = Proc::host();
        let me = proc.find(std::process::id()).unwrap();
        assert_eq!(me.uid, nix::unistd::geteuid().as_raw());
        assert!(proc.is_alive(me.id));
        assert!(!proc.is_alive(ProcId {
            start: me.id.start + 1,
            ..me.id
        }));
        assert!(proc.is_there(me.id.pid));
        assert!(!proc.is_there(u32::MAX));
        assert_eq!(proc.find(0), None);
        assert_eq!(proc.find(u32::MAX), None);
    }

    #[test]
    fn names_that_are_not_utf8_hide_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("7");
        std::fs::create_dir(&dir).unwrap();
        let stat = b"7 (\xff) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        let status = b"Name:\t\xff\nUid:\t1000\t1001\t1000\t1000\n";
        for (name, bytes) in [
            ("stat", &stat[..]),
            ("status", status),
            ("cgroup", b"0::/team/job/\xff\n"),
        ] {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        let proc = Proc {
            root: root.path().to_owned(),
            cgroups: None,
        };
        assert_eq!(proc.find(7).map(|seen| seen.uid), Some(1001));
        assert_eq!(proc.cgroup_of(7).as_deref(), Some("/team/job/\u{fffd}"));
    }

    #[test]
    fn commands_with_parentheses_and_zombies() {
        let line = |state| {
            format!("7 (a) b (c)) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21")
        };
        assert_eq!(parse_stat(&line("S")), Some((4242, "a) b (c)".into())));
        assert_eq!(parse_stat(&line("Z")), None);
    }

    #[test]
    fn the_v2_mount_is_found_on_a_hybrid_host() {
        let text = "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                    31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n\
                    32 30 0:28 / /sys/fs/cgroup/cpu rw shared:6 - cgroup cgroup rw,cpu\n";
        assert_eq!(cgroup2_mount(text), Some("/sys/fs/cgroup/unified".into()));
    }

    proptest! {
        #[test]
        fn no_text_panics(s in ".*") {
            let _ = parse_stat(&s);
            let _ = cgroup2_mount(&s);
        }
    }
}
