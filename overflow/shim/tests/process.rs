//! The library as programs meet it: C programs that open it, with a driver or an executor of the
//! test's own behind it.

use ghost_wire::api::{ENTRIES, op};
use ghost_wire::frame::{Command as Header, Reply, ReplyKind};
use ghost_wire::hello::{self, Device, Hello, Role, TICKET_ENV, Ticket, Verdict, Welcome};
use ghost_wire::message::{
    AddCopyNode, Bye, CaptureInfo, Field, Message, Primary, Share, Use, Variable,
};
use ghost_wire::{Decoder, Encoder, Op, stats};
use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The library, as this package's build made it.
fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libghost_shim.so")
}

fn compile(folder: &Path, source: &str, args: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(source);
    let out = folder.join(source.file_stem().unwrap());
    let status = Command::new("gcc")
        .args(["-Wall", "-Werror", "-o"])
        .arg(&out)
        .arg(source)
        .args(args)
        .status()
        .unwrap();
    assert!(status.success());
    out
}

/// A folder, and the program of calls in it.
struct Stage {
    folder: TempDir,
    program: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let program = compile(folder.path(), "calls.c", &["-ldl"]);
        Self { folder, program }
    }

    fn command(&self, calls: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(shim()).args(calls);
        command.env("GHOST_LIBCUDA", "/nonexistent/libcuda.so.1");
        command.env_remove(TICKET_ENV);
        command
    }

    fn there(&self, address: &str, calls: &[&str]) -> Command {
        let ticket = Ticket {
            address: address.to_owned(),
            container: "job".to_owned(),
            stats: Some(self.folder.path().display().to_string()),
            ..Ticket::default()
        };
        let path = self.folder.path().join("ticket");
        std::fs::write(&path, serde_json::to_vec(&ticket).unwrap()).unwrap();
        let mut command = self.command(calls);
        command.env(TICKET_ENV, path);
        command
    }
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Takes the four connections, gives each the verdict that `judge` finds.
fn greet(listener: &TcpListener, judge: impl Fn(&Hello) -> Verdict) -> Vec<(Hello, TcpStream)> {
    let mut streams = vec![];
    for role in Role::ALL {
        let (mut stream, _) = listener.accept().unwrap();
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        stream.read_exact(&mut bytes).unwrap();
        let hello: Hello = hello::from_bytes(&bytes).unwrap();
        assert_eq!(hello.role, role);
        let verdict = judge(&hello);
        let bytes = hello::to_bytes(&verdict);
        let len = (bytes.len() as u32).to_le_bytes();
        stream.write_all(&[&len, &bytes[..]].concat()).unwrap();
        streams.push((hello, stream));
        if verdict != Verdict::Welcome {
            break;
        }
    }
    streams
}

/// An executor that says yes to everything: where it listens, and in the end the hello and the
/// commands that came.
fn yes() -> (String, JoinHandle<(Hello, Vec<Op>)>) {
    beginning(0)
}

/// The same, with a driver whose `cuInit` answered this.
fn beginning(init: u32) -> (String, JoinHandle<(Hello, Vec<Op>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let mut streams = greet(&listener, |_| Verdict::Welcome);
        let welcome = hello::to_bytes(&Welcome {
            driver: 12060,
            init,
            emulated: true,
            devices: vec![Device::default(); if init == 0 { 3 } else { 0 }],
        });
        let reply = |kind, seq, body: &[u8]| {
            let reply = Reply {
                kind,
                op: Op(0),
                code: 0,
                seq,
                delivered: 0,
                len: body.len() as u32,
            };
            [&reply.to_bytes(), body].concat()
        };
        let (hello, mut commands) = streams.remove(0);
        let (_, mut replies) = streams.remove(0);
        let welcome = reply(ReplyKind::Welcome, 0, &welcome);
        replies.write_all(&welcome).unwrap();
        let mut seen = vec![];
        let mut header = [0; Header::SIZE];
        while commands.read_exact(&mut header).is_ok() {
            let header = Header::from_bytes(header).unwrap();
            let mut asked = vec![0; header.len as usize];
            commands.read_exact(&mut asked).unwrap();
            seen.push(header.op);
            if header.waited {
                let mut body = vec![];
                if header.op == op::cuDeviceCanAccessPeer {
                    Encoder::new(&mut body).bytes(&1_i32.to_le_bytes());
                }
                if header.op == CaptureInfo::OP {
                    // Active, the first, no graph, after nothing.
                    let mut to = Encoder::new(&mut body);
                    [1, 1, 0, 0].into_iter().for_each(|word| to.word(word));
                }
                if header.op == Variable::OP {
                    // Where its name says, and all of it managed if it was asked for as such.
                    let asked = Variable::take(&mut Decoder::new(&asked)).unwrap();
                    let name = str::from_utf8(asked.name).unwrap();
                    let at = u64::from_str_radix(name.trim_start_matches("0x"), 16).unwrap();
                    let (start, whole) = if asked.managed { (at, 4096) } else { (0, 0) };
                    let mut to = Encoder::new(&mut body);
                    [at, 64, start, whole]
                        .into_iter()
                        .for_each(|word| to.word(word));
                }
                if header.op == Share::OP {
                    // At the same address.
                    body.extend_from_slice(&asked[..8]);
                }
                let answer = reply(ReplyKind::Answer, seen.len() as u64, &body);
                replies.write_all(&answer).unwrap();
            }
        }
        (hello, seen)
    });
    (address, serving)
}

