//! Peers, and the programs that compute there.

use crate::node::{Ghostd, TOKEN, built, metrics, until};
use ghost_wire::hello::Ticket;
use serde_json::Value as J;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn peers_are_added_shown_without_secrets_and_removed() {
    let node = Ghostd::new("");
    let token = node.dir.path().join("token");
    let (token, sha) = (token.to_str().unwrap(), "ab".repeat(32));
    let add = [
        "peer",
        "add",
        "big",
        "big.example:7000",
        "--token-file",
        token,
    ];
    let why = node.says(2, &add);
    assert!(why.contains("fingerprint"), "{why}");
    let add = [&add[..], &["--fingerprint", &sha]].concat();
    assert_eq!(node.says(0, &add), "big: added (big.example:7000)\n");
    let shown = node.says(0, &["peer", "list"]) + &node.says(0, &["peer", "list", "--json"]);
    assert!(
        shown.contains(&sha) && shown.contains("big.example:7000"),
        "{shown}"
    );
    assert!(!shown.contains(TOKEN), "{shown}");
    assert!(!node.log().contains(TOKEN));

    node.says(0, &["create", "job"]);
    node.says(0, &["limit", "job", "gpu.overflow=big"]);
    assert_eq!(node.says(0, &["get", "job", "gpu.overflow"]), "big\n");

    // Drained: no program begins there, and those who look at the container see why.
    assert_eq!(node.says(0, &["peer", "drain", "big"]), "big: drained\n");
    let run = ["run", "--on", "big", "job", "--", "true"];
    let refused = |args: &[&str]| {
        let mut command = node.command(args);
        let output = command.env("GHOST_SHIM", "/bin/true").output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8(output.stderr).unwrap()
    };
    for args in [&run[..], &["run", "job", "--", "true"]] {
        let why = refused(args);
        assert!(
            why.contains("big is drained") && why.contains("ghostctl peer join big"),
            "{why}"
        );
    }
    assert!(node.says(0, &["status", "job"]).contains("is drained"));
    let peers = node.json(&["peer", "list", "--json"]);
    assert_eq!(peers["items"][0]["drained"], true);
    assert_eq!(node.says(0, &["peer", "join", "big"]), "big: joined\n");
    let list = node.says(0, &["peer", "list"]);
    assert!(!list.contains("drained"), "{list}");
    assert!(!node.says(0, &["status", "job"]).contains("is drained"));
    node.says(6, &["peer", "drain", "small"]);
    assert_eq!(node.says(0, &["peer", "remove", "big"]), "big: removed\n");
    assert!(
        node.says(6, &["peer", "remove", "big"])
            .contains("no peer \"big\"")
    );
}

/// A program that shows its ticket and counts as the shim does.
const PROGRAM: &str = r#"
import json, os, sys, time
t = json.load(open(os.environ["GHOST_OVERFLOW"]))
print(json.dumps({
    "ticket": t,
    "mode": oct(os.stat(os.environ["GHOST_OVERFLOW"]).st_mode & 0o777),
    "path": os.environ["GHOST_OVERFLOW"],
    "libcuda": os.readlink(os.environ["LD_LIBRARY_PATH"].split(":")[0] + "/libcuda.so.1"),
    "nvml": os.readlink(os.environ["LD_LIBRARY_PATH"].split(":")[0] + "/libnvidia-ml.so.1"),
}))
sys.stdout.flush()
with open(t["stats"] + "/" + str(os.getpid()), "wb") as f:
    for n in (1000, 10, 4096, 512, 1, 99):
        f.write(n.to_bytes(8, "little"))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"#;

