//! Who is in which container, and who may change that.

use super::draft::{Draft, missing};
use super::entry::Entry;
use ghost_model::value::CgroupPath;
use ghost_model::{Kind, Members, Name, Problem, ProcId};
use std::sync::Arc;

impl Draft<'_> {
    pub(super) fn attach(
        &mut self,
        name: &Name,
        pids: &[u32],
        cgroups: Vec<CgroupPath>,
    ) -> Result<(), Problem> {
        let entry = self.entries.get(name).ok_or_else(|| missing(name))?;
        if name.is_system() {
            return Err(Problem::new(
                Kind::Invalid,
                "nobody is put into system: it holds what belongs to no other container",
            ));
        }
        let admin = self.caller.admin;
        if !admin && entry.owner != self.caller.uid {
            self.caller.administers(&format!(
                "attach to {name}, which user {} owns",
                entry.owner
            ))?;
        }
        let members = self.members();
        let mut found: Vec<ProcId> = Vec::new();
        for pid in pids {
            let seen = self.proc.find(*pid).ok_or_else(|| {
                Problem::new(
                    Kind::NotFound,
                    format!("no process {pid}: it is not there, or it ended"),
                )
            })?;
            if !admin {
                if seen.uid != self.caller.uid {
                    self.caller.administers(&format!(
                        "attach process {pid}, which is user {}'s",
                        seen.uid
                    ))?;
                }
                let cgroup = self.proc.cgroup_of(*pid);
                let now = members.container_of(seen.id, cgroup.as_deref());
                self.may_leave(&now, &format!("process {pid}"))?;
            }
            if !found.contains(&seen.id) {
                found.push(seen.id);
            }
        }
        for path in &cgroups {
            let shown = path.as_str();
            let Some(owner) = self.proc.cgroup_owner(path) else {
                let why = if self.proc.has_cgroups() {
                    Problem::new(Kind::NotFound, format!("no cgroup {shown:?} on this host"))
                } else {
                    Problem::new(
                        Kind::Unsupported,
                        format!("cgroup {shown:?}: no cgroup v2 is mounted on this host"),
                    )
                };
                return Err(why);
            };
            if !admin {
                if owner != self.caller.uid {
                    self.caller.administers(&format!(
                        "attach cgroup {shown:?}, which user {owner} owns"
                    ))?;
                }
                let nobody = ProcId { pid: 0, start: 0 };
                let now = members.container_of(nobody, Some(shown));
                self.may_leave(&now, &format!("cgroup {shown:?}"))?;
            }
            let by_rule = self
                .entries
                .values()
                .find(|e| e.name != *name && e.spec().cgroup() == Some(path));
            if let Some(other) = by_rule {
                return Err(Problem::new(
                    Kind::Conflict,
                    format!("cgroup {shown:?} is the ghost.cgroup of {}", other.name),
                )
                .hint(format!("ghostctl limit {} ghost.cgroup=", other.name)));
            }
        }
        for (other, entry) in &mut self.entries {
            let leaves = |e: &Entry| {
                e.pids.iter().any(|p| found.contains(p))
                    || e.cgroups.iter().any(|c| cgroups.contains(c))
            };
            if other == name || leaves(entry) {
                let entry = Arc::make_mut(entry);
                entry.pids.retain(|p| !found.contains(p));
                entry.cgroups.retain(|c| !cgroups.contains(c));
            }
        }
        let entry = self.get_mut(name)?;
        entry.pids.extend(found);
        entry.cgroups.extend(cgroups);
        Ok(())
    }

    pub(super) fn join(
        &mut self,
        name: &Name,
        pid: Option<u32>,
        runtime: u32,
    ) -> Result<(), Problem> {
        let Some(id) = pid.and_then(|pid| self.proc.find(pid)).map(|seen| seen.id) else {
            return self.attach(name, &[], Vec::new());
        };
        let cgroup = self.proc.cgroup_of(id.pid);
        if self.members().container_of(id, cgroup.as_deref()) == *name {
            return self.attach(name, &[], Vec::new());
        }
        // Runtimes can be told to make no cgroup; and what lies outside of ghostd's cgroup
        // namespace has no name here.
        let shared = |path: &String| self.proc.cgroup_of(runtime).as_ref() == Some(path);
        let own = cgroup.filter(|path| path != "/" && !path.starts_with("/..") && !shared(path));
        match own.and_then(|path| path.parse().ok()) {
            Some(path) => self.attach(name, &[], vec![path]),
            None => self.attach(name, &[id.pid], Vec::new()),
        }
    }

    /// Whether the caller, who does not administer, may take something out of a container.
    fn may_leave(&self, now: &Name, what: &str) -> Result<(), Problem> {
        let owner = self.entries.get(now).map(|e| e.owner);
        if now.is_system() || owner == Some(self.caller.uid) {
            return Ok(());
        }
        self.caller
            .administers(&format!("take {what} out of {now}"))
    }

    fn members(&self) -> Members {
        let all = self.entries.values().filter(|e| !e.name.is_system());
        Members(all.map(|e| (e.name.clone(), e.membership())).collect())
    }
}
