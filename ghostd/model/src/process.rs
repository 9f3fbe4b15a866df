//! Which processes belong to a container. A bare pid names nobody for long, so a process is its
//! pid together with the moment at which it started.

use crate::name::Name;
use crate::value::CgroupPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A process for as long as the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcId {
    /// Its pid in ghostd's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks from boot to its start.
    pub start: u64,
}

/// Who was put into one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Attached one by one.
    pub pids: Vec<ProcId>,
    /// By kernel cgroup, with all cgroups below.
    pub cgroups: Vec<CgroupPath>,
}

/// Who was put where, for all containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members(pub BTreeMap<Name, Membership>);

impl Members {
    /// The container of a process, given the path of its cgroup (v2, as `/proc/PID/cgroup` shows
    /// it): the one to which it was attached itself, else that of the deepest cgroup above it,
    /// else [`Name::system`].
    pub fn container_of(&self, process: ProcId, cgroup: Option<&str>) -> Name {
        if let Some((name, _)) = self.0.iter().find(|(_, m)| m.pids.contains(&process)) {
            return name.clone();
        }
        let covering = self.0.iter().flat_map(|(name, m)| {
            let covers = |c: &&CgroupPath| cgroup.is_some_and(|path| c.covers(path));
            m.cgroups
                .iter()
                .filter(covers)
                .map(move |c| (c.as_str().len(), name))
        });
        covering
            .max_by_key(|(depth, _)| *depth)
            .map_or_else(Name::system, |(_, name)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_beats_deepest_cgroup_beats_system() {
        let (a, b): (Name, Name) = ("a".parse().unwrap(), "b".parse().unwrap());
        let p = |pid, start| ProcId { pid, start };
        let m = Members(BTreeMap::from([
            (
                a.clone(),
                Membership {
                    pids: vec![p(7, 1)],
                    cgroups: vec!["/x".parse().unwrap()],
                },
            ),
            (
                b.clone(),
                Membership {
                    pids: vec![],
                    cgroups: vec!["/x/y".parse().unwrap()],
                },
            ),
        ]));
        assert_eq!(m.container_of(p(7, 1), Some("/x/y")), a);
        assert_eq!(
            m.container_of(p(7, 2), Some("/x/y")),
            b,
            "a reused pid is another process"
        );
        assert_eq!(m.container_of(p(8, 1), Some("/x/z")), a);
        assert_eq!(m.container_of(p(8, 1), Some("/xy")), Name::system());
        assert_eq!(m.container_of(p(8, 1), None), Name::system());
    }
}
