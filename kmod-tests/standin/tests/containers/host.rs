//! Ghost on a stand-in for the driver: ghostd, its guardian, and what starts containers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use serde_json::{Value as J, json};

use crate::common::{Mounted, mount, until};

pub(crate) const GIB: u64 = 1 << 30;

/// A group that every host has, whose members administer.
const GROUP: &str = "nogroup";
/// Its number on every Debian and Ubuntu.
pub(crate) const GROUP_ID: u32 = 65534;

/// Ghost on a stand-in, and a root for containers.
pub(crate) struct Host {
    // Stopped before the driver goes away.
    pub(crate) ghostd: Daemon,
    pub(crate) guardian: Daemon,
    pub(crate) driver: Mounted,
    dir: tempfile::TempDir,
}

/// Killed when dropped; says what it said where a test failed.
pub(crate) struct Daemon {
    child: Child,
    command: Command,
    log: PathBuf,
}

impl Daemon {
    fn start(mut command: Command, log: PathBuf) -> Daemon {
        let file = fs::File::create(&log).unwrap();
        let child = command.stderr(file).spawn().unwrap();
        Daemon {
            child,
            command,
            log,
        }
    }

    /// It ends without a chance to say so.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It begins again.
    pub(crate) fn start_again(&mut self) {
        self.child = self.command.spawn().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("{}:\n{said}", self.log.display());
        }
    }
}

