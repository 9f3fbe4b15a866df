//! What Prometheus gets. Counts of the loop and of requests are kept here; everything about
//! containers is read from the snapshots at each scrape, so that it costs nothing between them.

use crate::caller::Admins;
use crate::control::{Observed, Seen};
use crate::core::{Catalog, Handle};
use crate::overflow::Overflow;
use ghost_model::{BackendKind, GpuId, GpuState, Key, Name};
use ghost_wire::stats::Counter as Word;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    backend: String,
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    method: String,
    route: String,
    status: u16,
}

/// Durations and errors of the control loop.
#[derive(Debug)]
pub struct LoopMetrics {
    turns: Histogram,
    calls: Family<Call, Histogram, fn() -> Histogram>,
    errors: Family<Reason, Counter>,
    last_success: Gauge<f64, AtomicU64>,
    begin: Instant,
    /// Microseconds from `begin`, plus one; zero before the first turn.
    last_turn: AtomicU64,
}

/// From 10 us to about 1.3 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(10e-6, 2.0, 18))
}

impl Default for LoopMetrics {
    fn default() -> Self {
        let errors = Family::<Reason, Counter>::default();
        drop(errors.get_or_create(&Reason { reason: "apply" }));
        LoopMetrics {
            turns: durations(),
            calls: Family::new_with_constructor(durations as fn() -> Histogram),
            errors,
            last_success: Gauge::default(),
            begin: Instant::now(),
            last_turn: AtomicU64::new(0),
        }
    }
}

impl LoopMetrics {
    /// A turn was made.
    pub fn turn(&self, took: Duration) {
        self.turns.observe(took.as_secs_f64());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.last_success.set(now.map_or(0.0, |d| d.as_secs_f64()));
        let elapsed = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX - 1);
        self.last_turn.store(elapsed + 1, Ordering::Relaxed);
    }

    /// How long ago the last turn was; `None` before the first.
    pub fn since_last_turn(&self) -> Option<Duration> {
        let at = self.last_turn.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.begin
                .elapsed()
                .saturating_sub(Duration::from_micros(at)),
        )
    }

    /// The backend was called.
    pub fn called(&self, backend: BackendKind, op: &'static str, took: Duration) {
        let call = Call {
            backend: backend.to_string(),
            op,
        };
        self.calls.get_or_create(&call).observe(took.as_secs_f64());
    }

    /// So many actions failed.
    pub fn failed(&self, reason: &'static str, count: usize) {
        if count > 0 {
            let counter = self.errors.get_or_create(&Reason { reason });
            counter.inc_by(count as u64);
        }
    }
}

/// Everything that is scraped.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
}

