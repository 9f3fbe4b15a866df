//! One container as the core keeps it: layers of settings, and members.

use crate::store::{Saved, SavedDeclared};
use ghost_model::problem::{Kind, Problem};
use ghost_model::report::Source;
use ghost_model::value::CgroupPath;
use ghost_model::{Key, Membership, Name, ProcId, Spec, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a container file says of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayer {
    /// The file's path.
    pub path: Arc<str>,
    /// Its settings and labels.
    pub declared: SavedDeclared,
}

/// A container: what was asked for it, layer by layer, and who is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Unique for ever.
    pub uid: String,
    /// Counts changes of what was asked.
    pub generation: u64,
    /// The user who owns it.
    pub owner: u32,
    /// Whether a command created it, so that it outlives its file.
    pub by_command: bool,
    /// What a file says.
    pub file: Option<FileLayer>,
    /// Labels given by command, over those of the file.
    pub labels: BTreeMap<String, String>,
    /// Settings given by command, over those of the file.
    pub over: Spec,
    /// Settings that end with the daemon, over all others.
    pub runtime: Spec,
    /// Members by pid.
    pub pids: Vec<ProcId>,
    /// Members by cgroup, beside `ghost.cgroup`.
    pub cgroups: Vec<CgroupPath>,
}

impl Entry {
    /// An empty one, as a command creates it.
    pub fn new(name: Name, uid: String, owner: u32) -> Self {
        Entry {
            name,
            uid,
            generation: 1,
            owner,
            by_command: true,
            file: None,
            labels: BTreeMap::new(),
            over: Spec::default(),
            runtime: Spec::default(),
            pids: Vec::new(),
            cgroups: Vec::new(),
        }
    }

    /// What a restart finds; members are of this boot or none.
    pub fn from_saved(saved: &Saved, boot: &str) -> Self {
        let same_boot = saved.boot == boot;
        Entry {
            name: saved.name.clone(),
            uid: saved.uid.clone(),
            generation: saved.generation,
            owner: saved.owner,
            by_command: saved.by_command,
            file: None,
            labels: saved.labels.clone(),
            over: saved.over.clone(),
            runtime: Spec::default(),
            pids: if same_boot {
                saved.pids.clone()
            } else {
                Vec::new()
            },
            cgroups: if same_boot {
                saved.cgroups()
            } else {
                Vec::new()
            },
        }
    }

    /// What a restart must find.
    pub fn to_saved(&self, boot: &str) -> Saved {
        Saved {
            name: self.name.clone(),
            uid: self.uid.clone(),
            generation: self.generation,
            owner: self.owner,
            by_command: self.by_command,
            labels: self.labels.clone(),
            over: self.over.clone(),
            pids: self.pids.clone(),
            cgroups: self.cgroups.iter().map(|c| c.as_str().into()).collect(),
            boot: boot.to_owned(),
        }
    }

    /// What the file asks for.
    pub fn file_spec(&self) -> Spec {
        self.file
            .as_ref()
            .map(|f| f.declared.spec.clone())
            .unwrap_or_default()
    }

    /// What is asked for and outlives the daemon.
    pub fn lasting(&self) -> Spec {
        self.file_spec().overlaid(&self.over)
    }

    /// What is asked for.
    pub fn spec(&self) -> Spec {
        self.lasting().overlaid(&self.runtime)
    }

