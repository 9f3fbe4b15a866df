//! Who asks, and what they may. Root, ghostd's own user and the socket's group administer;
//! anyone else may look, may put own processes into containers that they own, and may lower the
//! limits of those, never raise them.

use ghost_model::key::Key;
use ghost_model::problem::{Kind, Problem};
use ghost_model::value::{Devices, Latency, Limit, Value};
use ghost_model::{GpuId, Spec};
use nix::unistd::{Gid, Group, Uid, User};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user, by `SO_PEERCRED`.
    pub uid: u32,
    /// Whether the user administers.
    pub admin: bool,
}

impl Caller {
    /// The caller of the daemon's own doings.
    pub fn daemon() -> Self {
        Caller {
            uid: Uid::effective().as_raw(),
            admin: true,
        }
    }

    /// # Errors
    /// A [`Problem`] of kind `denied` unless the caller administers.
    pub fn administers(&self, what: &str) -> Result<(), Problem> {
        if self.admin {
            return Ok(());
        }
        Err(
            Problem::new(Kind::Denied, format!("user {} may not {what}", self.uid))
                .hint("run it as root or as a member of the group of ghostd's socket"),
        )
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)
    }
}

/// Who administers.
#[derive(Clone, Debug)]
pub struct Admins {
    own: u32,
    group: Option<Gid>,
}

impl Admins {
    /// Root, this process's user, and the members of `group` where it exists.
    pub fn new(group: &str) -> Self {
        Admins {
            own: Uid::effective().as_raw(),
            group: Group::from_name(group).ok().flatten().map(|g| g.gid),
        }
    }

    /// The group, where it exists.
    pub fn group(&self) -> Option<Gid> {
        self.group
    }

    /// The caller with these credentials. Membership in the group is by the credential's own gid
    /// and by the user database, which cannot be outrun by a process that exits and leaves its
    /// pid to another.
    pub fn caller(&self, uid: u32, gid: u32) -> Caller {
        let in_group = |admins: Gid| {
            if gid == admins.as_raw() {
                return true;
            }
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            user.and_then(|u| {
                let name = CString::new(u.name).ok()?;
                nix::unistd::getgrouplist(&name, u.gid).ok()
            })
            .is_some_and(|groups| groups.contains(&admins))
        };
        Caller {
            uid,
            admin: uid == 0 || uid == self.own || self.group.is_some_and(in_group),
        }
    }
}

/// Whether going from one spec to another takes, and nowhere gives: what an owner may do who does
/// not administer. The key that gives is the error.
///
/// # Errors
/// A [`Problem`] of kind `denied` that names the key and both values.
pub fn only_lowers(old: &Spec, new: &Spec) -> Result<(), Problem> {
    let mut places: BTreeSet<(Key, Option<GpuId>)> = BTreeSet::new();
    let gpus: BTreeSet<GpuId> = [old, new]
        .iter()
        .flat_map(|s| s.iter().filter_map(|(_, gpu, _)| gpu.cloned()))
        .collect();
    for (key, _, _) in old.iter().chain(new.iter()) {
        places.insert((key, None));
        places.extend(gpus.iter().map(|g| (key, Some(g.clone()))));
    }
    for (key, gpu) in places {
        let (before, after) = (
            old.effective(key, gpu.as_ref()),
            new.effective(key, gpu.as_ref()),
        );
        if before != after && !lowers(key, before.as_ref(), after.as_ref()) {
            let show = |v: &Option<Value>| v.as_ref().map_or("none".into(), Value::to_string);
            let on = gpu.map(|g| format!(" on {g}")).unwrap_or_default();
            return Err(Problem::field(
                Kind::Denied,
                key,
                format!(
                    "from {} to {}{on} gives more: only an administrator may do that",
                    show(&before),
                    show(&after)
                ),
            ));
        }
    }
    Ok(())
}

