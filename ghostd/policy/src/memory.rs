//! What a step hands to the next: data only, so that saving it makes a restart and a replay the
//! same thing.

use crate::budget::{Bucket, RATE_LASTS};
use crate::share::{MILLION, ratio};
use crate::tuning::USAGE_WINDOW;
use ghost_model::plan::Why;
use ghost_model::{GpuId, GroupId, Micros, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The memory of the policy. The default knows nothing, and is what a first step starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The moment of the last sample.
    pub(crate) at: Option<Micros>,
    pub(crate) gpus: BTreeMap<GpuId, GpuMemory>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuMemory {
    pub groups: BTreeMap<GroupId, GroupMemory>,
    pub containers: BTreeMap<Name, ContainerMemory>,
    pub round: Option<Round>,
    /// Beginning of the window of the feedback; none where slices were just changed.
    pub window: Option<Micros>,
}

/// A round of this length was chosen when containers of this weight in all had work at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Round {
    pub length: Micros,
    pub weight: u64,
}

/// One channel group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupMemory {
    pub container: Name,
    pub used: Micros,
    /// The moment up to which `used` holds.
    pub used_at: Micros,
    /// The last moment at which it had work, or may have had.
    pub active_at: Micros,
    /// How long after that it was seen to have none.
    pub idle_for: Micros,
    pub paused: bool,
    pub asked: Option<Asked>,
}

/// A slice that was asked for, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub slice: Micros,
    pub at: Micros,
}

/// One container on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerMemory {
    /// Used by its groups and those of the containers below.
    pub usage: Micros,
    /// (moment, usage), some of the last second.
    pub marks: Vec<(Micros, Micros)>,
    /// Millionths of the last second.
    pub usage_ratio: Option<u64>,
    pub bucket: Option<Bucket>,
    pub nr_periods: u64,
    pub nr_throttled: u64,
    pub throttled_usec: Micros,
    /// What the last step wanted.
    pub paused: Option<Why>,
    /// Whether some of its groups or of those below may have run since the last step.
    pub running: bool,
    /// Its share, the containers below included.
    pub share: u64,
    /// Correction of its slices, millionths.
    pub factor: u64,
    /// Used by its own groups in the window of the feedback.
    pub window_used: Micros,
    /// The moments of its first and its last reading in that window.
    pub window_from: Option<Micros>,
    pub window_to: Micros,
    /// What it got above its share in the window before, millionths; zero where that was put right.
    pub window_off: i64,
    /// Whether it had work all through that window.
    pub backlogged: bool,
    /// A container with `gpu.latency` that uses more than its share.
    pub demoted: bool,
}

impl Default for ContainerMemory {
    fn default() -> Self {
        ContainerMemory {
            usage: Micros::ZERO,
            marks: Vec::new(),
            usage_ratio: None,
            bucket: None,
            nr_periods: 0,
            nr_throttled: 0,
            throttled_usec: Micros::ZERO,
            paused: None,
            running: false,
            share: 0,
            factor: MILLION,
            window_used: Micros::ZERO,
            window_from: None,
            window_to: Micros::ZERO,
            window_off: 0,
            backlogged: false,
            demoted: false,
        }
    }
}

impl ContainerMemory {
    /// Its usage is known up to `read_at`. A ratio that is older than two windows is unknown.
    pub(crate) fn mark(&mut self, read_at: Micros, now: Micros) {
        if now.since(read_at) > Micros(2 * USAGE_WINDOW.0) {
            self.usage_ratio = None;
            return;
        }
        let due = |last: &(Micros, Micros)| read_at.since(last.0).0 >= USAGE_WINDOW.0 / 4;
        if self.marks.last().is_none_or(due) {
            self.marks.push((read_at, self.usage));
            let old = |mark: &(Micros, Micros)| read_at.since(mark.0) >= USAGE_WINDOW;
            while self.marks.get(1).is_some_and(old) {
                self.marks.remove(0);
            }
        }
        if let Some((from, used)) = self.marks.first()
            && let span = read_at.since(*from).0
            && span >= USAGE_WINDOW.0 / 2
        {
            let used = self.usage.since(*used).0;
            self.usage_ratio = Some(crate::share::part(used, MILLION, span));
        }
    }