#[test]
fn every_entry_point_of_the_table_is_exported() {
    let path = CString::new(shim().to_str().unwrap()).unwrap();
    // SAFETY: opens the library that this package built.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    for entry in ENTRIES {
        for suffix in ["", entry.variant.suffix().unwrap_or_default()] {
            let symbol = CString::new(format!("{}{suffix}", entry.symbol)).unwrap();
            // SAFETY: a handle that is open, a text that ends.
            let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            assert!(!found.is_null(), "{symbol:?} is not exported");
        }
    }
}

#[test]
fn here_calls_go_to_the_genuine_driver() {
    let stage = Stage::new();
    let driver = compile(stage.folder.path(), "genuine.c", &["-shared", "-fPIC"]);
    let calls = [
        "cuInit",
        "cuDriverGetVersion",
        "cuLaunchKernel_ptsz",
        "cuCtxSynchronize",
    ];
    let output = stage
        .command(&calls)
        .env("GHOST_LIBCUDA", driver)
        .output()
        .unwrap();
    let expected = [
        "cuInit=0",
        "cuDriverGetVersion=0:12345",
        "cuLaunchKernel_ptsz=400",
        "cuCtxSynchronize=801",
    ];
    assert_eq!(lines(&output), expected);
    assert_eq!(said(&output), "");
}

#[test]
fn here_without_a_driver_there_is_no_device() {
    let output = Stage::new().command(&["cuInit"]).output().unwrap();
    assert_eq!(lines(&output), ["cuInit=100"]);
}

#[test]
fn there_a_session_is_opened_and_ended() {
    let stage = Stage::new();
    let (address, serving) = yes();
    let calls = [
        "cuDeviceGetCount",
        "cuDriverGetVersion",
        "cuInit",
        "cuDeviceGetCount",
        "close",
        "cuCtxSynchronize",
        "cuDeviceGetLuid",
        "cuDeviceGetLuid",
    ];
    let output = stage
        .there(&address, &calls)
        .env("CUDA_VISIBLE_DEVICES", "2,0")
        .output()
        .unwrap();
    let expected = [
        "cuDeviceGetCount=3:0",
        "cuDriverGetVersion=0:12060",
        "cuInit=0",
        "cuDeviceGetCount=0:3",
        "cuCtxSynchronize=201",
        "cuDeviceGetLuid=801:0",
        "cuDeviceGetLuid=801:0",
    ];
    assert_eq!(lines(&output), expected);
    let said = said(&output);
    assert_eq!(said.matches("cuDeviceGetLuid is not supported").count(), 1);
    let (hello, seen) = serving.join().unwrap();
    assert_eq!(hello.tenant.container, "job");
    let variables: Vec<_> = hello.variables().collect();
    assert_eq!(variables, [("CUDA_VISIBLE_DEVICES", "2,0")]);
    assert_eq!(seen, [Bye::OP]);
    let counters = stage.folder.path().join(hello.tenant.pid.to_string());
    let counters = stats::read(&std::fs::read(counters).unwrap());
    assert_eq!(counters[stats::Counter::Refused as usize], 2);
}