fn lowers(key: Key, before: Option<&Value>, after: Option<&Value>) -> bool {
    match (before, after) {
        (Some(Value::Weight(a)), Some(Value::Weight(b))) => b <= a,
        (Some(Value::Budget(a)), Some(Value::Budget(b))) => {
            // A longer period lets longer bursts through.
            b.ratio() <= a.ratio() && (a.max.is_none() || b.period <= a.period)
        }
        (Some(Value::Flag(a)), Some(Value::Flag(b))) => {
            matches!(key, Key::Idle | Key::Freeze) && *b >= *a
        }
        (Some(Value::Latency(a)), Some(Value::Latency(b))) => match (a, b) {
            (_, Latency::None) => true,
            (Latency::None, _) => false,
            (Latency::Target(a), Latency::Target(b)) => b >= a,
        },
        (Some(Value::Limit(a)), Some(Value::Limit(b)))
        | (Some(Value::Protection(a)), Some(Value::Protection(b))) => bytes(b) <= bytes(a),
        (Some(Value::Devices(a)), Some(Value::Devices(b))) => match (a, b) {
            (Devices::All, _) => true,
            (Devices::Only(_), Devices::All) => false,
            (Devices::Only(a), Devices::Only(b)) => b.iter().all(|gpu| a.contains(gpu)),
        },
        _ => false,
    }
}

fn bytes(limit: &Limit) -> u64 {
    match limit {
        Limit::At(n) => n.0,
        Limit::Max => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn allowed(old: serde_json::Value, new: serde_json::Value) -> bool {
        only_lowers(&Spec::try_from(old).unwrap(), &Spec::try_from(new).unwrap()).is_ok()
    }

    #[test]
    fn owners_lower_and_never_raise() {
        let cases = [
            (json!({}), json!({"gpu.weight": 50}), true),
            (json!({}), json!({"gpu.weight": 101}), false),
            (json!({"gpu.weight": 50}), json!({}), false),
            (json!({}), json!({"gpu.max": "50%"}), true),
            (json!({"gpu.max": "50%"}), json!({"gpu.max": "60%"}), false),
            (
                json!({"gpu.max": "50%"}),
                json!({"gpu.max": "50% 200000"}),
                false,
            ),
            (
                json!({"gpu.max": "50%"}),
                json!({"gpu.max": "40% 50000"}),
                true,
            ),
            (json!({"gpu.idle": 1}), json!({}), false),
            (json!({}), json!({"gpu.idle": 1}), true),
            (
                json!({"ghost.freeze": 1}),
                json!({"ghost.freeze": 0}),
                false,
            ),
            (json!({}), json!({"gpu.latency": "target=500"}), false),
            (
                json!({"gpu.latency": "target=500"}),
                json!({"gpu.latency": "target=900"}),
                true,
            ),
            (json!({}), json!({"gpu.memory.max": "1G"}), true),
            (
                json!({"gpu.memory.max": "1G"}),
                json!({"gpu.memory.max": "max"}),
                false,
            ),
            (json!({}), json!({"gpu.memory.min": "1G"}), false),
            (json!({}), json!({"ghost.cgroup": "/a"}), false),
            (json!({}), json!({"gpu.overflow": "auto"}), false),
            // One GPU's own value goes away, and the higher general one shows.
            (
                json!({"device": {"GPU-aaaa": {"gpu.weight": 5}}}),
                json!({}),
                false,
            ),
            (
                json!({"device": {"GPU-aaaa": {"gpu.weight": 5}}}),
                json!({"gpu.weight": 5}),
                true,
            ),
            (
                json!({"device": {"GPU-aaaa": {"gpu.weight": 5}}}),
                json!({"gpu.weight": 6}),
                false,
            ),
        ];
        for (old, new, want) in cases {
            assert_eq!(allowed(old.clone(), new.clone()), want, "{old} -> {new}");
        }
    }

    #[test]
    fn root_and_ghostd_itself_administer() {
        let admins = Admins::new("no such group here");
        assert!(admins.caller(0, 0).admin);
        assert!(admins.caller(Uid::effective().as_raw(), 1).admin);
        assert!(!admins.caller(u32::MAX - 7, 65_534).admin);
        let p = admins
            .caller(u32::MAX - 7, 65_534)
            .administers("x")
            .unwrap_err();
        assert_eq!(p.kind, Kind::Denied);
    }

    #[test]
    fn the_socket_group_administers() {
        let Ok(Some(group)) = Group::from_gid(Gid::from_raw(0)) else {
            return;
        };
        let admins = Admins::new(&group.name);
        assert!(admins.caller(u32::MAX - 7, 0).admin);
    }
}
