//! The control loop, on a thread of its own: sample, decide, apply. It wakes when the plan says,
//! at each tick, and at once when something else is wanted.

use crate::events::Events;
use crate::journal::{Recorder, Saved};
use crate::memory::Holdings;
use crate::metrics::LoopMetrics;
use ghost_backend::{AdoptError, Backend, Event};
use ghost_model::report::Process;
use ghost_model::{
    Action, BackendKind, Bytes, Capabilities, Enforcer, GpuId, GpuInfo, Key, Members, MemoryEvents,
    Micros, Name, Plan, Sample, Spec,
};
use ghost_policy::{ContainerStat, Desired, Memory, step};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How often processes and GPUs are listed again where no event asks for it.
const LIST: Duration = Duration::from_secs(5);
/// The tick is so many times as long where nothing is to be done.
const CALM: u32 = 2;
/// Where nothing happens, either, the next turn may wait this long: backends look at each thing
/// within a second, and some at each third turn.
const REST: Duration = Duration::from_millis(300);
/// How often readers get a new picture where nothing asks for it.
const PUBLISH: Duration = Duration::from_millis(500);
/// How often the policy's memory and the counters are saved.
const SAVE: Duration = Duration::from_secs(5);
/// Failures are shown until none was seen for this long: some actions are tried again late.
const FORGET: Duration = Duration::from_secs(5);
/// The pause between looks at whether a change has taken effect, and how many there are before
/// the tick is soon enough.
const SETTLE: (Duration, u32) = (Duration::from_millis(1), 50);

/// What the core wants.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Counts up with each change.
    pub revision: u64,
    /// The spec of every container.
    pub desired: Desired,
    /// Who is in which.
    pub members: Members,
    /// By unique id, the generation that `desired` has.
    pub generations: Arc<BTreeMap<String, u64>>,
}

/// What the loop is told.
#[derive(Debug)]
pub enum Message {
    /// This is wanted from now on.
    Wanted(Box<Wanted>),
    /// Here is the listener of a seccomp filter.
    Adopt(Box<Adopt>),
    /// The backend has news.
    Wake,
    /// Let everything run that is paused, and end.
    Stop,
}

/// A listener, and where its processes are charged.
#[derive(Debug)]
pub struct Adopt {
    /// The container.
    pub container: Name,
    /// The listener.
    pub listener: OwnedFd,
    /// Where the backend's answer goes.
    pub answer: oneshot::Sender<Result<(), AdoptError>>,
}

/// Counters that no backend keeps and a restart must not lose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The most memory that each container and those below it used.
    #[serde(default)]
    pub peak: BTreeMap<Name, BTreeMap<GpuId, Bytes>>,
    /// Timeslices of each container that were set back.
    #[serde(default)]
    pub reasserted: BTreeMap<Name, u64>,
}

/// What is so of one container, the containers below it included unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its own processes.
    pub processes: Arc<Vec<Process>>,
    /// Whether there is a process.
    pub populated: bool,
    /// Whether a channel group had work lately.
    pub active: bool,
    /// Whether a channel group is not stopped.
    pub runs: bool,
    /// Memory in use, where it can be read.
    pub memory: BTreeMap<GpuId, Bytes>,
    /// What limits of memory did.
    pub memory_events: BTreeMap<GpuId, MemoryEvents>,
    /// The same, without the containers below.
    pub memory_events_local: BTreeMap<GpuId, MemoryEvents>,
    /// Whether there is a process whose allocations are asked about.
    pub held: bool,
    /// Processes on a GPU whose allocations nobody is asked about.
    pub not_held: Vec<u32>,
    /// What the policy counted.
    pub stats: BTreeMap<GpuId, ContainerStat>,
}

/// What readers see of the loop.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What the backend can hold.
    pub capabilities: Arc<Capabilities>,
    /// The GPUs, refused ones included.
    pub gpus: Arc<Vec<GpuInfo>>,
    /// All processes that the backend knows.
    pub processes: Arc<Vec<Process>>,
    /// By container; those of which nothing is known are absent.
    pub containers: Arc<BTreeMap<Name, Seen>>,
    /// Counters.
    pub counters: Arc<Counters>,
    /// The [`Wanted::revision`] of whose members all of this is.
    pub revision: u64,
    /// By unique id, the generation that is in force.
    pub in_force: Arc<BTreeMap<String, u64>>,
    /// Actions that failed at the last try, and why, by container where it is one's.
    pub failures: Arc<Vec<(Option<Name>, String)>>,
}