#[test]
fn a_thread_has_a_default_stream_of_its_own() {
    let (address, serving) = yes();
    let output = Stage::new()
        .there(&address, &["cuInit", "own"])
        .output()
        .unwrap();
    // Without a context there is none; what is no stream is refused here.
    assert_eq!(lines(&output), ["cuInit=0", "own=201,0,0,0,0,400"]);
    let write = op::cuStreamWriteValue32_v2;
    let (create, destroy) = (op::cuStreamCreate, op::cuStreamDestroy_v2);
    let (primary, r#use) = (Primary::OP, Use::OP);
    let expected = [
        primary,
        r#use,
        create,
        write,
        write,
        r#use,
        destroy,
        Bye::OP,
    ];
    assert_eq!(serving.join().unwrap().1, expected);
}

#[test]
fn what_does_not_change_is_asked_once() {
    let (address, serving) = yes();
    let output = Stage::new()
        .there(&address, &["cuInit", "peers"])
        .output()
        .unwrap();
    let expected = ["cuInit=0", "peer=0:1", "peer=0:1", "peer=0:1", "peer=1"];
    assert_eq!(lines(&output), expected);
    let asked = op::cuDeviceCanAccessPeer;
    assert_eq!(serving.join().unwrap().1, [asked, asked, Bye::OP]);
}

#[test]
fn an_attribute_that_is_set_again_is_sent_if_it_changes() {
    let (address, serving) = yes();
    let output = Stage::new()
        .there(&address, &["cuInit", "attributes"])
        .output()
        .unwrap();
    assert_eq!(
        lines(&output),
        ["cuInit=0", "set=0", "set=0", "set=0", "set=0"]
    );
    let sent = op::cuKernelSetAttribute;
    assert_eq!(serving.join().unwrap().1, [sent, sent, sent, Bye::OP]);
}

#[test]
fn what_a_graph_copies_is_where_the_device_sees_it() {
    let (address, serving) = yes();
    let output = Stage::new()
        .there(&address, &["cuInit", "captured"])
        .output()
        .unwrap();
    assert_eq!(lines(&output), ["cuInit=0", "captured=0,0,0,0,0,0,0,0,801"]);
    let ops = serving.join().unwrap().1;
    let (from, there) = (
        ops.iter().position(|op| *op == CaptureInfo::OP),
        op::cuMemcpyDtoDAsync_v2,
    );
    let expected = [
        CaptureInfo::OP,
        Share::OP,
        there,
        CaptureInfo::OP,
        there,
        op::cuGraphCreate,
        AddCopyNode::OP,
        Bye::OP,
    ];
    assert_eq!(
        from.and_then(|from| ops.get(from..)),
        Some(&expected[..]),
        "{ops:?}"
    );
}

#[test]
fn a_forked_child_is_not_initialised_and_its_parent_goes_on() {
    let (address, serving) = yes();
    let calls = ["cuInit", "fork", "cuDeviceGetCount"];
    let output = Stage::new().there(&address, &calls).output().unwrap();
    let expected = ["cuInit=0", "child=3", "child=3", "cuDeviceGetCount=0:3"];
    assert_eq!(lines(&output), expected);
    // The child said nothing, not even goodbye.
    assert_eq!(serving.join().unwrap().1, [Bye::OP]);
}

#[test]
fn a_child_that_lives_on_does_not_hold_its_parents_connections() {
    let (address, serving) = yes();
    let stage = Stage::new();
    let mut process = stage
        .there(&address, &["cuInit", "orphan"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let orphan = process.stdin.take();
    assert!(process.wait().unwrap().success());
    let start = Instant::now();
    while !serving.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(30), "still connected");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(orphan);
}

#[test]
fn a_child_of_a_process_that_only_asked_the_version_begins_afresh() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let welcome = hello::to_bytes(&Welcome {
            driver: 12060,
            init: 0,
            emulated: true,
            devices: vec![Device::default()],
        });
        let kept: Vec<_> = (0..2)
            .map(|_| {
                let mut streams = greet(&listener, |_| Verdict::Welcome);
                let header = Reply {
                    kind: ReplyKind::Welcome,
                    op: Op(0),
                    code: 0,
                    seq: 0,
                    delivered: 0,
                    len: welcome.len() as u32,
                };
                let welcome = [&header.to_bytes(), &welcome[..]].concat();
                streams[1].1.write_all(&welcome).unwrap();
                streams
            })
            .collect();
        kept.iter()
            .map(|streams| streams[0].0.session)
            .collect::<Vec<_>>()
    });
    let calls = ["cuDriverGetVersion", "fork"];
    let output = Stage::new().there(&address, &calls).output().unwrap();
    let expected = ["cuDriverGetVersion=0:12060", "child=0", "child=0"];
    assert_eq!(lines(&output), expected);
    let sessions = serving.join().unwrap();
    assert_ne!(sessions[0], sessions[1]);
}

#[test]
fn calls_after_the_exit_handlers_are_answered() {
    let (address, serving) = yes();
    let calls = ["exit", "cuInit"];
    let output = Stage::new().there(&address, &calls).output().unwrap();
    assert_eq!(lines(&output), ["cuInit=0", "late=4", "late=4"]);
    assert_eq!(serving.join().unwrap().1, [Bye::OP]);
}

