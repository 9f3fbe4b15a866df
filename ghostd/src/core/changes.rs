//! What changed from one state to another, for the log, for events and for `--dry-run`.

use super::Entries;
use super::entry::Entry;
use super::requests::Change;
use std::sync::Arc;

/// What changed from one state to another, for the log, for events and for `--dry-run`.
pub(super) fn changes(old: &Entries, new: &Entries) -> Vec<Change> {
    let mut out = Vec::new();
    for entry in old.values().filter(|e| !new.contains_key(&e.name)) {
        out.push(Change {
            name: entry.name.clone(),
            what: "deleted",
            detail: "deleted".into(),
            generation: entry.generation,
        });
    }
    for entry in new.values() {
        let mut say = |what, detail: String| {
            out.push(Change {
                name: entry.name.clone(),
                what,
                detail,
                generation: entry.generation,
            });
        };
        let blank;
        let before = match old.get(&entry.name) {
            Some(before) if Arc::ptr_eq(before, entry) => continue,
            Some(before) => before.as_ref(),
            None => {
                let values: Vec<String> = entry
                    .sources()
                    .iter()
                    .map(|s| format!("{}={}", s.key, s.value))
                    .collect();
                say("created", values.join(" "));
                blank = Entry {
                    pids: Vec::new(),
                    cgroups: Vec::new(),
                    ..(**entry).clone()
                };
                &blank
            }
        };
        let differences = entry.differences(before);
        if !differences.is_empty() {
            let what = match (before.spec().freeze(), entry.spec().freeze()) {
                (false, true) => "frozen",
                (true, false) => "thawed",
                _ => "changed",
            };
            say(what, differences.join(", "));
        }
        let pids = entry.pids.iter().filter(|p| !before.pids.contains(p));
        let cgroups = entry.cgroups.iter().filter(|c| !before.cgroups.contains(c));
        let joined: Vec<String> = pids
            .map(|p| format!("process {}", p.pid))
            .chain(cgroups.map(|c| format!("cgroup {}", c.as_str())))
            .collect();
        if !joined.is_empty() {
            say("attached", joined.join(", "));
        }
    }
    out
}
