//! The program itself: its socket, its state directory, its signals, systemd.
//! No driver is needed: what a driver does is in the library's tests.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ghost_guardian::{FailureKind, Guardian, Pause};
use ghost_notify::ProcId;
use ghost_rm::{Channel, Client, Gpu, Object};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Program(Child);

impl Program {
    fn start(dir: &Path, more: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghost-guardian"));
        command
            .arg("--socket")
            .arg(dir.join("sock"))
            .arg("--broker-socket")
            .arg(dir.join("broker"))
            .arg("--state")
            .arg(dir.join("state"))
            .arg("--dev-root")
            .arg(dir.join("no-dev"))
            .arg("--driver-version")
            .arg(dir.join("no-version"))
            .arg("--allow-uid")
            .arg(nix::unistd::getuid().to_string())
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped());
        command.envs(more.iter().copied());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// Waits for its end; what it said.
    fn end(&mut self) -> (Option<i32>, String) {
        let code = self.0.wait().unwrap().code();
        let mut said = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (code, said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(dir: &Path) -> Guardian {
    let start = Instant::now();
    loop {
        let connected = Guardian::connect(&dir.join("sock"), Duration::from_secs(5));
        match connected.and_then(|mut guardian| guardian.ping().map(|_| guardian)) {
            Ok(guardian) => return guardian,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lives_dies_and_lives_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Program::start(dir.path(), &[]);
    let mut client = connect(dir.path());
    for socket in ["sock", "broker"] {
        let mode = std::fs::metadata(dir.path().join(socket)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    }

    let status = std::fs::read_to_string(format!("/proc/{}/status", first.0.id())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = rss.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 10 << 10, "{kib} KiB");

    let pause = Pause {
        key: "a".into(),
        lease_us: 1000,
        gpu: Gpu {
            instance: 0,
            minor: 0,
        },
        owner: ProcId::of_pid(std::process::id() as i32).unwrap(),
        channels: vec![Channel {
            client: Client(1),
            object: Object(2),
        }],
    };
    let outcome = client.pause(vec![pause]).unwrap().remove(0);
    let failure = outcome.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Driver);
    assert!(failure.detail.contains("no-version"), "{}", failure.detail);

    let mut second = Program::start(dir.path(), &[]);
    let (code, said) = second.end();
    assert_eq!(code, Some(1));
    assert!(said.contains("another guardian"), "{said}");
    client.ping().unwrap();

    first.signal(Signal::SIGKILL);
    first.end();
    assert!(client.ping().is_err());
    let mut third = Program::start(dir.path(), &[]);
    connect(dir.path());
    third.signal(Signal::SIGTERM);
    assert_eq!(third.end().0, Some(0));
    assert!(!dir.path().join("sock").exists());
    assert!(!dir.path().join("broker").exists());
}

#[test]
fn a_damaged_ledger_is_reported_and_lived_with() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("state")).unwrap();
    let mut file = std::fs::File::create(dir.path().join("state/ledger")).unwrap();
    let noise: Vec<u8> = (0..10_000u32)
        .map(|n| (n.wrapping_mul(7919) >> 3) as u8)
        .collect();
    file.write_all(&noise).unwrap();
    let mut program = Program::start(dir.path(), &[]);
    connect(dir.path());
    program.signal(Signal::SIGTERM);
    let (code, said) = program.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("ledger is damaged"), "{said}");
}

#[test]
fn systemd_hears_ready_and_the_watchdog() {
    let dir = tempfile::tempdir().unwrap();
    let notify = dir.path().join("notify");
    let systemd = UnixDatagram::bind(&notify).unwrap();
    let wait = Some(Duration::from_secs(10));
    systemd.set_read_timeout(wait).unwrap();
    let watchdog = [
        ("NOTIFY_SOCKET", notify.as_path()),
        ("WATCHDOG_USEC", Path::new("40000")),
    ];
    let _program = Program::start(dir.path(), &watchdog);
    let mut said = Vec::new();
    for _ in 0..4 {
        let mut bytes = [0; 64];
        let got = systemd.recv(&mut bytes).unwrap();
        said.push(String::from_utf8_lossy(&bytes[..got]).trim().to_owned());
    }
    assert_eq!(said, ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]);
}

#[test]
fn a_directory_that_cannot_be_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state"), "a file").unwrap();
    let (code, said) = Program::start(dir.path(), &[]).end();
    assert_eq!(code, Some(1));
    assert!(said.contains("state"), "{said}");
}