impl Metrics {
    /// Of the loop, of requests, and of the containers that `core` and `observed` show.
    pub fn new(
        of_loop: &LoopMetrics,
        core: Handle,
        observed: watch::Receiver<Arc<Observed>>,
        overflow: (Overflow, Admins),
    ) -> Metrics {
        let mut registry = Registry::with_prefix("ghost");
        registry.register_with_unit(
            "loop_duration",
            "Time of one turn of the control loop",
            Unit::Seconds,
            of_loop.turns.clone(),
        );
        registry.register_with_unit(
            "backend_call_duration",
            "Time of one call of the backend",
            Unit::Seconds,
            of_loop.calls.clone(),
        );
        registry.register(
            "loop_errors",
            "Actions that the backend could not do",
            of_loop.errors.clone(),
        );
        registry.register_with_unit(
            "loop_last_success_timestamp",
            "When the control loop last made a turn",
            Unit::Seconds,
            of_loop.last_success.clone(),
        );
        registry.register(
            "build",
            "Ghost's version",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let requests = Family::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register_collector(Box::new(Elsewhere {
            core: core.clone(),
            overflow,
        }));
        registry.register_collector(Box::new(Containers { core, observed }));
        Metrics { registry, requests }
    }

    /// A request was answered. `route` is the template, never the path.
    pub fn answered(&self, method: &str, route: &str, status: u16) {
        let request = Request {
            method: method.to_owned(),
            route: route.to_owned(),
            status,
        };
        self.requests.get_or_create(&request).inc();
    }

    /// The exposition, in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never, in truth: it is written to memory.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

#[derive(Debug)]
struct Containers {
    core: Handle,
    observed: watch::Receiver<Arc<Observed>>,
}

/// `container` and `gpu`.
type Labels<'a> = [(&'static str, &'a str); 2];
/// The same and `event`.
type EventLabels<'a> = [(&'static str, &'a str); 3];

/// One number of a container on a GPU.
struct Series {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    counts: bool,
    read: fn(&Place<'_>) -> Option<f64>,
}

struct Place<'a> {
    name: &'a Name,
    gpu: &'a GpuId,
    spec: &'a ghost_model::Spec,
    seen: &'a Seen,
    now: &'a Observed,
}

impl Place<'_> {
    fn stat(&self) -> ghost_policy::ContainerStat {
        self.seen.stats.get(self.gpu).copied().unwrap_or_default()
    }
}

const SERIES: &[Series] = &[
    Series {
        name: "gpu_time",
        help: "GPU time used by the container and those below it",
        unit: Some(Unit::Seconds),
        counts: true,
        read: |p| Some(p.stat().usage_usec.as_secs_f64()),
    },
    Series {
        name: "gpu_periods",
        help: "Periods of gpu.max that had work",
        unit: None,
        counts: true,
        read: |p| Some(p.stat().nr_periods as f64),
    },
    Series {
        name: "gpu_throttled_periods",
        help: "Periods in which the budget of gpu.max ran out",
        unit: None,
        counts: true,
        read: |p| Some(p.stat().nr_throttled as f64),
    },
    Series {
        name: "gpu_throttled",
        help: "Time for which the budget of gpu.max kept the container paused",
        unit: Some(Unit::Seconds),
        counts: true,
        read: |p| Some(p.stat().throttled_usec.as_secs_f64()),
    },
    Series {
        name: "gpu_memory",
        help: "Memory in use; absent where it cannot be read",
        unit: Some(Unit::Bytes),
        counts: false,
        read: |p| match p.seen.memory.get(p.gpu) {
            Some(bytes) => Some(bytes.0 as f64),
            None => (!p.seen.populated).then_some(0.0),
        },
    },
    Series {
        name: "gpu_memory_peak",
        help: "The most memory that was in use",
        unit: Some(Unit::Bytes),
        counts: false,
        read: |p| {
            let peaks = p.now.counters.peak.get(p.name);
            let peak = peaks.and_then(|all| all.get(p.gpu));
            Some(peak.map_or(0.0, |b| b.0 as f64))
        },
    },
    Series {
        name: "spec_gpu_weight",
        help: "gpu.weight",
        unit: None,
        counts: false,
        read: |p| Some(p.spec.weight(p.gpu).get().into()),
    },
    Series {
        name: "spec_gpu_max_ratio",
        help: "gpu.max as a part of the GPU's time; inf without a limit",
        unit: None,
        counts: false,
        read: |p| {
            let budget = p.spec.budget(p.gpu);
            Some(budget.max.map_or(f64::INFINITY, |_| budget.ratio()))
        },
    },
    Series {
        name: "spec_gpu_memory_max",
        help: "gpu.memory.max; inf without a limit",
        unit: Some(Unit::Bytes),
        counts: false,
        read: |p| {
            let max = p.spec.memory(Key::MemoryMax, p.gpu);
            Some(max.map_or(f64::INFINITY, |b| b.0 as f64))
        },
    },
];

impl Containers {
    fn places(
        catalog: &Catalog,
        now: &Observed,
        mut each: impl FnMut(&Place<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let nothing = Seen::default();
        for (name, entry) in &catalog.entries {
            let spec = entry.spec();
            let seen = now.containers.get(name).unwrap_or(&nothing);
            for gpu in now.gpus.iter().filter(|g| g.state == GpuState::Shared) {
                each(&Place {
                    name,
                    gpu: &gpu.id,
                    spec: &spec,
                    seen,
                    now,
                })?;
            }
        }
        Ok(())
    }
}

impl Collector for Containers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let catalog = self.core.catalog();
        let now = self.observed.borrow().clone();
        let held = &now.capabilities;
        let none = || "none".to_owned();
        let info = Info::new([
            ("backend", held.backend.to_string()),
            ("driver", held.driver.clone().unwrap_or_else(none)),
            ("patch", held.patch.clone().unwrap_or_else(none)),
        ]);
        info.encode(encoder.encode_descriptor("node", "This host", None, info.metric_type())?)?;
        for series in SERIES {
            let counter = ConstCounter::new(0.0);
            let gauge = ConstGauge::new(0.0);
            let kind = if series.counts {
                counter.metric_type()
            } else {
                gauge.metric_type()
            };
            let mut family =
                encoder.encode_descriptor(series.name, series.help, series.unit.as_ref(), kind)?;
            Self::places(&catalog, &now, |place| {
                let Some(value) = (series.read)(place) else {
                    return Ok(());
                };
                let labels: Labels<'_> = [
                    ("container", place.name.as_str()),
                    ("gpu", place.gpu.as_str()),
                ];
                let metric = family.encode_family(&labels)?;
                if series.counts {
                    ConstCounter::new(value).encode(metric)
                } else {
                    ConstGauge::new(value).encode(metric)
                }
            })?;
        }
        let counter = ConstCounter::new(0.0);
        let mut family = encoder.encode_descriptor(
            "gpu_memory_events",
            "Times that a limit of memory made itself felt",
            None,
            counter.metric_type(),
        )?;
        Self::places(&catalog, &now, |place| {
            let events = place.seen.memory_events.get(place.gpu);
            let events = events.copied().unwrap_or_default();
            let all = [
                ("low", events.low),
                ("high", events.high),
                ("max", events.max),
                ("fail", events.fail),
            ];
            all.into_iter().try_for_each(|(event, count)| {
                let labels: EventLabels<'_> = [
                    ("container", place.name.as_str()),
                    ("gpu", place.gpu.as_str()),
                    ("event", event),
                ];
                let metric = family.encode_family(&labels)?;
                ConstCounter::new(count).encode(metric)
            })
        })
    }
}

