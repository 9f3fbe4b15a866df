//! Values of the settable keys: one parser for what people type, one for JSON that calls the
//! first for texts, one printer whose output parses back.

use crate::gpu::{GpuError, GpuId};
use crate::key::{Key, Mode};
use crate::name::sanitize;
use crate::units::{Bytes, Micros, UnitError};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::fmt;

/// A share relative to siblings: 1 to 10000, 100 by default, as `cpu.weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Weight(u16);

impl Weight {
    /// What a container has that says nothing.
    pub const DEFAULT: Weight = Weight(100);

    /// `None` unless 1 to 10000.
    pub const fn new(n: u64) -> Option<Self> {
        if n >= 1 && n <= 10_000 {
            Some(Weight(n as u16))
        } else {
            None
        }
    }

    /// 1 to 10000.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// `gpu.max`: at most `max` of GPU time in each `period`; no `max` is no limit. As `cpu.max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Budget {
    /// GPU time in microseconds; `None` is `max`.
    pub max: Option<Micros>,
    /// Wall time in microseconds.
    pub period: Micros,
}

impl Budget {
    /// No limit, over the period that cgroup v2 uses.
    pub const UNLIMITED: Budget = Budget {
        max: None,
        period: Micros(100_000),
    };
    /// Shortest and longest period.
    pub const PERIODS: (Micros, Micros) = (Micros(10_000), Micros(1_000_000));
    /// Smallest `max`: less than this is lost in the switch.
    pub const MIN_MAX: Micros = Micros(1_000);

    /// The invariant of every budget: its period is within [`Budget::PERIODS`], and its `max`, if
    /// any, is at least [`Budget::MIN_MAX`] and no more than the period.
    pub fn is_valid(&self) -> bool {
        (Budget::PERIODS.0..=Budget::PERIODS.1).contains(&self.period)
            && self
                .max
                .is_none_or(|m| (Budget::MIN_MAX..=self.period).contains(&m))
    }

    /// The part of a GPU that it allows, 0 to 1; 1 without a limit.
    pub fn ratio(&self) -> f64 {
        self.max
            .map_or(1.0, |m| m.0 as f64 / self.period.0.max(1) as f64)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::UNLIMITED
    }
}

/// `gpu.latency`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Latency {
    /// A throughput container.
    #[default]
    None,
    /// Work should wait no longer than this for its neighbours, 100 to 100000 us.
    Target(Micros),
}

/// An amount, or `max` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Limit {
    /// This many.
    At(Bytes),
    /// No limit.
    Max,
}

/// `gpu.devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that Ghost shares.
    #[default]
    All,
    /// These.
    Only(Vec<GpuId>),
}

/// `gpu.overflow`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Work stays on this host.
    #[default]
    Never,
    /// Work that does not fit goes to a peer.
    Auto,
    /// All work goes to a peer.
    Always,
    /// All work goes to this peer (`host` or `host:port`).
    Peer(String),
}

/// The value of one settable key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `gpu.weight`
    Weight(Weight),
    /// `gpu.max`
    Budget(Budget),
    /// `gpu.idle`, `ghost.freeze`
    Flag(bool),
    /// `gpu.latency`
    Latency(Latency),
    /// `gpu.overflow`
    Overflow(Overflow),
    /// `gpu.devices`
    Devices(Devices),
    /// `gpu.memory.high`, `gpu.memory.max`
    Limit(Limit),
    /// `gpu.memory.min`, `gpu.memory.low`: `Limit::Max` protects everything.
    Protection(Limit),
    /// `ghost.cgroup`
    Cgroup(CgroupPath),
}

/// A path below the cgroup v2 mount: absolute, without `.` or `..`, at most 4096 bytes, not
/// ending in white space, which is not kept where a person may type it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

