//! The seccomp profile by which an OCI runtime gives a container's driver calls of GPU memory to
//! ghostd: the `linux.seccomp` object of the OCI runtime specification, which podman's profile
//! files extend.
//!
//! libseccomp, which runtimes make filters of profiles with, lets an unconditional rule for a
//! system call replace all its conditional ones. So where a base profile allows ioctl, it has to
//! allow instead the ioctls that are not notified: those whose number, the command's low byte,
//! is none of ours, as a few masked comparisons.

use ghost_model::Name;
use serde_json::{Map, Value as Json, json};
use std::path::Path;

const NOTIFY: &str = "SCMP_ACT_NOTIFY";
const ALLOW: &str = "SCMP_ACT_ALLOW";
const LOG: &str = "SCMP_ACT_LOG";

/// Why a base profile and ours cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is something else.
    #[error("{at}: no seccomp profile has this there; give the `linux.seccomp` object alone")]
    NoProfile {
        /// Where.
        at: String,
    },
    /// Another supervisor is named.
    #[error(
        "listenerPath is {found}: a container has one seccomp listener; take listenerPath and the \
         rules for it out of the base"
    )]
    Listener {
        /// What is there.
        found: Json,
    },
    /// Calls are notified that are another supervisor's.
    #[error(
        "{at} notifies: a container has one seccomp listener, and ghostd's lets such calls go \
         on; give them another action"
    )]
    Notifies {
        /// Which rule.
        at: String,
    },
    /// The program could not use a GPU.
    #[error("{at} answers ioctl with {action}: GPUs are used by ioctl; allow it in the base")]
    Refuses {
        /// Which rule.
        at: String,
        /// What it does.
        action: String,
    },
    /// ioctl is allowed in some cases only.
    #[error(
        "{at} is about ioctl under conditions ({what}), and rules that overlap have no order; \
         let the base allow ioctl without conditions"
    )]
    Conditional {
        /// Which rule.
        at: String,
        /// Which conditions.
        what: &'static str,
    },
    /// A supervisor's death would stop programs for good.
    #[error(
        "flags has {0}: a call that waits for an answer could not be asked anew after a restart \
         of Ghost; take it out of the base"
    )]
    Flag(String),
}

/// What kernels of x86-64 run. For others there is no driver.
fn architectures() -> Json {
    json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"])
}

/// A profile that notifies ioctls of `numbers` to `listener`, in the name of `container` if one is
/// given, and does otherwise what `base` does; without a base it allows everything.
///
/// # Errors
/// What in `base` stands against it.
pub fn profile(
    base: Option<Json>,
    numbers: &[u8],
    listener: &Path,
    container: Option<&Name>,
) -> Result<Json, ProfileError> {
    let base = base.unwrap_or_else(|| {
        json!({
            "defaultAction": ALLOW, "architectures": architectures(), "syscalls": [],
            // As a filter of `ghostctl run` has it: this one alone is no jail.
            "flags": ["SECCOMP_FILTER_FLAG_SPEC_ALLOW"]
        })
    });
    let mut profile = match base {
        Json::Object(profile) => profile,
        _ => return Err(no_profile("the document")),
    };
    check_head(&profile)?;
    let default = text(&profile, "defaultAction")?.to_owned();
    let rules = match profile.remove("syscalls") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(rules)) => rules,
        Some(_) => return Err(no_profile("syscalls")),
    };
    let mut merged = merge(rules, &default, numbers)?;
    for &number in numbers {
        merged.push(rule(NOTIFY, 0xFF, number));
    }
    profile.insert("syscalls".into(), merged.into());
    profile.insert("listenerPath".into(), json!(listener));
    match container {
        Some(name) => profile.insert("listenerMetadata".into(), json!(name)),
        None => profile.remove("listenerMetadata"),
    };
    Ok(profile.into())
}

fn check_head(profile: &Map<String, Json>) -> Result<(), ProfileError> {
    match profile.get("listenerPath") {
        None | Some(Json::Null) => {}
        Some(path) if path == "" => {}
        Some(found) => {
            return Err(ProfileError::Listener {
                found: found.clone(),
            });
        }
    }
    let flags = list(profile, "flags")?;
    let killable = |flag: &&Json| {
        flag.as_str()
            .is_some_and(|f| f.ends_with("WAIT_KILLABLE_RECV"))
    };
    match flags.iter().find(killable) {
        Some(flag) => Err(ProfileError::Flag(flag.to_string())),
        None => Ok(()),
    }
}

