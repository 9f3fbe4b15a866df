//! A stand-in for the driver, a guardian, and tenants under the filter.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ghost_guardian::broker::books::{Card, CardInfo};
use ghost_guardian::broker::client::Broker;
use ghost_guardian::broker::wire::Usage;
use ghost_model::{Bytes, GpuId, MemoryLimits, MemoryWanted, Name};
use ghost_notify::{filter, pass};
use ghost_rm::tenant::NUMBERS;
use ghost_rm::{AllocForm, Session};
use ghost_standin::Standin;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Generous, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Host {
    // Dropped in this order: the guardian ends, then the stand-in is unmounted, then removed.
    pub(crate) guardian: Option<Program>,
    pub(crate) standin: Standin,
    pub(crate) dir: tempfile::TempDir,
    /// What ghostd keeps: session, container and a duplicate of each listener.
    listeners: RefCell<Vec<(String, String, OwnedFd)>>,
}

/// The guardian's program, killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program that the stand-in's package has for tenants.
fn load() -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--bin", "ghost-load"])
            .status();
        assert!(built.unwrap().success());
    });
    Path::new(env!("CARGO_BIN_EXE_ghost-guardian")).with_file_name("ghost-load")
}

impl Host {
    /// A host with a guardian, or `None` with a reason where there can be none.
    pub(crate) fn start(gpus: u32) -> Option<Self> {
        if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse: {e}");
            return None;
        }
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root answers for others");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let open = Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        let standin = Standin::mount(&dir.path().join("dev"), gpus).unwrap();
        let mut host = Self {
            guardian: None,
            standin,
            dir,
            listeners: RefCell::default(),
        };
        host.start_guardian(&[]);
        host.broker().set_cards(host.cards()).unwrap();
        Some(host)
    }

    pub(crate) fn dev(&self) -> &Path {
        self.standin.dir()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn start_guardian(&mut self, more: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghost-guardian"));
        command.args(self.arguments()).args(more);
        self.start_as(command.env_remove("NOTIFY_SOCKET"));
    }

    /// What the guardian is told.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let paths = [
            ("--socket", self.at("guardian.sock")),
            ("--broker-socket", self.at("broker.sock")),
            ("--state", self.at("state")),
            ("--dev-root", self.dev().to_owned()),
            (
                "--driver-version",
                self.dev().join("proc/driver/nvidia/version"),
            ),
        ];
        let each = paths.map(|(name, path)| [name.into(), path.into_os_string()]);
        each.concat()
    }

    pub(crate) fn start_as(&mut self, command: &mut Command) {
        self.guardian = Some(Program(command.spawn().unwrap()));
        self.broker();
    }

    /// Waits until the guardian has died by itself.
    pub(crate) fn guardian_dies(&mut self) {
        self.guardian.as_mut().unwrap().0.wait().unwrap();
        self.guardian = None;
    }

    pub(crate) fn broker(&self) -> Broker {
        let path = self.at("broker.sock");
        let mut connected = None;
        until("the broker", || {
            connected = Broker::connect(&path, Duration::from_secs(20)).ok();
            connected
                .as_mut()
                .is_some_and(|broker| broker.usage().is_ok())
        });
        connected.unwrap()
    }

    pub(crate) fn cards(&self) -> Vec<CardInfo> {
        let session = Session::open(self.dev(), AllocForm::WithRights).unwrap();
        let card = |gpu: ghost_rm::AttachedGpu| CardInfo {
            card: Card(gpu.id),
            id: id(&gpu.uuid),
            total: Bytes(80 * GIB),
            others: Bytes(0),
        };
        session.attached().unwrap().into_iter().map(card).collect()
    }

    pub(crate) fn gpu(&self, index: usize) -> GpuId {
        self.cards()[index].id.clone()
    }

    /// Limits by container, on the first GPU.
    pub(crate) fn limit(&self, max: &[(&str, u64)]) {
        let gpu = self.gpu(0);
        let one = |&(container, max): &(&str, u64)| {
            let limits = MemoryLimits {
                max: Some(Bytes(max)),
                ..MemoryLimits::default()
            };
            (name(container), [(gpu.clone(), limits)].into())
        };
        let wanted = MemoryWanted(max.iter().map(one).collect());
        self.broker().set_limits(wanted).unwrap();
    }

    pub(crate) fn usage(&self) -> Usage {
        self.broker().usage().unwrap()
    }

    /// Bytes that a container holds, on all GPUs.
    pub(crate) fn current(&self, container: &str) -> u64 {
        let seen = self.usage().seen;
        let gpus = seen.containers.get(&name(container));
        let each = gpus.into_iter().flat_map(|gpus| gpus.values());
        each.map(|used| used.current.0).sum()
    }

    pub(crate) fn load(&self) -> Command {
        let mut command = Command::new(load());
        command.arg("mem").arg("--dev").arg(self.dev());
        command
    }

    /// `ghost-load mem` in a container, told what to do.
    pub(crate) fn tenant(&self, container: &str) -> Tenant {
        self.put(container, self.load())
    }

    /// A program that is told what to do as `ghost-load mem` is, in a container.
    pub(crate) fn put(&self, container: &str, mut command: Command) -> Tenant {
        let socket = filtered(&mut command);
        let tenant = Tenant::start(command);
        self.adopt(container, listener(&socket));
        tenant
    }

    /// As ghostd does with a listener.
    pub(crate) fn adopt(&self, container: &str, listener: OwnedFd) {
        let mut all = self.listeners.borrow_mut();
        let session = format!("session-{}", all.len());
        self.broker()
            .adopt(&session.parse().unwrap(), &name(container), &listener)
            .unwrap();
        all.push((session, container.to_owned(), listener));
    }

    /// As ghostd does when the guardian was restarted.
    pub(crate) fn adopt_again(&self) {
        let mut broker = self.broker();
        for (session, container, listener) in &*self.listeners.borrow() {
            broker
                .adopt(&session.parse().unwrap(), &name(container), listener)
                .unwrap();
        }
    }

    /// ghostd forgets its duplicates.
    pub(crate) fn drop_listeners(&self) {
        self.listeners.borrow_mut().clear();
    }

    /// `kill -9` of the guardian, and all that brings it back.
    pub(crate) fn restart(&mut self, more: &[&str]) {
        self.guardian = None;
        self.start_guardian(more);
        self.adopt_again();
    }
}

fn id(uuid: &str) -> GpuId {
    uuid.parse().unwrap()
}

/// Puts a program under the filter; its listener comes through the socket.
pub(crate) fn filtered(command: &mut Command) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let install = move || {
        let listener = filter::install(NUMBERS).map_err(std::io::Error::other)?;
        pass::send(&theirs, b"l", &[listener.as_fd()])
    };
    // SAFETY: the child of the fork has one thread; it makes system calls, and allocates, which
    // the C library allows after a fork.
    unsafe { command.pre_exec(install) };
    ours
}

pub(crate) fn listener(from: &UnixStream) -> OwnedFd {
    let (_, fds) = pass::receive(from, &mut [0]).unwrap();
    fds.into_iter().next().unwrap()
}

/// `ghost-load mem` that is told what to do, killed when dropped.
pub(crate) struct Tenant {
    pub(crate) child: Child,
    steps: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Tenant {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        Self {
            steps: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn tell(&mut self, step: &str) {
        writeln!(self.steps, "{step}").unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let line = line.trim_end_matches('\n');
        let (_, answer) = line.split_once(' ').expect("an answer");
        answer.to_owned()
    }

    /// The answer to a step, after its first word.
    pub(crate) fn ask(&mut self, step: &str) -> String {
        self.tell(step);
        self.hear()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
