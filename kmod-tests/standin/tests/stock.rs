//! The stock backend on a stand-in: real processes, descriptors, cgroups and ioctls, no GPU.

use std::collections::BTreeMap;
use std::fs;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ghost_backend::Roots;
use ghost_backend::stock::Stock;
use ghost_backend::{Backend, Event};
use ghost_model::plan::Why;
use ghost_model::{
    Action, GpuId, GpuState, GroupSample, Key, Members, Membership, Micros, Name, ProcId, Sample,
};
use ghost_notify::PidFd;
use ghost_rm::{Control, Object};
use ghost_standin::tenant::Tenant;
use ghost_standin::{GroupView, Standin};

/// Where the stand-in is, for a tenant.
const DEV: &str = "GHOST_TEST_DEV";

struct Host {
    // Dropped in this order: unmounted, then removed.
    standin: Standin,
    out: tempfile::TempDir,
    _dir: tempfile::TempDir,
}

/// A stand-in, or `None` with a reason where there can be none.
fn host(gpus: u32) -> Option<Host> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(e) = fuse {
        eprintln!("skipped: /dev/fuse: {e}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let standin = Standin::mount(dir.path(), gpus).expect("a stand-in can be mounted");
    Some(Host {
        standin,
        out: tempfile::tempdir().unwrap(),
        _dir: dir,
    })
}

impl Host {
    fn roots(&self) -> Roots {
        Roots::standin(
            self.standin.dir().to_owned(),
            self.out.path().join("guardian.sock"),
        )
    }

    fn stock(&self) -> Stock {
        Stock::open(self.roots()).unwrap()
    }

    fn groups_of(&self, pid: u32) -> Vec<GroupView> {
        let groups = self.standin.groups().into_iter();
        groups.filter(|g| g.pid == pid).collect()
    }
}

/// Another process with a load, killed when dropped.
struct Load {
    child: Child,
}

impl Load {
    fn start(on: &Host, name: &str) -> Self {
        let load = Self::spawn(on, name);
        let ready = on.out.path().join(format!("{name}.ready"));
        until("a load", || ready.exists());
        load
    }

    fn spawn(on: &Host, name: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghost-load"));
        command
            .args([name, "1000", "600"])
            .arg("--out")
            .arg(on.out.path());
        command.arg("--dev").arg(on.standin.dir());
        Load {
            child: command.spawn().unwrap(),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn id(&self) -> ProcId {
        identify(self.pid())
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sets its own timeslice, as it could.
    fn tamper(&self, on: &Host, us: u64) {
        let group = on
            .groups_of(self.pid())
            .into_iter()
            .find(|g| g.compute)
            .unwrap()
            .group;
        let held = PidFd::open_pid(self.pid().cast_signed()).unwrap();
        held.with_fd(control_fd(self.pid()), |fd| {
            Control::new(fd).set_timeslice(group.client, group.object, us)
        })
        .unwrap()
        .unwrap();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn control_fd(pid: u32) -> RawFd {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let is = |path: &Path| path.ends_with("nvidiactl");
    let mut fds = fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| is(&to)));
    fds.next()
        .unwrap()
        .file_name()
        .to_str()
        .unwrap()
        .parse()
        .unwrap()
}

fn identify(pid: u32) -> ProcId {
    let start = ghost_notify::ProcId::of_pid(pid.cast_signed())
        .unwrap()
        .start_ticks;
    ProcId { pid, start }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn members(all: &[(&str, &[ProcId], &[&str])]) -> Members {
    let each = all.iter().map(|(container, pids, cgroups)| {
        let membership = Membership {
            pids: pids.to_vec(),
            cgroups: cgroups.iter().map(|path| path.parse().unwrap()).collect(),
        };
        (name(container), membership)
    });
    Members(each.collect::<BTreeMap<_, _>>())
}

/// Waits, generously: the machine may be busy.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Samples and keeps up, as ghostd does, until `is`, and gives that sample.
fn sample_until(stock: &mut Stock, what: &str, mut is: impl FnMut(&Sample) -> bool) -> Sample {
    let mut last = Sample::default();
    until(what, || {
        stock.upkeep();
        last = stock.sample();
        stock.upkeep();
        is(&last)
    });
    last
}

fn of(sample: &Sample, pid: u32) -> Vec<(GpuId, GroupSample)> {
    let gpus = sample.gpus.iter();
    let groups = gpus.flat_map(|gpu| {
        gpu.groups
            .iter()
            .map(|group| (gpu.gpu.clone(), group.clone()))
    });
    groups.filter(|(_, group)| group.pid == pid).collect()
}

fn container_of(sample: &Sample, pid: u32) -> Option<Name> {
    of(sample, pid)
        .first()
        .map(|(_, group)| group.container.clone())
}

fn slice_of(sample: &Sample, pid: u32, us: u64) -> Vec<Action> {
    let groups = of(sample, pid).into_iter();
    let set = groups.map(|(gpu, group)| Action::SetSlice {
        gpu,
        group: group.id,
        slice: Micros(us),
    });
    set.collect()
}

/// A cgroup below the one that the tests run in, removed when dropped.
struct Cgroup {
    path: String,
    dir: PathBuf,
}

impl Cgroup {
    fn make(tag: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let mount = line.split(' ').nth(4)?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let leaf = format!("ghost-test-{}-{tag}", std::process::id());
        let path = format!("{}/{leaf}", own.trim_end_matches('/'));
        let dir = PathBuf::from(format!("{mount}{path}"));
        fs::create_dir(&dir)
            .inspect_err(|e| eprintln!("skipped: {}: {e}", dir.display()))
            .ok()?;
        Some(Cgroup { path, dir })
    }

    fn put(&self, below: &str, pid: u32) {
        let dir = self.dir.join(below);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for dir in [self.dir.join("inner"), self.dir.clone()] {
            let removed = || fs::remove_dir(&dir).is_ok() || !dir.exists();
            until("an empty cgroup", removed);
        }
    }
}

#[test]
fn processes_are_found_and_belong_by_pid() {
    let Some(host) = host(2) else { return };
    let (a, b) = (Load::start(&host, "a"), Load::start(&host, "b"));
    let mut stock = host.stock();
    assert_eq!(stock.gpus().len(), 2);
    assert!(stock.gpus().iter().all(|gpu| gpu.state == GpuState::Shared));
    let capabilities = stock.capabilities();
    assert_eq!(capabilities.driver.as_deref(), Some("580.159.04"));
    assert_eq!(
        capabilities.enforcer(Key::MemoryMax),
        ghost_model::Enforcer::Nobody
    );
    stock.set_members(&members(&[("team/a", &[a.id()], &[])]));
    let sample = sample_until(&mut stock, "two groups", |sample| {
        of(sample, a.pid()).len() == 1 && of(sample, b.pid()).len() == 1
    });
    assert_eq!(container_of(&sample, a.pid()), Some(name("team/a")));
    assert_eq!(container_of(&sample, b.pid()), Some(Name::system()));
    let (_, group) = of(&sample, a.pid()).remove(0);
    assert_eq!(group.slice.fresh(), Some(Micros(2048)));
    let used = |sample: &Sample| of(sample, a.pid())[0].1.used.fresh();
    sample_until(&mut stock, "use", |s| {
        used(s).is_some_and(|used| used.0 > 0)
    });
    let processes = stock.processes();
    let process = processes.iter().find(|p| p.pid == a.pid()).unwrap();
    assert_eq!(
        (process.command.as_str(), process.groups.len()),
        ("ghost-load", 1)
    );
    assert!(process.memory.values().all(|bytes| bytes.0 > 0) && process.memory.len() == 1);
    assert_eq!(process.refused, None);
    let appeared = |event: &Event| matches!(event, Event::Appeared { pid, .. } if *pid == a.pid());
    assert_eq!(stock.events().iter().filter(|e| appeared(e)).count(), 1);
}

#[test]
fn processes_are_followed_through_cgroups() {
    let Some(host) = host(1) else { return };
    let Some(cgroup) = Cgroup::make("follow") else {
        return;
    };
    let load = Load::start(&host, "a");
    let mut stock = host.stock();
    stock.set_members(&members(&[("a", &[], &[cgroup.path.as_str()])]));
    let pid = load.pid();
    let is = |wanted: Name| move |s: &Sample| container_of(s, pid) == Some(wanted.clone());
    sample_until(&mut stock, "a stranger", is(Name::system()));
    // A cgroup below that was not there when it was set.
    cgroup.put("inner", load.pid());
    sample_until(&mut stock, "a member", is(name("a")));
    let all = stock.processes();
    assert!(
        all.iter()
            .any(|p| p.pid == load.pid() && p.container == name("a"))
    );
    load.kill();
}

#[test]
fn a_slice_is_set_once_and_set_back_when_a_tenant_changes_it() {
    let Some(host) = host(1) else { return };
    let load = Load::start(&host, "a");
    let mut stock = host.stock();
    let sample = sample_until(&mut stock, "a group", |s| of(s, load.pid()).len() == 1);
    let in_force = || {
        host.groups_of(load.pid())
            .iter()
            .find(|g| g.compute)
            .unwrap()
            .slice
    };
    let actions = slice_of(&sample, load.pid(), 5000);
    assert_eq!(stock.apply(&actions), []);
    assert_eq!(in_force(), Micros(5000));
    load.tamper(&host, 90_000);
    assert_eq!(stock.apply(&actions), []);
    assert_eq!(
        in_force(),
        Micros(90_000),
        "a slice that was set is not set again"
    );
    sample_until(&mut stock, "an audit", |_| in_force() == Micros(5000));
    let wanted = Event::Reasserted {
        pid: load.pid(),
        container: Name::system(),
        gpu: sample.gpus[0].gpu.clone(),
    };
    assert_eq!(stock.events().iter().filter(|e| **e == wanted).count(), 1);
    assert_eq!(stock.reasserted(), 1);
    let set = Action::SetSlice {
        gpu: sample.gpus[0].gpu.clone(),
        group: ghost_model::GroupId(u64::MAX),
        slice: Micros(1),
    };
    assert_eq!(
        stock.apply(&[set]),
        [],
        "a group that is gone is done already"
    );
}

#[test]
fn contexts_that_come_later_are_found_and_those_that_go_are_let_go() {
    let Some(host) = host(1) else { return };
    let own = std::process::id();
    let mut tenant = Tenant::open(host.standin.dir(), 0).unwrap();
    tenant.context().unwrap();
    let mut stock = host.stock();
    let first = sample_until(&mut stock, "one", |s| of(s, own).len() == 1);
    let second = tenant.context().unwrap();
    let both = sample_until(&mut stock, "two", |s| of(s, own).len() == 2);
    let ids = |sample: &Sample| {
        of(sample, own)
            .iter()
            .map(|(_, g)| g.id)
            .collect::<Vec<_>>()
    };
    assert!(
        ids(&both).contains(&ids(&first)[0]),
        "a group keeps its number"
    );
    tenant
        .rm()
        .free(tenant.client(), Object(0x5C00_0002), second)
        .unwrap();
    let one = sample_until(&mut stock, "one again", |s| of(s, own).len() == 1);
    assert_eq!(ids(&one), ids(&first));
    drop(tenant);
    sample_until(&mut stock, "none", |s| of(s, own).is_empty());
}

#[test]
fn a_killed_tenant_is_gone_though_nobody_samples() {
    let Some(host) = host(1) else { return };
    let load = Load::start(&host, "a");
    let pid = load.pid();
    let mut stock = host.stock();
    let sample = sample_until(&mut stock, "a group", |s| of(s, pid).len() == 1);
    stock.apply(&slice_of(&sample, pid, 4000));
    load.kill();
    // Were a duplicate of its descriptor held, its client and memory would stay.
    until("the end of its client", || {
        host.standin
            .clients()
            .iter()
            .all(|client| client.pid != pid)
    });
    sample_until(&mut stock, "its end", |s| of(s, pid).is_empty());
    // Its client goes a moment before it has exited, and its groups may with that.
    let exited = |e: &Event| matches!(e, Event::Exited { pid: of, .. } if *of == pid);
    let mut exits = 0;
    let mut count = |stock: &mut Stock| {
        exits += stock.events().iter().filter(|e| exited(e)).count();
        exits
    };
    until("its exit is told", || {
        stock.sample();
        count(&mut stock) > 0
    });
    sample_until(&mut stock, "nothing more", |_| true);
    assert_eq!(count(&mut stock), 1);
}

#[test]
fn a_process_without_a_context_is_seen_to_exit() {
    let Some(host) = host(1) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "has_a_context_now_and_then", "--ignored"])
        .env(DEV, host.standin.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut tell = child.stdin.take().unwrap();
    let pid = child.id();
    let mut stock = host.stock();
    let mut events = Vec::new();
    for next in ["let it go", "again", "let it go", ""] {
        let there = next == "let it go";
        sample_until(&mut stock, "what it has", |s| {
            of(s, pid).is_empty() != there
        });
        if !there {
            // Until it is listed once more, as one that has none.
            std::thread::sleep(Duration::from_millis(1100));
            sample_until(&mut stock, "nothing", |s| of(s, pid).is_empty());
        }
        events.append(&mut stock.events());
        if !next.is_empty() {
            writeln!(tell, "{next}").unwrap();
        }
    }
    drop(tell);
    child.wait().unwrap();
    until("its exit is told", || {
        stock.sample();
        events.append(&mut stock.events());
        events.len() > 1
    });
    let [
        Event::Appeared { pid: first, .. },
        Event::Exited { pid: last, .. },
    ] = *events
    else {
        panic!("{events:?}");
    };
    assert_eq!([first, last], [pid; 2]);
}

#[test]
#[ignore = "a tenant of another test"]
fn has_a_context_now_and_then() {
    let dev = PathBuf::from(std::env::var_os(DEV).expect("run by another test"));
    let mut lines = std::io::stdin().lines();
    loop {
        let mut tenant = Tenant::open(&dev, 0).unwrap();
        tenant.context().unwrap();
        lines.next();
        drop(tenant);
        if lines.next().is_none() {
            return;
        }
    }
}

#[test]
fn a_pid_that_is_used_again_is_another_process() {
    let Some(host) = host(1) else { return };
    let load = Load::start(&host, "a");
    let (pid, id) = (load.pid(), load.id());
    let mut stock = host.stock();
    stock.set_members(&members(&[("a", &[id], &[])]));
    let before = sample_until(&mut stock, "a member", |s| {
        container_of(s, pid) == Some(name("a"))
    });
    load.kill();
    let again = (0..500).find_map(|_| {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let load = Load::spawn(&host, "b");
        (load.pid() == pid).then_some(load)
    });
    let Some(again) = again else {
        eprintln!("skipped: pid {pid} was not to be had again");
        return;
    };
    let after = sample_until(&mut stock, "the other", |s| {
        of(s, pid)
            .iter()
            .any(|(_, g)| g.id != of(&before, pid)[0].1.id)
    });
    assert_eq!(container_of(&after, pid), Some(Name::system()));
    assert_eq!(of(&after, pid).len(), 1);
    drop(again);
}

/// The guardian's program, killed when dropped.
struct Guardian(Child);

impl Guardian {
    fn start(host: &Host) -> Self {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--bin", "ghost-guardian"])
            .status()
            .unwrap();
        assert!(built.success());
        let program = Path::new(env!("CARGO_BIN_EXE_ghost-load")).with_file_name("ghost-guardian");
        let roots = host.roots();
        let child = Command::new(program)
            .arg("--socket")
            .arg(&roots.guardian)
            .arg("--broker-socket")
            .arg(host.out.path().join("broker.sock"))
            .arg("--state")
            .arg(host.out.path().join("ledger"))
            .arg("--dev-root")
            .arg(&roots.dev)
            .arg("--driver-version")
            .arg(roots.proc_nvidia.join("version"))
            .spawn()
            .unwrap();
        let guardian = Guardian(child);
        until("the guardian", || roots.guardian.exists());
        guardian
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pause(gpu: &GpuId, container: &Name, why: Why) -> Action {
    Action::Pause {
        gpu: gpu.clone(),
        container: container.clone(),
        why,
    }
}

fn resume(gpu: &GpuId, container: &Name) -> Action {
    Action::Resume {
        gpu: gpu.clone(),
        container: container.clone(),
    }
}

#[test]
fn a_frozen_container_stops_whatever_comes_and_runs_again() {
    let Some(host) = host(1) else { return };
    let own = std::process::id();
    let mut tenant = Tenant::open(host.standin.dir(), 0).unwrap();
    tenant.context().unwrap();
    let other = Load::start(&host, "other");
    let mut stock = host.stock();
    let a = name("a");
    stock.set_members(&members(&[("a", &[identify(own)], &[])]));
    let sample = sample_until(&mut stock, "a group", |s| of(s, own).len() == 1);
    let gpu = sample.gpus[0].gpu.clone();
    let stopped = || {
        host.groups_of(own)
            .iter()
            .map(|g| (g.compute, g.disabled))
            .collect::<Vec<_>>()
    };

    let failures = stock.apply(&[pause(&gpu, &a, Why::Freeze)]);
    assert!(
        failures[0].cause.contains("systemctl start ghost-guardian"),
        "{failures:?}"
    );
    assert!(!of(&stock.sample(), own)[0].1.paused);

    let guardian = Guardian::start(&host);
    let paused = |s: &Sample| of(s, own).iter().all(|(_, group)| group.paused);
    // Wanted still, so it is done as soon as it can be.
    sample_until(&mut stock, "a pause, of copies too", |s| {
        paused(s) && stopped().iter().all(|(_, disabled)| *disabled)
    });
    assert!(host.groups_of(other.pid()).iter().all(|g| !g.disabled));
    tenant.context().unwrap();
    sample_until(&mut stock, "a pause of what came", |s| {
        of(s, own).len() == 2 && stopped().iter().all(|(_, disabled)| *disabled)
    });
    assert_eq!(stock.apply(&[resume(&gpu, &a)]), []);
    assert!(stopped().iter().all(|(_, disabled)| !disabled));

    assert_eq!(stock.apply(&[pause(&gpu, &a, Why::Max)]), []);
    let computing = |(compute, disabled): &(bool, bool)| compute == disabled;
    assert!(
        stopped().iter().all(computing),
        "a used up share stops no copies: {:?}",
        stopped()
    );
    // A backend that no longer samples is taken for dead.
    until("a lapse", || {
        stopped().iter().all(|(_, disabled)| !disabled)
    });
    sample_until(&mut stock, "the pause again", |s| {
        paused(s) && stopped().iter().all(computing)
    });
    drop(stock);
    until("a resume", || {
        stopped().iter().all(|(_, disabled)| !disabled)
    });
    assert_eq!(host.standin.violations(), 0);
    drop(guardian);
}

#[test]
fn mps_clients_are_refused_by_name() {
    let Some(host) = host(1) else { return };
    let (client, other) = (Load::start(&host, "client"), Load::start(&host, "other"));
    let mut roots = host.roots();
    let text = fs::read_to_string(roots.telemetry.unwrap()).unwrap();
    let mut told: serde_json::Value = serde_json::from_str(&text).unwrap();
    for process in told["processes"].as_array_mut().unwrap() {
        process["mps"] = (process["pid"] == client.pid()).into();
    }
    let path = host.out.path().join("telemetry.json");
    fs::write(&path, told.to_string()).unwrap();
    roots.telemetry = Some(path);
    let mut stock = Stock::open(roots).unwrap();
    let sample = sample_until(&mut stock, "the other", |s| of(s, other.pid()).len() == 1);
    assert!(of(&sample, client.pid()).is_empty());
    let refused = |e: &Event| match e {
        Event::Refused { pid, reason } => *pid == Some(client.pid()) && reason.contains("MPS"),
        _ => false,
    };
    assert_eq!(stock.events().iter().filter(|e| refused(e)).count(), 1);
    let processes = stock.processes();
    let process = processes.iter().find(|p| p.pid == client.pid()).unwrap();
    assert!(process.refused.as_ref().unwrap().contains("MPS"));
}

#[test]
fn a_gpu_with_mig_on_is_refused_and_the_others_are_not() {
    let Some(host) = host(2) else { return };
    let load = Load::start(&host, "a");
    let mut roots = host.roots();
    let text = fs::read_to_string(roots.telemetry.unwrap()).unwrap();
    let mut told: serde_json::Value = serde_json::from_str(&text).unwrap();
    told["gpus"][1]["mig"] = true.into();
    let path = host.out.path().join("telemetry.json");
    fs::write(&path, told.to_string()).unwrap();
    roots.telemetry = Some(path);
    let mut stock = Stock::open(roots).unwrap();
    let states: Vec<GpuState> = stock.gpus().into_iter().map(|gpu| gpu.state).collect();
    assert_eq!(states[0], GpuState::Shared);
    assert!(matches!(&states[1], GpuState::Refused(why) if why.contains("MIG")));
    let sample = sample_until(&mut stock, "a group", |s| of(s, load.pid()).len() == 1);
    assert_eq!(sample.gpus.len(), 1);
}

#[test]
fn an_unknown_branch_is_refused_by_name_and_not_spoken_to() {
    let Some(host) = host(1) else { return };
    let load = Load::start(&host, "a");
    let mut roots = host.roots();
    roots.proc_nvidia = host.out.path().to_owned();
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  600.10.01  Release\n";
    fs::write(roots.proc_nvidia.join("version"), version).unwrap();
    let before = host.standin.clients().len();
    let mut stock = Stock::open(roots).unwrap();
    assert_eq!(host.standin.clients().len(), before);
    let refused = |state: &GpuState| match state {
        GpuState::Refused(why) => why.contains("600.10.01"),
        GpuState::Shared => false,
    };
    assert!(stock.gpus().iter().all(|gpu| refused(&gpu.state)));
    assert!(stock.sample().gpus.is_empty());
    let told =
        |e: &Event| matches!(e, Event::Refused { pid: None, reason } if reason.contains("600"));
    assert!(stock.events().iter().any(told));
    assert!(of(&stock.sample(), load.pid()).is_empty());
}
