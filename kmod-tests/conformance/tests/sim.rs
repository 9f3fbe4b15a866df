//! The simulator, whose clock need not move for these cases.

use std::collections::BTreeMap;

use ghost_backend::Backend;
use ghost_backend::sim::gpu::Load;
use ghost_backend::sim::{Config, Sim};
use ghost_conformance::{CASES, Lacks, World};
use ghost_model::{Bytes, GpuId, GroupId, Micros, ProcId};

struct Simulated {
    sim: Sim,
    last: u32,
    groups: BTreeMap<ProcId, Vec<GroupId>>,
}

impl World for Simulated {
    fn backend(&mut self) -> Box<dyn Backend> {
        Box::new(self.sim.backend())
    }

    fn lacks(&self) -> &'static [Lacks] {
        &[Lacks::Restart, Lacks::Kernel]
    }

    fn gpu(&self) -> GpuId {
        self.sim.gpu(0)
    }

    fn start(&mut self) -> ProcId {
        self.last += 1;
        let process = ProcId {
            pid: 1_000_000 + self.last,
            start: self.last.into(),
        };
        self.sim.start(process, "simulated", None);
        process
    }

    fn enter(&mut self, process: ProcId, cgroup: &str) {
        let path = format!("/{cgroup}");
        self.sim.start(process, "simulated", Some(&path));
    }

    fn open(&mut self, process: ProcId) {
        let kernel = Micros(100);
        let group = self.sim.spawn(process, 0, Load::Backlog { kernel });
        let group = group.expect("a simulated GPU");
        self.groups.entry(process).or_default().push(group);
    }

    fn allocate(&mut self, process: ProcId, bytes: Bytes) -> bool {
        let group = self.groups.get(&process).and_then(|groups| groups.first());
        let group = group.expect("a group, which memory goes with");
        self.sim.allocate(*group, bytes).is_ok()
    }

    fn free(&mut self, process: ProcId) {
        for group in self.groups.remove(&process).unwrap_or_default() {
            self.sim.close(group);
        }
        self.open(process);
    }

    fn kill(&mut self, process: ProcId) {
        self.groups.remove(&process);
        self.sim.kill(process);
    }
}

#[test]
fn the_simulator_does_as_a_backend_must() {
    let mut ran = 0;
    for case in CASES {
        let mut world = Simulated {
            sim: Sim::new(Config::default()),
            last: 0,
            groups: BTreeMap::new(),
        };
        eprintln!("{}", case.name);
        ran += usize::from(case.run(&mut world));
    }
    assert_eq!(ran, CASES.len() - 2);
}
