//! The commands on their way: threads append to one buffer, and whoever flushes it writes for all.

use ghost_link::Stream;
use ghost_wire::frame::{COMMAND_MAX, Command};
use ghost_wire::message::{Field, Message, Use};
use ghost_wire::stats::Counter;
use ghost_wire::{Encoder, Op};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Whoever fills the buffer beyond this writes it before he goes on.
const FULL: usize = 1 << 20;

/// How long the flusher looks for more before it sleeps.
const LINGER: Duration = Duration::from_micros(30);

/// The context of commands for which it does not matter.
pub(super) const ANY: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// The number of the last command in it, or sent.
    seq: u64,
    /// The context that the last `Use` named.
    context: u64,
}

#[derive(Debug)]
struct Writer {
    stream: Stream,
    /// The buffer that is not in use.
    spare: Vec<u8>,
}

/// The commands of all threads, in the one order that counts.
#[derive(Debug)]
pub(super) struct Commands {
    /// Guards the order of commands. Held while one is appended.
    buffer: Mutex<Buffer>,
    /// Guards the connection. Held while writing; taken before `buffer`.
    writer: Mutex<Writer>,
    /// Bytes in the buffer, for a look without the lock.
    waiting: AtomicUsize,
    /// Whether the flusher will look at the buffer again without being woken.
    awake: AtomicBool,
    flusher: OnceLock<Thread>,
}

/// A command of more than [`COMMAND_MAX`] bytes.
#[derive(Debug)]
pub(super) struct TooLarge;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            buffer: Mutex::default(),
            writer: Mutex::new(Writer {
                stream,
                spare: Vec::new(),
            }),
            waiting: AtomicUsize::new(0),
            awake: AtomicBool::new(true),
            flusher: OnceLock::new(),
        }
    }

    /// Appends a command, to be carried out in `context`. `register` is told its number before it
    /// can be sent.
    ///
    /// # Errors
    /// [`TooLarge`]: nothing is appended.
    #[inline]
    pub(super) fn append(
        &self,
        op: Op,
        waited: bool,
        context: u64,
        encode: impl FnOnce(&mut Encoder<'_>),
        register: impl FnOnce(u64),
    ) -> Result<(), TooLarge> {
        let mut buffer = lock(&self.buffer);
        let Buffer {
            bytes,
            seq,
            context: last,
        } = &mut *buffer;
        if context != ANY && context != *last {
            let named = frame(bytes, Use::OP, false, |to| Use { context }.put(to));
            if named.is_ok() {
                *seq += 1;
                *last = context;
            }
        }
        frame(bytes, op, waited, encode)?;
        *seq += 1;
        register(*seq);
        self.waiting.store(bytes.len(), Ordering::Release);
        Ok(())
    }

    /// After an append that is not waited for: has it sent soon.
    ///
    /// # Errors
    /// Those of the connection.
    #[inline]
    pub(super) fn soon(&self) -> io::Result<()> {
        if self.waiting.load(Ordering::Relaxed) > FULL {
            return self.flush();
        }
        if !self.awake.load(Ordering::SeqCst) && !self.awake.swap(true, Ordering::SeqCst) {
            self.wake();
        }
        Ok(())
    }

    /// Writes all that was appended before.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.flush_with(&mut lock(&self.writer))
    }

    /// As [`Commands::flush`], but gives up when another thread writes until `deadline`.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn flush_until(&self, deadline: Instant) -> io::Result<()> {
        loop {
            if let Ok(mut writer) = self.writer.try_lock() {
                let left = deadline.saturating_duration_since(Instant::now());
                let left = left.max(Duration::from_millis(10));
                writer.stream.socket().set_write_timeout(Some(left))?;
                return self.flush_with(&mut writer);
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn flush_with(&self, writer: &mut Writer) -> io::Result<()> {
        let Writer { stream, spare } = writer;
        loop {
            spare.clear();
            {
                let mut buffer = lock(&self.buffer);
                std::mem::swap(&mut buffer.bytes, spare);
                self.waiting.store(0, Ordering::Release);
            }
            if spare.is_empty() {
                return Ok(());
            }
            crate::stats::count(Counter::BytesUp, spare.len() as u64);
            stream.write_all(spare)?;
            stream.flush()?;
        }
    }

    /// Writes what is posted, on a thread of its own, until `ended`.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn run(&self, ended: impl Fn() -> bool) -> io::Result<()> {
        let _ = self.flusher.set(std::thread::current());
        while !ended() {
            self.flush()?;
            let since = Instant::now();
            while self.waiting.load(Ordering::Acquire) == 0 {
                if since.elapsed() < LINGER {
                    std::thread::yield_now();
                    continue;
                }
                self.awake.store(false, Ordering::SeqCst);
                if lock(&self.buffer).bytes.is_empty() && !ended() {
                    std::thread::park();
                }
                self.awake.store(true, Ordering::SeqCst);
                break;
            }
        }
        Ok(())
    }

    /// Wakes the flusher.
    pub(super) fn wake(&self) {
        if let Some(flusher) = self.flusher.get() {
            flusher.unpark();
        }
    }
}

/// Appends one frame.
fn frame(
    bytes: &mut Vec<u8>,
    op: Op,
    waited: bool,
    encode: impl FnOnce(&mut Encoder<'_>),
) -> Result<(), TooLarge> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; Command::SIZE]);
    encode(&mut Encoder::new(bytes));
    let len = bytes.len() - start - Command::SIZE;
    let len = u32::try_from(len).ok().filter(|len| *len <= COMMAND_MAX);
    let (Some(len), Some(header)) = (len, bytes.get_mut(start..start + Command::SIZE)) else {
        bytes.truncate(start);
        return Err(TooLarge);
    };
    header.copy_from_slice(&Command { op, waited, len }.to_bytes());
    Ok(())
}
