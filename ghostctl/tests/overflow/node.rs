//! A ghostd on a simulated GPU that takes work of others.

use serde_json::Value as J;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Says who it is, and sends back commands as replies and bulk data as bulk data.
pub(crate) const EXECUTOR: &str = r#"#!/bin/bash
{ id -un; cat /proc/self/cgroup; env; echo "$@"; } > "$HOME/about.new"
mv "$HOME/about.new" "$HOME/about"
while [ $# -gt 0 ]; do
	if [ "$1" = --session ]; then IFS=, read -r commands replies up down <<< "$2"; fi
	if [ "$1" = --stats-fd ]; then printf '\5\0\0\0\0\0\0\0' >&"$2"; fi
	shift
done
cat <&"$up" >&"$down" &
cat <&"$commands" >&"$replies"
"#;

pub(crate) struct Ghostd {
    pub(crate) dir: TempDir,
    pub(crate) child: Child,
}

impl Drop for Ghostd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn start(dir: &Path) -> Child {
    let ghostd = PathBuf::from(env!("CARGO_BIN_EXE_ghostctl")).with_file_name("ghostd");
    assert!(ghostd.exists(), "`cargo build -p ghostd` makes {ghostd:?}");
    let mut command = Command::new(ghostd);
    command.args(["--backend", "sim"]);
    for (flag, name) in [
        ("--config", "ghostd.toml"),
        ("--socket", "ghostd.sock"),
        ("--state-dir", "state"),
        ("--run-dir", "run"),
        ("--containers-dir", "containers.d"),
    ] {
        command.arg(flag).arg(dir.join(name));
    }
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.unwrap());
    command.spawn().unwrap()
}

impl Ghostd {
    /// With these lines in `[overflow]`.
    pub(crate) fn new(overflow: &str) -> Ghostd {
        let dir = tempfile::tempdir().unwrap();
        // The executor's user must get to the executor and to its cache.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let executor = dir.path().join("executor");
        fs::write(&executor, EXECUTOR).unwrap();
        fs::set_permissions(&executor, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("token"), TOKEN).unwrap();
        fs::set_permissions(dir.path().join("token"), fs::Permissions::from_mode(0o600)).unwrap();
        let mut text = format!(
            "[overflow]\nlisten = \"127.0.0.1:0\"\ncache_dir = {:?}\n{}\n",
            dir.path().join("cache"),
            overflow.replace("DIR", &dir.path().display().to_string()),
        );
        if !overflow.contains("executor") {
            text += &format!("executor = {executor:?}\n");
        }
        fs::write(dir.path().join("ghostd.toml"), text).unwrap();
        let child = start(dir.path());
        let node = Ghostd { dir, child };
        until("ghostd answers", || {
            node.ghostctl(&["info"]).status.success()
        });
        node
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostctl"));
        command
            .args(args)
            .env("GHOST_SOCKET", self.dir.path().join("ghostd.sock"))
            .env_remove("GHOST_FORMAT")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn ghostctl(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Asserts the exit code; gives standard output, and standard error after it.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, args: &[&str]) -> String {
        let output = self.ghostctl(args);
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        text.into_owned()
    }

    pub(crate) fn json(&self, args: &[&str]) -> J {
        serde_json::from_str(&self.says(0, args)).unwrap()
    }

    pub(crate) fn address(&self) -> String {
        let node = self.json(&["info", "--json"]);
        node["overflow"]["listen"].as_str().unwrap().to_owned()
    }

    pub(crate) fn sessions(&self) -> u64 {
        let node = self.json(&["info", "--json"]);
        node["overflow"]["sessions"].as_u64().unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let text = self.says(0, &["list", "-q"]);
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

pub(crate) fn metrics(socket: &Path) -> String {
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: ghostd\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A file of the workspace's build, if it is there.
pub(crate) fn built(name: &str) -> Option<String> {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_ghostctl")).with_file_name(name);
    path.exists().then(|| path.display().to_string())
}
