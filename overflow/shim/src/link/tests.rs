//! The link against an executor of the test's own, over TCP.

use super::*;
use ghost_wire::frame::{Command, Reply, ReplyKind};
use ghost_wire::hello::{self, Hello, Role, Ticket, Verdict, Welcome};
use ghost_wire::message::{CopyIn, CopyOut, Use, Wait, read};
use ghost_wire::result::{LAUNCH_FAILED, NOT_FOUND};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicU64;

/// A row that is posted.
const POSTED: Op = ghost_wire::api::op::cuMemsetD8Async;

thread_local! {
    static CONTEXT: Cell<u64> = const { Cell::new(0) };
}
static CALLED: AtomicU64 = AtomicU64::new(0);
static CHANGED: AtomicU64 = AtomicU64::new(0);

const HANDLERS: Handlers = Handlers {
    context: || CONTEXT.get(),
    callback: |token, code| CALLED.store(token << 32 | u64::from(code), Ordering::Release),
    changed: |at, data| CHANGED.store(at + data.len() as u64, Ordering::Release),
};

/// The executor's ends of the four connections.
struct Peer {
    commands: TcpStream,
    replies: TcpStream,
    up: TcpStream,
    down: TcpStream,
    seq: u64,
}

fn pair(wait_always: bool) -> (Arc<Link>, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ticket = Ticket {
        address: address.clone(),
        token: "secret".to_owned(),
        ..Ticket::default()
    };
    let accepting = std::thread::spawn(move || {
        let mut streams: Vec<_> = Role::ALL
            .iter()
            .map(|role| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut len = [0; 4];
                stream.read_exact(&mut len).unwrap();
                let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
                stream.read_exact(&mut bytes).unwrap();
                let hello: Hello = hello::from_bytes(&bytes).unwrap();
                assert_eq!((hello.role, hello.token.as_str()), (*role, "secret"));
                let verdict = hello::to_bytes(&Verdict::Welcome);
                let len = (verdict.len() as u32).to_le_bytes();
                stream.write_all(&[&len, &verdict[..]].concat()).unwrap();
                stream
            })
            .collect();
        let welcome = hello::to_bytes(&Welcome {
            driver: 12080,
            init: 0,
            emulated: true,
            devices: vec![],
        });
        let mut peer = Peer {
            down: streams.remove(3),
            up: streams.remove(2),
            replies: streams.remove(1),
            commands: streams.remove(0),
            seq: 0,
        };
        peer.reply(ReplyKind::Welcome, 0, 0, 0, &welcome);
        peer
    });
    let opened = ghost_link::open(&ticket, vec![]).unwrap();
    assert_eq!(opened.welcome.driver, 12080);
    let link = Link::start(opened, &address, wait_always, HANDLERS).unwrap();
    (link, accepting.join().unwrap())
}

impl Peer {
    /// The next command: its number, header and body.
    fn command(&mut self) -> (u64, Command, Vec<u8>) {
        let mut header = [0; Command::SIZE];
        self.commands.read_exact(&mut header).unwrap();
        let command = Command::from_bytes(header).unwrap();
        let mut body = vec![0; command.len as usize];
        self.commands.read_exact(&mut body).unwrap();
        self.seq += 1;
        (self.seq, command, body)
    }

    fn reply(&mut self, kind: ReplyKind, code: Code, seq: u64, delivered: u64, body: &[u8]) {
        let reply = Reply {
            kind,
            op: POSTED,
            code,
            seq,
            delivered,
            len: body.len() as u32,
        };
        self.replies
            .write_all(&[&reply.to_bytes(), body].concat())
            .unwrap();
    }

    fn answer(&mut self, seq: u64) {
        self.reply(ReplyKind::Answer, SUCCESS, seq, 0, &[]);
    }

    fn data(&mut self, kind: DataKind, seq: u64, at: u64, bytes: &[u8]) {
        let header = Data {
            kind,
            len: bytes.len() as u32,
            seq,
            at,
        };
        self.down
            .write_all(&[&header.to_bytes(), bytes].concat())
            .unwrap();
    }