impl Default for Observed {
    fn default() -> Self {
        Observed {
            capabilities: Arc::new(Capabilities {
                backend: BackendKind::Sim,
                driver: None,
                patch: None,
                enforced_by: BTreeMap::new(),
                meter: String::new(),
                notes: Vec::new(),
            }),
            gpus: Arc::default(),
            processes: Arc::default(),
            containers: Arc::default(),
            counters: Arc::default(),
            revision: 0,
            in_force: Arc::default(),
            failures: Arc::default(),
        }
    }
}

/// What the loop works with.
pub struct Parts {
    /// The loop's period where nothing happens.
    pub tick: Micros,
    /// What is wanted, and when to stop.
    pub messages: mpsc::Receiver<Message>,
    /// Where the picture goes.
    pub observed: watch::Sender<Arc<Observed>>,
    /// Where events go.
    pub events: Events,
    /// Where durations and errors are counted.
    pub metrics: Arc<LoopMetrics>,
    /// Where steps are written down and memory is kept.
    pub recorder: Recorder,
    /// What the last run kept.
    pub saved: Saved,
    /// Called after each turn: the loop lives.
    pub alive: Box<dyn FnMut() + Send>,
}

/// How far the latest change is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// In force.
    Settled,
    /// Wanted, and not yet decided upon.
    Wanted,
    /// These were applied, and no later sample shows that they took effect.
    Applied(Vec<Action>),
}

struct Control<B> {
    backend: B,
    parts: Parts,
    memory: Memory,
    wanted: Wanted,
    /// Nothing is wanted that must be watched all the time.
    only_weights: bool,
    progress: Progress,
    looks: u32,
    /// Until then the next turn can wait, if nothing happens.
    rests: Instant,
    view: Observed,
    /// What the last list put under each container.
    places: BTreeMap<Name, Seen>,
    holdings: Holdings,
    counters: Counters,
    listed: Option<Instant>,
    published: Option<Instant>,
    saved: Instant,
    failed: Option<Instant>,
}

/// Looks at the backend once, publishes what there is, and starts the loop's thread. The thread
/// ends with the message to stop; if it panics, joining it says so.
///
/// # Errors
/// No thread.
pub fn start<B: Backend + 'static>(
    backend: B,
    parts: Parts,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let mut control = Control::new(backend, parts);
    control.list();
    control.publish(&Sample::default());
    // From here on an end without notice can be told from one in order.
    control.save(false);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control.run())
}

impl<B: Backend> Control<B> {
    fn new(backend: B, mut parts: Parts) -> Self {
        let saved = std::mem::take(&mut parts.saved);
        if !saved.ended {
            let detail = "the last ghostd ended without notice: what a daemon holds was not held";
            tracing::warn!("{detail}");
            parts.events.push("lapsed", None, detail);
        }
        Control {
            view: Observed {
                capabilities: Arc::new(capabilities(&backend)),
                ..Observed::default()
            },
            backend,
            places: BTreeMap::new(),
            holdings: Holdings::default(),
            parts,
            memory: saved.memory,
            wanted: Wanted::default(),
            only_weights: true,
            progress: Progress::Settled,
            looks: 0,
            rests: Instant::now(),
            counters: saved.counters,
            listed: None,
            published: None,
            saved: Instant::now(),
            failed: None,
        }
    }

