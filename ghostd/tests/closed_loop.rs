//! The policy and the simulated GPU in a closed loop, on a clock that the test moves: does each
//! workload get what it should, by its own progress, switches and late readings included?

use ghost_backend::Backend;
use ghost_backend::sim::gpu::Load;
use ghost_backend::sim::{Config, Meter, Sim, SimBackend};
use ghost_model::plan::Why;
use ghost_model::{GroupId, Members, Micros, Name, ProcId, Sample, Spec};
use ghost_policy::{ContainerStat, Desired, Memory, invariant, step};

/// ghostd's loop steps this often, and whenever a plan asks for it.
const TICK: Micros = Micros(50_000);
const SECOND: u64 = 1_000_000;

/// A real meter says no more than this.
const LATE: Meter = Meter::Every(Micros(100_000));

struct Loop {
    sim: Sim,
    backend: SimBackend,
    members: Members,
    desired: Desired,
    memory: Memory,
    wake: Micros,
    actions: usize,
    groups: Vec<(Name, GroupId)>,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn backlog(kernel: u64) -> Load {
    Load::Backlog {
        kernel: Micros(kernel),
    }
}

/// Kernels of a millisecond that fill the GPU.
fn full() -> Load {
    backlog(1_000)
}

impl Loop {
    fn new(meter: Meter) -> Loop {
        let sim = Sim::new(Config {
            gpus: 1,
            meter,
            ..Config::default()
        });
        Loop {
            backend: sim.backend(),
            sim,
            members: Members::default(),
            desired: Desired::default(),
            memory: Memory::default(),
            wake: Micros::ZERO,
            actions: 0,
            groups: Vec::new(),
        }
    }

    /// Sets what a container should have: `key=value` joined by `;`.
    fn set(&mut self, container: &str, text: &str) {
        let mut spec = Spec::default();
        for word in text.split(';').filter(|w| !w.is_empty()) {
            let (key, value) = word.split_once('=').unwrap();
            spec.set_text(key, None, value).unwrap();
        }
        self.desired.containers.insert(name(container), spec);
        self.wake = self.sim.now();
    }

    /// Starts a process with one channel group in a container.
    fn start(&mut self, container: &str, load: Load) -> GroupId {
        let process = ProcId {
            pid: 100 + self.groups.len() as u32,
            start: 1,
        };
        let container = name(container);
        if !container.is_system() {
            let members = self.members.0.entry(container.clone());
            members.or_default().pids.push(process);
            self.backend.set_members(&self.members);
        }
        let group = self.sim.spawn(process, 0, load).unwrap();
        self.groups.push((container, group));
        self.wake = self.sim.now();
        group
    }

    fn run(&mut self, us: u64) {
        let end = self.sim.now() + Micros(us);
        loop {
            if self.wake <= self.sim.now() {
                self.step();
            }
            if self.sim.now() >= end {
                return;
            }
            self.sim.advance(self.wake.min(end));
        }
    }

    fn step(&mut self) {
        let sample: Sample = self.backend.sample();
        let memory = std::mem::take(&mut self.memory);
        let (memory, plan) = step(memory, &self.desired, &sample);
        invariant::plan(&sample, &plan).unwrap();
        invariant::memory(&memory).unwrap();
        self.memory = memory;
        self.actions += plan.actions.len();
        assert_eq!(self.backend.apply(&plan.actions), []);
        let tick = sample.at + TICK;
        self.wake = plan.wake.map_or(tick, |wake| wake.min(tick));
    }

    /// GPU time of the kernels of a container and those below it.
    fn progress(&self, container: &str) -> u64 {
        let container = name(container);
        let within = self.groups.iter().filter(|(c, _)| c.is_within(&container));
        let used = within.filter_map(|(_, g)| Some(self.sim.group(*g)?.used().0));
        used.sum()
    }

    /// What each got over the next `us`, in percent of the GPU's time.
    fn measure(&mut self, us: u64, containers: &[&str]) -> Vec<f64> {
        let before: Vec<u64> = containers.iter().map(|c| self.progress(c)).collect();
        self.run(us);
        let after = containers.iter().map(|c| self.progress(c));
        let part = |(after, before)| (after - before) as f64 * 100.0 / us as f64;
        after.zip(before).map(part).collect()
    }