impl TryFrom<String> for CgroupPath {
    type Error = ValueError;
    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl From<CgroupPath> for String {
    fn from(path: CgroupPath) -> String {
        path.0
    }
}

impl CgroupPath {
    /// `/system.slice/trainer.service`
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `path` (as in `/proc/PID/cgroup`) is this cgroup or below it.
    pub fn covers(&self, path: &str) -> bool {
        path.strip_prefix(&self.0)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl std::str::FromStr for CgroupPath {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let path = text.strip_suffix('/').unwrap_or(text);
        let parts_fine = || {
            path.split('/')
                .skip(1)
                .all(|p| !matches!(p, "" | "." | ".."))
        };
        if !path.starts_with('/')
            || path.len() > 4096
            || path.ends_with(char::is_whitespace)
            || path.chars().any(char::is_control)
            || !parts_fine()
        {
            return Err(ValueError::Cgroup(sanitize(text)));
        }
        Ok(CgroupPath(path.to_owned()))
    }
}

/// Why a text or a JSON value is no value of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Weight out of range or not a number.
    #[error("{0:?} is not a weight: write a whole number from 1 to 10000")]
    Weight(String),
    /// Not `MAX PERIOD`.
    #[error(
        "{0:?} is not a GPU time limit: write \"MAX PERIOD\" in microseconds (\"50000 100000\"), a percentage (\"50%\") or \"max\"; periods are 10000 to 1000000, MAX is 1000 to the period"
    )]
    Budget(String),
    /// Not 0 or 1.
    #[error("{0:?} is neither 0 nor 1")]
    Flag(String),
    /// Not `none` or `target=`.
    #[error(
        "{0:?} is not a latency: write \"target=USEC\" with 100 to 100000 microseconds, or \"none\""
    )]
    Latency(String),
    /// Not an overflow rule.
    #[error("{0:?} is not an overflow rule: write never, auto, always or a peer's name")]
    Overflow(String),
    /// Not a cgroup path.
    #[error(
        "{0:?} is not a cgroup path: write one below the cgroup v2 mount such as /system.slice/trainer.service, without '.' or '..'"
    )]
    Cgroup(String),
    /// Not a size.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Not a GPU.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The key is reported, or membership, and no part of a spec.
    #[error("{0} cannot be set here: {1}")]
    NotSettable(Key, &'static str),
    /// JSON of a type that the key does not take.
    #[error("{0} does not take JSON of this type: {1}")]
    Json(Key, String),
}

impl Value {
    /// What `key` is worth where nothing was said; `None` for keys that have no default.
    pub fn default_of(key: Key) -> Option<Value> {
        Some(match key {
            Key::Weight => Value::Weight(Weight::DEFAULT),
            Key::Max => Value::Budget(Budget::UNLIMITED),
            Key::Idle | Key::Freeze => Value::Flag(false),
            Key::Latency => Value::Latency(Latency::None),
            Key::Overflow => Value::Overflow(Overflow::Never),
            Key::Devices => Value::Devices(Devices::All),
            Key::MemoryMin | Key::MemoryLow => Value::Protection(Limit::At(Bytes(0))),
            Key::MemoryHigh | Key::MemoryMax => Value::Limit(Limit::Max),
            _ => return None,
        })
    }