    fn run(mut self) {
        let mut deadline = Instant::now();
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let mut message = self.parts.messages.recv_timeout(wait);
            let mut wanted = None;
            let mut woken = false;
            loop {
                match message {
                    Ok(Message::Wanted(w)) => wanted = Some(w),
                    Ok(Message::Adopt(adopt)) => {
                        // A container that is new, and its members, come before its processes.
                        if let Some(wanted) = wanted.take() {
                            self.want(*wanted);
                            woken = true;
                        }
                        self.adopt(*adopt);
                    }
                    Ok(Message::Wake) => woken = true,
                    Ok(Message::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                        return self.stop();
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                }
                message = self.parts.messages.recv_timeout(Duration::ZERO);
            }
            match wanted {
                Some(wanted) => self.want(*wanted),
                None if !woken && Instant::now() < self.rests && !self.backend.stirs() => {
                    let glance = Instant::now() + self.parts.tick.duration() * CALM;
                    deadline = self.rests.min(glance);
                    (self.parts.alive)();
                    continue;
                }
                None => {}
            }
            deadline = self.turn();
            (self.parts.alive)();
        }
    }

    fn want(&mut self, wanted: Wanted) {
        let first = self.wanted.revision == 0;
        let moved = first || wanted.members != self.wanted.members;
        if first || wanted.desired.containers != self.wanted.desired.containers {
            self.backend.set_containers(&wanted.desired.containers);
        }
        let exists = |name: &Name| wanted.desired.containers.contains_key(name);
        self.counters.peak.retain(|name, _| exists(name));
        self.counters.reasserted.retain(|name, _| exists(name));
        self.parts.recorder.wanted(&wanted.desired);
        let specs = wanted.desired.containers.values();
        self.only_weights = specs.flat_map(Spec::iter).all(|(key, ..)| {
            let held = [Key::Max, Key::Idle, Key::Latency, Key::Freeze, Key::Devices];
            !held.contains(&key)
        });
        self.wanted = wanted;
        self.tell_limits();
        // Last, so that nobody comes into a container before its limits are told.
        if moved {
            self.backend.set_members(&self.wanted.members);
            self.listed = None;
            self.published = None;
        }
        self.progress = Progress::Wanted;
        self.looks = 0;
    }

    fn tell_limits(&mut self) {
        let wanted = &self.wanted.desired;
        if let Some(limits) = self.holdings.untold(wanted, &self.view.gpus) {
            self.backend.set_memory(limits);
            self.published = None;
        }
    }

    fn adopt(&mut self, adopt: Adopt) {
        let container = &adopt.container;
        let taken = self.call("adopt", |b| b.adopt(container, adopt.listener));
        // Whoever asked may have hung up; the listener is taken all the same.
        let _ = adopt.answer.send(taken);
    }

    /// One turn; gives when the next is due.
    fn turn(&mut self) -> Instant {
        let begin = Instant::now();
        let mut sample = self.call("sample", B::sample);
        self.holdings.fill(&mut sample);
        let journal = self
            .parts
            .recorder
            .is_due(self.progress == Progress::Wanted);
        let before = journal.then(|| self.memory.clone());
        let (memory, plan) = step(
            std::mem::take(&mut self.memory),
            &self.wanted.desired,
            &sample,
        );
        self.memory = memory;
        self.apply(&plan);
        let found = self.call("upkeep", B::upkeep);
        let settled = self.settle(&plan);
        if let Some(before) = before {
            self.parts.recorder.step(&before, &sample, &plan);
        }
        self.note_events();
        if self.listed.is_none_or(|at| at.elapsed() >= LIST) {
            self.list();
        }
        if settled || self.published.is_none_or(|at| at.elapsed() >= PUBLISH) {
            self.publish(&sample);
        }
        if self.saved.elapsed() >= SAVE {
            self.save(false);
        }
        self.parts.metrics.turn(begin.elapsed());
        self.rests = begin;
        if found {
            return begin;
        }
        self.due(begin, sample.at, &plan)
    }

    fn due(&mut self, begin: Instant, at: Micros, plan: &Plan) -> Instant {
        let tick = self.parts.tick.duration();
        let calm = self.is_calm(plan);
        if calm && self.progress == Progress::Settled {
            self.rests = begin + REST;
        }
        let tick = begin + tick * if calm { CALM } else { 1 };
        let wake = plan.wake.map_or(tick, |w| begin + w.since(at).duration());
        match self.progress {
            Progress::Settled => tick.min(wake),
            _ if self.looks <= 1 => begin,
            _ if self.looks <= SETTLE.1 => tick.min(wake).min(Instant::now() + SETTLE.0),
            _ => tick.min(wake),
        }
    }

