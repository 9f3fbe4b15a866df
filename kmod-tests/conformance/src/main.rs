//! Runs the cases on a woven module with its entry for tests, as root on a machine whose GPUs are
//! numbers: the virtual machine of `kmod-tests/vm`. Started with `tenant`, it is a process that has a
//! client of the driver, if it is told to.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use ghost_backend::patched::{self, PATH, Patched, PatchedError};
use ghost_backend::{Backend, Roots};
use ghost_conformance::{CASES, Lacks, World};
use ghost_model::{Bytes, GpuId, ProcId};
use ghost_rm::{DriverVersion, Session};
use ghost_uapi::Device;
use ghost_uapi::sys::{
    GHOST_TEST_GPU, GHOST_TEST_GROUP, GHOST_TEST_GROUP_GONE, GHOST_TEST_MEMORY,
    GHOST_TEST_MEMORY_GONE, ghost_test,
};

const GPU: u32 = 0x7e57;
const HOOKS: &str = "/sys/module/nvidia/parameters/ghost_hooks";
const CGROUPS: &str = "/sys/fs/cgroup";

/// A process, and what it has.
struct Tenant {
    child: Child,
    /// The driver's handle, once it has one.
    client: Option<u32>,
    groups: Vec<u64>,
    memory: Vec<u64>,
}

/// The module, told by its entry for tests what happens.
struct Module {
    device: Device,
    last: u64,
    tenants: BTreeMap<ProcId, Tenant>,
}

impl Module {
    fn open() -> Result<Self, ghost_uapi::Error> {
        let device = Device::open(Path::new(PATH))?;
        let mut gpu = ghost_test {
            op: GHOST_TEST_GPU,
            gpu: GPU,
            value: 1 << 30,
            ..Default::default()
        };
        device.test(&mut gpu)?;
        Ok(Self {
            device,
            last: 0,
            tenants: BTreeMap::new(),
        })
    }

    /// What the process has of the module, made the first time.
    fn client(&mut self, process: ProcId) -> u32 {
        let tenant = self.tenants.get_mut(&process).expect("it was started");
        *tenant.client.get_or_insert_with(|| {
            let input = tenant.child.stdin.as_mut().expect("its input");
            writeln!(input).expect("it lives");
            let output = tenant.child.stdout.as_mut().expect("its output");
            let mut line = String::new();
            BufReader::new(output)
                .read_line(&mut line)
                .expect("it lives");
            line.trim().parse().expect("a handle")
        })
    }

    fn ask(
        &mut self,
        op: u32,
        client: u32,
        object: u64,
        value: u64,
    ) -> Result<(), ghost_uapi::Error> {
        self.device.test(&mut ghost_test {
            op,
            gpu: GPU,
            object,
            value,
            client,
            ..Default::default()
        })
    }

    fn new_object(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl World for Module {
    fn backend(&mut self) -> Box<dyn Backend> {
        Box::new(Patched::open(Path::new(PATH), &Roots::host()).expect("the module answers"))
    }

    fn lacks(&self) -> &'static [Lacks] {
        &[]
    }

    fn gpu(&self) -> GpuId {
        format!("GPU-{GPU:08x}").parse().expect("a gpu")
    }

    fn start(&mut self) -> ProcId {
        let own = std::env::current_exe().expect("its own path");
        let child = Command::new(own)
            .arg("tenant")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let pid = child.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        // Field 22; the second may have spaces, and ends with the last parenthesis.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let start = fields
            .split(' ')
            .nth(19)
            .and_then(|field| field.parse().ok());
        let process = ProcId {
            pid,
            start: start.expect("a start"),
        };
        let tenant = Tenant {
            child,
            client: None,
            groups: Vec::new(),
            memory: Vec::new(),
        };
        self.tenants.insert(process, tenant);
        process
    }

    fn enter(&mut self, process: ProcId, cgroup: &str) {
        let path = Path::new(CGROUPS).join(cgroup);
        std::fs::create_dir_all(&path).expect("a cgroup");
        std::fs::write(path.join("cgroup.procs"), process.pid.to_string()).expect("a move");
    }

    fn open(&mut self, process: ProcId) {
        let (client, object) = (self.client(process), self.new_object());
        self.ask(GHOST_TEST_GROUP, client, object, 0)
            .expect("a group");
        if let Some(tenant) = self.tenants.get_mut(&process) {
            tenant.groups.push(object);
        }
    }

    fn allocate(&mut self, process: ProcId, bytes: Bytes) -> bool {
        let (client, object) = (self.client(process), self.new_object());
        let asked = self.ask(GHOST_TEST_MEMORY, client, object, bytes.0);
        match asked {
            Ok(()) => {
                let tenant = self.tenants.get_mut(&process);
                tenant.expect("it was started").memory.push(object);
                true
            }
            // ENOMEM, as the hook's refusal says.
            Err(error) if error.errno() == Some(12) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, process: ProcId) {
        let client = self.client(process);
        let tenant = self.tenants.get_mut(&process).expect("it was started");
        for object in std::mem::take(&mut tenant.memory) {
            self.ask(GHOST_TEST_MEMORY_GONE, client, object, 0)
                .expect("it is there");
        }
    }

    fn kill(&mut self, process: ProcId) {
        // The driver takes memory and groups away before the client.
        if self
            .tenants
            .get(&process)
            .is_some_and(|t| t.client.is_some())
        {
            self.free(process);
            let client = self.client(process);
            let tenant = self.tenants.get_mut(&process).expect("it was started");
            for object in std::mem::take(&mut tenant.groups) {
                self.ask(GHOST_TEST_GROUP_GONE, client, object, 0)
                    .expect("it is there");
            }
        }
        if let Some(mut tenant) = self.tenants.remove(&process) {
            tenant.child.kill().expect("it lives");
            tenant.child.wait().expect("it ended");
        }
    }
}

/// Makes a client of the driver when a line comes, says its handle, and keeps it.
fn tenant() -> Result<(), Box<dyn std::error::Error>> {
    let mut lines = io::stdin().lines();
    if lines.next().is_none() {
        return Ok(());
    }
    let text = std::fs::read_to_string("/proc/driver/nvidia/version")?;
    let driver: DriverVersion = text.parse()?;
    let session = Session::open(Path::new("/dev"), driver.branch()?.alloc)?;
    println!("{}", session.client().0);
    lines.next();
    Ok(())
}

/// Nothing is claimed of a module whose hooks are off.
fn off() -> Result<(), Box<dyn std::error::Error>> {
    let mut backend = Patched::open(Path::new(PATH), &Roots::host())?;
    assert!(!backend.capabilities().enforced_by.is_empty());
    std::fs::write(HOOKS, "0")?;
    backend.gpus();
    let claimed = backend.capabilities().enforced_by;
    let found = patched::probe(Path::new(PATH));
    std::fs::write(HOOKS, "1")?;
    assert!(claimed.is_empty(), "{claimed:?}");
    assert!(matches!(found, Err(PatchedError::Off { .. })));
    Ok(())
}

fn cases() -> Result<(), Box<dyn std::error::Error>> {
    for case in CASES {
        println!("# {}", case.name);
        case.run(&mut Module::open()?);
    }
    println!("# nothing is claimed of a module whose hooks are off");
    off()
}

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("tenant") => tenant(),
        _ => cases(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
