//! GPU time of each group: from the driver's trace of context switches where it can be had, else
//! from a source that counts in processes.
//!
//! What was tried on an H200 (driver 580): the trace is exact to the switch, for all processes,
//! and a flush costs 20 to 50 us. NVML's process utilization has the right total, but charges each
//! 200 ms to whichever process it saw at one moment. GPM counts the whole GPU only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ghost_model::sample::{GroupId, Reading};
use ghost_model::{GpuId, Micros};
use ghost_rm::{AllocForm, Busy, ContextSwitches, Gpu, MeterError, Switch};

use super::clock;
use super::ledger::Ledger;
use super::telemetry::{Telemetry, Used};

/// What is older than this is stale.
const FRESH_US: u64 = 1_000_000;
/// The shortest time over which it is judged whether a group has work.
const WINDOW_US: u64 = 50_000;
/// The driver takes a sample of utilization each 200 ms.
const SAMPLE_US: u64 = 200_000;
/// The driver writes the trace each 36 ms. If its last switch is older than this, there was none
/// since, or this driver does so only when it is told to.
const LAG_US: u64 = 60_000;
/// The clocks are compared this often.
const SYNC_US: u64 = 1_000_000;

/// The source for one GPU.
pub(crate) enum Meter {
    ContextSwitches(Box<Tracer>),
    Telemetry(ByProcess),
}

impl Meter {
    /// The best that can be had, and why it is not the trace, if it is not.
    pub(crate) fn open(dev: &Path, form: AllocForm, gpu: Gpu) -> (Self, Option<String>) {
        match Tracer::open(dev, form, gpu) {
            Ok(tracer) => (Self::ContextSwitches(Box::new(tracer)), None),
            Err(error) => {
                let source = std::error::Error::source(&error);
                let why = source.map_or_else(String::new, |source| format!(": {source}"));
                let note = format!("{error}{why}; GPU time is taken from elsewhere");
                (Self::Telemetry(ByProcess::default()), Some(note))
            }
        }
    }

    /// Makes a group known, or tells of further contexts of it; whether any was news.
    pub(crate) fn add(&mut self, group: GroupId, pid: u32, contexts: &[u32]) -> bool {
        match self {
            Self::ContextSwitches(tracer) => tracer.ledger.add(group, pid, contexts),
            Self::Telemetry(by_process) => by_process.add(group, pid),
        }
    }

    pub(crate) fn set_slice(&mut self, group: GroupId, slice_us: u64) {
        if let Self::ContextSwitches(tracer) = self {
            tracer.ledger.set_slice(group, slice_us);
        }
    }

    pub(crate) fn set_paused(&mut self, group: GroupId, paused: bool) {
        if let Self::ContextSwitches(tracer) = self {
            tracer.ledger.set_paused(group, paused);
        }
    }

    pub(crate) fn remove(&mut self, group: GroupId) {
        match self {
            Self::ContextSwitches(tracer) => tracer.ledger.remove(group),
            Self::Telemetry(by_process) => {
                by_process.groups.remove(&group);
            }
        }
    }

    /// Takes in what happened up to `now`, or without `haste` a little earlier, and returns the
    /// processes that used the GPU by groups that are not known.
    pub(crate) fn step(
        &mut self,
        now: Micros,
        haste: bool,
        gpu: &GpuId,
        telemetry: &mut dyn Telemetry,
    ) -> BTreeSet<u32> {
        match self {
            Self::ContextSwitches(tracer) => tracer.step(now, haste),
            Self::Telemetry(by_process) => {
                by_process.step(now, gpu, telemetry);
                BTreeSet::new()
            }
        }
    }

    /// Asks what is dear to ask, if it is due.
    pub(crate) fn upkeep(&mut self, now: Micros) {
        if let Self::ContextSwitches(tracer) = self {
            let sampled = tracer.sample(now);
            tracer.note(sampled);
        }
    }

    /// GPU time that `group` used, and whether it has work.
    pub(crate) fn read(&self, group: GroupId, now: Micros) -> (Reading<Micros>, Reading<bool>) {
        match self {
            Self::ContextSwitches(tracer) => tracer.read(group, now),
            Self::Telemetry(by_process) => by_process.read(group, now),
        }
    }

    /// What keeps it from measuring, if something does.
    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            Self::ContextSwitches(tracer) => tracer.problem.as_deref(),
            Self::Telemetry(by_process) => by_process.problem.as_deref(),
        }
    }
}

/// Groups by the trace of context switches.
pub(crate) struct Tracer {
    trace: ContextSwitches,
    ledger: Ledger,
    switches: Vec<Switch>,
    /// The monotonic clock minus the GPU's, modulo 2^64.
    offset_ns: u64,
    synced: Micros,
    asked: Micros,
    /// The moment up to which the trace is known.
    read_to: Micros,
    /// Whether nothing of it was missing the last time.
    whole: bool,
    /// Who came within this has work.
    window_us: u64,
    problem: Option<String>,
}

impl Tracer {
    fn open(dev: &Path, form: AllocForm, gpu: Gpu) -> Result<Self, MeterError> {
        let trace = ContextSwitches::open(dev, form, gpu)?;
        let now = clock::now();
        let mut tracer = Self {
            trace,
            ledger: Ledger::default(),
            switches: Vec::new(),
            offset_ns: 0,
            synced: now,
            asked: now,
            read_to: now,
            whole: true,
            window_us: WINDOW_US,
            problem: None,
        };
        tracer.sync(now)?;
        Ok(tracer)
    }