#[test]
fn a_program_gets_its_ticket_and_its_calls_are_counted() {
    let node = Ghostd::new("");
    let dir = node.dir.path();
    let (shim, done) = (dir.join("shim.so"), dir.join("done"));
    fs::write(&shim, "").unwrap();
    let nvml = dir.join("libghost_nvml.so");
    fs::write(&nvml, "").unwrap();
    let token = dir.join("token");
    let add = ["peer", "add", "near", &node.address(), "--token-file"];
    node.says(0, &[&add[..], &[token.to_str().unwrap()]].concat());
    node.says(0, &["create", "job", "--weight", "70", "gpu.overflow=near"]);
    let mut command = node.command(&["run", "job", "--", "python3", "-c", PROGRAM]);
    command.arg(&done).env("GHOST_SHIM", &shim);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let counts = || node.json(&["status", "job", "--json"])["status"]["overflow"][0].clone();
    until("it is counted", || counts()["posted"] == 1000);
    let counts = counts();
    assert_eq!(
        (&counts["peer"], &counts["waited"]),
        (&"near".into(), &10.into())
    );
    let status = node.says(0, &["status", "job"]);
    assert!(
        status.contains("on near: 1000 calls posted, 10 waited for, 1 refused"),
        "{status}"
    );
    let top = node.says(0, &["top", "-n", "1"]);
    assert!(top.contains("near") && top.contains("POSTED"), "{top}");
    fs::write(&done, "").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let said: J = serde_json::from_slice(&out.stdout).unwrap();
    let ticket: Ticket = serde_json::from_value(said["ticket"].clone()).unwrap();
    assert_eq!(ticket.address, node.address());
    assert_eq!(
        (ticket.token.as_str(), ticket.container.as_str()),
        (TOKEN, "job")
    );
    assert_eq!(ticket.limits, [("gpu.weight".to_owned(), "70".to_owned())]);
    assert_eq!(
        (&said["mode"], said["libcuda"].as_str()),
        (&"0o600".into(), shim.to_str())
    );
    assert_eq!(said["nvml"].as_str(), nvml.to_str());
    assert!(
        !Path::new(said["path"].as_str().unwrap()).exists(),
        "it is taken away"
    );
    assert!(!Path::new(&ticket.stats.unwrap()).exists());

    let metrics = metrics(&dir.join("ghostd.sock"));
    for line in [
        "ghost_overflow_calls_total{container=\"job\",peer=\"near\",role=\"client\",result=\"posted\"} 1000",
        "ghost_overflow_calls_total{container=\"job\",peer=\"near\",role=\"client\",result=\"refused\"} 1",
        "ghost_overflow_bytes_total{container=\"job\",peer=\"near\",role=\"client\",direction=\"down\"} 512",
        "ghost_overflow_sessions{direction=\"out\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn there_is_no_way_to_a_host_that_is_no_peer() {
    let node = Ghostd::new("");
    let run = |on: &str| {
        let mut command = node.command(&["run", "--rm", "--on", on, "job", "--", "true"]);
        let output = command.env("GHOST_SHIM", "/bin/true").output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, why) = run("nobody");
    assert!(
        code == Some(125) && why.contains("no peer \"nobody\""),
        "{why}"
    );
    let (code, why) = run("192.0.2.1:7000");
    assert!(
        code == Some(125) && why.contains("ghostctl peer add"),
        "{why}"
    );
    assert_eq!(node.names(), ["system"]);
    assert_eq!(
        run("127.0.0.1:7000").0,
        Some(0),
        "this host needs no secret"
    );
}

#[test]
fn a_program_computes_on_a_peer_over_tls_and_not_with_another_certificate() {
    let all = [
        "ghost-executor",
        "ghost-overflow-saxpy",
        "libghost_shim.so",
        "libghost_nvml.so",
    ]
    .map(built);
    let [Some(executor), Some(saxpy), Some(_), Some(_)] = all else {
        eprintln!("skipped: `cargo build --workspace` makes {all:?}");
        return;
    };
    let node = Ghostd::new("tls = true\ntoken_file = \"DIR/token\"\nexecutor = \"DIR/cpu\"");
    // Also where there is a GPU.
    let cpu = node.dir.path().join("cpu");
    let script = format!("#!/bin/sh\nexec {executor:?} --device cpu \"$@\"\n");
    fs::write(&cpu, script).unwrap();
    fs::set_permissions(&cpu, fs::Permissions::from_mode(0o755)).unwrap();
    let listener = node.json(&["info", "--json"])["overflow"].clone();
    let right = listener["fingerprint"].as_str().unwrap();
    let token = node.dir.path().join("token").display().to_string();
    let address = node.address();
    let run = |fingerprint: &str, token: &str| {
        let add = ["peer", "add", "far", &address, "--token-file", token];
        node.says(0, &[&add[..], &["--fingerprint", fingerprint]].concat());
        let output = node.ghostctl(&["run", "--weight", "70", "--on", "far", "job", "--", &saxpy]);
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text.into_owned())
    };
    let (good, said) = run(right, &token);
    assert!(good && said.contains("right"), "{said}\n{}", node.log());
    let metrics = metrics(&node.dir.path().join("ghostd.sock"));
    let waited = "ghost_overflow_calls_total{container=\"job\",peer=\"far\",role=\"client\",result=\"waited\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(waited));
    let waited: f64 = line.unwrap().parse().unwrap();
    assert!(waited > 0.0);

    // Its NVML comes in by the same door.
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/nvml.c");
    let nvml = node.dir.path().join("nvml").display().to_string();
    let cc = ["-std=gnu11", "-o", &nvml, source, "-ldl"];
    assert!(Command::new("cc").args(cc).status().unwrap().success());
    let said = node.says(0, &["run", "--on", "far", "job", "--", &nvml]);
    let device = "1, Ghost CPU device (PTX interpreter), 1073741824";
    assert_eq!(said.trim_end(), device, "{}", node.log());

    let (good, said) = run(&"0".repeat(64), &token);
    assert!(!good && said.contains("certificate"), "{said}");
    let other = node.dir.path().join("other");
    fs::write(&other, "another secret of some length").unwrap();
    let (good, said) = run(right, &other.display().to_string());
    assert!(!good && said.contains("token is not this host's"), "{said}");
    until("no session is left", || node.sessions() == 0);
}
