//! `ghostctl` against the real ghostd on a simulated GPU. `cargo build --workspace` makes it.

use serde_json::Value as J;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Ghostd {
    dir: TempDir,
    child: Child,
}

impl Drop for Ghostd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(dir: &Path) -> Child {
    let ghostd = PathBuf::from(env!("CARGO_BIN_EXE_ghostctl")).with_file_name("ghostd");
    assert!(
        ghostd.exists(),
        "{} is not built: `cargo build -p ghostd`",
        ghostd.display()
    );
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
    let log = std::fs::File::create(dir.join("log")).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command.spawn().unwrap()
}

impl Ghostd {
    fn new() -> Ghostd {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("containers.d")).unwrap();
        std::fs::write(dir.path().join("ghostd.toml"), "sim_gpus = 2\n").unwrap();
        let child = start(dir.path());
        let node = Ghostd { dir, child };
        node.ready();
        node
    }

    fn ready(&self) {
        let begun = Instant::now();
        while !self.output(&["info"]).status.success() {
            let log = std::fs::read_to_string(self.dir.path().join("log"));
            assert!(begun.elapsed() < Duration::from_secs(30), "{log:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = start(self.dir.path());
        self.ready();
    }

    fn output(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ghostctl"))
            .args(args)
            .env("GHOST_SOCKET", self.dir.path().join("ghostd.sock"))
            .env_remove("GHOST_FORMAT")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Asserts the exit code; gives standard output, and standard error after it.
    #[track_caller]
    fn says(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        text.into_owned()
    }
}

#[test]
fn what_was_limited_is_in_force_is_kept_and_can_be_dropped() {
    let mut node = Ghostd::new();
    node.says(0, &["create", "team"]);
    node.says(0, &["create", "team/job", "--weight", "70", "--max", "50%"]);
    assert_eq!(
        node.says(
            0,
            &["limit", "team/job", "gpu.weight=30", "gpu.max=", "--wait"]
        ),
        "team/job: gpu.weight 70 -> 30 (generation 2)\n\
         team/job: gpu.max 50000 100000 -> max 100000 (generation 2)\n"
    );
    node.says(0, &["limit", "team/job", "gpu.weight=7", "--gpu", "1"]);
    node.says(0, &["limit", "team/job", "gpu.weight=9", "--runtime"]);
    assert_eq!(
        node.says(0, &["get", "team/job", "gpu.weight", "--gpu", "1"]),
        "7\n"
    );
    assert_eq!(
        node.says(0, &["get", "team/job", "gpu.weight", "--gpu", "0"]),
        "9\n"
    );
    node.restart();
    assert_eq!(
        node.says(0, &["get", "team/job", "gpu.weight", "--gpu", "0"]),
        "30\n"
    );
    assert_eq!(
        node.says(0, &["get", "team/job", "gpu.weight", "--gpu", "1"]),
        "7\n"
    );
    let cat = node.says(0, &["cat", "team/job"]);
    assert!(
        cat.starts_with("# override\ngpu.weight = \"30\"\n"),
        "{cat}"
    );
    node.says(0, &["revert", "team/job"]);
    assert_eq!(node.says(0, &["get", "team/job", "gpu.weight"]), "100\n");
}

#[test]
fn refusals_have_their_codes() {
    let node = Ghostd::new();
    node.says(0, &["create", "team"]);
    node.says(0, &["create", "team/job"]);
    for (code, args, want) in [
        (
            2,
            &["create", "b", "gpu.weight=0"][..],
            "error: b: gpu.weight: \"0\"",
        ),
        (
            6,
            &["create", "no/parent"],
            "no/parent: there is no container no",
        ),
        (5, &["create", "team"], "error: team exists already"),
        (6, &["limit", "tema", "gpu.weight=1"], "did you mean team?"),
        (
            6,
            &["limit", "team/j", "gpu.weight=1", "--gpu", "9"],
            "no GPU \"9\"",
        ),
        (5, &["delete", "team"], "hint: ghostctl delete team/job"),
        (6, &["delete", "tea"], "no container \"tea\""),
        (6, &["attach", "team", "4194305"], "no process 4194305"),
        (
            3,
            &["get", "team", "gpu.pressure"],
            "not supported by backend \"sim\"",
        ),
        (
            2,
            &["limit", "team", "gpu.weight=1", "--wait=2h"],
            "at most 60s",
        ),
    ] {
        let text = node.says(code, args);
        assert!(text.contains(want), "{args:?}: {text}");
    }
}

#[test]
fn a_program_and_its_children_are_seen_in_their_container() {
    let node = Ghostd::new();
    let inside = format!("{} status job; sleep 0.01", env!("CARGO_BIN_EXE_ghostctl"));
    let text = node.says(0, &["run", "--rm", "job", "--", "sh", "-c", &inside]);
    // Whoever has no cgroup of its own is attached alone, as the note says.
    let seen = if text.contains("note: children") {
        " sh"
    } else {
        " ghostctl"
    };
    let is = |l: &str| l.starts_with("  process ") && l.ends_with(seen);
    assert!(text.lines().any(is), "{text}");
    assert_eq!(node.says(0, &["list", "-q"]), "system\n");
}

#[test]
fn a_file_is_applied_and_what_it_drops_is_pruned() {
    let node = Ghostd::new();
    node.says(0, &["create", "old"]);
    let file = node.dir.path().join("set.toml");
    std::fs::write(
        &file,
        "[container.a]\ngpu.weight = 5\nlabel.team = \"nlp\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let text = node.says(0, &["apply", "-f", file, "--prune", "--dry-run"]);
    assert_eq!(
        text,
        "old: deleted (dry run)\na: created, gpu.weight=5 (dry run)\n"
    );
    assert_eq!(node.says(0, &["list", "-q"]), "old\nsystem\n");
    node.says(0, &["apply", "-f", file, "--prune"]);
    assert_eq!(node.says(0, &["list", "-q"]), "a\nsystem\n");
    assert_eq!(node.says(0, &["list", "-q", "--label", "team=nlp"]), "a\n");
}

#[test]
fn events_and_journal_tell_what_was_done() {
    let node = Ghostd::new();
    node.says(0, &["create", "a"]);
    node.says(0, &["freeze", "a", "--wait"]);
    let events = node.says(0, &["events", "--json"]);
    let events: Vec<J> = events
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let of_a: Vec<&J> = events.iter().filter(|e| e["container"] == "a").collect();
    assert_eq!(of_a[0]["what"], "created");
    assert!(of_a.iter().any(|e| e["what"] == "frozen"), "{of_a:?}");
    let state = node.dir.path().join("state");
    let state = state.to_str().unwrap();
    let journal = node.says(0, &["debug", "journal", "--state-dir", state]);
    let file = journal.lines().next().unwrap().strip_prefix("# ").unwrap();
    let replay: J = serde_json::from_str(&node.says(0, &["debug", "replay", file])).unwrap();
    assert_eq!(replay["different"], serde_json::json!([]));
    assert!(replay["steps"].as_u64().unwrap() > 0);
}
