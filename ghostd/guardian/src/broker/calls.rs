//! What becomes of one call: it is read once, from a copy, and what is done is done by that copy.
//!
//! A call that takes, frees or duplicates device memory is done here, on a duplicate of the
//! caller's descriptor, with the caller's user and without capabilities: charged and written down
//! before, settled by the driver's answer after. A few questions are answered for the container
//! ([`super::card`]). All else the kernel does as if nobody had asked, with arguments that the
//! caller may change until then: such calls must not take device memory as far as is known, and
//! what is known to take it in another form is refused.
//!
//! A call may come twice: after a kill of the guardian, or when a signal came before the answer.
//! So the last one that was done for a thread stays written down, and one that is the same is
//! taken for it: what an allocation or a duplicate has made is freed before it is made again, and
//! a free finds nothing and is fine.

use std::io::{self, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use ghost_model::{Name, ProcId};
use ghost_notify::{Ioctl, Memory, Notification, ProcError, Thread, as_tenant};
use ghost_rm::abi::memory::{CLASS_DEVICE_MEMORY, MemoryParams};
use ghost_rm::abi::{CLASS_CHANNEL_GROUP, CLASS_DEVICE, ESC_RM_CONTROL};
use ghost_rm::tenant::{
    self, AllocCall, Call, DeviceMemory, DupCall, FreeCall, HeapCall, HeapFunction, MEMORY_PARAMS,
    argument_size, device_memory, object_of, set_status,
};
use ghost_rm::{Client, Control, Object, RmError, Status};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::books::{self, Card, MemoryId, Refusal, Ticket};
use super::journal::KeepError;
use super::sessions::{Alone, Session};
use super::state::State;
use super::{Broker, Step, chain, count};
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
    session: &'a Arc<Session>,
    notification: &'a Notification,
    thread: Arc<Thread>,
    pub(super) memory: Memory,
    fd: RawFd,
    /// Of the call itself, without its wrapper, as what follows.
    cmd: u32,
    at: u64,
    pub(super) argument: Vec<u8>,
    made: Option<(RawFd, MemoryId)>,
    alone: Option<Alone>,
}

/// An allocation of device memory.
struct Take {
    client: Client,
    parent: Object,
    object: Object,
    class: u32,
    bytes: u64,
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