    /// Moves its budget to `now`. `running` says whether it could run since the `last` step.
    pub(crate) fn pass(&mut self, last: Option<Micros>, now: Micros, running: bool) {
        let Some(bucket) = &mut self.bucket else {
            return;
        };
        if let Some(last) = last.filter(|last| bucket.throttled() && now.since(*last) <= RATE_LASTS)
        {
            self.throttled_usec = self.throttled_usec + now.since(last);
        }
        let passed = bucket.advance(now, running);
        self.nr_periods += passed.periods;
        self.nr_throttled += passed.throttled;
    }

    /// It has no channel group left on this GPU.
    pub(crate) fn rest(&mut self, last: Option<Micros>, now: Micros) {
        self.pass(last, now, self.running);
        if let Some(bucket) = &mut self.bucket {
            bucket.settle();
            bucket.judge();
        }
        self.marks.clear();
        self.usage_ratio = Some(0);
        self.paused = None;
        self.running = false;
        self.share = 0;
        self.factor = MILLION;
        self.backlogged = false;
        self.demoted = false;
    }
}

/// What is known of a container on a GPU, the containers below it included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerStat {
    /// GPU time used since the container was first seen there, also by processes that ended.
    pub usage_usec: Micros,
    /// Part of the GPU's time used in about the last second; `None` where it is not known.
    pub usage_ratio: Option<f64>,
    /// Periods of its own `gpu.max` that had work.
    pub nr_periods: u64,
    /// Periods in which that budget ran out.
    pub nr_throttled: u64,
    /// Time for which that budget kept it paused.
    pub throttled_usec: Micros,
    /// Whether that budget keeps it paused now.
    pub throttled: bool,
    /// Why it is to be paused, whoever asked for it.
    pub paused: Option<Why>,
    /// The share of the GPU that it is given now; zero while it has no work or is paused.
    pub share: f64,
}

impl Memory {
    /// What was counted, and nothing that has a moment.
    pub(crate) fn counters(self) -> Memory {
        let counted = |c: ContainerMemory| ContainerMemory {
            usage: c.usage,
            nr_periods: c.nr_periods,
            nr_throttled: c.nr_throttled,
            throttled_usec: c.throttled_usec,
            ..ContainerMemory::default()
        };
        let on_gpu = |gpu: GpuMemory| GpuMemory {
            containers: gpu
                .containers
                .into_iter()
                .map(|(n, c)| (n, counted(c)))
                .collect(),
            ..GpuMemory::default()
        };
        Memory {
            at: None,
            gpus: self
                .gpus
                .into_iter()
                .map(|(id, g)| (id, on_gpu(g)))
                .collect(),
        }
    }

    /// Every container that was seen on a GPU, for as long as it is wanted or has processes.
    pub fn stats(&self) -> BTreeMap<(Name, GpuId), ContainerStat> {
        let on_gpu = |(gpu, memory): (&GpuId, &GpuMemory)| {
            let gpu = gpu.clone();
            let stats: Vec<_> = memory
                .containers
                .iter()
                .map(|(name, c)| ((name.clone(), gpu.clone()), c.stat()))
                .collect();
            stats
        };
        self.gpus.iter().flat_map(on_gpu).collect()
    }
}

impl ContainerMemory {
    fn stat(&self) -> ContainerStat {
        ContainerStat {
            usage_usec: self.usage,
            usage_ratio: self.usage_ratio.map(|r| r as f64 / MILLION as f64),
            nr_periods: self.nr_periods,
            nr_throttled: self.nr_throttled,
            throttled_usec: self.throttled_usec,
            throttled: self.bucket.as_ref().is_some_and(Bucket::throttled),
            paused: self.paused,
            share: ratio(self.share),
        }
    }
}
