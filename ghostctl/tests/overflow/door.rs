//! Who gets in, and what becomes of them.

use crate::node::{Ghostd, TOKEN, start, until};
use ghost_wire::hello::{self, Hello, Inject, MAGIC, Role, Tenant, Verdict};
use ghost_wire::{VERSION, api};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

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