/// A program of this workspace; `cargo build --workspace` makes all.
pub(crate) fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ghost-load")).with_file_name(name);
    assert!(path.exists(), "{} is not built", path.display());
    path
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Host {
    /// `None`, with a reason, where there can be none.
    pub(crate) fn start(needs: &[&str]) -> Option<Host> {
        let is_here = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
        if let Some(missing) = needs.iter().find(|program| !is_here(program)) {
            eprintln!("skipped: no {missing}");
            return None;
        }
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        if ghostctl::cgroup::mount().is_none() {
            eprintln!("skipped: no cgroup v2");
            return None;
        }
        let driver = mount(1)?;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let dev = driver.standin.dir();
        let mut guardian = Command::new(program("ghost-guardian"));
        guardian
            .arg("--socket")
            .arg(at("guardian.sock"))
            .arg("--broker-socket")
            .arg(at("broker.sock"))
            .arg("--state")
            .arg(at("guardian"))
            .arg("--dev-root")
            .arg(dev)
            .arg("--driver-version")
            .arg(dev.join("proc/driver/nvidia/version"));
        let guardian = Daemon::start(guardian, at("guardian.log"));
        until("the guardian", || at("guardian.sock").exists());
        fs::create_dir(at("containers.d")).unwrap();
        let config = [
            ("socket", "ghostd.sock"),
            ("state_dir", "state"),
            ("run_dir", "run"),
            ("containers_dir", "containers.d"),
            ("guardian", "guardian.sock"),
        ];
        let line = |key: &str, path: &Path| format!("{key} = {:?}\n", path.display().to_string());
        let mut lines: String = config
            .iter()
            .map(|(key, name)| line(key, &at(name)))
            .collect();
        lines += &line("standin", dev);
        lines += &format!("backend = \"stock\"\nsocket_group = {GROUP:?}\n");
        fs::write(at("ghostd.toml"), lines).unwrap();
        let mut ghostd = Command::new(program("ghostd"));
        ghostd.arg("--config").arg(at("ghostd.toml"));
        let host = Host {
            ghostd: Daemon::start(ghostd, at("ghostd.log")),
            guardian,
            driver,
            dir,
        };
        until("ghostd", || host.ghostctl(&["info"]).status.success());
        host.make_root();
        Some(host)
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ghostctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("ghostctl"));
        command
            .args(args)
            .env("GHOST_SOCKET", self.at("ghostd.sock"));
        command.output().unwrap()
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let done = self.ghostctl(args);
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        text(&done.stdout)
    }

    pub(crate) fn status(&self, container: &str) -> J {
        let shown = self.ctl(&["status", container, "--json"]);
        let shown: J = serde_json::from_str(&shown).unwrap();
        shown["status"].clone()
    }

    /// Bytes that the container is charged with.
    pub(crate) fn current(&self, container: &str) -> u64 {
        let all = self.status(container)["gpu.memory.current"]
            .as_object()
            .cloned();
        all.unwrap_or_default().values().filter_map(J::as_u64).sum()
    }

    /// A root with `ghost-load`, a shell, and what they are linked with.
    fn make_root(&self) {
        let root = self.at("rootfs");
        for below in ["proc", "dev", "sys", "etc", "run", "tmp", "gpu", "bin"] {
            fs::create_dir_all(root.join(below)).unwrap();
        }
        let sh = fs::canonicalize("/bin/sh").unwrap();
        for (program, name) in [(program("ghost-load"), "ghost-load"), (sh, "sh")] {
            fs::copy(&program, root.join("bin").join(name)).unwrap();
            let linked = Command::new("ldd").arg(&program).output().unwrap();
            for word in text(&linked.stdout).split_whitespace() {
                let library = Path::new(word);
                let Ok(below) = library.strip_prefix("/") else {
                    continue;
                };
                let to = root.join(below);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(library, to).unwrap();
            }
        }
    }

    /// A profile for `container`, for the runtime to read.
    pub(crate) fn profile(&self, container: &str) -> J {
        let profile = self.ctl(&["seccomp-profile", "--container", container]);
        let profile: J = serde_json::from_str(&profile).unwrap();
        fs::write(self.at("profile.json"), profile.to_string()).unwrap();
        profile
    }

    /// Makes a bundle of the root.
    pub(crate) fn bundle(&self, container: &str, args: &[&str]) {
        let file = self.at("config.json");
        let _ = fs::remove_file(&file);
        let spec = Command::new("crun")
            .arg("spec")
            .current_dir(self.dir.path())
            .output();
        assert!(spec.unwrap().status.success());
        let mut config: J = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        config["process"]["args"] = json!(args);
        config["process"]["terminal"] = json!(false);
        // Not every host's root may raise limits.
        config["process"].as_object_mut().unwrap().remove("rlimits");
        let linux = config["linux"].as_object_mut().unwrap();
        linux.remove("resources");
        linux.insert("seccomp".into(), self.profile(container));
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/gpu", "type": "bind", "options": ["rbind", "rw"],
            "source": self.driver.standin.dir()
        }));
        fs::write(file, config.to_string()).unwrap();
    }

    pub(crate) fn crun(&self, args: &[&str]) -> Command {
        let script = "exec crun --cgroup-manager=disabled --root \"$1/crun\" \"${@:2}\"";
        self.on_cgroup_v2(script, args)
    }

    pub(crate) fn podman(&self, args: &[&str]) -> Command {
        // Storage of its own; what a root with few rights cannot have is left out.
        let script = "exec podman --root \"$1/storage\" --runroot \"$1/runroot\" \
            --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime crun \
            \"${@:2}\"";
        self.on_cgroup_v2(script, args)
    }

    /// Runs a script where cgroup v2 is all of `/sys/fs/cgroup`: crun refuses hybrid hosts.
    fn on_cgroup_v2(&self, script: &str, args: &[&str]) -> Command {
        let v2 = ghostctl::cgroup::mount().unwrap_or_default();
        let mounted = "[ \"$V2\" = /sys/fs/cgroup ] || mount --bind \"$V2\" /sys/fs/cgroup";
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "bash",
                "-euc",
                &format!("{mounted}\n{script}"),
                "bash",
            ])
            .arg(self.dir.path())
            .args(args)
            .env("V2", v2)
            .current_dir(self.dir.path());
        command
    }
}

/// What a container printed, once it has ended well.
#[track_caller]
pub(crate) fn printed(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{out}{err}");
    out
}

/// Whether a line is an allocation that was made.
pub(crate) fn is_made(line: &str) -> bool {
    line.starts_with("alloc 0x") && !line.contains("memory")
}