/// The base's rules, with ioctl allowed but for `numbers`.
fn merge(rules: Vec<Json>, default: &str, numbers: &[u8]) -> Result<Vec<Json>, ProfileError> {
    if default == NOTIFY {
        return Err(ProfileError::Notifies {
            at: "defaultAction".into(),
        });
    }
    let mut merged = Vec::new();
    // The action of ioctl, and where it is said.
    let mut ioctl: Option<(String, String)> = None;
    for (place, rule) in rules.into_iter().enumerate() {
        let at = format!("syscalls[{place}]");
        let Json::Object(mut rule) = rule else {
            return Err(no_profile(&at));
        };
        let action = text(&rule, "action")
            .map_err(|_| no_profile(&format!("{at}.action")))?
            .to_owned();
        if action == NOTIFY {
            return Err(ProfileError::Notifies { at });
        }
        if !take_ioctl(&mut rule, &at)? {
            merged.push(rule.into());
            continue;
        }
        unconditional(&rule, &at)?;
        match &ioctl {
            Some((_, first)) if *first != action => {
                return Err(ProfileError::Refuses { at, action });
            }
            Some(_) => {}
            None => ioctl = Some((at, action)),
        }
        if !list(&rule, "names")?.is_empty() {
            merged.push(rule.into());
        }
    }
    let (at, action) = ioctl.unwrap_or_else(|| ("defaultAction".into(), default.to_owned()));
    if action != ALLOW && action != LOG {
        return Err(ProfileError::Refuses { at, action });
    }
    // Rules that say what the default says are not put into a filter.
    if action != default {
        let rest = others(numbers);
        merged.extend(
            rest.into_iter()
                .map(|(mask, value)| rule(&action, mask, value)),
        );
    }
    Ok(merged)
}

/// Takes ioctl out of a rule's names; whether it was there. Old profiles have one `name`.
fn take_ioctl(rule: &mut Map<String, Json>, at: &str) -> Result<bool, ProfileError> {
    if rule.get("name").is_some_and(|name| name == "ioctl") {
        rule.remove("name");
        return Ok(true);
    }
    let old = rule.contains_key("name");
    match rule.get_mut("names") {
        Some(Json::Array(names)) => {
            let before = names.len();
            names.retain(|name| name != "ioctl");
            Ok(names.len() < before)
        }
        None if old => Ok(false),
        _ => Err(no_profile(&format!("{at}.names"))),
    }
}

fn unconditional(rule: &Map<String, Json>, at: &str) -> Result<(), ProfileError> {
    for what in ["args", "includes", "excludes"] {
        let empty = match rule.get(what) {
            None | Some(Json::Null) => true,
            Some(Json::Array(items)) => items.is_empty(),
            Some(Json::Object(items)) => items.is_empty(),
            Some(_) => false,
        };
        if !empty {
            let at = at.to_owned();
            return Err(ProfileError::Conditional { at, what });
        }
    }
    Ok(())
}

fn text<'a>(object: &'a Map<String, Json>, key: &str) -> Result<&'a str, ProfileError> {
    let value = object.get(key).and_then(Json::as_str);
    value.ok_or_else(|| no_profile(key))
}

fn list<'a>(object: &'a Map<String, Json>, key: &str) -> Result<&'a [Json], ProfileError> {
    match object.get(key) {
        None | Some(Json::Null) => Ok(&[]),
        Some(Json::Array(items)) => Ok(items),
        Some(_) => Err(no_profile(key)),
    }
}

fn no_profile(at: &str) -> ProfileError {
    ProfileError::NoProfile { at: at.to_owned() }
}

/// A rule for the ioctls whose number has the bits `value` under `mask`.
fn rule(action: &str, mask: u8, value: u8) -> Json {
    json!({
        "names": ["ioctl"],
        "action": action,
        "args": [{
            "index": 1, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"
        }]
    })
}

