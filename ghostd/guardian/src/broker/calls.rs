//! What becomes of one call: it is read once, from a copy, and what is done is done by that copy.
//!
//! A call that takes, frees or duplicates device memory is done here, on a duplicate of the
//! caller's descriptor, with the caller's user and without capabilities: charged and written down
//! before, settled by the driver's answer after. A few questions are answered for the container
//! ([`super::card`]). All else the kernel does as if nobody had asked, with arguments that the
//! caller may change until then: such calls must not take device memory as far as is known, and
//! what is known to take it in another form is refused.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use ghost_model::ProcId;
use ghost_notify::{Credentials, Memory, Notification, ProcError, Thread, as_tenant_lasting};
use ghost_rm::abi::memory::{CLASS_DEVICE_MEMORY, MemoryParams};
use ghost_rm::abi::{CLASS_CHANNEL_GROUP, CLASS_DEVICE};
use ghost_rm::tenant::{
    self, AllocCall, Call, FreeCall, HeapCall, HeapFunction, argument_size, set_status,
};
use ghost_rm::{Control, RmError, Status};
use nix::errno::Errno;

use super::books::{MemoryId, Refusal};
use super::journal::KeepError;
use super::sessions::{Alone, Session};
use super::take::{Take, at_most};
use super::{Broker, chain, count};
use crate::ledger::LedgerError;

/// Classes that take device memory in a form that is not known here: physical memory, and lists of
/// its pages. CUDA uses none of them, and the driver gives them to its own kernel modules.
const OTHER_MEMORY: &[u32] = &[0x3F, 0x82, 0xC2];

/// Channels, and the compute engines on them, have classes that end like this.
const CHANNEL: u32 = 0x6F;
const COMPUTE: u32 = 0xC0;

/// A heap function that takes the host's memory only.
const HEAP_OS_DESCRIPTOR: u32 = 27;

/// What a call is told.
#[derive(Debug)]
pub(super) enum Answer {
    /// The kernel does it.
    Allow,
    /// It returned this.
    Return(Result<i64, i32>),
    /// It waits no more.
    Gone,
}

/// What became of a call.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) answer: Answer,
    /// What it made, to be given back if the caller never learns of it.
    made: Option<Made>,
    /// Until its answer is delivered, no other call of the thread is done.
    _alone: Option<Alone>,
}

/// An object that a call made.
#[derive(Debug)]
struct Made {
    thread: Arc<Thread>,
    who: Credentials,
    fd: RawFd,
    id: MemoryId,
}

/// A call that is being decided.
///
/// First all is looked up that it takes: the argument, the descriptor, the caller's rights. That the
/// call waits still after that proves it all to be the caller's, and then something is done.
pub(super) struct Asked<'a> {
    pub(super) broker: &'a Broker,
    pub(super) session: &'a Arc<Session>,
    pub(super) notification: &'a Notification,
    pub(super) fd: RawFd,
    /// Of the call itself, without its wrapper, as what follows.
    pub(super) cmd: u32,
    at: u64,
    ahead: Ahead,
    pub(super) argument: Vec<u8>,
    /// The argument as it was read.
    before: Vec<u8>,
    /// Who calls, once that is looked up.
    caller: Option<(Arc<Thread>, Credentials)>,
    made: Option<Made>,
    alone: Option<Alone>,
}

/// What was read with an argument: programs have most arguments and their parameters on the stack,
/// the parameters above, so that one look takes both.
struct Ahead {
    at: u64,
    length: usize,
    bytes: [u8; 512],
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            at: 0,
            length: 0,
            bytes: [0; 512],
        }
    }
}

