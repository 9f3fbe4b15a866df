//! What `/proc` and the cgroup tree say of processes. Everything here may be out of date when it
//! is read; a process that is gone gives nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ghost_model::name::sanitize;
use ghost_model::{Members, Name, ProcId};

/// Where cgroup v2 is mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The process that has `pid` now.
pub(crate) fn identify(pid: u32) -> Option<ProcId> {
    let id = ghost_notify::ProcId::of_pid(i32::try_from(pid).ok()?).ok()?;
    Some(ProcId {
        pid,
        start: id.start_ticks,
    })
}

/// The path of a process's cgroup (v2), as [`Members::container_of`] takes it.
pub(crate) fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.to_owned())
}

/// The name of a process, fit for a terminal.
pub(crate) fn command(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(sanitize(String::from_utf8_lossy(&name).trim_end()))
}

/// The members that are alive, those by cgroup included, with their containers.
pub(crate) fn alive(members: &Members) -> BTreeMap<ProcId, Name> {
    let attached = members.0.values().flat_map(|m| &m.pids);
    let mut all: Vec<ProcId> = attached
        .copied()
        .filter(|&id| identify(id.pid) == Some(id))
        .collect();
    for path in members.0.values().flat_map(|m| &m.cgroups) {
        let below = path.as_str().trim_start_matches('/');
        let mut left: Vec<PathBuf> = vec![Path::new(CGROUPS).join(below)];
        while let Some(dir) = left.pop() {
            let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            let pids = procs.lines().filter_map(|pid| pid.parse().ok());
            all.extend(pids.filter_map(identify));
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            left.extend(
                entries
                    .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                    .map(|e| e.path()),
            );
        }
    }
    all.into_iter()
        .map(|id| (id, members.container_of(id, cgroup(id.pid).as_deref())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_model::Membership;

    #[test]
    fn an_attached_process_is_alive_until_its_pid_is_anothers() {
        let own = identify(std::process::id()).unwrap();
        let earlier = ProcId {
            start: own.start - 1,
            ..own
        };
        let name: Name = "a".parse().unwrap();
        let members = |pids| {
            let membership = Membership {
                pids,
                cgroups: vec![],
            };
            Members(BTreeMap::from([(name.clone(), membership)]))
        };
        let now = alive(&members(vec![own]));
        assert_eq!(now, BTreeMap::from([(own, name.clone())]));
        assert!(alive(&members(vec![earlier])).is_empty());
        assert!(!command(own.pid).unwrap().is_empty());
    }
}
