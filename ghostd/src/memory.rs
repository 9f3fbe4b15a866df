//! GPU memory as the control loop keeps it: the limits that the backend is told, what containers
//! hold, and what people hear of limits that made themselves felt.

use crate::control::Seen;
use ghost_model::report::Process;
use ghost_model::value::Limit;
use ghost_model::{
    Bytes, GpuId, GpuInfo, GpuState, Key, MemoryEvents, MemoryLimits, MemorySeen, MemoryWanted,
    Name, Sample, Spec, Value,
};
use ghost_policy::Desired;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// People hear of a container's memory this often at most.
const TELL: Duration = Duration::from_secs(1);

/// What each container may take of the GPUs that are shared. Those without limits are named too.
pub(crate) fn wanted(desired: &Desired, gpus: &[GpuInfo]) -> MemoryWanted {
    let of = |spec: &Spec| {
        let keys = [
            Key::MemoryMin,
            Key::MemoryLow,
            Key::MemoryHigh,
            Key::MemoryMax,
        ];
        if !spec.iter().any(|(key, ..)| keys.contains(&key)) {
            return BTreeMap::new();
        }
        let shared = gpus.iter().filter(|g| g.state == GpuState::Shared);
        let limits = shared.map(|gpu| (gpu.id.clone(), limits(spec, gpu)));
        limits
            .filter(|(_, l)| *l != MemoryLimits::default())
            .collect()
    };
    let all = desired.containers.iter();
    MemoryWanted(all.map(|(name, spec)| (name.clone(), of(spec))).collect())
}

fn limits(spec: &Spec, gpu: &GpuInfo) -> MemoryLimits {
    let protected = |key| match spec.effective(key, Some(&gpu.id)) {
        Some(Value::Protection(Limit::At(bytes))) => bytes.min(gpu.memory_total),
        Some(Value::Protection(Limit::Max)) => gpu.memory_total,
        _ => Bytes(0),
    };
    MemoryLimits {
        min: protected(Key::MemoryMin),
        low: protected(Key::MemoryLow),
        high: spec.memory(Key::MemoryHigh, &gpu.id),
        max: spec.memory(Key::MemoryMax, &gpu.id),
    }
}

/// Something that people should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub what: &'static str,
    pub container: Name,
    pub detail: String,
}

/// What is known of memory.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    /// What the backend was told last.
    told: Option<MemoryWanted>,
    /// What the containers use that have `gpu.memory.high`, for the policy.
    for_policy: BTreeMap<GpuId, BTreeMap<Name, Bytes>>,
    /// By container, its own events as of the last time that people heard of it, and when that was.
    heard: BTreeMap<Name, (Option<Instant>, BTreeMap<GpuId, MemoryEvents>)>,
    /// Whether the backend said what was so: what it had counted before that is no news.
    began: bool,
}

impl Holdings {
    /// The limits to tell the backend, where they are others than before.
    pub(crate) fn untold(&mut self, desired: &Desired, gpus: &[GpuInfo]) -> Option<&MemoryWanted> {
        let wanted = wanted(desired, gpus);
        if self.told.as_ref() == Some(&wanted) {
            return None;
        }
        self.told = Some(wanted);
        self.told.as_ref()
    }

    /// Tells the policy what is used.
    pub(crate) fn fill(&self, sample: &mut Sample) {
        for on in &mut sample.gpus {
            if let Some(used) = self.for_policy.get(&on.gpu) {
                on.memory.clone_from(used);
            }
        }
    }

