//! The threads that read what comes from the executor, and the one that runs callbacks.

use super::waiters::Answer;
use super::{Link, Region};
use ghost_link::Stream;
use ghost_wire::frame::{Data, DataKind, Reply, ReplyKind};
use ghost_wire::result::Code;
use ghost_wire::stats::Counter;
use ghost_wire::{CHUNK, Malformed};
use std::io::{self, BufReader, Read};
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Bytes read at once; what is larger goes straight to its place.
const AHEAD: usize = 64 << 10;

/// Why a connection that only brings something has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// Closed, or cut.
    #[error("{}", lost(.0))]
    Io(#[from] io::Error),
    /// Not of the protocol.
    #[error("the executor sent what is not of the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// The executor said why.
    #[error("the executor ended the session: {0}")]
    Bye(String),
}

/// What has become of a connection, for people.
pub(super) fn lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the executor closed the connection".to_owned(),
        io::ErrorKind::TimedOut => "the link is cut: the peer does not answer".to_owned(),
        _ => format!("the connection failed: {error}"),
    }
}

/// A function of the program's that is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    token: u64,
    code: Code,
    delivered: u64,
}

/// A reader that does not close the connection when it ends: a forked child closes it by its number,
/// which must not have become another file's.
fn kept(stream: Stream) -> ManuallyDrop<BufReader<Stream>> {
    ManuallyDrop::new(BufReader::with_capacity(AHEAD, stream))
}

/// Reads replies until the connection ends, and says why it did.
pub(super) fn replies(link: &Link, stream: Stream, due: &Sender<Due>) -> ReadError {
    let mut stream = kept(stream);
    loop {
        if let Err(error) = reply(link, &mut stream, due) {
            return error;
        }
    }
}

fn reply(link: &Link, stream: &mut BufReader<Stream>, due: &Sender<Due>) -> Result<(), ReadError> {
    let mut header = [0; Reply::SIZE];
    stream.read_exact(&mut header)?;
    let reply = Reply::from_bytes(header)?;
    let mut body = vec![0; reply.len as usize];
    stream.read_exact(&mut body)?;
    crate::stats::count(Counter::BytesDown, (Reply::SIZE + body.len()) as u64);
    match reply.kind {
        ReplyKind::Answer => {
            if reply.code != 0 {
                link.landings.close(reply.seq);
            }
            let answer = Answer {
                code: reply.code,
                delivered: reply.delivered,
                body,
            };
            link.waiters.answer(reply.seq, answer);
        }
        ReplyKind::Late => {
            link.landings.close(reply.seq);
            link.late(reply.op, reply.code);
        }
        ReplyKind::Print => print(&body),
        ReplyKind::Callback => {
            let _ = due.send(Due {
                token: reply.seq,
                code: reply.code,
                delivered: reply.delivered,
            });
        }
        ReplyKind::Bye => {
            return Err(ReadError::Bye(String::from_utf8_lossy(&body).into_owned()));
        }
        ReplyKind::Welcome => return Err(Malformed::Op(reply.kind as u16).into()),
    }
    Ok(())
}

/// What the device's code printed goes where the program's own output goes and in order with it:
/// through the C library's buffer, as from the driver.
fn print(text: &[u8]) {
    const TRIES: usize = 100;
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        fn ftrylockfile(file: *mut libc::FILE) -> libc::c_int;
        fn funlockfile(file: *mut libc::FILE);
    }
    for _ in 0..TRIES {
        // SAFETY: the C library's own stream, which is there as long as the program; as many bytes
        // as the text has.
        unsafe {
            if ftrylockfile(stdout) == 0 {
                libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout);
                funlockfile(stdout);
                return;
            }
        }
        // A thread that has the stream to itself may be one that waits for this connection.
        std::thread::sleep(Duration::from_millis(1));
    }
    print_past(text);
}

/// The same, past the C library.
fn print_past(mut text: &[u8]) {
    while !text.is_empty() {
        // SAFETY: as many bytes as the text has.
        let written = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
        match usize::try_from(written) {
            Ok(written) => text = text.get(written..).unwrap_or_default(),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Reads bulk data until the connection ends, and says why it did.
pub(super) fn down(link: &Link, stream: Stream) -> ReadError {
    let mut stream = kept(stream);
    let mut scratch = Vec::new();
    loop {
        if let Err(error) = data(link, &mut stream, &mut scratch) {
            return error;
        }
        link.landings.took();
    }
}

fn data(
    link: &Link,
    stream: &mut BufReader<Stream>,
    scratch: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let mut header = [0; Data::SIZE];
    stream.read_exact(&mut header)?;
    let data = Data::from_bytes(header)?;
    let len = data.len as usize;
    crate::stats::count(Counter::BytesDown, (Data::SIZE + len) as u64);
    let region = match data.kind {
        DataKind::Part => link.landings.region(data.seq),
        DataKind::Memory => None,
    };
    let at = usize::try_from(data.at).unwrap_or(usize::MAX);
    if let Some(region) = region.filter(Region::is_flat)
        && at.checked_add(len).is_some_and(|end| end <= region.len())
    {
        // SAFETY: inside of the region, which stays the program's until all has come.
        let to = unsafe { std::slice::from_raw_parts_mut(region.base.wrapping_add(at), len) };
        stream.read_exact(to)?;
    } else {
        scratch.resize(len.min(CHUNK), 0);
        stream.read_exact(scratch)?;
        match (data.kind, region) {
            (DataKind::Memory, _) => (link.handlers.changed)(data.at, scratch),
            // SAFETY: the region stays the program's until all has come.
            (DataKind::Part, Some(region)) => unsafe { region.scatter(at, scratch) },
            (DataKind::Part, None) => {}
        }
    }
    link.landings.came(data.seq, len);
    Ok(())
}

/// Runs what is due, in its order.
pub(super) fn callbacks(link: &Link, due: &Receiver<Due>) {
    while let Ok(due) = due.recv() {
        link.landings
            .wait_taken(due.delivered, || link.broken().is_some());
        (link.handlers.callback)(due.token, due.code);
        link.callback_done(due.token);
    }
}
