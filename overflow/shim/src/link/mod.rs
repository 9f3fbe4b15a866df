//! The link to the executor: four connections, one order of commands.
//!
//! A command that is not waited for is appended to a buffer, which a thread of the link's writes.
//! Who waits writes the buffer himself, and is woken by the thread that reads replies. Bulk data has
//! connections of its own. What comes late (an error, printed text, a callback) is handled by the
//! readers.

mod commands;
mod landings;
mod readers;
mod region;
#[cfg(test)]
mod tests;
mod waiters;

pub(crate) use region::Region;

use commands::{ANY, Commands};
use ghost_link::{Opened, Stream};
use ghost_wire::frame::{Data, DataKind};
use ghost_wire::message::{Bye, CallbackDone, Field, Message};
use ghost_wire::result::{CONTEXT_IS_DESTROYED, Code, INVALID_VALUE, SUCCESS, UNKNOWN};
use ghost_wire::stats::Counter;
use ghost_wire::{CHUNK, Decoder, Encoder, INLINE_MAX, Malformed, Op};
use landings::Landings;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};
use waiters::Waiters;

/// What the link asks for, and calls when something comes unasked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handlers {
    /// The calling thread's current context, as the wire has it; 0 for none.
    pub(crate) context: fn() -> u64,
    /// A function of the program's is due: token and code. Called on the thread for callbacks; the
    /// link says `CallbackDone` when it returns.
    pub(crate) callback: fn(token: u64, code: Code),
    /// The device changed shared memory: address, and the bytes that are there now. Called on the
    /// thread that reads `down`, before any reply that counts it is acted on.
    pub(crate) changed: fn(at: u64, data: &[u8]),
}

/// How the bytes of a command's answer become a value.
type Decoded<T> = Result<T, Malformed>;

/// The link.
#[derive(Debug)]
pub(crate) struct Link {
    address: String,
    commands: Commands,
    /// Guards the connection `up`. Held over a command and its data, so that both have one order.
    up: Mutex<Stream>,
    waiters: Waiters,
    landings: Landings,
    handlers: Handlers,
    /// The first error of a command that was not waited for, until a call reports it.
    pending: AtomicU32,
    /// Whether each command is waited for.
    wait_always: bool,
    /// Set when the session ends as it should: nothing is said of the connections that end.
    closing: AtomicBool,
    broken: OnceLock<String>,
    /// To shut the connections down from any thread.
    sockets: Vec<TcpStream>,
    /// The connections themselves, for a forked child.
    descriptors: [RawFd; 4],
}

/// How long whoever loses a connection waits for the executor's own word on it.
const LAST_WORD: Duration = Duration::from_millis(300);

impl Link {
    /// Takes over the connections of a session and starts the threads.
    ///
    /// # Errors
    /// Those of duplicating a socket, and of starting a thread.
    pub(crate) fn start(
        opened: Opened,
        address: &str,
        wait_always: bool,
        handlers: Handlers,
    ) -> io::Result<Arc<Self>> {
        let streams = [&opened.commands, &opened.replies, &opened.up, &opened.down];
        let sockets = streams.map(|stream| stream.socket().try_clone());
        let descriptors = streams.map(|stream| stream.socket().as_raw_fd());
        let link = Arc::new(Self {
            address: address.to_owned(),
            commands: Commands::new(opened.commands),
            up: Mutex::new(opened.up),
            waiters: Waiters::default(),
            landings: Landings::default(),
            handlers,
            pending: AtomicU32::new(SUCCESS),
            wait_always,
            closing: AtomicBool::new(false),
            broken: OnceLock::new(),
            sockets: sockets.into_iter().collect::<io::Result<_>>()?,
            descriptors,
        });
        let (send, due) = mpsc::channel();
        let (replies, down) = (opened.replies, opened.down);
        let signals = Blocked::all();
        let started = [
            spawn("ghost-flush", &link, |link| {
                if let Err(error) = link.commands.run(|| link.broken().is_some()) {
                    link.lost(&error);
                }
            }),
            spawn("ghost-replies", &link, move |link| {
                let why = readers::replies(link, replies, &send);
                link.end(&why.to_string());
            }),
            spawn("ghost-down", &link, move |link| {
                let why = readers::down(link, down);
                link.end_unless_told(&why.to_string());
            }),
            spawn("ghost-callbacks", &link, move |link| {
                readers::callbacks(link, &due);
            }),
        ];
        drop(signals);
        started.into_iter().collect::<io::Result<()>>()?;
        Ok(link)
    }