/// What is computed on peers for containers of this host, and here for others.
#[derive(Debug)]
struct Elsewhere {
    core: Handle,
    overflow: (Overflow, Admins),
}

/// Counters of one name: the values of its last label, each with its word.
type Words = (&'static str, &'static [(&'static str, Word)]);

const CALLS: Words = (
    "result",
    &[
        ("posted", Word::Posted),
        ("waited", Word::Waited),
        ("refused", Word::Refused),
    ],
);
const BYTES: Words = (
    "direction",
    &[("up", Word::BytesUp), ("down", Word::BytesDown)],
);

impl Collector for Elsewhere {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (overflow, admins) = &self.overflow;
        let seen = overflow.stats.look(&self.core.catalog(), admins);
        let totals = seen.totals();
        for (name, help, unit, (label, words)) in [
            (
                "overflow_calls",
                "Calls of the driver that peers are to answer (client), or that are answered for them (executor)",
                None,
                CALLS,
            ),
            (
                "overflow",
                "Data to where it is computed (up) and from there",
                Some(Unit::Bytes),
                BYTES,
            ),
        ] {
            let kind = ConstCounter::new(0.0).metric_type();
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (about, counters) in &totals {
                for (value, word) in words {
                    let role = if about.incoming { "executor" } else { "client" };
                    let labels = [
                        ("container", about.container.as_str()),
                        ("peer", about.peer.as_str()),
                        ("role", role),
                        (label, value),
                    ];
                    let metric = family.encode_family(&labels)?;
                    ConstCounter::new(counters[*word as usize]).encode(metric)?;
                }
            }
        }
        let sessions = overflow.listener().map_or(0, |l| l.sessions);
        let help = "Processes of this host that compute on peers (out), and sessions of other hosts' here (in)";
        let kind = ConstGauge::new(0.0).metric_type();
        let mut family = encoder.encode_descriptor("overflow_sessions", help, None, kind)?;
        for (direction, count) in [("out", seen.processes()), ("in", sessions)] {
            let labels = [("direction", direction)];
            let metric = family.encode_family(&labels)?;
            ConstGauge::new(count as f64).encode(metric)?;
        }
        Ok(())
    }
}
