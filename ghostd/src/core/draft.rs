//! What each request makes of a draft of the state. A draft is thrown away unless all of the
//! request is legal and was made durable.

use super::entry::{Entry, FileLayer};
use super::requests::{Declaration, IfMatch, Patch, Refused, Request};
use super::{Entries, files};
use crate::caller::{Caller, only_lowers};
use crate::control::Observed;
use crate::proc::Proc;
use crate::store::SavedFile;
use ghost_model::name::sanitize;
use ghost_model::{Key, Kind, Name, Problem, Spec};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a request did to a draft.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub touched: Vec<Name>,
    pub created: bool,
    pub dry_run: bool,
}

/// The state as it would be.
pub(super) struct Draft<'a> {
    pub entries: Entries,
    pub files: BTreeMap<String, SavedFile>,
    pub caller: Caller,
    pub observed: &'a Observed,
    pub proc: &'a Proc,
    pub directory: &'a Path,
    pub notes: Vec<String>,
}

impl Draft<'_> {
    pub(super) fn apply(&mut self, request: Request) -> Result<Done, Refused> {
        let mut done = Done::default();
        match request {
            Request::Create(declaration) => {
                done.touched = vec![declaration.name.clone()];
                done.created = true;
                self.create(declaration)?;
            }
            Request::Replace {
                declaration,
                if_match,
                dry_run,
            } => {
                self.check(&declaration.name, if_match)?;
                done.touched = vec![declaration.name.clone()];
                done.dry_run = dry_run;
                done.created = self.replace(declaration)?;
            }
            Request::Patch {
                name,
                patch,
                if_match,
                runtime,
                dry_run,
            } => {
                self.check(&name, if_match)?;
                self.patch(&name, &patch, runtime)?;
                done.touched = vec![name];
                done.dry_run = dry_run;
            }
            Request::Revert { name, if_match } => {
                self.check(&name, if_match)?;
                self.change(&name, |entry| {
                    entry.over = Spec::default();
                    entry.runtime = Spec::default();
                    Ok(())
                })?;
                done.touched = vec![name];
            }
            Request::Delete {
                name,
                force,
                if_match,
            } => {
                self.check(&name, if_match)?;
                self.delete(&name, force)?;
            }
            Request::Attach {
                name,
                pids,
                cgroups,
            } => {
                self.attach(&name, &pids, cgroups)?;
                done.touched = vec![name];
            }
            Request::Join { name, pid, runtime } => {
                self.join(&name, pid, runtime)?;
                done.touched = vec![name];
            }
            Request::Detach { name, pid } => {
                self.caller
                    .administers("take processes out of a container")?;
                let entry = self.get_mut(&name)?;
                let before = entry.pids.len();
                entry.pids.retain(|p| p.pid != pid);
                if entry.pids.len() == before {
                    return Err(Problem::new(
                        Kind::NotFound,
                        format!("process {pid} was not attached to {name} by pid"),
                    )
                    .into());
                }
                done.touched = vec![name];
            }
            Request::Apply {
                containers,
                prune,
                dry_run,
            } => {
                self.caller.administers("apply a set of containers")?;
                done.touched = self.apply_all(containers, prune)?;
                done.dry_run = dry_run;
            }
            Request::Reload => {
                self.caller.administers("reload the container files")?;
                self.reload()?;
            }
        }
        Ok(done)
    }

    pub(super) fn get_mut(&mut self, name: &Name) -> Result<&mut Entry, Problem> {
        match self.entries.get_mut(name) {
            Some(entry) => Ok(Arc::make_mut(entry)),
            None => Err(missing(name)),
        }
    }

    fn check(&self, name: &Name, if_match: Option<IfMatch>) -> Result<(), Refused> {
        let Some(wanted) = if_match else {
            return Ok(());
        };
        let found = self.entries.get(name).map(|e| e.generation);
        let holds = match wanted {
            IfMatch::Any => found.is_some(),
            IfMatch::Generation(g) => found == Some(g),
        };
        if holds {
            return Ok(());
        }
        let is = found.map_or("does not exist".to_owned(), |g| {
            format!("is at generation {g}")
        });
        Err(Refused::Stale(
            Problem::new(
                Kind::Conflict,
                format!("{name} {is}, not as If-Match says: it changed meanwhile"),
            )
            .hint(format!("ghostctl status {name}")),
        ))
    }

    /// Parses a whole spec, with every GPU by its UUID.
    fn spec(&self, name: &Name, json: &Json) -> Result<Spec, Problem> {
        let mut spec = Spec::default();
        spec.merge_json(json).map_err(|p| p.of(name))?;
        self.resolve(name, &spec)
    }

    fn resolve(&self, name: &Name, spec: &Spec) -> Result<Spec, Problem> {
        spec.resolved(&self.observed.gpus)
            .map_err(|e| Problem::new(Kind::NotFound, format!("{name}: {e}")))
    }

    fn create(&mut self, declaration: Declaration) -> Result<(), Problem> {
        self.caller.administers("create containers")?;
        let name = declaration.name;
        if self.entries.contains_key(&name) {
            return Err(Problem::new(Kind::Exists, format!("{name} exists already"))
                .hint(format!("ghostctl status {name}")));
        }
        self.has_parent(&name)?;
        check_labels(declaration.labels.iter())?;
        let uid = self.proc.new_uid().map_err(|e| {
            Problem::new(Kind::Unavailable, format!("no unique id for {name}: {e}"))
        })?;
        let owner = declaration.owner.unwrap_or(self.caller.uid);
        let mut entry = Entry::new(name.clone(), uid, owner);
        entry.over = self.spec(&name, &declaration.spec)?;
        entry.labels = declaration.labels;
        self.check_cgroup(&entry)?;
        self.entries.insert(name, Arc::new(entry));
        Ok(())
    }

    fn has_parent(&self, name: &Name) -> Result<(), Problem> {
        match name.parent() {
            Some(parent) if !self.entries.contains_key(&parent) => Err(Problem::new(
                Kind::NotFound,
                format!("{name}: there is no container {parent} above it"),
            )
            .hint(format!("ghostctl create {parent}"))),
            Some(parent) if parent.is_system() => Err(Problem::new(
                Kind::Invalid,
                format!("{name}: {parent} holds what belongs to no container, and has none below"),
            )),
            _ => Ok(()),
        }
    }

    /// Gives whether it was made.
    fn replace(&mut self, declaration: Declaration) -> Result<bool, Problem> {
        if !self.entries.contains_key(&declaration.name) {
            return self.create(declaration).map(|()| true);
        }
        let name = declaration.name;
        check_labels(declaration.labels.iter())?;
        let wanted = self.spec(&name, &declaration.spec)?;
        self.change(&name, |entry| {
            entry.want(&wanted, &wanted)?;
            let of_file = file_labels(entry);
            if let Some(key) = of_file
                .keys()
                .find(|k| !declaration.labels.contains_key(*k))
            {
                return Err(label_of_file(entry, key));
            }
            entry.labels = declaration.labels;
            entry.labels.retain(|k, v| of_file.get(k) != Some(v));
            entry.owner = declaration.owner.unwrap_or(entry.owner);
            Ok(())
        })?;
        Ok(false)
    }

    fn patch(&mut self, name: &Name, patch: &Patch, runtime: bool) -> Result<(), Problem> {
        check_labels(
            patch
                .labels
                .iter()
                .filter_map(|(k, v)| Some((k, v.as_ref()?))),
        )?;
        let old = self.entries.get(name).ok_or_else(|| missing(name))?;
        let mut lasting = old.lasting();
        let mut visible = old.spec();
        if let Some(json) = &patch.spec {
            for spec in [&mut lasting, &mut visible] {
                spec.merge_json(json).map_err(|p| p.of(name))?;
            }
            lasting = self.merged(name, &lasting, &old.lasting())?;
            visible = self.merged(name, &visible, &old.spec())?;
        }
        self.change(name, |entry| {
            if runtime {
                entry.want_for_now(&visible)?;
            } else {
                entry.want(&lasting, &visible)?;
            }
            for (key, value) in &patch.labels {
                match value {
                    Some(value) => {
                        entry.labels.insert(key.clone(), value.clone());
                    }
                    None if file_labels(entry).contains_key(key) => {
                        return Err(label_of_file(entry, key));
                    }
                    None => {
                        entry.labels.remove(key);
                    }
                }
            }
            entry.owner = patch.owner.unwrap_or(entry.owner);
            Ok(())
        })
    }

    /// A spec after a patch, in which a GPU may be written short: the UUIDs of `old` are whole
    /// already, also those of GPUs that are away, and give way to what the patch says.
    fn merged(&self, name: &Name, new: &Spec, old: &Spec) -> Result<Spec, Problem> {
        let mut kept = Spec::default();
        let mut given = Spec::default();
        for (key, gpu, value) in new.iter() {
            let same = old.get(key, gpu) == Some(value);
            let into = if same { &mut kept } else { &mut given };
            into.set(key, gpu.cloned(), value.clone())?;
        }
        Ok(kept.overlaid(&self.resolve(name, &given)?))
    }

    /// Changes what is asked for one container, if its caller may.
    fn change(
        &mut self,
        name: &Name,
        how: impl FnOnce(&mut Entry) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let old = self
            .entries
            .get(name)
            .cloned()
            .ok_or_else(|| missing(name))?;
        let mut new = (*old).clone();
        how(&mut new)?;
        may_change(self.caller, &old, &new).map_err(|p| p.of(name))?;
        self.check_cgroup(&new)?;
        if new.is_asked_otherwise(&old) {
            new.generation += 1;
        }
        self.entries.insert(name.clone(), Arc::new(new));
        Ok(())
    }

    fn check_cgroup(&self, entry: &Entry) -> Result<(), Problem> {
        let spec = entry.spec();
        let Some(path) = spec.cgroup() else {
            return Ok(());
        };
        if entry.name.is_system() {
            return Err(Problem::field(
                Kind::Invalid,
                Key::Cgroup,
                "system holds what belongs to no other container",
            ));
        }
        let other = self
            .entries
            .values()
            .find(|e| e.name != entry.name && e.membership().cgroups.contains(path));
        match other {
            Some(other) => Err(Problem::field(
                Kind::Conflict,
                Key::Cgroup,
                format!("{:?} belongs to {} already", path.as_str(), other.name),
            )),
            None => Ok(()),
        }
    }

    fn delete(&mut self, name: &Name, force: bool) -> Result<(), Problem> {
        self.caller.administers("delete containers")?;
        if name.is_system() {
            return Err(Problem::new(
                Kind::Invalid,
                "system is always there: it holds what belongs to no container",
            ));
        }
        let entry = self.entries.get(name).ok_or_else(|| missing(name))?.clone();
        if let Some(file) = &entry.file {
            return Err(Problem::new(
                Kind::Conflict,
                format!("{name} is declared in {}", file.path),
            )
            .hint("remove it there, then `systemctl reload ghostd`"));
        }
        let mut below = self
            .entries
            .keys()
            .filter(|n| n.parent().as_ref() == Some(name));
        if let Some(child) = below.next() {
            let more = below.count();
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            return Err(
                Problem::new(Kind::Conflict, format!("{name} has {child}{more} below it"))
                    .hint(format!("ghostctl delete {child}")),
            );
        }
        let populated = entry.pids.iter().any(|p| self.proc.is_alive(*p)) || self.left_in(name);
        if populated && !force {
            return Err(Problem::new(
                Kind::Conflict,
                format!("{name} has processes: they would go to the container above"),
            )
            .hint(format!("ghostctl delete {name} --force")));
        }
        self.remove(&entry);
        Ok(())
    }

    /// Whether a listed process is in it. The list may be seconds old: each is looked up again.
    fn left_in(&self, name: &Name) -> bool {
        let listed = self.observed.processes.iter();
        let mut here = listed.filter(|p| p.container == *name);
        here.any(|p| self.proc.is_there(p.pid))
    }

    /// Takes a container away; its members go to the one above, or nowhere, which is `system`.
    fn remove(&mut self, entry: &Entry) {
        self.entries.remove(&entry.name);
        let above = entry.name.parent().and_then(|p| self.entries.get_mut(&p));
        if let Some(above) = above {
            let above = Arc::make_mut(above);
            let members = entry.membership();
            above.pids.extend(members.pids);
            above.cgroups.extend(members.cgroups);
        }
    }
    fn apply_all(
        &mut self,
        mut containers: Vec<Declaration>,
        prune: bool,
    ) -> Result<Vec<Name>, Problem> {
        // Those above come before those below.
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<Name> = containers.iter().map(|d| d.name.clone()).collect();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            return Err(Problem::new(
                Kind::Invalid,
                format!("{} is declared twice", twice[0]),
            ));
        }
        for declaration in containers {
            self.replace(declaration)?;
        }
        if prune {
            let doomed = |e: &Entry| {
                e.by_command && e.file.is_none() && !e.name.is_system() && !names.contains(&e.name)
            };
            let doomed: Vec<Name> = self
                .entries
                .values()
                .filter(|e| doomed(e))
                .map(|e| e.name.clone())
                .collect();
            for name in doomed.iter().rev() {
                self.delete(name, false)?;
            }
        }
        Ok(names)
    }

    fn reload(&mut self) -> Result<(), Problem> {
        let (files, notes) = files::scan(self.directory, &self.files, &self.observed.gpus);
        self.notes = notes;
        let mut declared: BTreeMap<Name, FileLayer> = BTreeMap::new();
        for (path, file) in &files {
            let path: Arc<str> = path.as_str().into();
            for (name, one) in &file.containers {
                let layer = FileLayer {
                    path: path.clone(),
                    declared: one.clone(),
                };
                declared.insert(name.clone(), layer);
            }
        }
        self.files = files;
        for (name, layer) in &declared {
            if let Err(problem) = self.declare(name, layer) {
                self.notes
                    .push(format!("{}: {}", layer.path, problem.detail));
            }
        }
        // Those below go before those above.
        let gone: Vec<Arc<Entry>> = self
            .entries
            .values()
            .rev()
            .filter(|e| e.file.is_some() && !declared.contains_key(&e.name))
            .cloned()
            .collect();
        for entry in gone {
            let name = &entry.name;
            let has_children = self
                .entries
                .keys()
                .any(|n| n.parent().as_ref() == Some(name));
            if entry.by_command || has_children || name.is_system() {
                self.change(name, |e| {
                    e.file = None;
                    e.by_command = true;
                    Ok(())
                })?;
            } else {
                self.remove(&entry);
            }
        }
        Ok(())
    }

    fn declare(&mut self, name: &Name, layer: &FileLayer) -> Result<(), Problem> {
        if !self.entries.contains_key(name) {
            self.has_parent(name)?;
            let uid = self
                .proc
                .new_uid()
                .map_err(|e| Problem::new(Kind::Unavailable, format!("{name}: {e}")))?;
            let mut entry = Entry::new(name.clone(), uid, self.caller.uid);
            entry.by_command = false;
            entry.generation = 0;
            self.entries.insert(name.clone(), Arc::new(entry));
        }
        let new = self.entries.get(name).is_some_and(|e| e.generation == 0);
        let done = self.change(name, |entry| {
            entry.file = Some(layer.clone());
            if let Some(text) = layer.declared.labels.get(files::OWNER) {
                entry.owner = files::owner(text).map_err(|e| Problem::new(Kind::Invalid, e))?;
            }
            entry.generation = entry.generation.max(1);
            Ok(())
        });
        if done.is_err() && new {
            self.entries.remove(name);
        }
        done
    }
}

