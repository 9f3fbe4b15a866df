//! `KEY=VALUE` as people type it, and the flags that stand for some of them.

use crate::cli::Limits;
use ghost_model::key::Mode;
use ghost_model::name::sanitize;
use ghost_model::spec::DEVICE;
use ghost_model::value::Devices;
use ghost_model::{GpuId, Key, Kind, Problem, Spec, Value};
use serde_json::{Map, Value as Json, json};

/// One change: the key, and its value or `None` for the default.
pub type Assignment = (Key, Option<Value>);

/// Reads `KEY=VALUE` pairs. An empty value puts the key back to its default.
///
/// # Errors
/// A [`Problem`] that quotes what was typed: no `=`, an unknown key (with the nearest known
/// one), a value that the key does not take, a key given twice.
pub fn parse(pairs: &[String]) -> Result<Vec<Assignment>, Problem> {
    let mut out: Vec<Assignment> = Vec::new();
    for pair in pairs {
        let (key, text) = pair.split_once('=').ok_or_else(|| {
            Problem::new(
                Kind::Invalid,
                format!("{:?} is no KEY=VALUE", sanitize(pair)),
            )
        })?;
        let key: Key = key.parse()?;
        if out.iter().any(|(k, _)| *k == key) {
            return Err(Problem::new(Kind::Invalid, format!("{key} is given twice")));
        }
        let text = text.trim();
        let value = if text.is_empty() && key.mode() == Mode::Setting {
            None
        } else {
            Some(Value::parse(key, text).map_err(|e| Problem::field(Kind::Invalid, key, e))?)
        };
        out.push((key, value));
    }
    Ok(out)
}

/// The JSON merge patch (RFC 7396) of a spec that makes these changes, on one GPU or on all.
pub fn patch(changes: &[Assignment], gpu: Option<&GpuId>) -> Json {
    let fields: Map<String, Json> = changes
        .iter()
        .map(|(key, value)| {
            let json = value.as_ref().map_or(Json::Null, Value::to_json);
            (key.to_string(), json)
        })
        .collect();
    match gpu {
        Some(gpu) => json!({ DEVICE: { gpu.as_str(): fields } }),
        None => Json::Object(fields),
    }
}

impl Limits {
    /// Whether a flag was given.
    pub fn given(&self) -> bool {
        let texts = [&self.weight, &self.max, &self.memory_max, &self.memory_high];
        !self.gpus.is_empty() || texts.iter().any(|t| t.is_some())
    }

    /// Lays the flags on `spec`.
    ///
    /// # Errors
    /// A [`Problem`] that quotes the value.
    pub fn lay_on(&self, spec: &mut Spec) -> Result<(), Problem> {
        for (key, text) in [
            (Key::Weight, &self.weight),
            (Key::Max, &self.max),
            (Key::MemoryMax, &self.memory_max),
            (Key::MemoryHigh, &self.memory_high),
        ] {
            if let Some(text) = text {
                let value =
                    Value::parse(key, text).map_err(|e| Problem::field(Kind::Invalid, key, e))?;
                spec.set(key, None, value)?;
            }
        }
        if !self.gpus.is_empty() {
            let only = Value::Devices(Devices::Only(self.gpus.clone()));
            spec.set(Key::Devices, None, only)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(pairs: &[&str]) -> Vec<String> {
        pairs.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn pairs_become_a_merge_patch() {
        let changes = parse(&texts(&["gpu.weight=70", "gpu.max=50%", "gpu.idle="])).unwrap();
        let want = json!({
            "gpu.weight": 70, "gpu.max": {"max": 50000, "period": 100000}, "gpu.idle": null
        });
        assert_eq!(patch(&changes, None), want);
        let gpu = "GPU-aaaa".parse().unwrap();
        assert_eq!(
            patch(&changes, Some(&gpu)),
            json!({ "device": {"GPU-aaaa": want} })
        );
    }

    #[test]
    fn a_value_may_hold_an_equals_sign() {
        let changes = parse(&texts(&["gpu.latency=target=5000"])).unwrap();
        assert_eq!(
            patch(&changes, None),
            json!({ "gpu.latency": {"target": 5000} })
        );
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        for (pairs, kind, want) in [
            (
                &["gpu.weight"][..],
                Kind::Invalid,
                "\"gpu.weight\" is no KEY=VALUE",
            ),
            (
                &["gpu.wieght=1"],
                Kind::UnknownKey,
                "did you mean gpu.weight?",
            ),
            (&["gpu.weight=0"], Kind::Invalid, "gpu.weight: \"0\""),
            (
                &["gpu.idle=1", "gpu.idle=0"],
                Kind::Invalid,
                "gpu.idle is given twice",
            ),
            (&["ghost.procs="], Kind::Invalid, "ghostctl attach"),
            (&["gpu.stat="], Kind::Invalid, "reported only"),
        ] {
            let p = parse(&texts(pairs)).unwrap_err();
            assert_eq!(p.kind, kind, "{pairs:?}");
            assert!(p.detail.contains(want), "{pairs:?} gave {:?}", p.detail);
        }
    }

    #[test]
    fn flags_are_settings() {
        let limits = Limits {
            gpus: vec!["0".parse().unwrap(), "1".parse().unwrap()],
            max: Some("50000/200000".into()),
            memory_max: Some("24G".into()),
            ..Limits::default()
        };
        let mut spec = Spec::default();
        limits.lay_on(&mut spec).unwrap();
        assert_eq!(
            Json::from(spec),
            json!({
                "gpu.devices": ["0", "1"],
                "gpu.max": {"max": 50000, "period": 200000},
                "gpu.memory.max": 24u64 << 30
            })
        );
        assert!(limits.given() && !Limits::default().given());
    }

    proptest! {
        #[test]
        fn what_is_accepted_reads_back_as_a_spec(
            i in 0usize..20, text in "[a-z0-9GM%=/ ,.-]{0,16}"
        ) {
            let key = Key::ALL[i];
            if let Ok(changes) = parse(&[format!("{key}={text}")]) {
                let mut spec = Spec::default();
                prop_assert!(spec.merge_json(&patch(&changes, None)).is_ok());
                prop_assert_eq!(spec.get(key, None).cloned(), changes[0].1.clone());
            }
        }

        #[test]
        fn no_text_panics(pairs in proptest::collection::vec(".{0,40}", 0..4)) {
            let _ = parse(&pairs);
        }
    }
}
