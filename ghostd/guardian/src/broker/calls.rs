//! What becomes of one call: it is read once, from a copy, and what is done is done by that copy.
//!
//! A call that takes, frees or duplicates device memory is done here, on a duplicate of the
//! caller's descriptor, with the caller's user and without capabilities: charged and written down
//! before, settled by the driver's answer after. A few questions are answered for the container
//! ([`super::card`]). All else the kernel does as if nobody had asked, with arguments that the
//! caller may change until then: such calls must not take device memory as far as is known, and
//! what is known to take it in another form is refused.

use std::io::{self, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use ghost_notify::{Ioctl, Memory, Notification, ProcError, Thread, as_tenant};
use ghost_rm::abi::memory::{CLASS_DEVICE_MEMORY, MemoryParams};
use ghost_rm::abi::{CLASS_CHANNEL_GROUP, CLASS_DEVICE, ESC_RM_CONTROL};
use ghost_rm::tenant::{
    self, AllocCall, Call, FreeCall, HeapCall, HeapFunction, argument_size, set_status,
};
use ghost_rm::{Control, RmError, Status};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::books::{MemoryId, Refusal};
use super::journal::KeepError;
use super::sessions::{Alone, Session};
use super::take::{Take, at_most};
use super::{Broker, chain, count};
use crate::ledger::LedgerError;

/// Classes that take device memory in a form that is not known here: physical memory, and lists of
/// its pages. CUDA uses none of them, and the driver gives them to its own kernel modules.
const OTHER_MEMORY: &[u32] = &[0x3F, 0x82, 0xC2];

/// Channels have classes that end like this.
const CHANNEL: u32 = 0x6F;

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
    /// What it made, to be given back if the caller never learns of it: the caller's descriptor,
    /// and the object.
    made: Option<(RawFd, MemoryId)>,
    /// Until its answer is delivered, no other call of the thread is done.
    _alone: Option<Alone>,
}

/// A call that is being decided.
pub(super) struct Asked<'a> {
    pub(super) broker: &'a Broker,
    pub(super) session: &'a Arc<Session>,
    pub(super) notification: &'a Notification,
    pub(super) thread: Arc<Thread>,
    pub(super) memory: Memory,
    pub(super) fd: RawFd,
    /// Of the call itself, without its wrapper, as what follows.
    pub(super) cmd: u32,
    at: u64,
    pub(super) argument: Vec<u8>,
    pub(super) made: Option<(RawFd, MemoryId)>,
    alone: Option<Alone>,
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
    if lets_pass(broker, call.tid, ioctl, size) {
        return only(Answer::Allow);
    }
    let reached = session
        .thread(call.tid)
        .and_then(|thread| Ok((thread.memory()?, thread)));
    let waits = session.listener.still_waits(call.id);
    let (memory, thread) = match reached {
        Ok(reached) if waits => reached,
        Err(error) if waits => return only(unreached(broker, &error)),
        _ => return only(Answer::Gone),
    };
    let mut asked = Asked {
        broker,
        session,
        notification: call,
        thread,
        memory,
        fd: ioctl.fd,
        cmd: ioctl.cmd,
        at: ioctl.arg,
        argument: vec![0; size],
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

/// Whether it is a control that asks nothing of ours: most calls of a program are, so it is looked
/// at in the cheapest way. Whose memory this reads matters as little as that the caller may change
/// it afterwards, since the kernel does such a call in any case.
fn lets_pass(broker: &Broker, tid: i32, ioctl: Ioctl, size: usize) -> bool {
    if ioctl.cmd as u8 != ESC_RM_CONTROL {
        return false;
    }
    let mut bytes = vec![0; size];
    let from = RemoteIoVec {
        base: ioctl.arg as usize,
        len: size,
    };
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let read = process_vm_readv(Pid::from_raw(tid), into, &[from]);
    if read != Ok(size) {
        return false;
    }
    match tenant::parse(ioctl.cmd, &bytes) {
        Ok(Call::Control(control)) => !broker.is_question(&control),
        _ => false,
    }
}

/// The caller will never learn what its call made.
pub(super) fn give_back(
    broker: &Broker,
    session: &Session,
    call: &Notification,
    outcome: &Outcome,
) {
    let Some((fd, id)) = outcome.made else {
        return;
    };
    let freed = session.thread(call.tid).and_then(|thread| {
        let who = thread.credentials()?;
        thread.with_fd(fd, |fd| {
            let free = || Control::new(fd).free(id.0, id.0.as_object(), id.1);
            broker.driver.owns(fd).then(|| as_tenant(who, free))
        })
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
        if self.memory.read(self.at, &mut self.argument).is_err() {
            return self.unreadable();
        }
        let mut call = tenant::parse(self.cmd, &self.argument);
        if let Ok(Call::Wrapped(wrapped)) = call {
            let Some((cmd, size)) = wrapped.cmd.and_then(|cmd| Some((cmd, argument_size(cmd)?)))
            else {
                return Answer::Allow;
            };
            (self.cmd, self.at) = (cmd, wrapped.at);
            self.argument = vec![0; size];
            if self.memory.read(self.at, &mut self.argument).is_err() {
                return self.unreadable();
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

    /// The driver can read, through mappings of its own, what cannot be read from here: it must
    /// not.
    fn unreadable(&mut self) -> Answer {
        self.on_driver(|_, _| Answer::Return(Err(Errno::EFAULT as i32)))
    }

    fn alloc(&mut self, alloc: &AllocCall) -> Answer {
        let (client, parent) = (alloc.client, alloc.parent);
        match alloc.class {
            CLASS_DEVICE_MEMORY => self.on_driver(|asked, fd| asked.device_memory(fd, alloc)),
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
                if self.broker.state().tell_group((client, parent)) {
                    self.broker.stir();
                }
                Answer::Allow
            }
            _ => Answer::Allow,
        }
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
        let thread = self.thread.clone();
        self.alone = Some(self.session.alone(self.notification.tid));
        let answer = thread.with_fd(self.fd, |fd| match self.broker.driver.owns(fd) {
            true => f(self, fd),
            false => Answer::Allow,
        });
        match answer {
            Ok(answer) => answer,
            Err(ProcError::NoSuchFd { .. }) => Answer::Allow,
            Err(_) if !self.session.listener.still_waits(self.notification.id) => Answer::Gone,
            Err(error) => unreached(self.broker, &error),
        }
    }

    /// Does something with the caller's rights.
    pub(super) fn as_caller<R>(&self, f: impl FnOnce() -> R) -> io::Result<R> {
        let who = self.thread.credentials().map_err(io::Error::other)?;
        let begin = Instant::now();
        let result = as_tenant(who, f);
        let spent = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        count(&self.broker.counts.driver_ns, spent);
        result
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
        let written = params
            .map_or(Ok(()), |(at, bytes)| self.memory.write(at, bytes))
            .and_then(|()| self.memory.write(self.at, &self.argument));
        Answer::Return(match written {
            Ok(()) => Ok(0),
            Err(_) => Err(Errno::EFAULT as i32),
        })
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
            None if !self.thread.is_alive() => Answer::Gone,
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
