//! A Ghost of one's own in a temporary folder: guardian, daemon and command, as a user runs them.

use crate::loads::{Load, beside, sleep_ms};
use anyhow::{Context, Result, bail, ensure};
use ghost_model::BackendKind;
use ghostctl::client::{Client, Target};
use hyper::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where loads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A GPU made of arithmetic.
    Sim,
    /// The GPU of this host, under its unmodified driver.
    Stock,
    /// The same, under the driver with Ghost in it.
    Patched,
    /// A stand-in for that driver, mounted for the purpose.
    Standin,
}

impl Kind {
    /// The GPU of this host if it has one and we may drive it, the simulator otherwise.
    pub fn here() -> Kind {
        let driver = Path::new("/proc/driver/nvidia/version").exists();
        if driver && nix::unistd::Uid::effective().is_root() {
            Kind::gpu()
        } else {
            Kind::Sim
        }
    }

    /// The GPU of this host, by the driver that is loaded.
    pub fn gpu() -> Kind {
        match Path::new("/dev/nvidia-ghost").exists() {
            true => Kind::Patched,
            false => Kind::Stock,
        }
    }

    /// Ghost's word for it.
    pub fn backend(self) -> BackendKind {
        match self {
            Kind::Sim => BackendKind::Sim,
            Kind::Stock | Kind::Standin => BackendKind::Stock,
            Kind::Patched => BackendKind::Patched,
        }
    }

    /// The GPU, or what stands for one.
    pub fn machine(self) -> String {
        let first_line = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
        let processor = || {
            let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let mut lines = cpu.lines();
            let model = lines.find_map(|l| l.strip_prefix("model name")?.split_once(": "));
            model.map_or("unknown processor".to_owned(), |(_, name)| name.to_owned())
        };
        match self {
            Kind::Sim => format!("simulated GPU, {}", processor()),
            Kind::Standin => format!("stand-in for the driver, {}", processor()),
            Kind::Stock | Kind::Patched => {
                let ask = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
                let said = Command::new("nvidia-smi").args(ask).output();
                said.map(|o| first_line(String::from_utf8_lossy(&o.stdout).into_owned()))
                    .unwrap_or_default()
            }
        }
    }
}

/// A mounted stand-in for the driver.
struct Standin {
    child: Child,
    dir: tempfile::TempDir,
}

impl Standin {
    fn mount() -> Result<Standin> {
        let dir = tempfile::Builder::new().prefix("ghost-dev-").tempdir()?;
        let mut command = Command::new(beside("ghost-standin")?);
        command.arg(dir.path()).arg("1").stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut said = String::new();
        let out = child.stdout.take().context("no pipe")?;
        BufReader::new(out).read_line(&mut said)?;
        ensure!(!said.is_empty(), "the stand-in for the driver is not there");
        Ok(Standin { child, dir })
    }

    fn unmount(&mut self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).ok();
        self.child.wait().ok();
    }
}

/// A guardian and a daemon. Dropping it stops both.
pub struct Node {
    /// Where loads run.
    pub kind: Kind,
    dir: tempfile::TempDir,
    /// What the guardian keeps, in memory as `/run` is: a disk would be in the way of a pause.
    ledger: tempfile::TempDir,
    standin: Option<Standin>,
    guardian: Option<Child>,
    ghostd: Child,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    /// Starts both and waits until ghostd answers.
    ///
    /// # Errors
    /// If one of them does not start; the message has what it said.
    pub fn start(kind: Kind) -> Result<Node> {
        Self::start_with(kind, "")
    }