#[test]
fn where_nobody_listens_there_is_one_message() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let calls = ["cuDriverGetVersion", "cuInit", "cuInit", "cuDeviceGetCount"];
    let output = Stage::new().there(&address, &calls).output().unwrap();
    let expected = [
        "cuDriverGetVersion=802:0",
        "cuInit=802",
        "cuInit=802",
        "cuDeviceGetCount=3:0",
    ];
    assert_eq!(lines(&output), expected);
    let said = said(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains(&address) && said.contains("can't be reached"),
        "{said}"
    );
}

/// What a program of the CUDA runtime meets: without a driver and a GPU here, one message.
#[test]
fn the_runtime_gets_the_local_drivers_tables_or_one_message() {
    let stage = Stage::new();
    let driver = |devices: &str| {
        let folder = stage.folder.path().join(devices);
        std::fs::create_dir(&folder).unwrap();
        let define = format!("-DDEVICES={devices}");
        compile(&folder, "genuine.c", &[&define, "-shared", "-fPIC"])
    };
    let none = PathBuf::from("/nonexistent/libcuda.so.1");
    let (refused, handed_on) = (["801:0"; 9].join(","), ["0:1"; 8].join(",") + ",500:0");
    for (local, tables, words) in [
        (none, &refused, "not installed here"),
        (driver("0"), &refused, "finds no GPU here"),
        (driver("1"), &handed_on, ""),
    ] {
        let (address, serving) = yes();
        let output = stage
            .there(&address, &["cuInit", "tables", "tables"])
            .env("GHOST_LIBCUDA", &local)
            .output()
            .unwrap();
        let tables = format!("tables={tables}");
        assert_eq!(lines(&output), ["cuInit=0", &tables, &tables], "{local:?}");
        let said = said(&output);
        assert_eq!(said.lines().count(), usize::from(!words.is_empty()));
        assert!(said.contains(words), "{said}");
        assert_eq!(serving.join().unwrap().1, [Bye::OP]);
    }
}

#[test]
fn a_variable_whose_addresses_are_taken_is_refused_and_said_once() {
    let (address, serving) = yes();
    let stage = Stage::new();
    let output = stage
        .there(&address, &["cuInit", "taken"])
        .output()
        .unwrap();
    let lines = lines(&output);
    let at = lines[1].strip_prefix("taken=2,2,2 at ").unwrap();
    let at = at.strip_suffix(": 1").unwrap();
    let said = said(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    let program = stage.program.display().to_string();
    assert!(said.contains(at) && said.contains(&program), "{said}");
    let asked = Variable::OP;
    assert_eq!(serving.join().unwrap().1, [asked, asked, asked, Bye::OP]);
}

#[test]
fn a_far_driver_that_does_not_start_is_named_once() {
    for (init, words) in [(999, "999 (CUDA_ERROR_UNKNOWN)"), (77, "77 (unknown)")] {
        let (address, serving) = beginning(init);
        let calls = ["cuDriverGetVersion", "cuInit", "cuInit", "cuCtxSynchronize"];
        let output = Stage::new().there(&address, &calls).output().unwrap();
        let expected = [
            "cuDriverGetVersion=0:12060",
            &format!("cuInit={init}"),
            &format!("cuInit={init}"),
            "cuCtxSynchronize=3",
        ];
        assert_eq!(lines(&output), expected);
        let said = said(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(&address) && said.contains(words), "{said}");
        assert_eq!(serving.join().unwrap().1, [Bye::OP]);
    }
}

#[test]
fn unlike_versions_are_refused_loudly() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        greet(&listener, |hello| {
            let newer = Hello {
                version: hello.version + 1,
                ..hello.clone()
            };
            Verdict::Refused(hello::unlike(&newer).unwrap())
        })
    });
    let output = Stage::new().there(&address, &["cuInit"]).output().unwrap();
    serving.join().unwrap();
    assert_eq!(lines(&output), ["cuInit=802"]);
    let said = said(&output);
    assert!(
        said.contains("install the same release of Ghost on both"),
        "{said}"
    );
}

#[test]
fn a_ticket_that_is_none_is_named() {
    let stage = Stage::new();
    let path = stage.folder.path().join("broken");
    std::fs::write(&path, "{").unwrap();
    for path in [path, stage.folder.path().join("absent")] {
        let output = stage
            .command(&["cuInit"])
            .env(TICKET_ENV, &path)
            .output()
            .unwrap();
        assert_eq!(lines(&output), ["cuInit=802"]);
        assert!(said(&output).contains(path.to_str().unwrap()));
    }
}