    fn sync(&mut self, now: Micros) -> Result<(), MeterError> {
        let before = clock::now_ns();
        let gpu = self.trace.gpu_time_ns()?;
        let middle = before + clock::now_ns().saturating_sub(before) / 2;
        self.offset_ns = middle.wrapping_sub(gpu);
        self.synced = now;
        Ok(())
    }

    fn step(&mut self, now: Micros, haste: bool) -> BTreeSet<u32> {
        self.whole = false;
        let read = self.catch_up(now, haste);
        self.note(read);
        let round_us = self.ledger.round() / 1000;
        self.window_us = (round_us + round_us / 4).clamp(WINDOW_US, FRESH_US);
        self.ledger.take_unknown()
    }

    fn note(&mut self, done: Result<(), MeterError>) {
        self.problem = done.err().map(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        });
    }

    fn catch_up(&mut self, now: Micros, haste: bool) -> Result<(), MeterError> {
        if now.since(self.synced).0 >= SYNC_US {
            self.sync(now)?;
        }
        let mut whole = true;
        if !haste {
            whole = self.drain(now)?;
        }
        if haste || now.since(self.read_to).0 > LAG_US {
            self.trace.flush()?;
            whole &= self.drain(now)?;
            self.read_to = clock::now();
        }
        self.whole = whole;
        Ok(())
    }

    /// Takes in what the driver has written down; false if something is missing. Up to the last
    /// switch of it, all is known.
    fn drain(&mut self, now: Micros) -> Result<bool, MeterError> {
        let drained = self.trace.drain(&mut self.switches)?;
        if drained.lost {
            self.ledger.lose_track();
        }
        let mut whole = !drained.lost;
        for switch in self.switches.drain(..) {
            let at = switch.at_ns.wrapping_add(self.offset_ns);
            whole &= self.ledger.switch(switch, at);
            self.read_to = self.read_to.max(Micros(at / 1000).min(now));
        }
        Ok(whole)
    }

    fn sample(&mut self, now: Micros) -> Result<(), MeterError> {
        let patience = self.ledger.wants_sample(self.read_to.0 * 1000);
        if patience.is_none_or(|ns| now.since(self.asked).0 < ns / 1000) {
            return Ok(());
        }
        self.asked = now;
        let mut samples: Vec<Busy> = self.trace.busy()?;
        let behind = clock::realtime_ns().saturating_sub(clock::now_ns());
        for sample in &mut samples {
            sample.at_ns = sample.at_ns.saturating_sub(behind);
        }
        self.ledger.sample(&samples);
        Ok(())
    }

    fn read(&self, group: GroupId, now: Micros) -> (Reading<Micros>, Reading<bool>) {
        let (to, window_ns) = (self.read_to, self.window_us * 1000);
        let Some(balance) = self.ledger.balance(group, to.0 * 1000, window_ns) else {
            return (Reading::Missing, Reading::Missing);
        };
        let (used, at) = (Micros(balance.used / 1000), Micros(balance.at / 1000));
        // What is missing from the trace is missing from all counts.
        let fresh = self.whole && now.since(at).0 <= FRESH_US;
        (
            reading(used, at, fresh),
            reading(balance.active, to, self.whole),
        )
    }
}

/// Groups by what their processes used. All that a process used is charged to its first group:
/// only their sum is known.
#[derive(Default)]
pub(crate) struct ByProcess {
    groups: BTreeMap<GroupId, Counted>,
    used: BTreeMap<u32, Used>,
    /// When a process's count last grew.
    grew: BTreeMap<u32, Micros>,
    asked: Micros,
    problem: Option<String>,
}

struct Counted {
    pid: u32,
    /// What the process had used when the group was first seen.
    before: Micros,
}

impl ByProcess {
    fn add(&mut self, group: GroupId, pid: u32) -> bool {
        let before = self.used.get(&pid).map_or(Micros::ZERO, |used| used.used);
        let news = !self.groups.contains_key(&group);
        self.groups.entry(group).or_insert(Counted { pid, before });
        news
    }

    fn step(&mut self, now: Micros, gpu: &GpuId, telemetry: &mut dyn Telemetry) {
        if now.since(self.asked) < telemetry.period() {
            return;
        }
        self.asked = now;
        match telemetry.used(gpu) {
            Ok(all) => {
                for used in all {
                    let before = self.used.insert(used.pid, used);
                    if before.is_some_and(|before| before.used < used.used) {
                        self.grew.insert(used.pid, used.at);
                    }
                }
                self.problem = None;
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    fn read(&self, group: GroupId, now: Micros) -> (Reading<Micros>, Reading<bool>) {
        let counted = self.groups.get(&group);
        let Some((counted, used)) = counted.and_then(|c| Some((c, self.used.get(&c.pid)?))) else {
            return (Reading::Missing, Reading::Missing);
        };
        let mut of_process = self.groups.iter().filter(|(_, c)| c.pid == counted.pid);
        let first = of_process.next().is_some_and(|(id, _)| *id == group);
        let value = if first {
            used.used.since(counted.before)
        } else {
            Micros::ZERO
        };
        let grew = self.grew.get(&counted.pid);
        let active = grew.is_some_and(|&at| now.since(at).0 <= WINDOW_US.max(SAMPLE_US));
        let fresh = now.since(used.at).0 <= FRESH_US;
        (
            reading(value, used.at.min(now), fresh),
            reading(active, used.at.min(now), fresh),
        )
    }
}

fn reading<T>(value: T, at: Micros, fresh: bool) -> Reading<T> {
    if fresh {
        Reading::Fresh { value, at }
    } else {
        Reading::Stale { value, at }
    }
}