    /// The same, with more in the configuration's file.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(kind: Kind, more: &str) -> Result<Node> {
        let dir = tempfile::Builder::new().prefix("ghost-").tempdir()?;
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("containers.d"))?;
        let standin = match kind {
            Kind::Standin => Some(Standin::mount()?),
            Kind::Sim | Kind::Stock | Kind::Patched => None,
        };
        let quoted = |p: PathBuf| format!("{:?}", p.display().to_string());
        std::fs::write(
            path("ghostd.toml"),
            format!(
                "backend = \"{}\"\nsocket = {}\nstate_dir = {}\nrun_dir = {}\ncontainers_dir = {}\nguardian = {}\nsim_gpus = 1\n{}{more}",
                kind.backend(),
                quoted(path("ghostd.sock")),
                quoted(path("state")),
                quoted(path("run")),
                quoted(path("containers.d")),
                quoted(path("guardian.sock")),
                standin
                    .as_ref()
                    .map(|s| format!("standin = {}\n", quoted(s.dir.path().into())))
                    .unwrap_or_default(),
            ),
        )?;
        let memory = Path::new("/dev/shm");
        let ledger = match memory.is_dir() {
            true => tempfile::tempdir_in(memory)?,
            false => tempfile::tempdir()?,
        };
        let guardian = match kind {
            Kind::Sim | Kind::Patched => None,
            Kind::Stock | Kind::Standin => {
                Some(spawn_guardian(dir.path(), ledger.path(), standin.as_ref())?)
            }
        };
        let ghostd = spawn_ghostd(dir.path())?;
        let client = Client::new(Some(path("ghostd.sock")), false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut node = Node {
            kind,
            dir,
            ledger,
            standin,
            guardian,
            ghostd,
            client,
            runtime,
        };
        node.wait_ready()?;
        Ok(node)
    }

    fn wait_ready(&mut self) -> Result<()> {
        for _ in 0..500 {
            if self.get("/v1/node").is_ok() {
                return Ok(());
            }
            if let Some(status) = self.ghostd.try_wait()? {
                bail!("ghostd ended with {status}: {}", self.log("ghostd"));
            }
            sleep_ms(10.0);
        }
        bail!("ghostd does not answer: {}", self.log("ghostd"))
    }

    /// What a part of it said, its end.
    pub fn log(&self, part: &str) -> String {
        let text = std::fs::read_to_string(self.dir.path().join(format!("{part}.log")))
            .unwrap_or_default();
        text.lines()
            .rev()
            .take(12)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// ghostd's socket.
    pub fn socket(&self) -> &Path {
        self.client.socket()
    }

    /// Where loads write.
    pub fn out(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `ghostctl ARGS` and gives what it printed.
    ///
    /// # Errors
    /// If its status is not zero; the message has what it said.
    pub fn ctl(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(beside("ghostctl")?)
            .arg("--socket")
            .arg(self.client.socket())
            .args(args)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "ghostctl {}: {}",
            args.join(" "),
            said.trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Asks ghostd without a command between, where its time would count.
    pub fn get(&self, path: &str) -> Result<serde_json::Value> {
        Ok(self.runtime.block_on(self.client.get(Target::new(path)))?)
    }

    /// Changes a container's spec; with `wait`, returns once the change is in force.
    pub fn patch(&self, container: &str, spec: &serde_json::Value, wait: bool) -> Result<()> {
        let mut target = Target::container(&container.parse()?, "");
        if wait {
            target = target.with("wait", "5s");
        }
        let body = serde_json::json!({ "spec": spec });
        let patience = Duration::from_secs(6);
        self.runtime.block_on(
            self.client
                .call(Method::PATCH, target, Some(&body), patience),
        )?;
        Ok(())
    }

    /// Starts a load in a container: `name`, then what the load program takes.
    pub fn load(&self, container: &str, name: &str, args: &[&str]) -> Result<Load> {
        Load::start(self.load_command(container, name, args)?, self.out(), name)
    }

    /// `ghostctl run CONTAINER --`; the program is to follow.
    pub fn run(&self, container: &str) -> Result<Command> {
        let mut command = Command::new(beside("ghostctl")?);
        command
            .arg("--socket")
            .arg(self.client.socket())
            .args(["run", container, "--"]);
        Ok(command)
    }

    /// The command of [`Node::load`].
    pub fn load_command(&self, container: &str, name: &str, args: &[&str]) -> Result<Command> {
        let mut command = self.run(container)?;
        command
            .arg(beside(load_program(self.kind))?)
            .arg(name)
            .args(args)
            .arg("--out")
            .arg(self.out());
        command.env("GHOST_SIM_SOCKET", self.dir.path().join("run/sim.sock"));
        Ok(command)
    }

    /// Sends ghostd a signal.
    pub fn signal_ghostd(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.ghostd.id() as i32), signal)?)
    }

    /// Sends the guardian a signal and, if it kills, waits for its end.
    pub fn kill_guardian(&mut self) -> Result<()> {
        let guardian = self
            .guardian
            .as_mut()
            .context("there is no guardian here")?;
        guardian.kill()?;
        guardian.wait()?;
        Ok(())
    }

    /// Starts the guardian again, as its unit would.
    pub fn start_guardian(&mut self) -> Result<()> {
        let standin = self.standin.as_ref();
        let child = spawn_guardian(self.dir.path(), self.ledger.path(), standin)?;
        self.guardian = Some(child);
        Ok(())
    }

    /// A file of the stand-in for the driver.
    pub fn standin(&self, file: &str) -> Result<PathBuf> {
        let standin = self
            .standin
            .as_ref()
            .context("this driver is no stand-in")?;
        Ok(standin.dir.path().join(file))
    }

    /// Kills ghostd outright.
    pub fn kill_ghostd(&mut self) -> Result<()> {
        self.ghostd.kill()?;
        self.ghostd.wait()?;
        Ok(())
    }

    /// Starts ghostd again, as its unit would, and waits until it answers.
    pub fn start_ghostd(&mut self) -> Result<()> {
        self.ghostd = spawn_ghostd(self.dir.path())?;
        self.wait_ready()
    }

    /// Processor seconds that ghostd used, and its resident memory in MB.
    pub fn ghostd_cost(&self) -> Result<(f64, f64)> {
        let proc = PathBuf::from(format!("/proc/{}", self.ghostd.id()));
        let stat = std::fs::read_to_string(proc.join("stat"))?;
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .context("no stat")?
            .1
            .split_whitespace()
            .collect();
        let ticks = |i: usize| {
            fields
                .get(i)
                .and_then(|f| f.parse::<f64>().ok())
                .context("short stat")
        };
        let status = std::fs::read_to_string(proc.join("status"))?;
        let rss = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let kb: f64 = rss.trim().trim_end_matches(" kB").parse()?;
        Ok(((ticks(11)? + ticks(12)?) / 100.0, kb / 1024.0))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.signal_ghostd(Signal::SIGCONT).ok();
        self.signal_ghostd(Signal::SIGTERM).ok();
        self.ghostd.wait().ok();
        if let Some(guardian) = &mut self.guardian {
            kill(Pid::from_raw(guardian.id() as i32), Signal::SIGTERM).ok();
            guardian.wait().ok();
        }
        if let Some(standin) = &mut self.standin {
            standin.unmount();
        }
    }
}