impl Entry {
    /// Whether a new generation begins.
    fn is_asked_otherwise(&self, old: &Entry) -> bool {
        old.generation > 0
            && (self.spec() != old.spec()
                || self.all_labels() != old.all_labels()
                || self.owner != old.owner)
    }
}

fn may_change(caller: Caller, old: &Entry, new: &Entry) -> Result<(), Problem> {
    if caller.admin || new == old {
        return Ok(());
    }
    if old.owner != caller.uid {
        return caller.administers(&format!("change it, for user {} owns it", old.owner));
    }
    if new.owner != old.owner || new.all_labels() != old.all_labels() {
        return caller.administers("change owner or labels");
    }
    only_lowers(&old.spec(), &new.spec())
}

pub(crate) fn missing(name: &Name) -> Problem {
    Problem::new(Kind::NotFound, format!("no container {:?}", name.as_str()))
        .hint("ghostctl list -q")
}

fn file_labels(entry: &Entry) -> BTreeMap<String, String> {
    let file = entry.file.as_ref();
    file.map(|f| f.declared.labels.clone()).unwrap_or_default()
}

fn label_of_file(entry: &Entry, key: &str) -> Problem {
    let path = entry.file.as_ref().map_or("a file", |f| &f.path);
    Problem::new(
        Kind::Invalid,
        format!("label {key:?} is set in {path}: it can be changed here, not taken away"),
    )
}

fn check_labels<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> Result<(), Problem> {
    for (key, value) in labels {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        if key.is_empty() || key.len() > 63 || !key.bytes().all(plain) {
            return Err(Problem::new(
                Kind::Invalid,
                format!(
                    "label {:?}: a label's key is 1 to 63 letters, digits, '.', '_', '-' or '/'",
                    sanitize(key)
                ),
            ));
        }
        if value.len() > 255 || value.chars().any(char::is_control) {
            return Err(Problem::new(
                Kind::Invalid,
                format!(
                    "label {key}: {:?} is longer than 255 bytes or has control characters",
                    sanitize(value)
                ),
            ));
        }
    }
    Ok(())
}