    /// The data that came by `up` for the next command that has some, and its number.
    fn bulk(&mut self, len: usize) -> (u64, Vec<u8>) {
        let (mut whole, mut seq) = (vec![], 0);
        while whole.len() < len {
            let mut header = [0; Data::SIZE];
            self.up.read_exact(&mut header).unwrap();
            let header = Data::from_bytes(header).unwrap();
            assert_eq!(header.at, whole.len() as u64);
            assert!(seq == 0 || seq == header.seq, "parts of two commands mixed");
            seq = header.seq;
            let start = whole.len();
            whole.resize(start + header.len as usize, 0);
            self.up.read_exact(&mut whole[start..]).unwrap();
        }
        (seq, whole)
    }
}

fn sync(link: &Link) -> Result<(), Code> {
    let message = Wait {
        what: 1,
        handle: 0,
        query: false,
    };
    link.wait_sync(Wait::OP, |to| message.put(to), |_| Ok(()))
}

fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_threads_commands_keep_their_order_and_their_context() {
    let (link, mut peer) = pair(false);
    let threads: Vec<_> = (1..=4_u64)
        .map(|thread| {
            let link = Arc::clone(&link);
            std::thread::spawn(move || {
                CONTEXT.set(thread);
                for n in 0..500 {
                    let code = link.post(POSTED, |to| {
                        to.word(thread);
                        to.word(n);
                    });
                    assert_eq!(code, SUCCESS);
                }
            })
        })
        .collect();
    let (mut next, mut context, mut seen) = ([0; 5], 0, 0);
    while seen < 2000 {
        let (_, command, body) = peer.command();
        assert!(!command.waited);
        if command.op == Use::OP {
            context = read::<Use>(&body).unwrap().context;
            continue;
        }
        let mut body = Decoder::new(&body);
        let (thread, n) = (body.word().unwrap(), body.word().unwrap());
        assert_eq!(thread, context);
        assert_eq!(n, next[thread as usize]);
        next[thread as usize] += 1;
        seen += 1;
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_late_error_is_told_once_and_its_messenger_not_sent() {
    let (link, mut peer) = pair(false);
    assert_eq!(link.post(POSTED, |to| to.word(1)), SUCCESS);
    let (seq, ..) = peer.command();
    peer.reply(ReplyKind::Late, LAUNCH_FAILED, seq, 0, &[]);
    until(|| link.pending.load(Ordering::Acquire) != SUCCESS);
    assert_eq!(link.post(POSTED, |to| to.word(2)), LAUNCH_FAILED);
    assert_eq!(link.post(POSTED, |to| to.word(3)), SUCCESS);
    let (seq, _, body) = peer.command();
    assert_eq!(Decoder::new(&body).word(), Ok(3));

    let answering = std::thread::spawn(move || {
        peer.reply(ReplyKind::Late, NOT_FOUND, seq, 0, &[]);
        for _ in 0..3 {
            let (seq, command, _) = peer.command();
            assert!(command.waited);
            peer.answer(seq);
        }
        peer
    });
    // What merely waits does not take it; what synchronises does, once.
    let waited = link.wait(POSTED, |_| {}, |_| Ok(()));
    assert_eq!(waited, Ok(()));
    assert_eq!(sync(&link), Err(NOT_FOUND));
    assert_eq!(sync(&link), Ok(()));
    answering.join().unwrap();
}

#[test]
fn an_answer_is_the_waiting_threads_own() {
    let (link, mut peer) = pair(false);
    let waiting: Vec<_> = (0..4_u64)
        .map(|n| {
            let link = Arc::clone(&link);
            std::thread::spawn(move || {
                let back = link.wait(POSTED, |to| to.word(n), |from| from.word());
                assert_eq!(back, Ok(n + 100));
            })
        })
        .collect();
    let mut asked: Vec<_> = (0..4)
        .map(|_| {
            let (seq, _, body) = peer.command();
            (seq, Decoder::new(&body).word().unwrap())
        })
        .collect();
    asked.reverse();
    for (seq, n) in asked {
        let body = (n + 100).to_le_bytes();
        peer.reply(ReplyKind::Answer, SUCCESS, seq, 0, &body);
    }
    for thread in waiting {
        thread.join().unwrap();
    }
}

fn copy_in(link: &Link, to: u64, from: &[u8]) -> Code {
    let encode = |enc: &mut Encoder<'_>, bulk, data: &[u8]| {
        let copy = CopyIn {
            to,
            len: from.len() as u64,
            stream: 0,
            bulk,
            data,
        };
        copy.put(enc);
    };
    let region = Region::flat(from.as_ptr(), from.len());
    // SAFETY: the region is `from`.
    unsafe { link.post_data(CopyIn::OP, region, encode) }
}

#[test]
fn bulk_data_has_the_order_of_its_commands_and_nothing_overtakes_it() {
    let (link, mut peer) = pair(false);
    let big = CHUNK + INLINE_MAX;
    let threads: Vec<_> = (0..3_u8)
        .map(|thread| {
            let link = Arc::clone(&link);
            std::thread::spawn(move || {
                let mut source = vec![0; big];
                for n in 0..3 {
                    source.fill(thread * 16 + n);
                    assert_eq!(copy_in(&link, u64::from(thread * 16 + n), &source), SUCCESS);
                    // The source is free: this must not be seen by the peer.
                    source.fill(0xff);
                    assert_eq!(
                        copy_in(&link, 0x1000 + u64::from(thread), b"small"),
                        SUCCESS
                    );
                }
            })
        })
        .collect();
    let (mut small, mut expected) = ([0; 3], [0; 3]);
    for _ in 0..18 {
        let (seq, _, body) = peer.command();
        let copy: CopyIn<'_> = read(&body).unwrap();
        if copy.bulk {
            assert_eq!((copy.len, copy.data.len()), (big as u64, 0));
            let (thread, n) = ((copy.to / 16) as usize, copy.to % 16);
            assert_eq!(n, expected[thread]);
            assert_eq!(small[thread], expected[thread], "a small copy overtook");
            expected[thread] += 1;
            let (of, data) = peer.bulk(big);
            assert_eq!(of, seq);
            assert!(data.iter().all(|byte| u64::from(*byte) == copy.to));
        } else {
            assert_eq!(copy.data, b"small");
            small[(copy.to - 0x1000) as usize] += 1;
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn an_answer_waits_for_the_data_that_was_sent_before_it() {
    let (link, mut peer) = pair(false);
    let mut first = vec![0; 8];
    let mut second = vec![0; 6];
    let message = |len| CopyOut {
        from: 0x1000,
        len,
        stream: 0,
    };
    let region = Region::flat(first.as_mut_ptr(), 8);
    // SAFETY: `first` lives until after the wait below.
    let posted = unsafe { link.post_landing(CopyOut::OP, region, |to| message(8).put(to)) };
    assert_eq!(posted, SUCCESS);
    let answering = std::thread::spawn(move || {
        let (one, ..) = peer.command();
        let (two, ..) = peer.command();
        peer.reply(ReplyKind::Answer, SUCCESS, two, 4, &[]);
        peer.data(DataKind::Part, two, 0, &[7; 6]);
        peer.data(DataKind::Part, one, 4, &[2; 4]);
        peer.data(DataKind::Memory, 0, 0x5000, &[1; 3]);
        peer.data(DataKind::Part, one, 0, &[1; 4]);
        peer
    });
    let boxed = Region {
        base: second.as_mut_ptr(),
        width: 2,
        rows: 2,
        slices: 1,
        pitch: 4,
        slice: 6,
    };
    // SAFETY: `second` has the box.
    let waited = unsafe { link.wait_landing(CopyOut::OP, boxed, |to| message(4).put(to)) };
    assert_eq!(waited, Ok(()));
    assert_eq!(first, [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(second, [7, 7, 0, 0, 7, 7]);
    assert_eq!(CHANGED.load(Ordering::Acquire), 0x5003);
    answering.join().unwrap();
}

#[test]
fn what_is_on_its_way_can_be_waited_for_and_ends_with_its_error() {
    let (link, mut peer) = pair(false);
    let mut room = vec![0; 16];
    let at = room.as_ptr() as u64;
    let region = Region::flat(room.as_mut_ptr(), 16);
    let message = CopyOut {
        from: 0x1000,
        len: 16,
        stream: 0,
    };
    for _ in 0..2 {
        // SAFETY: `room` lives until all has come.
        let posted = unsafe { link.post_landing(CopyOut::OP, region, |to| message.put(to)) };
        assert_eq!(posted, SUCCESS);
    }
    assert_eq!(link.landed(at + 16, 8), Ok(()));
    let (one, ..) = peer.command();
    let (two, ..) = peer.command();
    assert!(link.landings.busy(at, 1));
    peer.reply(ReplyKind::Late, LAUNCH_FAILED, one, 0, &[]);
    peer.data(DataKind::Part, two, 0, &[9; 16]);
    assert_eq!(link.landed(at, 1), Ok(()));
    assert_eq!(room, [9; 16]);
}

#[test]
fn a_callback_runs_and_is_reported() {
    let (link, mut peer) = pair(false);
    peer.reply(ReplyKind::Callback, 5, 77, 0, &[]);
    let (_, command, body) = peer.command();
    assert_eq!(command.op, CallbackDone::OP);
    assert_eq!(read::<CallbackDone>(&body).map(|m| m.token), Ok(77));
    assert_eq!(CALLED.load(Ordering::Acquire), 77 << 32 | 5);
    drop(link);
}

#[test]
fn a_lost_connection_fails_those_who_wait_and_all_after_them() {
    let (link, peer) = pair(false);
    let waiting = {
        let link = Arc::clone(&link);
        std::thread::spawn(move || sync(&link))
    };
    let mut peer = peer;
    peer.command();
    drop(peer);
    assert_eq!(waiting.join().unwrap(), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(link.post(POSTED, |_| {}), CONTEXT_IS_DESTROYED);
    assert_eq!(sync(&link), Err(CONTEXT_IS_DESTROYED));
    assert!(link.broken().is_some());
}

#[test]
fn nonsense_from_the_executor_ends_the_session_with_its_cause() {
    let (link, mut peer) = pair(false);
    peer.replies.write_all(&[0xff; Reply::SIZE]).unwrap();
    until(|| link.broken().is_some());
    assert!(link.broken().is_some_and(|why| why.contains("protocol")));

    let (link, mut peer) = pair(false);
    peer.reply(ReplyKind::Bye, 0, 0, 0, b"the container is full");
    until(|| link.broken().is_some());
    assert!(
        link.broken()
            .is_some_and(|why| why.contains("container is full"))
    );

    let (link, mut peer) = pair(false);
    let answering = std::thread::spawn(move || {
        let (seq, ..) = peer.command();
        peer.reply(ReplyKind::Answer, SUCCESS, seq, 0, &[1]);
        peer
    });
    let waited = link.wait(POSTED, |_| {}, |from| from.word());
    assert_eq!(waited, Err(UNKNOWN));
    assert!(
        link.broken()
            .is_some_and(|why| why.contains("cuMemsetD8Async"))
    );
    answering.join().unwrap();
}

#[test]
fn a_command_too_large_is_refused_here() {
    let (link, mut peer) = pair(false);
    let large = vec![0; ghost_wire::frame::COMMAND_MAX as usize];
    assert_eq!(link.post(POSTED, |to| to.bytes(&large)), INVALID_VALUE);
    assert_eq!(link.post(POSTED, |to| to.word(1)), SUCCESS);
    let (seq, command, _) = peer.command();
    assert_eq!((seq, command.len), (1, 8));
}

#[test]
fn on_request_every_command_is_waited_for() {
    let (link, mut peer) = pair(true);
    let answering = std::thread::spawn(move || {
        let (seq, command, _) = peer.command();
        assert!(command.waited);
        peer.reply(ReplyKind::Answer, LAUNCH_FAILED, seq, 0, &[]);
        peer
    });
    assert_eq!(link.post(POSTED, |_| {}), LAUNCH_FAILED);
    answering.join().unwrap();
}

#[test]
fn the_end_is_said_and_what_was_posted_arrives_before_it() {
    let (link, mut peer) = pair(false);
    assert_eq!(link.post(POSTED, |to| to.word(1)), SUCCESS);
    link.finish();
    assert_eq!(peer.command().1.op, POSTED);
    assert_eq!(peer.command().1.op, Bye::OP);
    drop(peer);
    until(|| link.broken().is_some());
}