    /// Adds what a backend saw to what processes hold. Where the backend keeps no account of a
    /// container, the sum of its processes stays.
    pub(crate) fn see(
        &mut self,
        memory: Option<&MemorySeen>,
        processes: &[Process],
        all: &mut BTreeMap<Name, Seen>,
    ) {
        for (name, on) in memory.iter().flat_map(|m| &m.containers) {
            let seen = all.entry(name.clone()).or_default();
            for (gpu, used) in on {
                seen.memory.insert(gpu.clone(), used.current);
                seen.memory_events.insert(gpu.clone(), used.events);
                seen.memory_events_local
                    .insert(gpu.clone(), used.events_local);
            }
        }
        let held: BTreeSet<u32> = memory.iter().flat_map(|m| &m.held).map(|p| p.pid).collect();
        let works = |p: &&Process| !p.groups.is_empty() || !p.memory.is_empty();
        for process in processes.iter().filter(works) {
            for name in process.container.lineage() {
                let seen = all.entry(name).or_default();
                if held.contains(&process.pid) {
                    seen.held = true;
                } else {
                    seen.not_held.push(process.pid);
                }
            }
        }
        self.for_policy.clear();
        let limited = self.told.iter().flat_map(|told| &told.0);
        for (name, on) in limited {
            for (gpu, _) in on.iter().filter(|(_, limits)| limits.high.is_some()) {
                if let Some(used) = all.get(name).and_then(|seen| seen.memory.get(gpu)) {
                    let here = self.for_policy.entry(gpu.clone()).or_default();
                    here.insert(name.clone(), *used);
                }
            }
        }
    }