    /// Sends a command that is not waited for. A late error that is pending is returned instead,
    /// once, and nothing sent. `encode` must append the command's body and do nothing else: a
    /// lock is held.
    #[inline]
    pub(crate) fn post(&self, op: Op, encode: impl FnOnce(&mut Encoder<'_>)) -> Code {
        if self.wait_always {
            return crate::answer(self.wait(op, encode, |_| Ok(())));
        }
        crate::answer(self.send(op, encode, |_| {}))
    }

    /// Sends a command and waits for its answer, which `decode` reads.
    ///
    /// # Errors
    /// The answer's code, or that of a broken link.
    pub(crate) fn wait<T>(
        &self,
        op: Op,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Decoded<T>,
    ) -> Result<T, Code> {
        let slot = Waiters::slot();
        self.append(op, true, encode, |seq| self.waiters.register(seq, &slot))?;
        self.flush()?;
        self.take(op, &slot, decode)
    }

    /// As [`Link::wait`], for calls of class `syncs`: where it succeeds, a late error that is
    /// pending is returned in its place.
    ///
    /// # Errors
    /// As in `wait`, and the late error.
    pub(crate) fn wait_sync<T>(
        &self,
        op: Op,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Decoded<T>,
    ) -> Result<T, Code> {
        let value = self.wait(op, encode, decode)?;
        self.take_late()?;
        Ok(value)
    }

    /// Takes the late error that is pending, for calls of class `syncs` that are answered here.
    ///
    /// # Errors
    /// The late error.
    #[inline]
    pub(crate) fn take_late(&self) -> Result<(), Code> {
        if self.pending.load(Ordering::Acquire) == SUCCESS {
            return Ok(());
        }
        match self.pending.swap(SUCCESS, Ordering::AcqRel) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Sends a command with data of the program's, not waited for; the source is free when it
    /// returns. `encode` is given whether the data goes by `up` (`bulk`) and otherwise the data.
    ///
    /// # Safety
    /// The region can be read.
    pub(crate) unsafe fn post_data(
        &self,
        op: Op,
        source: Region,
        encode: impl FnOnce(&mut Encoder<'_>, bool, &[u8]),
    ) -> Code {
        if self.wait_always {
            // SAFETY: the caller's promise.
            let waited = unsafe { self.wait_data(op, source, encode, |_| Ok(())) };
            return crate::answer(waited);
        }
        let posted = self.take_late().and_then(|()| {
            // SAFETY: the caller's promise.
            unsafe { self.with_data(op, false, INLINE_MAX, source, encode, |_| {}) }
        });
        if posted.is_ok() {
            crate::stats::count(Counter::Posted, 1);
        }
        crate::answer(posted)
    }

    /// As [`Link::post_data`], waited for.
    ///
    /// # Safety
    /// The region can be read.
    ///
    /// # Errors
    /// As in [`Link::wait`].
    pub(crate) unsafe fn wait_data<T>(
        &self,
        op: Op,
        source: Region,
        encode: impl FnOnce(&mut Encoder<'_>, bool, &[u8]),
        decode: impl FnOnce(&mut Decoder<'_>) -> Decoded<T>,
    ) -> Result<T, Code> {
        let slot = Waiters::slot();
        let register = |seq| self.waiters.register(seq, &slot);
        // SAFETY: the caller's promise.
        unsafe { self.with_data(op, true, INLINE_MAX, source, encode, register) }?;
        self.flush()?;
        self.take(op, &slot, decode)
    }

    /// Sends a command whose data, if it has any, goes by `up` however short it is, and waits;
    /// `decode` is given the answer's code and its whole body, also where the code is an error.
    ///
    /// # Safety
    /// The region can be read.
    ///
    /// # Errors
    /// What `decode` makes of the answer, and the code of a broken link.
    pub(crate) unsafe fn wait_whole<T>(
        &self,
        op: Op,
        source: Region,
        encode: impl FnOnce(&mut Encoder<'_>, bool),
        decode: impl FnOnce(Code, &[u8]) -> Decoded<Result<T, Code>>,
    ) -> Result<T, Code> {
        let slot = Waiters::slot();
        let register = |seq| self.waiters.register(seq, &slot);
        let encode = |to: &mut Encoder<'_>, bulk, _: &[u8]| encode(to, bulk);
        // SAFETY: the caller's promise.
        unsafe { self.with_data(op, true, 0, source, encode, register) }?;
        self.flush()?;
        self.take_whole(op, &slot, decode)
    }

    /// Sends a command whose data comes back by `down`, later, into `to`; not waited for.
    ///
    /// # Safety
    /// The region can be written until [`Link::landed`] says that all has come.
    pub(crate) unsafe fn post_landing(
        &self,
        op: Op,
        to: Region,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Code {
        if self.wait_always {
            // SAFETY: the caller's promise.
            return crate::answer(unsafe { self.wait_landing(op, to, encode) });
        }
        crate::answer(self.send(op, encode, |seq| self.landings.open(seq, to)))
    }

    /// Sends a command whose data comes back by `down` into `to`, and waits for it.
    ///
    /// # Safety
    /// The region can be written until this returns.
    ///
    /// # Errors
    /// As in [`Link::wait_sync`].
    pub(crate) unsafe fn wait_landing(
        &self,
        op: Op,
        to: Region,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<(), Code> {
        let slot = Waiters::slot();
        self.append(op, true, encode, |seq| {
            self.waiters.register(seq, &slot);
            self.landings.open(seq, to);
        })?;
        self.flush()?;
        self.take(op, &slot, |_| Ok(()))?;
        self.take_late()
    }

    /// Waits until no data is on its way into `len` bytes at `at`.
    ///
    /// # Errors
    /// That of a broken link.
    pub(crate) fn landed(&self, at: u64, len: usize) -> Result<(), Code> {
        if self.landings.busy(at, len) {
            self.flush()?;
            let ended = || self.broken().is_some();
            self.landings.wait_clear(at, len, ended);
        }
        self.check()
    }

    /// Why the session has ended, if it has.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// Says goodbye and writes what is left, as far as that goes within a second.
    pub(crate) fn finish(&self) {
        self.closing.store(true, Ordering::Release);
        let _ = self
            .commands
            .append(Bye::OP, false, ANY, |to| Bye {}.put(to), |_| {});
        let deadline = Instant::now() + Duration::from_secs(1);
        let _ = self.commands.flush_until(deadline);
    }

    /// In a forked child: lets go of the connections, which are the parent's.
    pub(crate) fn abandon(&self) {
        let clones = self.sockets.iter().map(AsRawFd::as_raw_fd);
        for fd in clones.chain(self.descriptors) {
            // SAFETY: the link is not used in this process any more, and never closes them itself.
            unsafe { libc::close(fd) };
        }
    }

    /// Ends the session, with this cause where the executor does not tell another.
    fn end_unless_told(&self, why: &str) {
        let deadline = Instant::now() + LAST_WORD;
        while self.broken().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end(why);
    }

    /// Ends the session: all who wait are answered, all connections closed.
    fn end(&self, why: &str) {
        let first = self.broken.set(why.to_owned()).is_ok();
        if first && !self.closing.load(Ordering::Acquire) {
            crate::session::say(format_args!(
                "the session with {} has ended: {why}; every CUDA call fails from now on",
                self.address
            ));
        }
        for socket in &self.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.waiters.answer_all(CONTEXT_IS_DESTROYED);
        self.landings.end();
        self.commands.wake();
    }

    #[inline]
    fn check(&self) -> Result<(), Code> {
        match self.broken.get() {
            None => Ok(()),
            Some(_) => Err(CONTEXT_IS_DESTROYED),
        }
    }

    #[inline]
    fn send(
        &self,
        op: Op,
        encode: impl FnOnce(&mut Encoder<'_>),
        register: impl FnOnce(u64),
    ) -> Result<(), Code> {
        self.take_late()?;
        self.append(op, false, encode, register)?;
        crate::stats::count(Counter::Posted, 1);
        self.commands.soon().map_err(|error| self.lost(&error))
    }

    #[inline]
    fn append(
        &self,
        op: Op,
        waited: bool,
        encode: impl FnOnce(&mut Encoder<'_>),
        register: impl FnOnce(u64),
    ) -> Result<(), Code> {
        self.check()?;
        let context = (self.handlers.context)();
        let appended = self.commands.append(op, waited, context, encode, register);
        appended.map_err(|_| INVALID_VALUE)
    }

    /// # Safety
    /// The region can be read.
    unsafe fn with_data(
        &self,
        op: Op,
        waited: bool,
        inline: usize,
        source: Region,
        encode: impl FnOnce(&mut Encoder<'_>, bool, &[u8]),
        register: impl FnOnce(u64),
    ) -> Result<(), Code> {
        let len = source.len();
        let mut packed = Vec::new();
        if len <= inline {
            let data = if len == 0 {
                &[]
            } else if source.is_flat() {
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts(source.base.cast_const(), len) }
            } else {
                // SAFETY: the caller's promise.
                unsafe { source.gather(0, len, &mut packed) };
                &packed
            };
            self.append(op, waited, |to| encode(to, false, data), register)?;
            return self.commands.soon().map_err(|error| self.lost(&error));
        }
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seq = 0;
        self.append(
            op,
            waited,
            |to| encode(to, true, &[]),
            |number| {
                seq = number;
                register(number);
            },
        )?;
        self.flush()?;
        for at in (0..len).step_by(CHUNK) {
            let part = CHUNK.min(len - at);
            let header = Data {
                kind: DataKind::Part,
                len: part as u32,
                seq,
                at: at as u64,
            };
            let data = if source.is_flat() {
                // SAFETY: the caller's promise; the part lies inside of the region.
                unsafe { std::slice::from_raw_parts(source.base.wrapping_add(at), part) }
            } else {
                packed.clear();
                // SAFETY: the caller's promise.
                unsafe { source.gather(at, part, &mut packed) };
                &packed
            };
            crate::stats::count(Counter::BytesUp, (Data::SIZE + part) as u64);
            let sent = up.send(&header.to_bytes(), data);
            sent.map_err(|error| self.lost(&error))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Code> {
        self.commands.flush().map_err(|error| self.lost(&error))
    }

    /// A connection failed under a writer.
    fn lost(&self, error: &io::Error) -> Code {
        self.end_unless_told(&readers::lost(error));
        CONTEXT_IS_DESTROYED
    }

    fn take<T>(
        &self,
        op: Op,
        slot: &waiters::Slot,
        decode: impl FnOnce(&mut Decoder<'_>) -> Decoded<T>,
    ) -> Result<T, Code> {
        self.take_whole(op, slot, |code, body| {
            if code != SUCCESS {
                return Ok(Err(code));
            }
            let mut body = Decoder::new(body);
            let value = decode(&mut body)?;
            body.end()?;
            Ok(Ok(value))
        })
    }

    fn take_whole<T>(
        &self,
        op: Op,
        slot: &waiters::Slot,
        decode: impl FnOnce(Code, &[u8]) -> Decoded<Result<T, Code>>,
    ) -> Result<T, Code> {
        // Whoever ended the link may have looked for waiters before this one was there.
        if self.broken().is_some() {
            self.waiters.answer_all(CONTEXT_IS_DESTROYED);
        }
        let since = Instant::now();
        let answer = slot.take();
        let ended = || self.broken().is_some();
        self.landings.wait_taken(answer.delivered, ended);
        let micros = since.elapsed().as_micros();
        crate::stats::waited(op, u64::try_from(micros).unwrap_or(u64::MAX));
        decode(answer.code, &answer.body).unwrap_or_else(|error| {
            self.end(&format!(
                "the answer to {} makes no sense: {error}",
                op.name()
            ));
            Err(UNKNOWN)
        })
    }

    /// A command that was not waited for failed.
    fn late(&self, op: Op, code: Code) {
        let kept =
            self.pending
                .compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Acquire);
        if kept.is_err_and(|earlier| earlier != code) {
            crate::session::say(format_args!(
                "{} failed with {code} too, after an error that no call has reported yet",
                op.name()
            ));
        }
    }

    /// Tells the executor that a function of the program's has returned.
    fn callback_done(&self, token: u64) {
        let done = CallbackDone { token };
        let sent = self
            .commands
            .append(CallbackDone::OP, false, ANY, |to| done.put(to), |_| {});
        if sent.is_ok() {
            let _ = self.flush();
        }
    }
}

fn spawn(name: &str, link: &Arc<Link>, run: impl FnOnce(&Link) + Send + 'static) -> io::Result<()> {
    let link = Arc::clone(link);
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || run(&link))
        .map(drop)
}

/// All signals blocked in this thread, and so in those that it starts, until dropped: the program's
/// handlers run on the program's threads.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        // SAFETY: two sets of our own; a sigset_t of zeroes is one.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that was there before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