    /// Whether the hardware holds all that is wanted until a process comes or goes.
    fn is_calm(&self, plan: &Plan) -> bool {
        self.only_weights && self.failed.is_none() && plan.actions.is_empty()
    }

    fn apply(&mut self, plan: &Plan) {
        if self.failed.is_some_and(|at| at.elapsed() >= FORGET) {
            self.failed = None;
            self.view.failures = Arc::default();
        }
        if plan.actions.is_empty() {
            return;
        }
        let failures: Vec<(Option<Name>, String)> = self
            .call("apply", |b| b.apply(&plan.actions))
            .into_iter()
            .map(|f| {
                let name = match &f.action {
                    Action::Pause { container, .. } | Action::Resume { container, .. } => {
                        Some(container.clone())
                    }
                    Action::SetSlice { .. } => None,
                };
                (name, f.to_string())
            })
            .collect();
        self.parts.metrics.failed("apply", failures.len());
        if failures.is_empty() {
            return;
        }
        self.failed = Some(Instant::now());
        if *self.view.failures != failures {
            for (_, failure) in &failures {
                tracing::error!("{failure}");
            }
            self.view.failures = Arc::new(failures);
        }
    }

    /// Whether the latest change came into force by this turn. It is in force when a sample that
    /// was taken after its actions makes the policy ask for none of them again.
    fn settle(&mut self, plan: &Plan) -> bool {
        let again = match &self.progress {
            Progress::Settled => return false,
            Progress::Wanted => !plan.actions.is_empty(),
            Progress::Applied(before) => before.iter().any(|a| plan.actions.contains(a)),
        };
        self.looks = self.looks.saturating_add(1);
        if again {
            self.progress = Progress::Applied(plan.actions.clone());
            return false;
        }
        self.progress = Progress::Settled;
        self.view.in_force = self.wanted.generations.clone();
        true
    }

    fn note_events(&mut self) {
        for event in self.backend.events() {
            self.listed = None;
            let events = &self.parts.events;
            match event {
                Event::Appeared {
                    pid,
                    container,
                    gpu,
                } => events.push(
                    "appeared",
                    Some(&container),
                    format!("process {pid} works on {gpu}"),
                ),
                Event::Exited { pid, container } => {
                    events.push("exited", Some(&container), format!("process {pid} ended"));
                }
                Event::Reasserted {
                    pid,
                    container,
                    gpu,
                } => {
                    let count = self
                        .counters
                        .reasserted
                        .entry(container.clone())
                        .or_default();
                    *count += 1;
                    let detail =
                        format!("a timeslice of process {pid} on {gpu} was changed and set back");
                    tracing::warn!(%container, "{detail}");
                    events.push("reasserted", Some(&container), detail);
                }
                Event::Refused { pid, reason } => {
                    let who = pid.map(|p| format!("process {p}: ")).unwrap_or_default();
                    tracing::warn!("{who}{reason}");
                    events.push("refused", None, format!("{who}{reason}"));
                }
            }
        }
    }

    fn list(&mut self) {
        let gpus = self.call("gpus", B::gpus);
        let processes = self.call("processes", B::processes);
        let capabilities = capabilities(&self.backend);
        if *self.view.capabilities != capabilities {
            self.view.capabilities = Arc::new(capabilities);
        }
        self.view.gpus = Arc::new(gpus);
        if self.wanted.revision > 0 {
            self.tell_limits();
        }
        self.places = place(&processes);
        self.published = None;
        self.view.processes = Arc::new(processes);
        self.listed = Some(Instant::now());
    }