    /// The value that a person typed for `key`.
    ///
    /// # Errors
    /// [`ValueError`], which quotes the text.
    pub fn parse(key: Key, text: &str) -> Result<Value, ValueError> {
        let text = text.trim();
        let quoted = || sanitize(text);
        Ok(match key {
            Key::Weight => {
                let plain = text.bytes().all(|b| b.is_ascii_digit());
                let weight = plain
                    .then(|| text.parse().ok().and_then(Weight::new))
                    .flatten();
                Value::Weight(weight.ok_or_else(|| ValueError::Weight(quoted()))?)
            }
            Key::Max => {
                Value::Budget(parse_budget(text).ok_or_else(|| ValueError::Budget(quoted()))?)
            }
            Key::Idle | Key::Freeze => Value::Flag(match text {
                "0" | "false" => false,
                "1" | "true" => true,
                _ => return Err(ValueError::Flag(quoted())),
            }),
            Key::Latency => Value::Latency(match text.split_once('=') {
                None if text == "none" => Latency::None,
                Some(("target", us)) => match us.parse::<Micros>() {
                    Ok(us) if (100..=100_000).contains(&us.0) => Latency::Target(us),
                    _ => return Err(ValueError::Latency(quoted())),
                },
                _ => return Err(ValueError::Latency(quoted())),
            }),
            Key::Overflow => Value::Overflow(text.parse()?),
            Key::Devices => Value::Devices(match text {
                "all" => Devices::All,
                list => {
                    let mut only = Vec::new();
                    for id in list.split([',', ' ']).filter(|id| !id.is_empty()) {
                        // Printed alone, it would mean something else.
                        if id == "all" {
                            return Err(GpuError::Form(quoted()).into());
                        }
                        let id: GpuId = id.parse()?;
                        if !only.contains(&id) {
                            only.push(id);
                        }
                    }
                    if only.is_empty() {
                        return Err(GpuError::Form(quoted()).into());
                    }
                    Devices::Only(only)
                }
            }),
            Key::MemoryMin | Key::MemoryLow => Value::Protection(parse_limit(text)?),
            Key::MemoryHigh | Key::MemoryMax => Value::Limit(parse_limit(text)?),
            Key::Cgroup => Value::Cgroup(text.parse()?),
            Key::Procs => {
                return Err(ValueError::NotSettable(
                    key,
                    "pids do not outlive their processes; use `ghostctl attach`, or ghost.cgroup to keep a rule",
                ));
            }
            _ => {
                debug_assert_eq!(key.mode(), Mode::ReadOnly);
                return Err(ValueError::NotSettable(key, "it is reported only"));
            }
        })
    }