/// Masks and values that together match each byte that is none of `numbers` once, and no other.
fn others(numbers: &[u8]) -> Vec<(u8, u8)> {
    fn split(numbers: &[u8], mask: u8, value: u8, into: &mut Vec<(u8, u8)>) {
        if numbers.iter().all(|number| number & mask != value) {
            into.push((mask, value));
        } else if mask != 0xFF {
            // The highest bit that is not decided yet.
            let bit = 0x80 >> mask.leading_ones();
            split(numbers, mask | bit, value, into);
            split(numbers, mask | bit, value | bit, into);
        }
    }
    let mut found = Vec::new();
    split(numbers, 0, 0, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOCKET: &str = "/run/ghost/notify.sock";

    fn merged(base: Json) -> Result<Json, ProfileError> {
        profile(Some(base), &[0x2A, 0x2B], Path::new(SOCKET), None)
    }

    /// What a profile does with an ioctl, as libseccomp reads it: an unconditional rule wins,
    /// then the one whose condition holds.
    fn action_of(profile: &Json, command: u64) -> String {
        let rules = profile["syscalls"].as_array().unwrap().iter();
        let about = rules.filter(|r| {
            r["names"]
                .as_array()
                .is_some_and(|n| n.contains(&json!("ioctl")))
        });
        let matching: Vec<&Json> = about
            .filter(|rule| {
                rule["args"].as_array().into_iter().flatten().all(|arg| {
                    assert_eq!(arg["op"], "SCMP_CMP_MASKED_EQ");
                    assert_eq!(arg["index"], 1);
                    let mask = arg["value"].as_u64().unwrap();
                    command & mask == arg["valueTwo"].as_u64().unwrap()
                })
            })
            .collect();
        assert!(matching.len() <= 1, "rules overlap: {matching:?}");
        let action = matching
            .first()
            .map_or(&profile["defaultAction"], |r| &r["action"]);
        action.as_str().unwrap().to_owned()
    }

    proptest! {
        #[test]
        fn each_number_is_notified_or_as_before(numbers: Vec<u8>, high: u32, allowed: bool) {
            let (default, rules) = if allowed {
                ("SCMP_ACT_ALLOW", json!([]))
            } else {
                ("SCMP_ACT_ERRNO", json!([{"names": ["read", "ioctl"], "action": ALLOW}]))
            };
            let base = json!({"defaultAction": default, "syscalls": rules});
            let mut numbers = numbers;
            numbers.sort_unstable();
            numbers.dedup();
            let made = profile(Some(base), &numbers, Path::new(SOCKET), None).unwrap();
            for number in 0..=u8::MAX {
                let command = u64::from(high) << 8 | u64::from(number);
                let expected = if numbers.contains(&number) { NOTIFY } else { ALLOW };
                prop_assert_eq!(action_of(&made, command), expected);
            }
        }
    }

    #[test]
    fn without_a_base_everything_else_is_allowed() {
        let name: Name = "team/job".parse().unwrap();
        let made = profile(None, &[0x2B], Path::new(SOCKET), Some(&name)).unwrap();
        assert_eq!(
            made,
            json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
                "syscalls": [{
                    "names": ["ioctl"], "action": "SCMP_ACT_NOTIFY",
                    "args": [{
                        "index": 1, "value": 255, "valueTwo": 43, "op": "SCMP_CMP_MASKED_EQ"
                    }]
                }],
                "flags": ["SECCOMP_FILTER_FLAG_SPEC_ALLOW"],
                "listenerPath": SOCKET, "listenerMetadata": "team/job"
            })
        );
    }

    #[test]
    fn what_is_not_about_ioctl_stays() {
        let base = json!({
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
            "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
            "listenerPath": "", "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [
                {"names": ["clone"], "action": ALLOW, "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                {"names": ["ioctl", "read"], "action": ALLOW, "args": [], "includes": {}},
                {"names": ["ioctl"], "action": ALLOW, "args": null},
                {"name": "write", "action": ALLOW},
                {"name": "ioctl", "action": ALLOW},
            ]
        });
        let made = merged(base.clone()).unwrap();
        for key in ["defaultAction", "defaultErrnoRet", "archMap", "flags"] {
            assert_eq!(made[key], base[key], "{key}");
        }
        assert_eq!(made["syscalls"][0], base["syscalls"][0]);
        assert_eq!(made["syscalls"][1]["names"], json!(["read"]));
        assert_eq!(made["syscalls"][2], base["syscalls"][3]);
        let rest = made["syscalls"].as_array().unwrap();
        assert!(
            rest[3..]
                .iter()
                .all(|rule| rule["names"] == json!(["ioctl"]))
        );
        assert_eq!(action_of(&made, 0xC020_462A), NOTIFY);
        assert_eq!(action_of(&made, 0x5401), ALLOW);
        assert_eq!(made.get("listenerMetadata"), None);
    }

    #[test]
    fn what_cannot_be_merged_is_named() {
        let with = |rule: Json| {
            json!({
                "defaultAction": "SCMP_ACT_ERRNO",
                "syscalls": [{"names": ["ioctl"], "action": ALLOW}, rule]
            })
        };
        for (base, says) in [
            (json!([]), "the document: no seccomp profile"),
            (json!({"linux": {}}), "defaultAction: no seccomp profile"),
            (
                json!({"defaultAction": ALLOW, "syscalls": 1}),
                "syscalls: no",
            ),
            (with(json!(7)), "syscalls[1]: no"),
            (with(json!({"names": ["a"]})), "syscalls[1].action: no"),
            (with(json!({"action": ALLOW})), "syscalls[1].names: no"),
            (
                json!({"defaultAction": ALLOW, "listenerPath": "/run/x.sock"}),
                "listenerPath is \"/run/x.sock\"",
            ),
            (json!({"defaultAction": NOTIFY}), "defaultAction notifies"),
            (
                with(json!({"names": ["mount"], "action": NOTIFY})),
                "syscalls[1] notifies",
            ),
            (
                json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}),
                "defaultAction answers ioctl with SCMP_ACT_ERRNO",
            ),
            (
                with(json!({"names": ["ioctl"], "action": "SCMP_ACT_KILL"})),
                "syscalls[1] answers ioctl with SCMP_ACT_KILL",
            ),
            (
                with(json!({
                    "names": ["ioctl"], "action": "SCMP_ACT_ERRNO",
                    "args": [{"index": 1, "value": 21522, "op": "SCMP_CMP_EQ"}]
                })),
                "syscalls[1] is about ioctl under conditions (args)",
            ),
            (
                with(json!({
                    "names": ["ioctl"], "action": ALLOW, "includes": {"caps": ["CAP_SYS_ADMIN"]}
                })),
                "syscalls[1] is about ioctl under conditions (includes)",
            ),
            (
                json!({
                    "defaultAction": ALLOW,
                    "flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]
                }),
                "flags has \"SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV\"",
            ),
        ] {
            let error = merged(base).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
