//! The stock backend by the cases that every backend passes. Its cgroups and memory have tests of
//! their own, with what holds them.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ghost_backend::stock::Stock;
use ghost_backend::{Backend, Roots};
use ghost_conformance::{CASES, Lacks, World};
use ghost_model::{Bytes, GpuId, ProcId};
use ghost_notify::PidFd;

use common::{Mounted, mount, telemetry, until};

struct Standing {
    processes: BTreeMap<ProcId, Child>,
    guardian: Child,
    roots: Roots,
    gpu: GpuId,
    _out: tempfile::TempDir,
    on: Mounted,
}

impl Standing {
    fn new(on: Mounted) -> Self {
        let out = tempfile::tempdir().unwrap();
        let dir = on.standin.dir().to_owned();
        let roots = Roots::standin(dir, out.path().join("guardian.sock"));
        let program = Path::new(env!("CARGO_BIN_EXE_ghost-load")).with_file_name("ghost-guardian");
        let guardian = Command::new(program)
            .arg("--socket")
            .arg(&roots.guardian)
            .arg("--broker-socket")
            .arg(out.path().join("broker.sock"))
            .arg("--state")
            .arg(out.path().join("ledger"))
            .arg("--dev-root")
            .arg(&roots.dev)
            .arg("--driver-version")
            .arg(roots.proc_nvidia.join("version"))
            .spawn()
            .unwrap();
        until("the guardian", || roots.guardian.exists());
        let told = telemetry(&on);
        let gpu = told["gpus"][0]["uuid"].as_str().unwrap().parse().unwrap();
        Standing {
            processes: BTreeMap::new(),
            guardian,
            roots,
            gpu,
            _out: out,
            on,
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }
}

impl World for Standing {
    fn backend(&mut self) -> Box<dyn Backend> {
        Box::new(Stock::open(self.roots.clone()).unwrap())
    }

    fn lacks(&self) -> &'static [Lacks] {
        &[Lacks::Cgroups, Lacks::Memory, Lacks::Kernel]
    }

    fn gpu(&self) -> GpuId {
        self.gpu.clone()
    }

    fn start(&mut self) -> ProcId {
        let child = Command::new(env!("CARGO_BIN_EXE_ghost-load"))
            .arg("mem")
            .arg("--dev")
            .arg(self.on.standin.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let held = PidFd::open_pid(child.id().cast_signed()).unwrap();
        let process = ProcId {
            pid: child.id(),
            start: held.id().start_ticks,
        };
        self.processes.insert(process, child);
        process
    }

    fn enter(&mut self, _: ProcId, _: &str) {
        unreachable!("it lacks cgroups");
    }

    fn open(&mut self, process: ProcId) {
        let child = self.processes.get_mut(&process).unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "context").unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("context"), "{line}");
    }

    fn allocate(&mut self, _: ProcId, _: Bytes) -> bool {
        unreachable!("it lacks memory");
    }

    fn free(&mut self, _: ProcId) {
        unreachable!("it lacks memory");
    }

    fn kill(&mut self, process: ProcId) {
        let mut child = self.processes.remove(&process).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn the_stock_backend_does_as_a_backend_must() {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--workspace", "--bin", "ghost-guardian"])
        .status();
    assert!(built.unwrap().success());
    let mut ran = 0;
    for case in CASES {
        let Some(on) = mount(1) else { return };
        eprintln!("{}", case.name);
        ran += usize::from(case.run(&mut Standing::new(on)));
    }
    assert_eq!(ran, CASES.len() - 5);
}
