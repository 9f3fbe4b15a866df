//! Overflow against the real ghostd on a simulated GPU, over real TCP: who gets in, what becomes of
//! them, and what `ghostctl` shows of it. The executor is a script that sends back what it gets, and
//! once, where the whole workspace is built, the real one with the real libcuda of Ghost.

use ghost_wire::hello::{self, Hello, Inject, MAGIC, Role, Tenant, Ticket, Verdict};
use ghost_wire::{VERSION, api};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value as J;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Says who it is, and sends back commands as replies and bulk data as bulk data.
const EXECUTOR: &str = r#"#!/bin/bash
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

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(dir: &Path) -> Child {
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
    fn new(overflow: &str) -> Ghostd {
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

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostctl"));
        command
            .args(args)
            .env("GHOST_SOCKET", self.dir.path().join("ghostd.sock"))
            .env_remove("GHOST_FORMAT")
            .stdin(Stdio::null());
        command
    }

    fn ghostctl(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Asserts the exit code; gives standard output, and standard error after it.
    #[track_caller]
    fn says(&self, code: i32, args: &[&str]) -> String {
        let output = self.ghostctl(args);
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        text.into_owned()
    }

    fn json(&self, args: &[&str]) -> J {
        serde_json::from_str(&self.says(0, args)).unwrap()
    }

    fn address(&self) -> String {
        let node = self.json(&["info", "--json"]);
        node["overflow"]["listen"].as_str().unwrap().to_owned()
    }

    fn sessions(&self) -> u64 {
        let node = self.json(&["info", "--json"]);
        node["overflow"]["sessions"].as_u64().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let text = self.says(0, &["list", "-q"]);
        text.lines().map(str::to_owned).collect()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

fn hello(session: u8) -> Hello {
    Hello {
        magic: MAGIC,
        version: VERSION,
        table: api::fingerprint(),
        role: Role::Commands,
        session: [session; 16],
        token: TOKEN.to_owned(),
        tenant: Tenant {
            container: "team/job".to_owned(),
            host: "here".to_owned(),
            limits: vec![("gpu.weight".to_owned(), "70".to_owned())],
            ..Tenant::default()
        },
        inject: Inject::default(),
        environment: vec![("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned())],
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap();
    [&len.to_le_bytes()[..], bytes].concat()
}

/// Says hello and gives the answer.
fn greet(mut stream: impl Read + Write, hello: &Hello) -> io::Result<Verdict> {
    stream.write_all(&frame(&hello::to_bytes(hello)))?;
    stream.flush()?;
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut verdict = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut verdict)?;
    Ok(hello::from_bytes(&verdict).unwrap())
}

/// The reason of a refusal.
#[track_caller]
fn refused(node: &Ghostd, hello: &Hello) -> String {
    match greet(node.connect(), hello).unwrap() {
        Verdict::Refused(why) => why,
        Verdict::Welcome => panic!("{hello:?} is welcome"),
    }
}

/// A whole session on plain TCP.
fn open(node: &Ghostd, first: &Hello) -> Vec<TcpStream> {
    let one = |role| {
        let stream = node.connect();
        let hello = Hello {
            role,
            ..first.clone()
        };
        assert_eq!(greet(&stream, &hello).unwrap(), Verdict::Welcome);
        stream
    };
    Role::ALL.map(one).into()
}

/// Sends by one connection and reads it from another.
#[track_caller]
fn echoes(mut to: impl Write, mut from: impl Read, data: &[u8]) {
    to.write_all(data).unwrap();
    to.flush().unwrap();
    let mut back = vec![0; data.len()];
    from.read_exact(&mut back).unwrap();
    assert_eq!(back, data);
}

#[test]
fn a_session_has_a_container_an_executor_and_an_end() {
    let node = Ghostd::new("token_file = \"DIR/token\"");
    let four = open(&node, &hello(1));
    echoes(&four[0], &four[1], b"commands");
    echoes(&four[2], &four[3], b"bulk data");
    let names = node.names();
    let name = names.iter().find(|n| n.starts_with("overflow/")).unwrap();
    assert!(name.starts_with("overflow/here-team.job-"), "{name}");
    assert_eq!(node.says(0, &["get", name, "gpu.weight"]), "70\n");
    assert_eq!(node.sessions(), 1);
    let status = node.json(&["status", name, "--json"]);
    assert_eq!(status["status"]["ghost.events"]["populated"], 1);

    // What the executor counted.
    let remote = &status["status"]["overflow"][0];
    let told = (&remote["peer"], &remote["incoming"], &remote["posted"]);
    assert_eq!(told, (&"here".into(), &true.into(), &5.into()));
    let top = node.says(0, &["top", "-n", "1"]);
    let row = top.lines().find(|line| line.contains("of here"));
    assert!(row.is_some_and(|row| row.contains(name.as_str())), "{top}");

    let leaf = name.strip_prefix("overflow/").unwrap();
    let about = node
        .dir
        .path()
        .join("cache/overflow")
        .join(leaf)
        .join("about");
    let about = fs::read_to_string(about).unwrap();
    let me = Command::new("id").arg("-un").output().unwrap().stdout;
    let root = me == b"root\n";
    let user = about.lines().next().unwrap();
    assert!(!root || user == "nobody", "{user}");
    assert!(about.contains("CUDA_VISIBLE_DEVICES=0"), "{about}");
    assert!(!about.contains(TOKEN), "the token is for ghostd alone");

    // The same tenant's next process is in the same container.
    let other = open(&node, &hello(2));
    echoes(&other[0], &other[1], b"two");
    assert_eq!(node.sessions(), 2);
    drop(other);
    until("one session is left", || node.sessions() == 1);
    echoes(&four[0], &four[1], b"still there");
    drop(four);
    until("no session is left", || node.sessions() == 0);
    until("its container is gone", || node.names() == ["system"]);
}

#[test]
fn an_administrators_own_container_keeps_its_limits_and_stays() {
    let node = Ghostd::new("");
    let four = open(&node, &hello(1));
    let names = node.names();
    let name = names.iter().find(|n| n.starts_with("overflow/")).unwrap();
    drop(four);
    until("its container is gone", || node.names() == ["system"]);
    node.says(0, &["create", "overflow", "--weight", "10"]);
    node.says(0, &["create", name, "--weight", "5"]);
    let four = open(&node, &hello(1));
    echoes(&four[0], &four[1], b"x");
    assert_eq!(node.says(0, &["get", name, "gpu.weight"]), "5\n");
    drop(four);
    until("no session is left", || node.sessions() == 0);
    node.says(0, &["get", name, "gpu.weight"]);
}

#[test]
fn who_does_not_belong_is_told_why() {
    let node = Ghostd::new("token_file = \"DIR/token\"\nmax_sessions = 1");
    let wrong = Hello {
        token: "guess".to_owned(),
        ..hello(1)
    };
    let why = refused(&node, &wrong);
    assert!(
        why.contains("token") && why.contains("ghostctl peer add"),
        "{why}"
    );
    let other = Hello {
        version: 99,
        ..hello(1)
    };
    assert!(refused(&node, &other).contains("version 99"));
    let other = Hello {
        table: 1,
        ..hello(1)
    };
    assert!(refused(&node, &other).contains("0000000000000001"));
    let mut odd = hello(1);
    odd.tenant.limits = vec![("gpu.memory.max".to_owned(), "lots".to_owned())];
    let why = refused(&node, &odd);
    assert!(
        why.contains("gpu.memory.max") && why.contains("\"lots\""),
        "{why}"
    );
    assert_eq!(node.names(), ["system"], "nobody got a container");

    let mut first = node.connect();
    assert_eq!(greet(&first, &hello(1)).unwrap(), Verdict::Welcome);
    assert!(refused(&node, &hello(1)).contains("there already"));
    let mut thief = hello(1);
    thief.role = Role::Down;
    thief.tenant.container = "other".to_owned();
    assert!(refused(&node, &thief).contains("another tenant"));
    assert!(refused(&node, &hello(2)).contains("1 sessions already"));
    // Alone it does not stand, and gives its place back.
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    until("its place is free", || node.sessions() == 0);
    assert_eq!(greet(node.connect(), &hello(2)).unwrap(), Verdict::Welcome);
}

#[test]
fn who_says_nothing_or_too_slowly_keeps_nobody_out() {
    let node = Ghostd::new("");
    let silent: Vec<TcpStream> = (0..65).map(|_| node.connect()).collect();
    let four = open(&node, &hello(1));
    echoes(&four[0], &four[1], b"served");
    // A byte now and then is no hello.
    let mut slow = node.connect();
    let bytes = frame(&hello::to_bytes(&hello(2)));
    let closed = bytes.iter().any(|byte| {
        std::thread::sleep(Duration::from_millis(300));
        slow.write_all(&[*byte]).is_err()
    });
    assert!(closed || slow.read(&mut [0]).unwrap_or(0) == 0);
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    }
    // Neither are things that are not Ghost.
    for junk in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &frame(&[7; 100]),
    ] {
        let mut stream = node.connect();
        stream.write_all(junk).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(&[answer[0], 0, 0, 0]));
    }
    echoes(&four[0], &four[1], b"still served");
    assert_eq!(node.sessions(), 1);
}

fn secure(node: &Ghostd) -> StreamOwned<ClientConnection, TcpStream> {
    let pem = fs::read(node.dir.path().join("state/overflow/identity.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&pem).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("ghost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(client, node.connect())
}

#[test]
fn tls_ends_in_ghostd_and_carries_all() {
    let node = Ghostd::new("tls = true\ntoken_file = \"DIR/token\"");
    let shown = node.says(0, &["info"]);
    let listener = node.json(&["info", "--json"])["overflow"].clone();
    let fingerprint = listener["fingerprint"].as_str().unwrap();
    assert!(
        fingerprint.len() == 64 && shown.contains(fingerprint),
        "{shown}"
    );
    assert!(
        !shown.contains(TOKEN) && shown.contains("token in "),
        "{shown}"
    );
    let mut four = Vec::new();
    for role in Role::ALL {
        let mut stream = secure(&node);
        let hello = Hello { role, ..hello(1) };
        assert_eq!(greet(&mut stream, &hello).unwrap(), Verdict::Welcome);
        four.push(stream);
    }
    let [commands, replies, up, down] = &mut four[..] else {
        panic!("{} connections", four.len());
    };
    echoes(commands, replies, b"commands");
    // More than any buffer on the way.
    let data: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| up.write_all(&data).and_then(|()| up.flush()).unwrap());
        let mut back = vec![0; data.len()];
        down.read_exact(&mut back).unwrap();
        assert!(back == data);
    });
    assert!(
        greet(node.connect(), &hello(2)).is_err(),
        "plain TCP is no TLS"
    );
    drop(four);
    until("no session is left", || node.sessions() == 0);
}

#[test]
fn an_executor_outlives_ghostd_on_plain_tcp_and_is_cleaned_up_after() {
    let mut node = Ghostd::new("");
    let four = open(&node, &hello(1));
    echoes(&four[0], &four[1], b"before");
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    echoes(&four[0], &four[1], b"without ghostd");
    node.child = start(node.dir.path());
    until("ghostd answers", || {
        node.ghostctl(&["info"]).status.success()
    });
    echoes(&four[0], &four[1], b"after");
    drop(four);
    until("its container is gone", || node.names() == ["system"]);
}

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
    for word in ["auto", "always"] {
        let why = node.says(3, &["limit", "job", &format!("gpu.overflow={word}")]);
        assert!(why.contains("not built yet"), "{why}");
    }

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
    assert!(
        list.contains("joined") && !list.contains("drained"),
        "{list}"
    );
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

fn metrics(socket: &Path) -> String {
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: ghostd\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
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

/// A file of the workspace's build, if it is there.
fn built(name: &str) -> Option<String> {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_ghostctl")).with_file_name(name);
    path.exists().then(|| path.display().to_string())
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
