//! Where programs compute whose container does not name a peer.

use crate::node::{Ghostd, TOKEN};
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Two hosts, of which the first may use the second as `big`.
fn two() -> (Ghostd, Ghostd) {
    let near = Ghostd::new("");
    let far = Ghostd::new("tls = true\ntoken_file = \"DIR/token\"");
    let listener = far.json(&["info", "--json"])["overflow"].clone();
    let fingerprint = listener["fingerprint"].as_str().unwrap();
    let (address, token) = (far.address(), far.dir.path().join("token"));
    let add = ["peer", "add", "big", &address, "--fingerprint", fingerprint];
    let token = ["--token-file", token.to_str().unwrap()];
    near.says(0, &[&add[..], &token[..]].concat());
    (near, far)
}

/// Runs a program with these arguments; where it computes, and what is said of that.
fn run(node: &Ghostd, args: &[&str]) -> (i32, String, String) {
    let show = ["--", "sh", "-c", "cat ${GHOST_OVERFLOW:-/dev/null}"];
    let shim = node.dir.path().join("shim.so");
    fs::write(&shim, "").unwrap();
    fs::write(node.dir.path().join("libghost_nvml.so"), "").unwrap();
    let mut command = node.command(&[&["run"], args, &show].concat());
    let output = command.env("GHOST_SHIM", shim).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let address = match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
        Ok(ticket) => ticket["address"].as_str().unwrap().to_owned(),
        Err(_) => "here".to_owned(),
    };
    (output.status.code().unwrap(), address, text(output.stderr))
}

#[track_caller]
fn computes(node: &Ghostd, args: &[&str], at: &str, said: &str) {
    let (code, place, notes) = run(node, args);
    assert_eq!((code, place.as_str()), (0, at), "{args:?}: {notes}");
    match said {
        "" => assert!(!notes.contains("computes"), "{args:?}: {notes}"),
        said => assert!(notes.contains(said), "{args:?}: {notes}"),
    }
}

/// What was seen of peers holds for a second.
fn later() {
    std::thread::sleep(Duration::from_millis(1100));
}

#[test]
fn auto_goes_where_it_fits_and_prefers_to_stay() {
    let (near, far) = two();
    let there = far.address();
    near.says(0, &["create", "team", "gpu.memory.max=1G"]);
    let job = ["gpu.memory.max=4G", "gpu.overflow=auto"];
    near.says(0, &[&["create", "team/job"][..], &job].concat());
    let why = "team/job computes on big: 1.0G are free here, 4.0G are wanted";
    computes(&near, &["team/job"], &there, why);
    computes(&near, &["--on", "never", "team/job"], "here", "");

    far.says(0, &["create", "overflow", "gpu.memory.max=2G"]);
    later();
    let why = "computes here: 1.0G are free here, 4.0G are wanted, and no peer has them: big: \
               2.0G are free";
    computes(&near, &["team/job"], "here", why);
    near.says(0, &["limit", "team/job", "gpu.memory.max=1G"]);
    computes(&near, &["team/job"], "here", "");
}

#[test]
fn always_goes_to_a_peer_or_nowhere() {
    let (near, far) = two();
    let there = far.address();
    near.says(0, &["create", "job"]);
    computes(&near, &["job"], "here", "");
    computes(&near, &["--on", "auto", "job"], "here", "");
    let why = "job computes on big: it is the best of the peers now";
    computes(&near, &["--on", "always", "job"], &there, why);
    near.says(0, &["limit", "job", "gpu.overflow=always"]);
    computes(&near, &["job"], &there, why);
    computes(&near, &["--on", "never", "job"], "here", "");
    let (code, _, said) = run(&near, &["--in-place", "job"]);
    assert!(code == 125 && said.contains("--in-place"), "{code}: {said}");

    near.says(0, &["peer", "drain", "big"]);
    let (code, _, said) = run(&near, &["job"]);
    let why = "job: gpu.overflow: always, and no peer takes it: big: it is drained";
    assert!(code == 125 && said.contains(why), "{code}: {said}");
    near.says(0, &["peer", "remove", "big"]);
    let (code, _, said) = run(&near, &["job"]);
    assert!(
        code == 125 && said.contains("ghostctl peer add"),
        "{code}: {said}"
    );
    let status = near.says(0, &["status", "job"]);
    assert!(status.contains("always, and there is no peer"), "{status}");
}

#[test]
fn peers_are_shown_with_what_they_have_and_a_mute_one_holds_nobody_up() {
    let (near, far) = two();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    near.says(0, &["peer", "add", "mute", &address]);
    let begun = Instant::now();
    let peers = near.json(&["peer", "list", "--json"]);
    assert!(begun.elapsed() < Duration::from_secs(30));
    let [big, silent] = [0, 1].map(|n| peers["items"][n]["look"].clone());
    assert_eq!(
        (&big["state"], &silent["state"]),
        (&"reached".into(), &"failed".into())
    );
    let gpu = far.json(&["gpu", "list", "--json"])["items"][0].clone();
    assert_eq!(big["gpus"][0]["memory_total"], gpu["memory_total"]);
    assert_eq!(big["gpus"][0]["memory_free"], gpu["memory_total"]);
    assert_eq!(far.sessions(), 0, "to look takes no place");
    let list = near.says(0, &["peer", "list"]);
    let row = |name: &str| list.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(
        row("big").contains("joined") && row("big").contains("ms"),
        "{list}"
    );
    assert!(row("mute").contains("unreachable"), "{list}");

    // Who does not know the token is told nothing.
    fs::write(
        far.dir.path().join("other"),
        "another secret of some length",
    )
    .unwrap();
    let (there, other) = (far.address(), far.dir.path().join("other"));
    let listener = far.json(&["info", "--json"])["overflow"].clone();
    let add = [
        "peer",
        "add",
        "big",
        &there,
        "--token-file",
        other.to_str().unwrap(),
    ];
    let print = ["--fingerprint", listener["fingerprint"].as_str().unwrap()];
    near.says(0, &[&add[..], &print].concat());
    let list = near.says(0, &["peer", "list"]);
    assert!(list.contains("the token is not this host's"), "{list}");
    assert!(!list.contains(TOKEN), "{list}");
}
