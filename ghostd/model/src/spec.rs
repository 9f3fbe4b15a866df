//! What a container was asked to be: a set of key = value, some of them for one GPU only. Files,
//! commands and REST all become a [`Spec`]; what a key is worth where nothing was said is the
//! business of the typed readers below.

use crate::gpu::{GpuError, GpuId, GpuInfo};
use crate::key::Key;
use crate::problem::{FieldError, Kind, Problem};
use crate::units::Bytes;
use crate::value::{Budget, CgroupPath, Devices, Latency, Limit, Overflow, Value, Weight};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Key of the JSON object and of the TOML table that hold values for one GPU.
pub const DEVICE: &str = "device";

/// A set of values, each for all GPUs (`None`) or for one.
///
/// As JSON: `{"gpu.weight": 200, "device": {"GPU-…": {"gpu.memory.max": 12884901888}}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Json")]
pub struct Spec {
    values: BTreeMap<(Key, Option<GpuId>), Value>,
}

macro_rules! readers {
    ($($(#[$doc:meta])* $fn:ident $key:ident $variant:ident $type:ty,)*) => {
        $($(#[$doc])*
        pub fn $fn(&self, gpu: &GpuId) -> $type {
            match self.effective(Key::$key, Some(gpu)) {
                Some(Value::$variant(v)) => v,
                _ => Default::default(),
            }
        })*
    };
}

impl Spec {
    readers! {
        /// `gpu.weight` on a GPU.
        weight Weight Weight Weight,
        /// `gpu.max` on a GPU.
        budget Max Budget Budget,
    }

    /// `gpu.idle`.
    pub fn idle(&self) -> bool {
        matches!(self.get(Key::Idle, None), Some(Value::Flag(true)))
    }

    /// `ghost.freeze`.
    pub fn freeze(&self) -> bool {
        matches!(self.get(Key::Freeze, None), Some(Value::Flag(true)))
    }

    /// `gpu.latency`.
    pub fn latency(&self) -> Latency {
        match self.get(Key::Latency, None) {
            Some(Value::Latency(l)) => *l,
            _ => Latency::None,
        }
    }

    /// `gpu.overflow`.
    pub fn overflow(&self) -> Overflow {
        match self.get(Key::Overflow, None) {
            Some(Value::Overflow(o)) => o.clone(),
            _ => Overflow::Never,
        }
    }

    /// `ghost.cgroup`.
    pub fn cgroup(&self) -> Option<&CgroupPath> {
        match self.get(Key::Cgroup, None) {
            Some(Value::Cgroup(path)) => Some(path),
            _ => None,
        }
    }

    /// `gpu.devices`.
    pub fn devices(&self) -> Devices {
        match self.get(Key::Devices, None) {
            Some(Value::Devices(d)) => d.clone(),
            _ => Devices::All,
        }
    }

    /// Bytes of a `gpu.memory.*` setting on a GPU; `None` is `max`.
    pub fn memory(&self, key: Key, gpu: &GpuId) -> Option<Bytes> {
        match self.effective(key, Some(gpu)) {
            Some(Value::Limit(Limit::At(n)) | Value::Protection(Limit::At(n))) => Some(n),
            _ => None,
        }
    }

    /// What was asked for exactly this key and GPU.
    pub fn get(&self, key: Key, gpu: Option<&GpuId>) -> Option<&Value> {
        self.values.get(&(key, gpu.cloned()))
    }

    /// What holds for a key: the GPU's own value, else that for all GPUs, else the default.
    pub fn effective(&self, key: Key, gpu: Option<&GpuId>) -> Option<Value> {
        gpu.and_then(|g| self.get(key, Some(g)))
            .or_else(|| self.get(key, None))
            .cloned()
            .or_else(|| Value::default_of(key))
    }

    /// Every value that was asked for.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Option<&GpuId>, &Value)> {
        self.values.iter().map(|((k, g), v)| (*k, g.as_ref(), v))
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets one value.
    ///
    /// # Errors
    /// A [`Problem`] if `gpu` is given for a key that has no per-GPU values.
    pub fn set(&mut self, key: Key, gpu: Option<GpuId>, value: Value) -> Result<(), Problem> {
        if gpu.is_some() && !key.per_gpu() {
            return Err(
                Problem::new(Kind::Invalid, format!("{key} is the same on every GPU")).at(key),
            );
        }
        self.values.insert((key, gpu), value);
        Ok(())
    }

    /// Sets one value from what a person typed; an empty text puts the key back to its default.
    ///
    /// # Errors
    /// A [`Problem`] that quotes key and value.
    pub fn set_text(&mut self, key: &str, gpu: Option<GpuId>, text: &str) -> Result<Key, Problem> {
        let key: Key = key.parse()?;
        if text.trim().is_empty() {
            self.values.remove(&(key, gpu));
        } else {
            let value =
                Value::parse(key, text).map_err(|e| Problem::field(Kind::Invalid, key, e))?;
            self.set(key, gpu, value)?;
        }
        Ok(key)
    }

    /// Takes a value back.
    pub fn unset(&mut self, key: Key, gpu: Option<&GpuId>) -> Option<Value> {
        self.values.remove(&(key, gpu.cloned()))
    }

    /// `over` laid on this one.
    pub fn overlaid(&self, over: &Spec) -> Spec {
        let mut all = self.clone();
        all.values
            .extend(over.values.iter().map(|(k, v)| (k.clone(), v.clone())));
        all
    }

    /// The same with every GPU named by its whole UUID.
    ///
    /// # Errors
    /// [`GpuError`] for a GPU that is not among `gpus`.
    pub fn resolved(&self, gpus: &[GpuInfo]) -> Result<Spec, GpuError> {
        let mut out = Spec::default();
        for ((key, gpu), value) in &self.values {
            let gpu = gpu.as_ref().map(|g| g.resolve(gpus)).transpose()?;
            let value = match value {
                Value::Devices(Devices::Only(ids)) => Value::Devices(Devices::Only(
                    ids.iter()
                        .map(|g| g.resolve(gpus))
                        .collect::<Result<_, _>>()?,
                )),
                other => other.clone(),
            };
            out.values.insert((*key, gpu), value);
        }
        Ok(out)
    }

    /// Reads a spec, or with `null`s a JSON merge patch (RFC 7396), onto this one. All problems
    /// are reported together, each with the pointer below `#/spec` at which it stands; on any,
    /// nothing is changed.
    ///
    /// # Errors
    /// A [`Problem`] of kind `invalid` or `unknown-key`.
    pub fn merge_json(&mut self, json: &Json) -> Result<(), Problem> {
        let Json::Object(fields) = json else {
            return Err(Problem::new(
                Kind::Invalid,
                "a spec is a JSON object of keys and values",
            ));
        };
        let mut new = self.clone();
        let mut errors = Vec::new();
        let mut unknown = false;
        new.merge_fields(None, fields, &mut errors, &mut unknown);
        if let Some(first) = errors.first() {
            let kind = if unknown {
                Kind::UnknownKey
            } else {
                Kind::Invalid
            };
            let mut problem = Problem::new(kind, first.detail.clone());
            problem.errors = errors;
            return Err(problem);
        }
        *self = new;
        Ok(())
    }

    fn merge_fields(
        &mut self,
        gpu: Option<&GpuId>,
        fields: &Map<String, Json>,
        errors: &mut Vec<FieldError>,
        unknown: &mut bool,
    ) {
        let escape = |s: &str| s.replace('~', "~0").replace('/', "~1");
        let under = match gpu {
            Some(g) => format!("#/spec/{DEVICE}/{}", escape(g.as_str())),
            None => "#/spec".to_owned(),
        };
        for (name, json) in fields {
            let pointer = format!("{under}/{}", escape(&crate::name::sanitize(name)));
            let mut fail = |detail: String| {
                errors.push(FieldError {
                    detail,
                    pointer: pointer.clone(),
                })
            };
            if gpu.is_none() && name == DEVICE {
                match json {
                    Json::Null => self.values.retain(|(_, gpu), _| gpu.is_none()),
                    Json::Object(devices) => {
                        for (id, json) in devices {
                            match (id.parse::<GpuId>(), json) {
                                (Ok(id), Json::Object(fields)) => {
                                    self.merge_fields(Some(&id), fields, errors, unknown)
                                }
                                (Ok(id), Json::Null) => {
                                    self.values.retain(|(_, gpu), _| gpu.as_ref() != Some(&id))
                                }
                                (Ok(_), _) => errors.push(FieldError {
                                    detail: "the values of one GPU are an object".into(),
                                    pointer: pointer.clone(),
                                }),
                                (Err(e), _) => errors.push(FieldError {
                                    detail: e.to_string(),
                                    pointer: pointer.clone(),
                                }),
                            }
                        }
                    }
                    _ => fail(format!("{DEVICE} is an object keyed by GPU")),
                }
                continue;
            }
            let key: Key = match name.parse() {
                Ok(key) => key,
                Err(e) => {
                    *unknown = true;
                    fail(crate::key::UnknownKey::to_string(&e));
                    continue;
                }
            };
            if json.is_null() {
                self.values.remove(&(key, gpu.cloned()));
                continue;
            }
            match Value::from_json(key, json) {
                Ok(value) => {
                    if let Err(p) = self.set(key, gpu.cloned(), value) {
                        fail(p.detail);
                    }
                }
                Err(e) => fail(format!("{key}: {e}")),
            }
        }
    }
}

/// As [`Json::from`] does, without the tree between: lists of a thousand containers have two
/// thousand specs.
impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        let mut devices: BTreeMap<&str, BTreeMap<Key, Json>> = BTreeMap::new();
        for ((key, gpu), value) in &self.values {
            match gpu {
                None => map.serialize_entry(key.as_str(), &value.to_json())?,
                Some(gpu) => {
                    let device = devices.entry(gpu.as_str()).or_default();
                    device.insert(*key, value.to_json());
                }
            }
        }
        if !devices.is_empty() {
            map.serialize_entry(DEVICE, &devices)?;
        }
        map.end()
    }
}

impl TryFrom<Json> for Spec {
    type Error = Problem;
    fn try_from(json: Json) -> Result<Spec, Problem> {
        let mut spec = Spec::default();
        spec.merge_json(&json)?;
        Ok(spec)
    }
}

impl From<Spec> for Json {
    fn from(spec: Spec) -> Json {
        let mut out = Map::new();
        let mut devices: BTreeMap<String, Map<String, Json>> = BTreeMap::new();
        for ((key, gpu), value) in &spec.values {
            let into = match gpu {
                Some(g) => devices.entry(g.to_string()).or_default(),
                None => &mut out,
            };
            into.insert(key.to_string(), value.to_json());
        }
        if !devices.is_empty() {
            out.insert(
                DEVICE.into(),
                devices
                    .into_iter()
                    .map(|(g, m)| (g, Json::Object(m)))
                    .collect(),
            );
        }
        Json::Object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(json: Json) -> Spec {
        Spec::try_from(json).unwrap()
    }

    #[test]
    fn per_gpu_beats_general_beats_default() {
        let s = spec(json!({"gpu.weight": 200, "device": {"GPU-aaaa": {"gpu.weight": 7}}}));
        let (a, b): (GpuId, GpuId) = ("GPU-aaaa".parse().unwrap(), "GPU-bbbb".parse().unwrap());
        assert_eq!(s.weight(&a).get(), 7);
        assert_eq!(s.weight(&b).get(), 200);
        assert_eq!(Spec::default().weight(&a).get(), 100);
        assert_eq!(s.budget(&a), Budget::UNLIMITED);
    }

    #[test]
    fn json_round_trip() {
        let j = json!({"gpu.idle": 1, "gpu.max": {"max": "max", "period": 50000}, "device": {"GPU-aaaa": {"gpu.memory.max": 5}}});
        assert_eq!(Json::from(spec(j.clone())), j);
        assert_eq!(serde_json::to_value(spec(j.clone())).unwrap(), j);
    }

    #[test]
    fn a_patch_with_problems_changes_nothing_and_names_them_all() {
        let mut s = spec(json!({"gpu.weight": 200}));
        let before = s.clone();
        let p = s
            .merge_json(
                &json!({"gpu.weight": 0, "gpu.idle": 1, "device": {"GPU-aaaa": {"gpu.idle": 1}}}),
            )
            .unwrap_err();
        assert_eq!(s, before);
        let pointers: Vec<_> = p.errors.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            ["#/spec/device/GPU-aaaa/gpu.idle", "#/spec/gpu.weight"]
        );
        assert_eq!(p.kind, Kind::Invalid);
        assert_eq!(
            s.merge_json(&json!({"gpu.wait": 1})).unwrap_err().kind,
            Kind::UnknownKey
        );
    }

    #[test]
    fn null_takes_back() {
        let mut s = spec(json!({"gpu.weight": 200, "device": {"GPU-aaaa": {"gpu.weight": 7}}}));
        s.merge_json(&json!({"gpu.weight": null, "device": {"GPU-aaaa": null}}))
            .unwrap();
        assert!(s.is_empty());
    }

    #[test]
    fn an_empty_text_resets() {
        let mut s = spec(json!({"gpu.weight": 200}));
        s.set_text("gpu.weight", None, "").unwrap();
        assert!(s.is_empty());
        assert!(
            s.set_text("gpu.idle", Some("GPU-aaaa".parse().unwrap()), "1")
                .is_err()
        );
    }
}