    /// All labels.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self
            .file
            .as_ref()
            .map(|f| f.declared.labels.clone())
            .unwrap_or_default();
        labels.extend(self.labels.clone());
        labels
    }

    /// Each value with where it came from.
    pub fn sources(&self) -> Vec<Source> {
        self.spec()
            .iter()
            .map(|(key, gpu, value)| {
                let origin = if self.runtime.get(key, gpu).is_some() {
                    "runtime".to_owned()
                } else if self.over.get(key, gpu).is_some() {
                    "override".to_owned()
                } else {
                    self.file
                        .as_ref()
                        .map(|f| f.path.to_string())
                        .unwrap_or_default()
                };
                Source {
                    key,
                    gpu: gpu.cloned(),
                    value: value.to_string(),
                    origin,
                }
            })
            .collect()
    }

    /// Who is in it, for a backend.
    pub fn membership(&self) -> Membership {
        let mut cgroups = self.cgroups.clone();
        if let Some(path) = self.spec().cgroup()
            && !cgroups.contains(path)
        {
            cgroups.push(path.clone());
        }
        Membership {
            pids: self.pids.clone(),
            cgroups,
        }
    }

    /// Changes the override so that what lasts becomes `wanted`; runtime values that `visible`,
    /// the whole spec after the change, no longer shows are dropped.
    ///
    /// # Errors
    /// A value of the file that has no default to lie over it.
    pub fn want(&mut self, wanted: &Spec, visible: &Spec) -> Result<(), Problem> {
        self.over = layer(&self.file_spec(), wanted).map_err(|p| self.blame_file(p))?;
        let mut runtime = Spec::default();
        for (key, gpu, value) in self.runtime.iter() {
            if visible.get(key, gpu) == Some(value) {
                runtime.set(key, gpu.cloned(), value.clone())?;
            }
        }
        self.runtime = runtime;
        Ok(())
    }

    /// Changes the runtime values so that the whole spec becomes `wanted`.
    ///
    /// # Errors
    /// A lasting value that has no default to lie over it.
    pub fn want_for_now(&mut self, wanted: &Spec) -> Result<(), Problem> {
        self.runtime = layer(&self.lasting(), wanted).map_err(|p| self.blame_file(p))?;
        Ok(())
    }

    fn blame_file(&self, problem: Problem) -> Problem {
        match &self.file {
            Some(file) => problem.hint(format!(
                "edit {} and reload with `systemctl reload ghostd`",
                file.path
            )),
            None => problem,
        }
    }

    /// What changed from `old`, one `key old -> new` each.
    pub fn differences(&self, old: &Entry) -> Vec<String> {
        let (before, after) = (old.spec(), self.spec());
        let mut places: Vec<_> = before
            .iter()
            .chain(after.iter())
            .map(|(key, gpu, _)| (key, gpu))
            .collect();
        places.sort_unstable();
        places.dedup();
        let show = |spec: &Spec, key, gpu| {
            spec.effective(key, gpu)
                .map_or_else(|| "none".to_owned(), |v| v.to_string())
        };
        let mut out: Vec<String> = places
            .into_iter()
            .filter(|(key, gpu)| before.get(*key, *gpu) != after.get(*key, *gpu))
            .map(|(key, gpu)| {
                let on = gpu.map(|g| format!(" on {g}")).unwrap_or_default();
                format!(
                    "{key} {} -> {}{on}",
                    show(&before, key, gpu),
                    show(&after, key, gpu)
                )
            })
            .collect();
        if self.all_labels() != old.all_labels() {
            out.push("labels changed".into());
        }
        if self.owner != old.owner {
            out.push(format!("owner {} -> {}", old.owner, self.owner));
        }
        out
    }
}

/// The values to lay on `base` so that `wanted` shows.
fn layer(base: &Spec, wanted: &Spec) -> Result<Spec, Problem> {
    let mut over = Spec::default();
    for (key, gpu, value) in wanted.iter() {
        if base.get(key, gpu) != Some(value) {
            over.set(key, gpu.cloned(), value.clone())?;
        }
    }
    for (key, gpu, _) in base.iter() {
        if wanted.get(key, gpu).is_some() {
            continue;
        }
        // A layer cannot take away what lies below, but it can say the default aloud. For one
        // GPU that is what holds on all others.
        let plain = match gpu {
            Some(_) => wanted.effective(key, None),
            None => Value::default_of(key),
        };
        match plain {
            Some(value) => over.set(key, gpu.cloned(), value)?,
            None => return Err(cannot_unset(key)),
        }
    }
    Ok(over)
}

