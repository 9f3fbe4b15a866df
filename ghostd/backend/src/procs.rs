//! What `/proc` and the cgroup tree say of processes. Everything here may be out of date when it
//! is read; a process that is gone gives nothing.

use std::collections::BTreeMap;
use std::fs;

use ghost_model::name::sanitize;
use ghost_model::report::Process;
use ghost_model::{Members, Name, ProcId};

use crate::cgroup::{self, Hierarchy};

/// The process that has `pid` now.
pub(crate) fn identify(pid: u32) -> Option<ProcId> {
    let id = ghost_notify::ProcId::of_pid(i32::try_from(pid).ok()?).ok()?;
    Some(ProcId {
        pid,
        start: id.start_ticks,
    })
}

/// The name of a process, fit for a terminal.
pub(crate) fn command(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(sanitize(String::from_utf8_lossy(&name).trim_end()))
}

/// The members that are alive, those by cgroup included, with their containers; without those
/// whose pid `is_known`.
pub(crate) fn alive(members: &Members, is_known: impl Fn(u32) -> bool) -> BTreeMap<ProcId, Name> {
    let attached = members.0.values().flat_map(|m| &m.pids);
    let mut all: Vec<ProcId> = attached
        .copied()
        .filter(|&id| !is_known(id.pid) && identify(id.pid) == Some(id))
        .collect();
    let cgroups = members.0.values().flat_map(|m| &m.cgroups);
    if let Some(hierarchy) = Hierarchy::find() {
        let pids = cgroups.flat_map(|path| hierarchy.pids_below(path.as_str()));
        all.extend(pids.filter(|&pid| !is_known(pid)).filter_map(identify));
    }
    all.into_iter()
        .map(|id| {
            (
                id,
                members.container_of(id, cgroup::path_of(id.pid).as_deref()),
            )
        })
        .collect()
}

/// A process that uses no GPU, as far as is known.
pub(crate) fn without_gpu(pid: u32, container: Name) -> Process {
    Process {
        pid,
        command: command(pid).unwrap_or_default(),
        container,
        groups: BTreeMap::new(),
        memory: BTreeMap::new(),
        refused: None,
    }
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
        let now = alive(&members(vec![own]), |_| false);
        assert_eq!(now, BTreeMap::from([(own, name.clone())]));
        assert!(alive(&members(vec![own]), |pid| pid == own.pid).is_empty());
        assert!(alive(&members(vec![earlier]), |_| false).is_empty());
        assert!(!command(own.pid).unwrap().is_empty());
    }
}
