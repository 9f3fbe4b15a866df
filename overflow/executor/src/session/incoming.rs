//! What comes from the client: commands, cut into batches, and bulk data, into buffers.

use super::Shared;
use crate::calls::calls;
use crate::link::{Link, Socket, pace};
use crate::staging::Staging;
use ghost_wire::Malformed;
use ghost_wire::frame::{Command, Data, DataKind};
use ghost_wire::message::{self, CallbackDone, Message};
use ghost_wire::stats::Counter;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Parts of bulk data that are read ahead.
pub(super) const AHEAD: usize = 8;
/// Bytes that are read at a time.
const READ: usize = 256 << 10;
/// Bytes of commands that may wait.
const MOST: usize = 64 << 20;
/// As [`MOST`], while a function of the program's runs: what it waits for may be behind them.
const MOST_CALLING: usize = 1 << 30;
/// How long the next command is looked for before the thread sleeps.
const LINGER: Duration = Duration::from_micros(20);

/// Commands that wait: whole frames, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Guards the batches and their size. Held for short.
    state: Mutex<(VecDeque<Vec<u8>>, usize)>,
    filled: Condvar,
    taken: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Vec<u8>>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, batch: Vec<u8>) {
        let mut state = self.lock();
        loop {
            let most = if calls().any() { MOST_CALLING } else { MOST };
            if state.1 < most {
                break;
            }
            let (woken, _) = self
                .taken
                .wait_timeout(state, Duration::from_millis(10))
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
        }
        state.1 += batch.len();
        state.0.push_back(batch);
        drop(state);
        self.filled.notify_one();
    }

    /// The next batch, as soon as there is one.
    pub(super) fn pop(&self) -> Vec<u8> {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.0.pop_front() {
                state.1 -= batch.len();
                self.taken.notify_one();
                return batch;
            }
            if since.elapsed() < LINGER {
                drop(state);
                std::thread::yield_now();
                state = self.lock();
                continue;
            }
            let woken = self.filled.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How long the first frame of `bytes` is, header and body, once that is known.
fn first(bytes: &[u8]) -> Result<Option<(Command, usize)>, Malformed> {
    let Some(header) = bytes.first_chunk() else {
        return Ok(None);
    };
    let command = Command::from_bytes(*header)?;
    Ok(Some((command, Command::SIZE + command.len as usize)))
}

/// A frame's header, its body, and what follows.
pub(super) type Frame<'a> = (Command, &'a [u8], &'a [u8]);

/// Takes the first whole frame off `bytes`.
pub(super) fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, Malformed> {
    let Some((command, len)) = first(bytes)? else {
        return Ok(None);
    };
    Ok(bytes.split_at_checked(len).map(|(frame, rest)| {
        let body = frame.get(Command::SIZE..).unwrap_or_default();
        (command, body, rest)
    }))
}

/// Bytes of the whole frames that `bytes` begins with. Returns of the program's functions are
/// handled at once.
fn whole(bytes: &[u8]) -> Result<usize, Malformed> {
    let mut rest = bytes;
    while let Some((command, body, after)) = split(rest)? {
        if command.op == CallbackDone::OP {
            calls().done(message::read::<CallbackDone>(body)?.token);
        }
        rest = after;
    }
    Ok(bytes.len() - rest.len())
}

/// Reads commands until the connection ends; says why if that is the client's fault.
pub(super) fn read_commands(mut from: Socket, queue: &Queue, link: &Link) -> Option<String> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut read = vec![0; READ];
    loop {
        let got = match from.read(&mut read) {
            Ok(0) => return None,
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(_) => return None,
        };
        bytes.extend_from_slice(read.get(..got).unwrap_or_default());
        link.stats.count(Counter::BytesUp, got as u64);
        match whole(&bytes) {
            Ok(0) => {}
            Ok(len) => {
                let rest = bytes.split_off(len);
                queue.push(std::mem::replace(&mut bytes, rest));
            }
            Err(error) => return Some(format!("a command is malformed: {error}")),
        }
    }
}

/// A part of a command's bulk data.
pub(super) type Part = (Data, Staging);

/// Reads bulk data until the connection ends; says why if that is the client's fault.
pub(super) fn read_up(mut from: Socket, shared: &Shared, to: &SyncSender<Part>) -> Option<String> {
    loop {
        let mut header = [0; Data::SIZE];
        from.read_exact(&mut header).ok()?;
        let data = match Data::from_bytes(header) {
            Ok(data) if data.kind == DataKind::Part => data,
            Ok(_) => return Some("bulk data is of a kind that only comes down".to_owned()),
            Err(error) => return Some(format!("bulk data is malformed: {error}")),
        };
        let taken = shared.copies.pool.take(&shared.driver, data.len as usize);
        let mut staging = match taken {
            Ok(staging) => staging,
            Err(error) => return Some(error.to_string()),
        };
        from.read_exact(staging.bytes_mut()).ok()?;
        let whole = Data::SIZE as u64 + u64::from(data.len);
        shared.link.stats.count(Counter::BytesUp, whole);
        pace(shared.link.rate(), data.len as usize);
        to.send((data, staging)).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_wire::Op;

    #[test]
    fn frames_are_cut_where_they_end() {
        let frame = |len: u32| {
            let op = Op(3);
            let waited = false;
            let mut bytes = Command { op, waited, len }.to_bytes().to_vec();
            bytes.resize(Command::SIZE + len as usize, 9);
            bytes
        };
        let mut bytes = [frame(16), frame(0), frame(8)].concat();
        assert_eq!(whole(&bytes), Ok(bytes.len()));
        bytes.pop();
        assert_eq!(whole(&bytes), Ok(32));
        assert_eq!(whole(&bytes[..20]), Ok(0));
        let huge = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(whole(&huge), Err(Malformed::Frame(u32::MAX.into())));
    }
}