    /// What happened since people last heard of it, each container once a second at most.
    pub(crate) fn news(&mut self, memory: &MemorySeen, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        let first = !std::mem::replace(&mut self.began, true);
        self.heard
            .retain(|name, _| memory.containers.contains_key(name));
        for (name, on) in &memory.containers {
            let (at, before) = self.heard.entry(name.clone()).or_default();
            let events = || {
                on.iter()
                    .map(|(gpu, used)| (gpu.clone(), used.events_local))
            };
            if first {
                *before = events().collect();
                continue;
            }
            if at.is_some_and(|at| now.saturating_duration_since(at) < TELL) {
                continue;
            }
            let count = news.len();
            for (gpu, used) in on {
                let before = before.get(gpu).copied().unwrap_or_default();
                let limits = self.told.as_ref().and_then(|told| told.0.get(name));
                let limits = limits.and_then(|on| on.get(gpu)).copied();
                let limits = limits.unwrap_or_default();
                let of = |limit: Option<Bytes>| limit.map(|l| format!(" {}", l.human()));
                let use_of = used.current.human();
                let local = used.events_local;
                let mut say = |what, detail| {
                    news.push(News {
                        what,
                        container: name.clone(),
                        detail,
                    });
                };
                match local.max.saturating_sub(before.max) {
                    0 => {}
                    n => say(
                        "memory-max",
                        format!(
                            "{n} {} on {gpu} beyond gpu.memory.max{}, with {use_of} in use",
                            if n == 1 { "allocation" } else { "allocations" },
                            of(limits.max).unwrap_or_default(),
                        ),
                    ),
                }
                if local.high > before.high {
                    say(
                        "memory-high",
                        format!(
                            "use on {gpu} went beyond gpu.memory.high{}: {use_of}",
                            of(limits.high).unwrap_or_default(),
                        ),
                    );
                }
            }
            if news.len() > count {
                *at = Some(now);
            }
            *before = events().collect();
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_model::MemoryUse;
    use serde_json::json;

    const GPU: &str = "GPU-aaaa";

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn gpu() -> GpuId {
        GPU.parse().unwrap()
    }

    fn gpus() -> Vec<GpuInfo> {
        let gpu = |id: &str, state| GpuInfo {
            id: id.parse().unwrap(),
            index: 0,
            pci: String::new(),
            name: String::new(),
            memory_total: Bytes(1000),
            memory_used: None,
            state,
        };
        vec![
            gpu(GPU, GpuState::Shared),
            gpu("GPU-bbbb", GpuState::Shared),
            gpu("GPU-cccc", GpuState::Refused("MIG".into())),
        ]
    }

    fn desired(containers: &[(&str, serde_json::Value)]) -> Desired {
        let spec = |json: &serde_json::Value| Spec::try_from(json.clone()).unwrap();
        let all = containers.iter();
        Desired {
            containers: all.map(|(n, json)| (name(n), spec(json))).collect(),
        }
    }

    fn seen(container: &str, current: u64, events_local: MemoryEvents) -> MemorySeen {
        let used = MemoryUse {
            current: Bytes(current),
            events_local,
            ..MemoryUse::default()
        };
        MemorySeen {
            containers: [(name(container), [(gpu(), used)].into())].into(),
            held: BTreeSet::new(),
        }
    }

    #[test]
    fn limits_are_by_gpu_and_every_container_is_named() {
        let d = desired(&[
            ("none", json!({"gpu.weight": 5})),
            (
                "some",
                json!({"gpu.memory.max": 700, "gpu.memory.min": "max", "gpu.memory.low": 5000,
                       "device": {GPU: {"gpu.memory.max": 600, "gpu.memory.min": 1, "gpu.memory.low": 0}}}),
            ),
        ]);
        let all = wanted(&d, &gpus()).0;
        assert_eq!(all[&name("none")], BTreeMap::new());
        let some = &all[&name("some")];
        assert_eq!(some.len(), 2, "not on the one that is refused");
        let on = |min, low, max| MemoryLimits {
            min: Bytes(min),
            low: Bytes(low),
            high: None,
            max: Some(Bytes(max)),
        };
        assert_eq!(some[&gpu()], on(1, 0, 600));
        let other: GpuId = "GPU-bbbb".parse().unwrap();
        assert_eq!(some[&other], on(1000, 1000, 700));
    }

    #[test]
    fn limits_are_told_when_they_change() {
        let mut holdings = Holdings::default();
        let d = desired(&[("a", json!({"gpu.memory.max": 700}))]);
        assert!(holdings.untold(&d, &gpus()).is_some());
        assert_eq!(holdings.untold(&d, &gpus()), None);
        assert!(holdings.untold(&d, &gpus()[..1]).is_some());
    }

    #[test]
    fn a_backend_s_account_goes_before_the_sum_and_the_policy_hears_of_high_only() {
        let mut holdings = Holdings::default();
        let d = desired(&[
            ("a", json!({"gpu.memory.high": 5})),
            ("b", json!({"gpu.memory.high": 5})),
            ("c", json!({})),
        ]);
        holdings.untold(&d, &gpus());
        let mut all: BTreeMap<Name, Seen> = BTreeMap::new();
        for (n, bytes) in [("a", 10), ("b", 20), ("c", 30)] {
            let memory = [(gpu(), Bytes(bytes))].into();
            all.insert(
                name(n),
                Seen {
                    memory,
                    ..Seen::default()
                },
            );
        }
        let memory = seen("a", 7, MemoryEvents::default());
        holdings.see(Some(&memory), &[], &mut all);
        assert_eq!(all[&name("a")].memory[&gpu()], Bytes(7));
        assert_eq!(all[&name("b")].memory[&gpu()], Bytes(20));
        let mut sample = Sample {
            gpus: vec![ghost_model::GpuSample {
                gpu: gpu(),
                groups: Vec::new(),
                memory: BTreeMap::new(),
            }],
            ..Sample::default()
        };
        holdings.fill(&mut sample);
        let want = [(name("a"), Bytes(7)), (name("b"), Bytes(20))].into();
        assert_eq!(sample.gpus[0].memory, want);
    }

    #[test]
    fn people_hear_of_it_with_numbers_and_once_a_second() {
        let mut holdings = Holdings::default();
        let d = desired(&[(
            "a",
            json!({"gpu.memory.max": "8G", "gpu.memory.high": "4G"}),
        )]);
        holdings.untold(&d, &gpus());
        let events = |high, max| MemoryEvents {
            high,
            max,
            ..MemoryEvents::default()
        };
        let now = Instant::now();
        let mut news = |seconds: f64, high, max| {
            let seen = seen("a", 7 << 30, events(high, max));
            let news = holdings.news(&seen, now + Duration::from_secs_f64(seconds));
            let news = news.into_iter().map(|n| format!("{} {}", n.what, n.detail));
            news.collect::<Vec<_>>()
        };
        assert_eq!(news(0.0, 5, 5), [""; 0], "from before this ghostd");
        assert_eq!(
            news(0.5, 6, 6),
            [
                "memory-max 1 allocation on GPU-aaaa beyond gpu.memory.max 8.0G, with 7.0G in use",
                "memory-high use on GPU-aaaa went beyond gpu.memory.high 4.0G: 7.0G"
            ]
        );
        assert_eq!(news(1.0, 6, 8), [""; 0]);
        assert_eq!(
            news(1.6, 6, 9),
            ["memory-max 3 allocations on GPU-aaaa beyond gpu.memory.max 8.0G, with 7.0G in use"]
        );
        assert_eq!(news(9.0, 6, 9), [""; 0]);
    }
}
