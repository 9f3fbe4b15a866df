//! The direction of dependencies, and what every manifest must say: design.md, "The house".

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Which of our crates each may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("ghost-model", &[]),
    ("ghost-rm", &[]),
    ("ghost-notify", &[]),
    ("ghost-uapi", &[]),
    ("ghost-wire", &[]),
    ("ghost-policy", &["ghost-model"]),
    (
        "ghost-guardian",
        &["ghost-model", "ghost-rm", "ghost-notify"],
    ),
    (
        "ghost-backend",
        &[
            "ghost-model",
            "ghost-rm",
            "ghost-notify",
            "ghost-uapi",
            "ghost-guardian",
        ],
    ),
    (
        "ghostd",
        &[
            "ghost-model",
            "ghost-policy",
            "ghost-backend",
            "ghost-notify",
            "ghost-link",
            "ghost-wire",
        ],
    ),
    (
        "ghostctl",
        &["ghost-model", "ghost-notify", "ghost-rm", "ghost-wire"],
    ),
    // The stand-in's time is the simulator's.
    (
        "ghost-standin",
        &["ghost-model", "ghost-backend", "ghost-rm", "ghost-notify"],
    ),
    ("ghost-burn", &["ghost-rm", "ghost-notify"]),
    ("ghost-cpu-device", &[]),
    ("ghost-executor", &["ghost-wire", "ghost-cpu-device"]),
    ("ghost-cpu-device-lib", &[]),
    ("ghost-host", &[]),
    ("ghost-vm", &[]),
    (
        "ghost-conformance",
        &["ghost-model", "ghost-backend", "ghost-rm", "ghost-uapi"],
    ),
    ("ghost-link", &["ghost-wire"]),
    ("ghost-nvml", &["ghost-link", "ghost-wire"]),
    ("ghost-shim", &["ghost-link", "ghost-wire"]),
    ("ghost-overflow-tests", &["ghost-wire"]),
    // Nothing depends on it.
    (
        "ghost-fuzz",
        &[
            "ghost-model",
            "ghost-rm",
            "ghost-notify",
            "ghost-guardian",
            "ghost-backend",
            "ghost-wire",
            "ghost-executor",
            "ghostd",
            "ghostctl",
            "ghost-cpu-device",
        ],
    ),
];

/// Crates in which nothing is unsafe.
const SAFE: &[&str] = &[
    "ghost-model",
    "ghost-policy",
    "ghost-wire",
    "ghostd",
    "ghostctl",
    "ghost-fuzz",
    "xtask",
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

fn manifest(dir: &Path) -> Table {
    let path = dir.join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse()
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn table<'a>(of: &'a Table, path: &[&str]) -> Option<&'a Table> {
    let (first, rest) = path.split_first()?;
    let next = of.get(*first)?.as_table()?;
    if rest.is_empty() {
        Some(next)
    } else {
        table(next, rest)
    }
}

/// Directory and manifest of each member, by name.
fn members() -> BTreeMap<String, (PathBuf, Table)> {
    let workspace = manifest(&root());
    let members = workspace["workspace"]["members"].as_array().unwrap();
    members
        .iter()
        .map(|member| {
            let dir = root().join(member.as_str().unwrap());
            let manifest = manifest(&dir);
            let name = manifest["package"]["name"].as_str().unwrap().to_owned();
            (name, (dir, manifest))
        })
        .collect()
}

/// Our crates in one kind of dependencies, those of targets included.
fn ours(manifest: &Table, kind: &str, members: &BTreeMap<String, (PathBuf, Table)>) -> Vec<String> {
    let targets = table(manifest, &["target"]).into_iter().flatten();
    let of_targets = targets.filter_map(|(_, t)| table(t.as_table()?, &[kind]));
    table(manifest, &[kind])
        .into_iter()
        .chain(of_targets)
        .flatten()
        .map(|(name, how)| match how.get("package") {
            Some(Value::String(package)) => package.clone(),
            _ => name.clone(),
        })
        .filter(|name| members.contains_key(name))
        .collect()
}

#[test]
fn arrows_point_one_way() {
    let members = members();
    for (name, (_, manifest)) in members.iter().filter(|(n, _)| *n != "xtask") {
        let (_, allowed) = ARROWS
            .iter()
            .find(|(n, _)| n == name)
            .unwrap_or_else(|| panic!("{name} is not in ARROWS: say what it may depend on"));
        for kind in ["dependencies", "build-dependencies"] {
            for other in ours(manifest, kind, &members) {
                assert!(
                    allowed.contains(&other.as_str()),
                    "{name} depends on {other}, which design.md does not allow"
                );
            }
        }
        // Tests may use the stand-in besides, and the stand-in's own the command and the cases that
        // they run.
        for other in ours(manifest, "dev-dependencies", &members) {
            let fine = allowed.contains(&other.as_str())
                || other == "ghost-standin"
                || (name == "ghost-standin"
                    && ["ghostctl", "ghost-conformance"].contains(&other.as_str()));
            assert!(fine, "the tests of {name} depend on {other}");
        }
    }
}

#[test]
fn policy_and_backend_never_meet() {
    let members = members();
    for (name, other) in [
        ("ghost-policy", "ghost-backend"),
        ("ghost-backend", "ghost-policy"),
    ] {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let all = ours(&members[name].1, kind, &members);
            assert!(!all.iter().any(|o| o == other), "{name} knows {other}");
        }
    }
}

#[test]
fn every_manifest_inherits_from_the_workspace() {
    let workspace = manifest(&root());
    let package = table(&workspace, &["workspace", "package"]).unwrap();
    assert_eq!(package["edition"].as_str(), Some("2024"));
    for (name, (_, manifest)) in &members() {
        for field in ["version", "edition", "rust-version", "license", "publish"] {
            let inherited = table(manifest, &["package", field])
                .and_then(|f| f.get("workspace"))
                .and_then(Value::as_bool);
            assert_eq!(inherited, Some(true), "{name}: package.{field}");
        }
        let lints = table(manifest, &["lints"]).and_then(|l| l.get("workspace"));
        assert_eq!(lints.and_then(Value::as_bool), Some(true), "{name}: lints");
        assert!(!name.contains("common"), "{name}: no crate for everything");
    }
}

#[test]
fn nothing_is_unsafe_where_it_need_not_be() {
    let members = members();
    for name in SAFE {
        let (dir, _) = &members[*name];
        let roots: Vec<PathBuf> = ["src/lib.rs", "src/main.rs"]
            .iter()
            .map(|f| dir.join(f))
            .filter(|f| f.exists())
            .collect();
        assert!(!roots.is_empty(), "{name} has no root");
        for file in roots {
            let text = fs::read_to_string(&file).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe_code",
                file.display()
            );
        }
    }
}