    fn device_memory(&mut self, fd: BorrowedFd<'_>, alloc: &AllocCall) -> Answer {
        let Some(branch) = self.broker.driver.branch() else {
            return self.unknown_driver();
        };
        let length = branch.memory_params.min(MEMORY_PARAMS);
        let mut bytes = vec![0; MEMORY_PARAMS];
        let to = bytes.get_mut(..length).unwrap_or_default();
        if self.memory.read(alloc.params_at, to).is_err() {
            return Answer::Return(Err(Errno::EFAULT as i32));
        }
        let Ok(memory) = device_memory(&bytes) else {
            return self.status(Status::INVALID_PARAM_STRUCT);
        };
        let take = Take {
            client: alloc.client,
            parent: alloc.parent,
            object: alloc.object,
            class: alloc.class,
            bytes: at_most(memory),
        };
        let at = alloc.params_at;
        let params = Params { at, bytes, length };
        self.take(fd, &take, Some(params))
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

    /// Takes device memory.
    fn take(&mut self, fd: BorrowedFd<'_>, take: &Take, mut params: Option<Params>) -> Answer {
        let id = (take.client, take.object);
        let card = match self.card(fd, (take.client, take.parent)) {
            Ok(card) => card,
            Err(answer) => return answer,
        };
        let call = self.begin_as(id, take.class);
        if self.is_again(&call) {
            self.undo(fd, id);
        }
        let ticket = match self.charge(id, card, take.bytes, call) {
            Ok(ticket) => ticket,
            Err(error) => return self.refuse(&error),
        };
        self.broker.step(Step::Begun);
        let done = self.perform(fd, params.as_mut().map(|params| &mut params.bytes));
        self.broker.step(Step::Done);
        if !matches!(done, Ok(Status::OK)) {
            self.cancel(ticket, true);
            return match done {
                Ok(_) => self.write_back(params.as_ref()),
                Err(error) => self.not_done(&error),
            };
        }
        let made = object_of(self.cmd, &self.argument).unwrap_or(take.object);
        let id = (take.client, made);
        let held = self.held(params.as_ref());
        let settled = match held {
            0 => self.broker.state().keeper.cancel(ticket, false),
            held => self.broker.state().keeper.settle(ticket, id, held),
        };
        self.broker.written(settled);
        self.broker.step(Step::Settled);
        self.made = Some((self.fd, id));
        self.hand_over(fd, id, params.as_ref())
    }

    /// Bytes that the driver's answer says were taken.
    fn held(&self, params: Option<&Params>) -> u64 {
        let memory = match params {
            Some(params) => device_memory(&params.bytes).ok(),
            None => match tenant::parse(self.cmd, &self.argument) {
                Ok(Call::Heap(HeapCall {
                    function: HeapFunction::Alloc { memory, .. },
                    ..
                })) => Some(memory),
                _ => None,
            },
        };
        memory.map_or(0, |memory| memory.held())
    }

    fn dup(&mut self, dup: &DupCall) -> Answer {
        let of = (dup.from_client, dup.from_object);
        if !self.broker.state().keeper.books().knows(of) {
            return Answer::Allow;
        }
        self.on_driver(|asked, fd| {
            if let Err(answer) = asked.learn(fd, dup.client) {
                return answer;
            }
            let id = (dup.client, dup.object);
            let call = asked.begin_as(id, 0);
            if asked.is_again(&call) {
                asked.undo(fd, id);
            }
            let ticket = match asked.share(of, id, call) {
                Ok(Some(ticket)) => ticket,
                // It was freed meanwhile: the driver says so.
                Ok(None) => return Answer::Allow,
                Err(error) => return asked.refuse(&error),
            };
            asked.broker.step(Step::Begun);
            let done = asked.perform(fd, None);
            asked.broker.step(Step::Done);
            if !matches!(done, Ok(Status::OK)) {
                asked.cancel(ticket, false);
                return match done {
                    Ok(_) => asked.write_back(None),
                    Err(error) => asked.not_done(&error),
                };
            }
            let made = object_of(asked.cmd, &asked.argument).unwrap_or(dup.object);
            let id = (dup.client, made);
            let settled = asked.broker.state().keeper.settle(ticket, id, 0);
            asked.broker.written(settled);
            asked.broker.step(Step::Settled);
            asked.made = Some((asked.fd, id));
            asked.hand_over(fd, id, None)
        })
    }

    fn free(&mut self, free: &FreeCall) -> Answer {
        let id = (free.client, free.object);
        let (ticket, parent) = {
            let mut state = self.broker.state();
            let ticket = state.keeper.books().ticket(id);
            (ticket, ticket.is_none() && state.unlearn(id))
        };
        let Some(ticket) = ticket else {
            // What hangs below it goes with it: that is looked for when the kernel has done it.
            if parent || free.object == free.client.as_object() {
                self.broker.suspect(free.client);
            }
            return self.free_again(id);
        };
        self.on_driver(|asked, fd| {
            let call = asked.begin_as(id, 0);
            asked.begin(call);
            asked.broker.step(Step::Begun);
            let done = asked.perform(fd, None);
            asked.broker.step(Step::Done);
            match done {
                Ok(Status::OK) => {}
                Ok(status) if status.is_gone() => {
                    // Not on this file, perhaps: only what is nowhere is free.
                    if asked.broker.driver.exists(id.0, id.1) != Some(false) {
                        return asked.write_back(None);
                    }
                }
                Ok(_) => return asked.write_back(None),
                Err(error) => return asked.not_done(&error),
            }
            asked.broker.forget_memory(id, ticket);
            asked.broker.step(Step::Settled);
            let answer = asked.write_back(None);
            asked.broker.step(Step::Written);
            answer
        })
    }

    /// A free of what is not charged: done already, if the thread makes the same call again.
    fn free_again(&mut self, id: MemoryId) -> Answer {
        let call = self.begin_as(id, 0);
        if !self.is_again(&call) {
            return Answer::Allow;
        }
        self.on_driver(|asked, fd| match asked.perform(fd, None) {
            Ok(status) if status.is_gone() && status != Status::INVALID_CLIENT => {
                asked.status(Status::OK)
            }
            Ok(_) => asked.write_back(None),
            Err(error) => asked.not_done(&error),
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
    fn as_caller<R>(&self, f: impl FnOnce() -> R) -> io::Result<R> {
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

    /// Frees what a call has made that comes again.
    fn undo(&mut self, fd: BorrowedFd<'_>, id: MemoryId) {
        count(&self.broker.counts.repeated, 1);
        if id.1 == Object(0) {
            return;
        }
        // It may not have been made yet.
        let _ = self.as_caller(|| Control::new(fd).free(id.0, id.0.as_object(), id.1));
        let freed = self.broker.state().keeper.free(id);
        self.broker.written(freed);
    }

    /// Sees to it that a client, which the caller says is on its file, is known.
    pub(super) fn learn(&mut self, fd: BorrowedFd<'_>, client: Client) -> Result<(), Answer> {
        let process = self.process();
        let owner = {
            let state = self.broker.state();
            state.keeper.books().tenant(client).map(|t| t.owner)
        };
        if owner == Some(process) {
            return Ok(());
        }
        let there = self.as_caller(|| Control::new(fd).class_of(client, client.as_object()));
        if let Err(error) = there.map_err(|error| self.not_done(&error))? {
            return Err(self.rm_refused(&error));
        }
        if let Some(owner) = owner
            && !self.broker.is_another(client, owner)
        {
            return Ok(());
        }
        let container = self.container(process);
        let opened = self.broker.state().keeper.open(client, process, &container);
        opened.map_err(|error| self.refuse(&error))?;
        self.broker.hold(process);
        self.broker.stir();
        Ok(())
    }

    pub(super) fn pid(&self) -> i32 {
        self.thread.process().pid
    }

    fn process(&self) -> ProcId {
        let process = self.thread.process();
        ProcId {
            pid: process.pid.cast_unsigned(),
            start: process.start_ticks,
        }
    }

    /// Where a process is charged for the clients that it makes.
    fn container(&self, process: ProcId) -> Name {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        let groups = groups.unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let state = self.broker.state();
        let member = state.members.container_of(process, group);
        if member.is_system() {
            self.session.container.clone()
        } else {
            member
        }
    }

    /// The card that memory below `parent` is on, of a client that is on the caller's file.
    pub(super) fn card(&mut self, fd: BorrowedFd<'_>, parent: MemoryId) -> Result<Card, Answer> {
        self.learn(fd, parent.0)?;
        if let Some(card) = self.broker.state().place(parent) {
            return Ok(card);
        }
        let found = self.as_caller(|| Control::new(fd).gpu_of_parent(parent.0, parent.1));
        match found.map_err(|error| self.not_done(&error))? {
            Ok(Some(gpu)) => {
                self.broker.state().learn_place(parent, Card(gpu));
                Ok(Card(gpu))
            }
            // Through a subdevice the driver tells; a program that makes none is told no.
            Ok(None) => Err(self.refused(Status::INVALID_OBJECT_PARENT)),
            Err(error) => Err(self.rm_refused(&error)),
        }
    }

    fn begin_as(&self, id: MemoryId, class: u32) -> books::Call {
        books::Call {
            number: self.cmd as u8,
            notification: self.notification.id,
            client: id.0,
            object: id.1,
            class,
        }
    }

    fn is_again(&self, call: &books::Call) -> bool {
        let state = self.broker.state();
        let before = state
            .keeper
            .books()
            .call_of(&self.session.id, self.notification.tid);
        before.is_some_and(|before| before.is_again(call))
    }

    /// Charges, and writes down that the call is about to be done. Before it is refused, what is
    /// gone is looked for.
    fn charge(
        &mut self,
        id: MemoryId,
        card: Card,
        bytes: u64,
        call: books::Call,
    ) -> Result<Ticket, KeepError> {
        let may = self
            .broker
            .state()
            .keeper
            .books()
            .may_charge(id.0, card, bytes);
        match &may {
            Err(Refusal::Max { container, .. }) => self.broker.look_for_gone(Some(container)),
            Err(Refusal::Min { .. }) => self.broker.look_for_gone(None),
            _ => {}
        }
        let mut state = self.broker.state();
        let ticket = state.keeper.charge(id, card, bytes)?;
        self.begin_under(state, ticket, id, call)?;
        Ok(ticket)
    }

    /// The same, of a further name; `None` if there is no such memory.
    fn share(
        &mut self,
        of: MemoryId,
        id: MemoryId,
        call: books::Call,
    ) -> Result<Option<Ticket>, KeepError> {
        let mut state = self.broker.state();
        let ticket = state.keeper.share(of, id)?;
        if let Some(ticket) = ticket {
            self.begin_under(state, ticket, id, call)?;
        }
        Ok(ticket)
    }

    fn begin_under(
        &self,
        mut state: MutexGuard<'_, State>,
        ticket: Ticket,
        id: MemoryId,
        call: books::Call,
    ) -> Result<(), KeepError> {
        // What is there already is not this call's to free when it comes again.
        if state.keeper.books().knows(id) {
            return Ok(());
        }
        let (session, tid) = (&self.session.id, self.notification.tid);
        let begun = state.keeper.begin(session, tid, call);
        drop(state);
        if begun.is_err() {
            self.cancel(ticket, false);
        }
        begun
    }

    fn cancel(&self, ticket: Ticket, failed: bool) {
        let cancelled = self.broker.state().keeper.cancel(ticket, failed);
        self.broker.written(cancelled);
    }

    /// As a free is begun: also when it cannot be written down.
    fn begin(&mut self, call: books::Call) {
        let begun = self
            .broker
            .state()
            .keeper
            .begin(&self.session.id, self.notification.tid, call);
        if let Err(KeepError::Journal(error)) = begun {
            self.broker.written(Err(error));
        }
    }

    /// Writes what was made into the caller's memory; gives it back if that is not there.
    fn hand_over(&mut self, fd: BorrowedFd<'_>, id: MemoryId, params: Option<&Params>) -> Answer {
        let answer = self.write_back(params);
        if !matches!(answer, Answer::Return(Ok(_))) {
            self.made = None;
            let _ = self.as_caller(|| Control::new(fd).free(id.0, id.0.as_object(), id.1));
            let freed = self.broker.state().keeper.free(id);
            self.broker.written(freed);
        }
        self.broker.step(Step::Written);
        answer
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

    fn refuse(&mut self, error: &KeepError) -> Answer {
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
    fn rm_refused(&mut self, error: &RmError) -> Answer {
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

    /// A name is gone, unless it is another memory's by now.
    pub(super) fn forget_memory(&self, id: MemoryId, ticket: Ticket) {
        let mut state = self.state();
        if state.keeper.books().ticket(id) == Some(ticket) {
            let freed = state.keeper.free(id);
            drop(state);
            self.written(freed);
        }
    }
}

/// Bytes to charge before the driver is asked: where it may choose, it may choose the device.
fn at_most(memory: DeviceMemory) -> u64 {
    let anywhere = memory.attr & MemoryParams::LOCATION == MemoryParams::LOCATION;
    let on_device = memory.on_device || anywhere && memory.flags & MemoryParams::VIRTUAL == 0;
    DeviceMemory {
        on_device,
        ..memory
    }
    .bytes()
}