    fn stat(&self, container: &str) -> ContainerStat {
        self.memory.stats()[&(name(container), self.sim.gpu(0))]
    }
}

fn assert_near(say: &str, got: &[f64], wanted: &[f64], tolerance: f64) {
    for (g, w) in got.iter().zip(wanted) {
        let near = (g - w).abs() <= tolerance;
        assert!(near, "{say}: {got:?}, not {wanted:?} within {tolerance}");
    }
}

/// Percent of what is named, or of the GPU's time.
enum Of {
    All,
    Gpu,
}

struct Row {
    say: &'static str,
    /// Container, settings, the work of each of its processes.
    containers: Vec<(&'static str, &'static str, Vec<Load>)>,
    wanted: Vec<(&'static str, f64)>,
    of: Of,
    /// Points.
    tolerance: f64,
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn table() -> Vec<Row> {
    let one = || vec![full()];
    let idle = Load::Idle;
    let weights = [
        ("w1", "gpu.weight=1", 1.0),
        ("w2", "gpu.weight=2", 2.0),
        ("w3", "gpu.weight=3", 3.0),
        ("w5", "gpu.weight=5", 5.0),
        ("w8", "gpu.weight=8", 8.0),
        ("w13", "gpu.weight=13", 13.0),
        ("w21", "gpu.weight=21", 21.0),
        ("w34", "gpu.weight=34", 34.0),
    ];
    vec![
        Row {
            say: "equals share equally",
            containers: vec![("a", "", one()), ("b", "", one())],
            wanted: vec![("a", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "70 to 30, and the switches cost at most 3 percent",
            containers: vec![("a", "gpu.weight=70", one()), ("b", "gpu.weight=30", one())],
            wanted: vec![("a", 68.95), ("b", 29.55)],
            of: Of::Gpu,
            // 98.5 +- 1.5 in sum: at least 97.
            tolerance: 0.75,
        },
        Row {
            say: "the small one of 97 to 3 gets its 3",
            containers: vec![("a", "gpu.weight=97", one()), ("b", "gpu.weight=3", one())],
            wanted: vec![("a", 97.0), ("b", 3.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "eight unlike weights",
            containers: weights.map(|(c, spec, _)| (c, spec, one())).to_vec(),
            wanted: weights.map(|(c, _, w)| (c, w * 100.0 / 87.0)).to_vec(),
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "four processes get no more than one",
            containers: vec![("a", "", vec![full(); 4]), ("b", "", one())],
            wanted: vec![("a", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "and no less where three of the four idle",
            containers: vec![("a", "", vec![full(), idle, idle, idle]), ("b", "", one())],
            wanted: vec![("a", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "a team is one among its siblings",
            containers: vec![
                ("team/a", "", one()),
                ("team/b", "gpu.weight=300", one()),
                ("other", "", one()),
            ],
            wanted: vec![("team/a", 12.5), ("team/b", 37.5), ("other", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "what one of a team leaves, the team has",
            containers: vec![
                ("team/a", "", one()),
                ("team/b", "gpu.weight=300", vec![idle]),
                ("other", "", one()),
            ],
            wanted: vec![("team/a", 50.0), ("other", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "kernels of 0.1 ms and of 20 ms",
            containers: vec![
                ("a", "", vec![backlog(100)]),
                ("b", "", vec![backlog(20_000)]),
            ],
            wanted: vec![("a", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 1.0,
        },
        Row {
            say: "strangers are one container",
            containers: vec![
                ("a", "gpu.weight=300", one()),
                ("system", "", vec![full(); 3]),
            ],
            wanted: vec![("a", 75.0), ("system", 25.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "a cap of 30 percent binds alone",
            containers: vec![("a", "gpu.max=30%", one())],
            wanted: vec![("a", 30.0)],
            of: Of::Gpu,
            tolerance: 1.5,
        },
        Row {
            say: "a cap of 30 percent beside another, who has the rest",
            containers: vec![("a", "gpu.max=30%", one()), ("b", "", one())],
            wanted: vec![("a", 29.0), ("b", 69.0)],
            of: Of::Gpu,
            tolerance: 1.5,
        },
        Row {
            say: "a cap above its share holds nobody back",
            containers: vec![("a", "gpu.max=80%", one()), ("b", "", one())],
            wanted: vec![("a", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
        Row {
            say: "a parent's cap binds the sum",
            containers: vec![
                ("t", "gpu.max=20%", vec![]),
                ("t/a", "", one()),
                ("t/b", "", one()),
                ("o", "", one()),
            ],
            // A refund that comes late cannot be carried past its period: some of it is lost.
            wanted: vec![("t", 19.0), ("o", 80.0)],
            of: Of::Gpu,
            tolerance: 1.5,
        },
        Row {
            say: "gpu.idle gets nothing while another works",
            containers: vec![("a", "", one()), ("i", "gpu.idle=1", one())],
            wanted: vec![("a", 100.0), ("i", 0.0)],
            of: Of::Gpu,
            tolerance: 0.5,
        },
        Row {
            say: "gpu.idle gets all while nobody does",
            containers: vec![("a", "", vec![idle]), ("i", "gpu.idle=1", one())],
            wanted: vec![("i", 100.0)],
            of: Of::Gpu,
            tolerance: 0.5,
        },
        Row {
            say: "a latency container that is greedy is one by weight",
            containers: vec![("w", "gpu.latency=target=400", one()), ("b", "", one())],
            wanted: vec![("w", 50.0), ("b", 50.0)],
            of: Of::All,
            tolerance: 0.5,
        },
    ]
}

fn hold(meter: Meter) {
    for row in table() {
        let mut l = Loop::new(meter);
        for (container, spec, loads) in &row.containers {
            l.set(container, spec);
            for load in loads {
                l.start(container, *load);
            }
        }
        l.run(4 * SECOND);
        let containers: Vec<&str> = row.wanted.iter().map(|(c, _)| *c).collect();
        let wanted: Vec<f64> = row.wanted.iter().map(|(_, w)| *w).collect();
        for _ in 0..3 {
            let mut got = l.measure(4 * SECOND, &containers);
            if let Of::All = row.of {
                let sum: f64 = got.iter().sum();
                got.iter_mut().for_each(|g| *g *= 100.0 / sum);
            }
            assert_near(row.say, &got, &wanted, row.tolerance);
        }
    }
}

#[test]
fn workloads_get_what_they_should() {
    hold(Meter::Exact);
}

#[test]
fn workloads_get_what_they_should_where_readings_are_late() {
    hold(LATE);
}

#[test]
fn a_cap_holds_in_every_second() {
    for meter in [Meter::Exact, LATE] {
        let mut l = Loop::new(meter);
        l.set("a", "gpu.max=30%");
        l.start("a", full());
        l.run(2 * SECOND);
        for _ in 0..20 {
            let got = l.measure(SECOND, &["a"]);
            assert_near("30 percent", &got, &[30.0], 1.5);
            l.run(37_000);
        }
    }
}

#[test]
fn weights_change_while_they_run() {
    let mut l = Loop::new(LATE);
    for (container, spec) in [("a", "gpu.weight=70"), ("b", "gpu.weight=30")] {
        l.set(container, spec);
        l.start(container, full());
    }
    l.run(3 * SECOND);
    l.set("a", "gpu.weight=10");
    l.set("b", "gpu.weight=90");
    l.run(100_000);
    let got = l.measure(2 * SECOND, &["a", "b"]);
    assert_near("changed", &got, &[9.9, 88.7], 1.0);
}

#[test]
fn one_that_was_not_always_busy_has_its_share_when_it_is() {
    let us = Micros;
    let half = Load::Duty {
        kernel: us(1_000),
        on: us(40_000),
        off: us(33_000),
    };
    let often = Load::Periodic {
        kernel: us(2_000),
        period: us(7_000),
    };
    for load in [half, often] {
        let mut l = Loop::new(LATE);
        let a = l.start("a", load);
        l.start("b", full());
        l.run(20 * SECOND);
        l.sim.set_load(a, full());
        l.run(100_000);
        let got = l.measure(2 * SECOND, &["a", "b"]);
        assert_near("busy at last", &got, &[49.3, 49.3], 1.0);
    }
}

#[test]
fn a_hundred_containers_share_evenly_and_are_left_alone() {
    let mut l = Loop::new(LATE);
    let names: Vec<String> = (0..100).map(|n| format!("c{n}")).collect();
    for container in &names {
        l.start(container, full());
    }
    l.run(3 * SECOND);
    let before = l.actions;
    let containers: Vec<&str> = names.iter().map(String::as_str).collect();
    let got = l.measure(20 * SECOND, &containers);
    assert_near("a hundredth, less the switches", &got, &[0.91; 100], 0.02);
    assert_eq!(l.actions, before);
}

#[test]
fn a_share_is_used_and_given_back_within_50_ms() {
    let mut l = Loop::new(LATE);
    l.set("a", "gpu.weight=70");
    l.set("b", "gpu.weight=30");
    let a = l.start("a", full());
    l.start("b", full());
    l.run(3 * SECOND);
    l.sim.set_load(a, Load::Idle);
    l.run(50_000);
    let got = l.measure(500_000, &["b"]);
    assert_near("while a idles", &got, &[100.0], 0.5);
    l.sim.set_load(a, full());
    l.run(50_000);
    let got = l.measure(10 * 30_000, &["a", "b"]);
    assert_near("when a woke", &got, &[69.0, 29.6], 1.5);
}

#[test]
fn what_is_frozen_runs_nothing_and_thaws() {
    let mut l = Loop::new(Meter::Exact);
    l.set("t", "");
    l.set("t/a", "gpu.max=80%");
    l.start("t/a", full());
    l.start("b", full());
    l.run(SECOND);
    l.set("t", "ghost.freeze=1");
    l.run(0);
    assert_eq!(l.stat("t/a").paused, Some(Why::Freeze));
    let got = l.measure(SECOND, &["t/a", "b"]);
    assert_near("frozen", &got, &[0.0, 100.0], 0.1);
    l.set("t", "");
    l.run(0);
    assert_eq!(l.stat("t/a").paused, None);
    let got = l.measure(2 * SECOND, &["t/a", "b"]);
    assert_near("thawed", &got, &[49.3, 49.3], 1.0);
}

#[test]
fn a_latency_container_waits_little_beside_long_kernels() {
    let mut l = Loop::new(LATE);
    l.set("web", "gpu.latency=target=400");
    let web = l.start(
        "web",
        Load::Periodic {
            kernel: Micros(100),
            period: Micros(5_000),
        },
    );
    l.start("load", backlog(20_000));
    l.run(25 * SECOND);
    let group = l.sim.group(web).unwrap();
    let mut latencies: Vec<u64> = group.latencies().iter().map(|l| l.0).collect();
    // The newest 4000, the first seconds with the default slices not among them.
    latencies = latencies.split_off(latencies.len() - 4_000);
    latencies.sort_unstable();
    let (p50, p99) = (latencies[2_000], latencies[3_960]);
    assert!(p50 <= 420 && p99 <= 650, "p50 {p50}, p99 {p99}");
}

#[test]
fn a_steady_load_plans_nothing_and_a_capped_one_little() {
    let mut l = Loop::new(LATE);
    for (n, weight) in [1, 2, 3, 5, 8, 13, 21, 34].into_iter().enumerate() {
        l.set(&format!("c{n}"), &format!("gpu.weight={weight}"));
        l.start(&format!("c{n}"), full());
    }
    l.run(3 * SECOND);
    let before = l.actions;
    l.run(60 * SECOND);
    assert_eq!(l.actions, before);
    l.set("c7", "gpu.weight=34;gpu.max=20%");
    l.run(3 * SECOND);
    let before = l.actions;
    l.run(10 * SECOND);
    let each_second = (l.actions - before) / 10;
    assert!(
        each_second <= 22,
        "a pause and a resume each period: {each_second}"
    );
}