/// The load program of a kind.
pub fn load_program(kind: Kind) -> &'static str {
    match kind {
        Kind::Sim | Kind::Standin => "ghost-load",
        Kind::Stock | Kind::Patched => "ghost-burn",
    }
}

fn spawn_guardian(dir: &Path, ledger: &Path, standin: Option<&Standin>) -> Result<Child> {
    let socket = dir.join("guardian.sock");
    // One that was killed left its own behind.
    std::fs::remove_file(&socket).ok();
    let mut command = Command::new(beside("ghost-guardian")?);
    command.arg("--socket").arg(&socket);
    command.arg("--broker-socket").arg(dir.join("broker.sock"));
    command.arg("--state").arg(ledger);
    if let Some(standin) = standin {
        let root = standin.dir.path();
        command.arg("--dev-root").arg(root);
        let version = root.join("proc/driver/nvidia/version");
        command.arg("--driver-version").arg(version);
    }
    let child = spawn_logged(command, dir, "guardian")?;
    for _ in 0..500 {
        if socket.exists() {
            return Ok(child);
        }
        sleep_ms(10.0);
    }
    bail!(
        "the guardian makes no socket: {}",
        std::fs::read_to_string(dir.join("guardian.log")).unwrap_or_default()
    )
}

fn spawn_ghostd(dir: &Path) -> Result<Child> {
    let mut command = Command::new(beside("ghostd")?);
    command.arg("--config").arg(dir.join("ghostd.toml"));
    spawn_logged(command, dir, "ghostd")
}

fn spawn_logged(mut command: Command, dir: &Path, name: &str) -> Result<Child> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join(format!("{name}.log")))?;
    command
        .stdout(log.try_clone()?)
        .stderr(log)
        .stdin(Stdio::null());
    command
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))
}
