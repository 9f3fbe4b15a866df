//! What goes to the client: replies and bulk data, with the delays that were asked for.

use ghost_wire::frame::{Data, DataKind, Reply, ReplyKind};
use ghost_wire::hello::Inject;
use ghost_wire::result::{Code, SUCCESS};
use ghost_wire::stats::{COUNTERS, Counter, SIZE};
use ghost_wire::{CHUNK, Op};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A socket, of whichever family.
#[derive(Debug)]
pub(crate) struct Socket(socket2::Socket);

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let socket = socket2::Socket::from(fd);
        // A local socket has neither.
        let _ = socket.set_tcp_nodelay(true);
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(2))
            .with_interval(Duration::from_secs(1))
            .with_retries(2);
        let _ = socket.set_tcp_keepalive(&keepalive);
        Self(socket)
    }
}

impl Read for Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

/// Counters as [`ghost_wire::stats`] has them.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    counters: [AtomicU64; COUNTERS],
    file: Option<File>,
}

impl Stats {
    pub(crate) fn new(file: Option<File>) -> Self {
        let counters = Default::default();
        Self { counters, file }
    }

    pub(crate) fn count(&self, what: Counter, by: u64) {
        if let Some(counter) = self.counters.get(what as usize) {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Writes them to the file.
    pub(crate) fn write(&self) {
        let Some(file) = &self.file else { return };
        let words = self.counters.iter().map(|c| c.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        debug_assert_eq!(bytes.len(), SIZE);
        let _ = file.write_all_at(&bytes, 0);
    }
}

#[derive(Debug)]
struct Down {
    socket: Socket,
    /// Frames sent.
    sent: u64,
}

/// Both connections to the client.
#[derive(Debug)]
pub(crate) struct Link {
    /// Guards the connection for replies; held while one is written.
    replies: Mutex<Socket>,
    /// Where replies wait that are to be late.
    delayed: Option<Sender<(Instant, Vec<u8>)>>,
    /// Guards the connection for data; held while a frame is written.
    down: Mutex<Down>,
    /// `Down::sent`, for a look without the lock.
    sent: AtomicU64,
    inject: Inject,
    pub(crate) stats: Stats,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits as long as `bytes` take at `rate` bytes a second (0: none).
pub(crate) fn pace(rate: u64, bytes: usize) {
    if rate > 0 {
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate as f64));
    }
}

impl Link {
    pub(crate) fn new(
        replies: Socket,
        down: Socket,
        inject: Inject,
        stats: Stats,
    ) -> io::Result<Self> {
        let mut delayed = None;
        if inject.rtt_us > 0 {
            let mut late = Socket(replies.0.try_clone()?);
            let (sender, due) = channel::<(Instant, Vec<u8>)>();
            delayed = Some(sender);
            let run = move || {
                for (at, bytes) in due {
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    if late.0.write_all(&bytes).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new()
                .name("replies".into())
                .spawn(run)?;
        }
        Ok(Self {
            replies: Mutex::new(replies),
            delayed,
            down: Mutex::new(Down {
                socket: down,
                sent: 0,
            }),
            sent: AtomicU64::new(0),
            inject,
            stats,
        })
    }

    /// Sends a reply. A client that is gone is noticed where commands are read.
    fn reply(&self, kind: ReplyKind, op: Op, seq: u64, code: Code, body: &[u8]) {
        let reply = Reply {
            kind,
            op,
            code,
            seq,
            delivered: self.sent.load(Ordering::Acquire),
            len: body.len() as u32,
        };
        let mut bytes = Vec::with_capacity(Reply::SIZE + body.len());
        bytes.extend_from_slice(&reply.to_bytes());
        bytes.extend_from_slice(body);
        self.stats.count(Counter::BytesDown, bytes.len() as u64);
        match &self.delayed {
            Some(delayed) => {
                let at = Instant::now() + Duration::from_micros(self.inject.rtt_us);
                let _ = delayed.send((at, bytes));
            }
            None => {
                let _ = lock(&self.replies).0.write_all(&bytes);
            }
        }
    }

    pub(crate) fn answer(&self, seq: u64, code: Code, body: &[u8]) {
        self.reply(ReplyKind::Answer, Op(0), seq, code, body);
    }

    pub(crate) fn late(&self, op: Op, seq: u64, code: Code) {
        self.reply(ReplyKind::Late, op, seq, code, &[]);
    }

    pub(crate) fn callback(&self, token: u64, code: Code) {
        self.reply(ReplyKind::Callback, Op(0), token, code, &[]);
    }

    pub(crate) fn print(&self, bytes: &[u8]) {
        self.reply(ReplyKind::Print, Op(0), 0, SUCCESS, bytes);
    }

    pub(crate) fn welcome(&self, body: &[u8]) {
        self.reply(ReplyKind::Welcome, Op(0), 0, SUCCESS, body);
    }

    /// The session ends, and why. Waits no longer than a client may take that is still there.
    pub(crate) fn bye(&self, why: &str) {
        let timeout = Some(Duration::from_secs(1));
        let replies = lock(&self.replies);
        let _ = replies.0.set_write_timeout(timeout);
        drop(replies);
        self.reply(ReplyKind::Bye, Op(0), 0, SUCCESS, why.as_bytes());
        if self.delayed.is_some() {
            let grace = Duration::from_millis(100);
            std::thread::sleep(grace + Duration::from_micros(self.inject.rtt_us));
        }
        let _ = lock(&self.replies).0.shutdown(std::net::Shutdown::Write);
    }

    /// Sends data, in frames.
    pub(crate) fn data(&self, kind: DataKind, seq: u64, at: u64, bytes: &[u8]) {
        let mut at = at;
        for chunk in bytes.chunks(CHUNK) {
            let len = chunk.len() as u32;
            let header = Data { kind, len, seq, at }.to_bytes();
            pace(self.inject.rate, chunk.len());
            let mut down = lock(&self.down);
            let sent = down.socket.0.write_all(&header);
            let _ = sent.and_then(|()| down.socket.0.write_all(chunk));
            down.sent += 1;
            self.sent.store(down.sent, Ordering::Release);
            drop(down);
            let whole = (header.len() + chunk.len()) as u64;
            self.stats.count(Counter::BytesDown, whole);
            at += u64::from(len);
        }
    }

    pub(crate) fn rate(&self) -> u64 {
        self.inject.rate
    }
}
