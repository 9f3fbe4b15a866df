//! The keys of a container as text: one value, lines, or values keyed by GPU, as cgroup v2's
//! files have them.

use ghost_model::report::Container;
use ghost_model::{GpuId, Key, MemoryEvents};
use serde_json::Value as Json;

/// What a key shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// One value.
    One(String),
    /// One a line (`ghost.procs`).
    Lines(Vec<String>),
    /// Flat keyed: `default` and GPUs, or the fields of `ghost.events`.
    Keyed(Vec<(String, String)>),
}

impl Shown {
    /// As the file of a cgroup would hold it, without the last newline.
    pub fn file(&self) -> String {
        match self {
            Shown::One(value) => value.clone(),
            Shown::Lines(lines) => lines.join("\n"),
            Shown::Keyed(pairs) => {
                let lines: Vec<String> = pairs.iter().map(|(k, v)| format!("{k} {v}")).collect();
                lines.join("\n")
            }
        }
    }

    /// As `KEY=value` lines; a GPU stands in brackets.
    pub fn assignments(&self, key: Key) -> Vec<String> {
        match self {
            Shown::One(value) => vec![format!("{key}={value}")],
            Shown::Lines(lines) => vec![format!("{key}={}", lines.join(" "))],
            Shown::Keyed(pairs) => pairs
                .iter()
                .map(|(k, v)| match k.as_str() {
                    "default" => format!("{key}={v}"),
                    k => format!("{key}[{k}]={v}"),
                })
                .collect(),
        }
    }

    /// In one cell of a table.
    pub fn cell(&self) -> String {
        match self {
            Shown::Keyed(pairs) => {
                let all: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
                all.join(",")
            }
            Shown::Lines(lines) => lines.join(","),
            Shown::One(value) => value.clone(),
        }
    }
}

/// What `key` shows for a container, on one GPU or on all; `None` if this node has no source for
/// it or nothing was said.
pub fn shown(c: &Container, key: Key, gpu: Option<&GpuId>) -> Option<Shown> {
    let status = &c.status;
    let by_gpu = |all: Vec<(String, String)>| match gpu {
        Some(gpu) => {
            let of = all.into_iter().find(|(g, _)| g == gpu.as_str());
            of.map(|(_, v)| Shown::One(v))
        }
        None => Some(Shown::Keyed(all)),
    };
    match key {
        Key::DevicesEffective => {
            let all: Vec<&str> = status.devices_effective.iter().map(GpuId::as_str).collect();
            Some(Shown::One(all.join(",")))
        }
        Key::MemoryCurrent | Key::MemoryPeak => {
            let map = match key {
                Key::MemoryCurrent => &status.memory_current,
                _ => &status.memory_peak,
            };
            by_gpu(
                map.iter()
                    .map(|(g, n)| (g.to_string(), n.to_string()))
                    .collect(),
            )
        }
        Key::Stat => by_gpu(
            status
                .stat
                .iter()
                .map(|(g, s)| {
                    let text = format!(
                        "usage_usec={} nr_periods={} nr_throttled={} throttled_usec={}",
                        s.usage_usec, s.nr_periods, s.nr_throttled, s.throttled_usec
                    );
                    (g.to_string(), text)
                })
                .collect(),
        ),
        Key::Procs => Some(Shown::Lines(
            status.procs.iter().map(|p| p.pid.to_string()).collect(),
        )),
        Key::Events => Some(Shown::Keyed(vec![
            ("populated".into(), status.events.populated.to_string()),
            ("frozen".into(), status.events.frozen.to_string()),
        ])),
        Key::MemoryEvents | Key::MemoryEventsLocal => {
            let map = match key {
                Key::MemoryEvents => &status.memory_events,
                _ => &status.memory_events_local,
            };
            let text = |e: &MemoryEvents| {
                format!(
                    "low={} high={} max={} fail={}",
                    e.low, e.high, e.max, e.fail
                )
            };
            by_gpu(map.iter().map(|(g, e)| (g.to_string(), text(e))).collect())
        }
        Key::Pressure => None,
        setting => {
            if gpu.is_some() {
                let value = status.effective.effective(setting, gpu)?;
                return Some(Shown::One(value.to_string()));
            }
            let default = status.effective.effective(setting, None);
            let own: Vec<_> = status
                .effective
                .iter()
                .filter(|(k, gpu, _)| *k == setting && gpu.is_some())
                .map(|(_, gpu, v)| (gpu.map(GpuId::to_string).unwrap_or_default(), v.to_string()))
                .collect();
            if own.is_empty() {
                return default.map(|v| Shown::One(v.to_string()));
            }
            let default = default.map(|v| ("default".to_owned(), v.to_string()));
            Some(Shown::Keyed(default.into_iter().chain(own).collect()))
        }
    }
}

/// The part of the REST document that a key is; `null` where there is none.
pub fn json(document: &Json, key: Key, gpu: Option<&GpuId>) -> Json {
    let status = document.get("status").unwrap_or(&Json::Null);
    let effective = status.get("effective").unwrap_or(&Json::Null);
    let at = |json: &Json, name: &str| json.get(name).cloned();
    let of_gpu = gpu.and_then(|g| {
        effective
            .get(ghost_model::spec::DEVICE)
            .and_then(|d| d.get(g.as_str()))
            .and_then(|fields| at(fields, key.as_str()))
            .or_else(|| status.get(key.as_str()).and_then(|v| at(v, g.as_str())))
    });
    of_gpu
        .or_else(|| at(effective, key.as_str()))
        .or_else(|| at(status, key.as_str()))
        .unwrap_or_default()
}