fn cannot_unset(key: Key) -> Problem {
    Problem::field(
        Kind::Invalid,
        key,
        "is set below this layer and has no default: it can be changed here, not taken away",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn spec(json: serde_json::Value) -> Spec {
        Spec::try_from(json).unwrap()
    }

    fn from_file(json: serde_json::Value) -> Entry {
        let mut e = Entry::new("a".parse().unwrap(), "u".into(), 0);
        e.file = Some(FileLayer {
            path: "/etc/x.toml".into(),
            declared: SavedDeclared {
                spec: spec(json),
                labels: BTreeMap::new(),
            },
        });
        e
    }

    #[test]
    fn layers_and_where_each_value_came_from() {
        let mut e = from_file(json!({"gpu.weight": 200, "gpu.idle": 1}));
        let wanted = spec(json!({"gpu.weight": 300, "gpu.idle": 1, "gpu.max": "50%"}));
        e.want(&wanted, &wanted).unwrap();
        let for_now = spec(json!({"gpu.weight": 300, "gpu.idle": 1, "gpu.max": "20%"}));
        e.want_for_now(&for_now).unwrap();
        assert_eq!(e.spec(), for_now);
        assert_eq!(e.lasting(), wanted);
        let origins: Vec<_> = e
            .sources()
            .into_iter()
            .map(|s| format!("{} {}", s.key, s.origin))
            .collect();
        assert_eq!(
            origins,
            [
                "gpu.weight override",
                "gpu.max runtime",
                "gpu.idle /etc/x.toml"
            ]
        );
        // A lasting change of the same key wins over the temporary one.
        let mut visible = e.spec();
        let mut lasting = e.lasting();
        for s in [&mut visible, &mut lasting] {
            s.merge_json(&json!({"gpu.max": "10%"})).unwrap();
        }
        e.want(&lasting, &visible).unwrap();
        assert_eq!(e.spec(), lasting);
    }

    #[test]
    fn taking_back_a_file_s_value_says_the_default_aloud() {
        let mut e = from_file(json!({"gpu.weight": 200}));
        e.want(&Spec::default(), &Spec::default()).unwrap();
        assert_eq!(e.spec(), spec(json!({"gpu.weight": 100})));
        let mut e = from_file(json!({"ghost.cgroup": "/a"}));
        let p = e.want(&Spec::default(), &Spec::default()).unwrap_err();
        assert_eq!(p.kind, Kind::Invalid);
        assert!(p.hint.unwrap().contains("/etc/x.toml"));
    }

    proptest! {
        /// Whatever lies below, the layer makes the wanted values hold on every GPU.
        #[test]
        fn a_layer_gives_what_was_wanted(a in any_spec(), b in any_spec()) {
            let over = layer(&a, &b).unwrap();
            let got = a.overlaid(&over);
            for gpu in [None, Some("GPU-aaaa".parse().unwrap()), Some("GPU-bbbb".parse().unwrap())] {
                for key in [Key::Weight, Key::Max, Key::MemoryMax, Key::Idle] {
                    prop_assert_eq!(got.effective(key, gpu.as_ref()), b.effective(key, gpu.as_ref()));
                }
            }
        }
    }

    fn any_spec() -> impl Strategy<Value = Spec> {
        let one = (0usize..4, 0usize..3, 1u64..4);
        prop::collection::vec(one, 0..5).prop_map(|all| {
            let mut spec = Spec::default();
            for (key, gpu, n) in all {
                let gpu = [None, Some("GPU-aaaa"), Some("GPU-bbbb")][gpu];
                let gpu = gpu.map(|g| g.parse().unwrap());
                let (key, text) = match key {
                    0 => ("gpu.weight", n.to_string()),
                    1 => ("gpu.max", format!("{n}0%")),
                    2 => ("gpu.memory.max", n.to_string()),
                    _ => ("gpu.idle", (n % 2).to_string()),
                };
                let _ = spec.set_text(key, gpu, &text);
            }
            spec
        })
    }
}