impl Ahead {
    /// Reads an argument of whichever thread has `tid`, as [`Memory::peek`].
    fn read(&mut self, tid: i32, at: u64, argument: &mut [u8]) -> Result<(), ProcError> {
        self.length = 0;
        if argument.len() > self.bytes.len() {
            return Memory::peek(tid, at, argument);
        }
        self.length = Memory::peek_ahead(tid, at, argument.len(), &mut self.bytes)?;
        self.at = at;
        if let Some(bytes) = self.has(at, argument.len()) {
            argument.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// What was read of `length` bytes at `at`, if it was.
    fn has(&self, at: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        let read = self.bytes.get(..self.length)?;
        read.get(from..from.checked_add(length)?)
    }
}

/// Parameters that were copied, and where from.
pub(super) struct Params {
    pub(super) at: u64,
    /// What the driver is given, zeros behind what was copied.
    pub(super) bytes: Vec<u8>,
    /// How many bytes were copied and go back.
    pub(super) length: usize,
}

/// Decides a call and does it, if it is one that the broker does.
pub(super) fn decide(broker: &Broker, session: &Arc<Session>, call: &Notification) -> Outcome {
    let only = |answer| Outcome {
        answer,
        made: None,
        _alone: None,
    };
    let Some(ioctl) = call.ioctl() else {
        return only(Answer::Allow);
    };
    let Some(size) = argument_size(ioctl.cmd) else {
        return only(Answer::Allow);
    };
    let mut asked = Asked {
        broker,
        session,
        notification: call,
        fd: ioctl.fd,
        cmd: ioctl.cmd,
        at: ioctl.arg,
        ahead: Ahead::default(),
        argument: vec![0; size],
        before: Vec::new(),
        caller: None,
        made: None,
        alone: None,
    };
    let answer = asked.decide();
    Outcome {
        answer,
        made: asked.made,
        _alone: asked.alone,
    }
}

/// The caller will never learn what its call made.
pub(super) fn give_back(broker: &Broker, outcome: &Outcome) {
    let Some(made) = &outcome.made else {
        return;
    };
    let id = made.id;
    let freed = made.thread.with_fd(made.fd, |fd| {
        let free = || Control::new(fd).free(id.0, id.0.as_object(), id.1);
        broker
            .driver
            .owns(fd)
            .then(|| as_tenant_lasting(made.who, free))
    });
    if matches!(freed, Ok(Some(Ok(Ok(()))))) {
        let written = broker.state().keeper.free(id);
        broker.written(written);
    } else {
        // Its client is gone, or will be.
        broker.suspect(id.0);
    }
}

fn unreached(broker: &Broker, error: &ProcError) -> Answer {
    broker.note("unreached", format!("a tenant: {}", chain(error)));
    Answer::Return(Err(Errno::EIO as i32))
}

impl Asked<'_> {
    fn decide(&mut self) -> Answer {
        if let Err(error) = self.read_argument() {
            return self.unreadable(&error);
        }
        let mut call = tenant::parse(self.cmd, &self.argument);
        if let Ok(Call::Wrapped(wrapped)) = call {
            let Some((cmd, size)) = wrapped.cmd.and_then(|cmd| Some((cmd, argument_size(cmd)?)))
            else {
                return Answer::Allow;
            };
            (self.cmd, self.at) = (cmd, wrapped.at);
            self.argument = vec![0; size];
            if let Err(error) = self.read_argument() {
                return self.unreadable(&error);
            }
            call = tenant::parse(self.cmd, &self.argument);
        }
        match call {
            Ok(Call::Alloc(alloc)) => self.alloc(&alloc),
            Ok(Call::Heap(heap)) => self.heap(&heap),
            Ok(Call::Free(free)) => self.free(&free),
            Ok(Call::Dup(dup)) => self.dup(&dup),
            Ok(Call::Control(control)) => self.control(&control),
            Ok(call @ Call::OldAlloc(old)) if old.class == CLASS_DEVICE_MEMORY => {
                self.on_driver(|asked, fd| asked.sizes(fd, &call, (old.client, old.parent)))
            }
            Ok(Call::OldAlloc(old)) if OTHER_MEMORY.contains(&old.class) => {
                self.refuse_class(old.class)
            }
            Ok(Call::OldAlloc(_) | Call::Wrapped(_)) | Err(_) => Answer::Allow,
        }
    }

    fn read_argument(&mut self) -> Result<(), ProcError> {
        let (tid, at) = (self.notification.tid, self.at);
        self.ahead.read(tid, at, &mut self.argument)
    }

    /// Reads the caller's memory.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ProcError> {
        match self.ahead.has(at, into.len()) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => Memory::peek(self.notification.tid, at, into),
        }
    }

    /// The driver can read, through mappings of its own, what cannot be read from here: it must
    /// not.
    fn unreadable(&mut self, error: &ProcError) -> Answer {
        match error {
            ProcError::System { .. } => {
                self.on_driver(|_, _| Answer::Return(Err(Errno::EFAULT as i32)))
            }
            error => self.unreached(error),
        }
    }

    fn unreached(&self, error: &ProcError) -> Answer {
        if self.waits() {
            unreached(self.broker, error)
        } else {
            Answer::Gone
        }
    }

    fn waits(&self) -> bool {
        self.session.listener.still_waits(self.notification.id)
    }

    fn alloc(&mut self, alloc: &AllocCall) -> Answer {
        let (client, parent) = (alloc.client, alloc.parent);
        match alloc.class {
            CLASS_DEVICE_MEMORY => self.device_memory(alloc),
            class if OTHER_MEMORY.contains(&class) => self.refuse_class(class),
            CLASS_DEVICE if parent == client.as_object() => self.on_driver(|asked, fd| {
                let _ = asked.learn(fd, client);
                Answer::Allow
            }),
            CLASS_CHANNEL_GROUP => self.on_driver(|asked, fd| {
                if let Ok(card) = asked.card(fd, (client, parent)) {
                    let mut state = asked.broker.state();
                    state.learn_group((client, alloc.object), card);
                }
                Answer::Allow
            }),
            // The group that it is for is there by now.
            class if class & 0xFF == CHANNEL => {
                let channel = (client, alloc.object);
                let news = self.broker.state().learn_channel(channel, parent);
                self.stir_if(news)
            }
            class if class & 0xFF == COMPUTE => {
                let news = self.broker.state().learn_compute((client, parent));
                self.stir_if(news)
            }
            _ => Answer::Allow,
        }
    }

    fn stir_if(&self, news: bool) -> Answer {
        if news {
            self.broker.stir();
        }
        Answer::Allow
    }

    fn heap(&mut self, heap: &HeapCall) -> Answer {
        let client = heap.client;
        match heap.function {
            HeapFunction::Alloc { object, memory } => {
                let take = Take {
                    client,
                    parent: heap.device,
                    object,
                    class: CLASS_DEVICE_MEMORY,
                    bytes: at_most(memory),
                };
                if memory.flags & MemoryParams::VIRTUAL != 0 {
                    return Answer::Allow;
                }
                self.on_driver(|asked, fd| asked.take(fd, &take, None))
            }
            HeapFunction::Free { object } => self.free(&FreeCall {
                client,
                parent: heap.device,
                object,
            }),
            HeapFunction::Info => self
                .on_driver(|asked, fd| asked.sizes(fd, &Call::Heap(*heap), (client, heap.device))),
            HeapFunction::Other(HEAP_OS_DESCRIPTOR) => Answer::Allow,
            HeapFunction::Other(function) => self.on_driver(|asked, _| {
                let text = format!("heap function {function} is not known and was refused");
                asked.broker.note(format!("heap {function}"), text);
                asked.refused(Status::NOT_SUPPORTED)
            }),
        }
    }

    fn refuse_class(&mut self, class: u32) -> Answer {
        self.on_driver(|asked, _| {
            let text = format!("memory of class {class:#x} is not known and was refused");
            asked.broker.note(format!("class {class}"), text);
            asked.refused(Status::NOT_SUPPORTED)
        })
    }

    /// Calls `f` with a duplicate of the caller's descriptor, if that is the driver's. From here
    /// until its answer is delivered no other call of the thread is done.
    pub(super) fn on_driver(
        &mut self,
        f: impl FnOnce(&mut Self, BorrowedFd<'_>) -> Answer,
    ) -> Answer {
        let (session, tid) = (self.session, self.notification.tid);
        self.before.clone_from(&self.argument);
        self.alone = Some(session.alone(tid));
        let mut f = Some(f);
        let mut with = |thread: Arc<Thread>| {
            thread.with_fd(self.fd, |fd| {
                if !self.broker.driver.owns(fd) {
                    return Ok(Answer::Allow);
                }
                let who = thread.credentials()?;
                if !self.waits() {
                    return Ok(Answer::Gone);
                }
                self.caller = Some((thread.clone(), who));
                Ok(f.take().map_or(Answer::Gone, |f| f(self, fd)))
            })
        };
        // One that is known from an earlier call may be gone, and its number another's.
        let mut answer = session.known(tid).map(&mut with);
        if matches!(answer, None | Some(Err(ProcError::Gone { .. }))) {
            answer = Some(session.thread(tid).and_then(with));
        }
        match answer.map(Result::flatten) {
            None => Answer::Gone,
            Some(Ok(answer)) => answer,
            Some(Err(ProcError::NoSuchFd { .. })) => Answer::Allow,
            Some(Err(error)) => self.unreached(&error),
        }
    }

    /// Does something with the caller's rights.
    pub(super) fn as_caller<R>(&self, f: impl FnOnce() -> R) -> io::Result<R> {
        let (_, who) = self.caller.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let begin = Instant::now();
        let result = as_tenant_lasting(*who, f);
        let spent = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        count(&self.broker.counts.driver_ns, spent);
        result
    }

    /// The caller's process.
    pub(super) fn process(&self) -> Option<ProcId> {
        let (thread, _) = self.caller.as_ref()?;
        let process = thread.process();
        Some(ProcId {
            pid: process.pid.cast_unsigned(),
            start: process.start_ticks,
        })
    }

    /// The call made something: if the caller never learns of it, it is given back.
    pub(super) fn has_made(&mut self, id: MemoryId) {
        let fd = self.fd;
        let caller = self.caller.clone();
        self.made = caller.map(|(thread, who)| Made {
            thread,
            who,
            fd,
            id,
        });
    }

    /// It is given back already.
    pub(super) fn has_made_nothing(&mut self) {
        self.made = None;
    }

    /// Does the call, with the copies.
    pub(super) fn perform(
        &mut self,
        fd: BorrowedFd<'_>,
        params: Option<&mut Vec<u8>>,
    ) -> io::Result<Status> {
        count(&self.broker.counts.done, 1);
        let (cmd, mut argument) = (self.cmd, std::mem::take(&mut self.argument));
        let params = params.map(Vec::as_mut_slice);
        let done = self.as_caller(|| tenant::perform(fd, cmd, &mut argument, params));
        self.argument = argument;
        done.flatten()
    }

    /// Gives the caller the copies, as the driver or we have changed them.
    pub(super) fn write_back(&mut self, params: Option<&Params>) -> Answer {
        let params = params.and_then(|p| Some((p.at, p.bytes.get(..p.length)?)));
        // The most frequent answer is what stood there.
        let argument = (self.argument != self.before).then_some((self.at, &self.argument[..]));
        self.write(params.into_iter().chain(argument))
    }

    /// Writes to the caller's memory, and answers that the call was done.
    ///
    /// Its memory is opened before that, and then seen to be the caller's: a number could be
    /// another process's by now, or its program another one, that must not be written to.
    pub(super) fn write<'b>(
        &self,
        pieces: impl Iterator<Item = (u64, &'b [u8])> + Clone,
    ) -> Answer {
        if pieces.clone().next().is_none() {
            return Answer::Return(Ok(0));
        }
        let write = |memory: &Memory| {
            if !self.waits() {
                return Ok(Answer::Gone);
            }
            let written = pieces
                .clone()
                .try_for_each(|(at, bytes)| memory.write(at, bytes));
            match written {
                Ok(()) => Ok(Answer::Return(Ok(0))),
                Err(ProcError::Gone { pid }) => Err(ProcError::Gone { pid }),
                Err(_) => Ok(Answer::Return(Err(Errno::EFAULT as i32))),
            }
        };
        let held = self.caller.as_ref().and_then(|(thread, _)| thread.memory());
        let tid = self.notification.tid;
        match held.map(write) {
            Some(Ok(answer)) => return answer,
            // It was another program's.
            Some(Err(_)) => self.session.forget_thread(tid),
            None => {}
        }
        match Memory::open(tid).and_then(|memory| write(&memory)) {
            Ok(answer) => answer,
            Err(error) => self.unreached(&error),
        }
    }

    /// Answers in the driver's place.
    pub(super) fn status(&mut self, status: Status) -> Answer {
        set_status(self.cmd, &mut self.argument, status);
        self.write_back(None)
    }

    pub(super) fn refused(&mut self, status: Status) -> Answer {
        count(&self.broker.counts.refused, 1);
        self.status(status)
    }

    pub(super) fn refuse(&mut self, error: &KeepError) -> Answer {
        match error {
            // The caller's own business, and counted.
            KeepError::Refused(
                Refusal::Max { .. } | Refusal::Min { .. } | Refusal::Total { .. },
            ) => {}
            KeepError::Refused(Refusal::NoCard { card }) => {
                self.broker.note(format!("card {card}"), chain(error));
            }
            error => self.broker.note("refused", chain(error)),
        }
        self.refused(Status::NO_MEMORY)
    }

    /// The driver said no to a question of ours about the caller's objects: its answer to the call.
    pub(super) fn rm_refused(&mut self, error: &RmError) -> Answer {
        match error.status() {
            Some(status) => self.refused(status),
            None => self.refused(Status::OPERATING_SYSTEM),
        }
    }

    /// The call was not carried out.
    pub(super) fn not_done(&mut self, error: &io::Error) -> Answer {
        match error.raw_os_error() {
            Some(errno) => Answer::Return(Err(errno)),
            None if !self.waits() => Answer::Gone,
            None => {
                let number = self.cmd as u8;
                let text = format!("ioctl {number:#x} was refused: {}", chain(error));
                self.broker.note(format!("form {number}"), text);
                self.refused(Status::NOT_SUPPORTED)
            }
        }
    }

    pub(super) fn unknown_driver(&mut self) -> Answer {
        let text =
            "the driver's branch is not known: what takes memory or tells its size is refused";
        self.broker.note("branch", text);
        self.refused(Status::NOT_SUPPORTED)
    }
}

impl Broker {
    /// Says once that the journal cannot be written.
    pub(super) fn written(&self, written: Result<(), LedgerError>) {
        if let Err(error) = written {
            self.note("journal", chain(&error));
        }
    }
}
