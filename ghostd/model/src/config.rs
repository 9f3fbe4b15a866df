//! Container files: `/etc/ghost/containers.d/*.toml`. TOML's dotted keys are the vocabulary of
//! the keys, so that `gpu.memory.max = "24G"` is both.

use crate::key::Key;
use crate::name::Name;
use crate::problem::{Kind, Problem};
use crate::spec::{DEVICE, Spec};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// What one file declares for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Its settings.
    pub spec: Spec,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Reads a container file: `[container.NAME]` or `[container."team/job"]` tables, with
/// `[container.NAME.device."GPU-…"]` for values of one GPU and `label.KEY = "VALUE"`.
///
/// # Errors
/// A [`Problem`] that names the line (where TOML itself is broken) or the container, key and value.
pub fn parse(text: &str) -> Result<BTreeMap<Name, Declared>, Problem> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(0, |s| {
            text[..s.start.min(text.len())].matches('\n').count() + 1
        });
        Problem::new(Kind::Invalid, format!("line {line}: {}", e.message()))
    })?;
    let mut out = BTreeMap::new();
    for (top, value) in &table {
        let toml::Value::Table(containers) = value else {
            return Err(unknown_table(top));
        };
        if top != "container" {
            return Err(unknown_table(top));
        }
        for (name, value) in containers {
            let name: Name = name
                .parse()
                .map_err(|e: crate::name::NameError| Problem::new(Kind::Invalid, e.to_string()))?;
            let toml::Value::Table(fields) = value else {
                return Err(Problem::new(
                    Kind::Invalid,
                    format!("container.{name} is not a table"),
                ));
            };
            let declared = container(fields).map_err(|p| p.of(&name))?;
            out.insert(name, declared);
        }
    }
    Ok(out)
}

/// The file that [`parse`] reads back as `containers`.
pub fn print(containers: &BTreeMap<Name, Declared>) -> String {
    let mut out = String::new();
    for (name, declared) in containers {
        out.push_str(&format!("[container.{:?}]\n", name.as_str()));
        for (k, v) in &declared.labels {
            out.push_str(&format!(
                "label.{} = {}\n",
                quoted(k),
                toml::Value::from(v.as_str())
            ));
        }
        let mut devices: BTreeMap<&str, String> = BTreeMap::new();
        for (key, gpu, value) in declared.spec.iter() {
            let line = format!("{key} = {}\n", toml::Value::from(value.to_string()));
            match gpu {
                Some(gpu) => devices.entry(gpu.as_str()).or_default().push_str(&line),
                None => out.push_str(&line),
            }
        }
        for (gpu, lines) in devices {
            out.push_str(&format!(
                "[container.{:?}.{DEVICE}.{gpu:?}]\n{lines}",
                name.as_str()
            ));
        }
        out.push('\n');
    }
    out
}

/// A key of any characters. JSON escapes all that TOML does but for DEL, and as TOML does.
fn quoted(key: &str) -> String {
    Json::from(key).to_string().replace('\u{7f}', "\\u007f")
}

fn unknown_table(name: &str) -> Problem {
    Problem::new(
        Kind::UnknownKey,
        format!(
            "unknown table {:?}: a container file has [container.NAME] tables only",
            crate::name::sanitize(name)
        ),
    )
}

fn container(fields: &toml::Table) -> Result<Declared, Problem> {
    let mut labels = BTreeMap::new();
    let mut flat = Map::new();
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("label", toml::Value::Table(all)) => {
                for (k, v) in all {
                    let v = v.as_str().ok_or_else(|| {
                        Problem::new(Kind::Invalid, format!("label.{k} is not a text"))
                    })?;
                    labels.insert(k.clone(), v.to_owned());
                }
            }
            (DEVICE, toml::Value::Table(devices)) => {
                let mut out = Map::new();
                for (gpu, value) in devices {
                    let mut one = Map::new();
                    flatten(String::new(), value, &mut one)?;
                    out.insert(gpu.clone(), Json::Object(one));
                }
                flat.insert(DEVICE.into(), Json::Object(out));
            }
            (name, value) => flatten(name.to_owned(), value, &mut flat)?,
        }
    }
    let spec = Spec::try_from(Json::Object(flat))?;
    Ok(Declared { spec, labels })
}

/// `gpu = { memory = { max = .. } }` becomes `gpu.memory.max`. A table whose path is a key itself
/// (`gpu.max = { max = 1, period = 2 }`) stays whole.
fn flatten(path: String, value: &toml::Value, out: &mut Map<String, Json>) -> Result<(), Problem> {
    match value {
        toml::Value::Table(inner) if path.parse::<Key>().is_err() || !inner_is_value(&path) => {
            for (name, value) in inner {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                flatten(path, value, out)?;
            }
            Ok(())
        }
        value => {
            let json = serde_json::to_value(value)
                .map_err(|e| Problem::new(Kind::Invalid, format!("{path}: {e}")))?;
            out.insert(path, json);
            Ok(())
        }
    }
}

/// Keys below which no other key lies, and whose value may be a table.
fn inner_is_value(path: &str) -> bool {
    matches!(path.parse(), Ok(Key::Max | Key::Latency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"
[container.trainer]
ghost.cgroup     = "/system.slice/trainer.service"
gpu.weight       = 200
gpu.max          = "50000 100000"
gpu.memory.max   = "24G"
gpu.memory.high  = "20G"
label.team       = "nlp"

[container.trainer.device."GPU-8f6b1c2e"]
gpu.memory.max   = "12G"

[container."team/notebook"]
gpu.idle         = 1
gpu.max          = { max = 1000, period = 20000 }
"#;

    #[test]
    fn reads_the_documented_file_and_writes_it_back() {
        let all = parse(FILE).unwrap();
        let trainer = &all[&"trainer".parse::<Name>().unwrap()];
        assert_eq!(trainer.labels["team"], "nlp");
        let gpu = "GPU-8f6b1c2e".parse().unwrap();
        assert_eq!(
            trainer.spec.memory(Key::MemoryMax, &gpu).unwrap().0,
            12 << 30
        );
        assert_eq!(trainer.spec.weight(&gpu).get(), 200);
        assert!(all[&"team/notebook".parse::<Name>().unwrap()].spec.idle());
        assert_eq!(parse(&print(&all)).unwrap(), all);
    }

    #[test]
    fn labels_of_any_characters_are_written_back() {
        let labels = ["\0\u{7f}\u{1b}", "\u{301}", "\"\\\n", "a b"];
        let labels = labels.map(|s| (s.to_owned(), s.to_owned())).into();
        let spec = Spec::default();
        let all = BTreeMap::from([("a".parse().unwrap(), Declared { spec, labels })]);
        assert_eq!(parse(&print(&all)), Ok(all));
    }

    #[test]
    fn typos_are_refused_and_named() {
        for (text, want) in [
            ("[container.a]\ngpu.wieght = 5", "\"gpu.wieght\""),
            ("[container.a]\ngpu.weight = 0", "a: gpu.weight: \"0\""),
            ("[container.a]\ngpu.memory.max = \"24Q\"", "\"24Q\""),
            ("[containr.a]\n", "\"containr\""),
            ("[container.\"../x\"]\n", "\"../x\""),
            ("[container.a]\ngpu.weight = \n", "line 2"),
            ("[container.a]\nghost.procs = 5", "ghost.procs"),
            ("container = 5", "container"),
        ] {
            let p = parse(text).unwrap_err();
            assert!(p.detail.contains(want), "{text:?} gave {:?}", p.detail);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(s in "[\\[\\]a-z.=\"0-9\n {}%G]{0,80}") {
            let _ = parse(&s);
        }
    }
}