    fn publish(&mut self, sample: &Sample) {
        let memory = self.call("memory", B::memory);
        let mut seen = see(self.places.clone(), sample, &self.memory);
        self.holdings
            .see(memory.as_ref(), &self.view.processes, &mut seen);
        let news = memory.as_ref();
        let news = news.map(|m| self.holdings.news(m, Instant::now()));
        for news in news.unwrap_or_default() {
            tracing::info!(container = %news.container, "{}: {}", news.what, news.detail);
            let events = &self.parts.events;
            events.push(news.what, Some(&news.container), news.detail);
        }
        for (name, one) in &seen {
            if !name.is_system() && !self.wanted.desired.containers.contains_key(name) {
                continue;
            }
            let account = memory.as_ref().and_then(|m| m.containers.get(name));
            for (gpu, now) in &one.memory {
                let peaks = self.counters.peak.entry(name.clone()).or_default();
                let peak = peaks.entry(gpu.clone()).or_default();
                let before = account.and_then(|on| on.get(gpu)).map(|used| used.peak);
                *peak = (*peak).max(*now).max(before.unwrap_or_default());
            }
        }
        if *self.view.counters != self.counters {
            self.view.counters = Arc::new(self.counters.clone());
        }
        self.view.containers = Arc::new(seen);
        self.view.revision = self.wanted.revision;
        self.parts
            .observed
            .send_replace(Arc::new(self.view.clone()));
        self.published = Some(Instant::now());
    }

    fn save(&mut self, ended: bool) {
        let recorder = &mut self.parts.recorder;
        recorder.save(&self.memory, &self.counters, ended);
        self.saved = Instant::now();
    }

    /// Weights stay as they are; nothing stays paused that nobody would resume.
    fn stop(mut self) {
        let sample = self.call("sample", B::sample);
        let mut paused = BTreeSet::new();
        for gpu in &sample.gpus {
            for group in gpu.groups.iter().filter(|g| g.paused) {
                paused.insert((gpu.gpu.clone(), group.container.clone()));
            }
        }
        let actions: Vec<Action> = paused
            .into_iter()
            .map(|(gpu, container)| Action::Resume { gpu, container })
            .collect();
        for failure in self.call("apply", |b| b.apply(&actions)) {
            tracing::error!("{failure}");
        }
        self.save(true);
        tracing::info!(resumed = actions.len(), "the control loop has ended");
    }

    fn call<T>(&mut self, op: &'static str, f: impl FnOnce(&mut B) -> T) -> T {
        let begin = Instant::now();
        let result = f(&mut self.backend);
        self.parts
            .metrics
            .called(self.view.capabilities.backend, op, begin.elapsed());
        result
    }
}

/// Puts processes under their containers, and those above.
fn place(processes: &[Process]) -> BTreeMap<Name, Seen> {
    let mut all: BTreeMap<Name, Seen> = BTreeMap::new();
    for process in processes {
        for name in process.container.lineage() {
            let seen = all.entry(name).or_default();
            seen.populated = true;
            for (gpu, bytes) in &process.memory {
                let sum = seen.memory.entry(gpu.clone()).or_default();
                sum.0 = sum.0.saturating_add(bytes.0);
            }
        }
        if let Some(seen) = all.get_mut(&process.container) {
            Arc::make_mut(&mut seen.processes).push(process.clone());
        }
    }
    all
}

/// Adds channel groups and statistics to where processes are.
fn see(mut all: BTreeMap<Name, Seen>, sample: &Sample, memory: &Memory) -> BTreeMap<Name, Seen> {
    for group in sample.gpus.iter().flat_map(|g| &g.groups) {
        let active = group.active.fresh() == Some(true) && !group.paused;
        let mut name = Some(group.container.as_str());
        while let Some(at) = name {
            if !all.contains_key(at)
                && let Ok(new) = at.parse()
            {
                all.insert(new, Seen::default());
            }
            if let Some(seen) = all.get_mut(at) {
                seen.populated = true;
                seen.active |= active;
                seen.runs |= !group.paused;
            }
            name = at.rsplit_once('/').map(|(above, _)| above);
        }
    }
    for ((name, gpu), stat) in memory.stats() {
        all.entry(name).or_default().stats.insert(gpu, stat);
    }
    all
}
/// What is held here, by the backend or whatever it is.
fn capabilities(backend: &impl Backend) -> Capabilities {
    let mut all = backend.capabilities();
    // `ghostctl run` gives the program Ghost's libcuda, on every backend.
    all.enforced_by.insert(Key::Overflow, Enforcer::Shim);
    all
}