    /// The value that a JSON document gives for `key`: a text as typed, or the shape that
    /// [`Value::to_json`] writes.
    ///
    /// # Errors
    /// [`ValueError`], which quotes the offending part.
    pub fn from_json(key: Key, json: &Json) -> Result<Value, ValueError> {
        let wrong = || ValueError::Json(key, sanitize(&json.to_string()));
        match json {
            Json::String(text) => Value::parse(key, text),
            Json::Number(n) => Value::parse(key, &n.as_u64().ok_or_else(wrong)?.to_string()),
            Json::Bool(b) if matches!(key, Key::Idle | Key::Freeze) => Ok(Value::Flag(*b)),
            Json::Array(ids) if key == Key::Devices => {
                let ids: Option<Vec<&str>> = ids.iter().map(Json::as_str).collect();
                Value::parse(key, &ids.ok_or_else(wrong)?.join(","))
            }
            Json::Object(fields) => {
                let number = |name: &str| match fields.get(name) {
                    Some(Json::Number(n)) => n.as_u64().map(|n| n.to_string()),
                    Some(Json::String(s)) if s == "max" && name == "max" => Some(s.clone()),
                    _ => None,
                };
                let only = |names: &[&str]| fields.keys().all(|k| names.contains(&k.as_str()));
                match key {
                    Key::Max if only(&["max", "period"]) => {
                        let max = number("max").ok_or_else(wrong)?;
                        let period = if fields.contains_key("period") {
                            number("period").ok_or_else(wrong)?
                        } else {
                            "100000".into()
                        };
                        Value::parse(key, &format!("{max} {period}"))
                    }
                    Key::Latency if only(&["target"]) => Value::parse(
                        key,
                        &format!("target={}", number("target").ok_or_else(wrong)?),
                    ),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }

    /// The value as REST and `--json` show it: numbers in base units, `"max"` for no limit.
    pub fn to_json(&self) -> Json {
        match self {
            Value::Weight(w) => w.get().into(),
            Value::Budget(b) => {
                let max = b.max.map_or(Json::from("max"), |m| m.0.into());
                serde_json::json!({ "max": max, "period": b.period.0 })
            }
            Value::Flag(on) => u8::from(*on).into(),
            Value::Latency(Latency::None) => "none".into(),
            Value::Latency(Latency::Target(us)) => serde_json::json!({ "target": us.0 }),
            Value::Limit(Limit::At(n)) | Value::Protection(Limit::At(n)) => n.0.into(),
            Value::Devices(Devices::Only(ids)) => ids.iter().map(GpuId::as_str).collect(),
            Value::Devices(Devices::All)
            | Value::Limit(Limit::Max)
            | Value::Protection(Limit::Max)
            | Value::Overflow(_)
            | Value::Cgroup(_) => self.to_string().into(),
        }
    }
}

fn parse_limit(text: &str) -> Result<Limit, UnitError> {
    Ok(if text == "max" {
        Limit::Max
    } else {
        Limit::At(text.parse()?)
    })
}

/// `max`, `max PERIOD`, `MAX`, `MAX PERIOD`, `MAX/PERIOD`, `30%`, `30% PERIOD`; thousandths of a
/// percent are lost to whole microseconds.
fn parse_budget(text: &str) -> Option<Budget> {
    let mut words = text.split([' ', '/', '\t']).filter(|w| !w.is_empty());
    let max = words.next()?;
    let period = match words.next() {
        Some(word) => word.parse::<Micros>().ok()?,
        None => Budget::UNLIMITED.period,
    };
    if words.next().is_some() {
        return None;
    }
    let max = match max.strip_suffix('%') {
        _ if max == "max" => None,
        Some(percent) => {
            let plain = percent.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let percent: f64 = percent.parse().ok().filter(|p| plain && *p <= 100.0)?;
            Some(Micros((percent / 100.0 * period.0 as f64).round() as u64))
        }
        None => Some(max.parse().ok()?),
    };
    Some(Budget { max, period }).filter(Budget::is_valid)
}

impl std::str::FromStr for Overflow {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
        match text {
            "never" => Ok(Overflow::Never),
            "auto" => Ok(Overflow::Auto),
            "always" => Ok(Overflow::Always),
            peer if !peer.is_empty() && peer.len() <= 255 && peer.bytes().all(fine) => {
                Ok(Overflow::Peer(peer.to_owned()))
            }
            other => Err(ValueError::Overflow(sanitize(other))),
        }
    }
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overflow::Never => "never",
            Overflow::Auto => "auto",
            Overflow::Always => "always",
            Overflow::Peer(peer) => peer,
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Weight(w) => write!(f, "{}", w.0),
            Value::Budget(b) => match b.max {
                Some(max) => write!(f, "{max} {}", b.period),
                None => write!(f, "max {}", b.period),
            },
            Value::Flag(on) => write!(f, "{}", u8::from(*on)),
            Value::Latency(Latency::None) => f.write_str("none"),
            Value::Latency(Latency::Target(us)) => write!(f, "target={us}"),
            Value::Overflow(o) => o.fmt(f),
            Value::Devices(Devices::All) => f.write_str("all"),
            Value::Devices(Devices::Only(ids)) => {
                for (i, id) in ids.iter().enumerate() {
                    write!(f, "{}{id}", if i > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Value::Limit(l) | Value::Protection(l) => match l {
                Limit::At(n) => write!(f, "{n}"),
                Limit::Max => f.write_str("max"),
            },
            Value::Cgroup(path) => f.write_str(path.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings() -> impl Iterator<Item = Key> {
        Key::ALL
            .iter()
            .copied()
            .filter(|k| k.mode() == Mode::Setting)
    }

    #[test]
    fn budgets() {
        let b = |s: &str| match Value::parse(Key::Max, s) {
            Ok(Value::Budget(b)) => Some((b.max.map(|m| m.0), b.period.0)),
            _ => None,
        };
        assert_eq!(b("50000 100000"), Some((Some(50_000), 100_000)));
        assert_eq!(b("50000/200000"), Some((Some(50_000), 200_000)));
        assert_eq!(b("30%"), Some((Some(30_000), 100_000)));
        assert_eq!(b("12.5% 200000"), Some((Some(25_000), 200_000)));
        assert_eq!(b("max"), Some((None, 100_000)));
        assert_eq!(b("max 50000"), Some((None, 50_000)));
        for bad in [
            "",
            "0",
            "101%",
            "-5%",
            "inf%",
            "1e1%",
            "50000 0",
            "200000 100000",
            "1 2 3",
            "50 ms",
            "50000 99999999",
        ] {
            assert_eq!(b(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for (key, text) in [
            (Key::Weight, "0"),
            (Key::Weight, "10001"),
            (Key::Weight, "+5"),
            (Key::Weight, "5.5"),
            (Key::Idle, "2"),
            (Key::Latency, "target=99"),
            (Key::Latency, "5"),
            (Key::MemoryMax, "-1"),
            (Key::Cgroup, "/a/../b"),
            (Key::Cgroup, "a"),
            (Key::Cgroup, "/"),
            (Key::Cgroup, "/a /"),
            (Key::Devices, ""),
            (Key::Devices, "all,all"),
            (Key::Devices, "all,0"),
            (Key::Procs, "1"),
            (Key::Stat, "1"),
        ] {
            assert!(Value::parse(key, text).is_err(), "{key}={text}");
        }
    }

    #[test]
    fn json_takes_shapes_and_texts_alike() {
        let shape = serde_json::json!({"max": 50000, "period": 100000});
        assert_eq!(
            Value::from_json(Key::Max, &shape),
            Value::parse(Key::Max, "50000 100000")
        );
        assert_eq!(
            Value::from_json(Key::MemoryMax, &"24G".into()),
            Value::parse(Key::MemoryMax, "24G")
        );
        for (key, json) in [
            (Key::Weight, serde_json::json!(-1)),
            (Key::Weight, serde_json::json!(1.5)),
            (Key::Weight, serde_json::json!([1])),
            (Key::Weight, serde_json::json!(null)),
            (Key::Max, serde_json::json!({"max": 50000, "perod": 100000})),
            (Key::Max, serde_json::json!({"max": 50000, "period": "x"})),
        ] {
            assert!(Value::from_json(key, &json).is_err(), "{key} {json}");
        }
    }

    #[test]
    fn a_refused_cgroup_is_named_as_written() {
        let root = "/".parse::<CgroupPath>();
        assert_eq!(root, Err(ValueError::Cgroup("/".into())));
    }

    #[test]
    fn cgroup_covers_children_only() {
        let c: CgroupPath = "/a/b/".parse().unwrap();
        assert!(c.covers("/a/b") && c.covers("/a/b/c"));
        assert!(!c.covers("/a/bc") && !c.covers("/a"));
    }

    #[test]
    fn defaults_read_back() {
        for key in settings() {
            if let Some(v) = Value::default_of(key) {
                assert_eq!(Value::parse(key, &v.to_string()), Ok(v.clone()), "{key}");
                assert_eq!(Value::from_json(key, &v.to_json()), Ok(v), "{key}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_parses_prints_and_parses_back(i in 0usize..20, s in "[a-z0-9GM%=/ ,.-]{0,24}") {
            let key = settings().nth(i % settings().count()).unwrap();
            if let Ok(v) = Value::parse(key, &s) {
                prop_assert_eq!(Value::parse(key, &v.to_string()), Ok(v.clone()));
                prop_assert_eq!(Value::from_json(key, &v.to_json()), Ok(v));
            }
        }

        #[test]
        fn valid_budgets_read_back(max in 1_000u64..=1_000_000, period in 10_000u64..=1_000_000) {
            let b = Budget { max: Some(Micros(max)), period: Micros(period) };
            let parsed = Value::parse(Key::Max, &Value::Budget(b).to_string());
            prop_assert_eq!(parsed.is_ok(), b.is_valid());
        }
    }
}
