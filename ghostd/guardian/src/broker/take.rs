//! Taking, freeing and duplicating device memory for a tenant: charged and written down before,
//! settled by the driver's answer after.
//!
//! A call may come twice: after a kill of the guardian, or when a signal came before the answer.
//! So the last one that was done for a thread stays written down, and one that is the same is
//! taken for it: what an allocation or a duplicate has made is freed before it is made again, and
//! a free finds nothing and is fine.

use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;

use ghost_rm::abi::memory::MemoryParams;
use ghost_rm::tenant::{
    self, AllocCall, Call, DeviceMemory, DupCall, FreeCall, HeapCall, HeapFunction, MEMORY_PARAMS,
    device_memory, object_of,
};
use ghost_rm::{Client, Control, Object, Status};
use nix::errno::Errno;

use super::books::{self, Card, MemoryId, Refusal, Ticket};
use super::calls::{Answer, Asked, Params};
use super::journal::{Begun, KeepError};
use super::state::State;
use super::{Broker, Step, count};

/// An allocation of device memory.
pub(super) struct Take {
    pub(super) client: Client,
    pub(super) parent: Object,
    pub(super) object: Object,
    pub(super) class: u32,
    pub(super) bytes: u64,
}

impl Asked<'_> {
    pub(super) fn device_memory(&mut self, alloc: &AllocCall) -> Answer {
        let Some(branch) = self.broker.driver.branch() else {
            return self.on_driver(|asked, _| asked.unknown_driver());
        };
        let length = branch.memory_params.min(MEMORY_PARAMS);
        let mut bytes = vec![0; MEMORY_PARAMS];
        let to = bytes.get_mut(..length).unwrap_or_default();
        if self.read(alloc.params_at, to).is_err() {
            return self.on_driver(|_, _| Answer::Return(Err(Errno::EFAULT as i32)));
        }
        let Ok(memory) = device_memory(&bytes) else {
            return self.on_driver(|asked, _| asked.status(Status::INVALID_PARAM_STRUCT));
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
        self.on_driver(|asked, fd| asked.take(fd, &take, Some(params)))
    }

    /// Takes device memory.
    pub(super) fn take(
        &mut self,
        fd: BorrowedFd<'_>,
        take: &Take,
        mut params: Option<Params>,
    ) -> Answer {
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
            self.end();
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
        self.has_made(id);
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

    pub(super) fn dup(&mut self, dup: &DupCall) -> Answer {
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
                asked.end();
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
            asked.has_made(id);
            asked.hand_over(fd, id, None)
        })
    }

    pub(super) fn free(&mut self, free: &FreeCall) -> Answer {
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
            asked.forget_memory(id, ticket);
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

    /// Frees what a call has made, in the driver and then in the books. It may not have been made,
    /// and `fd` may be another file than it was made on: what is there yet stays charged.
    fn undo(&mut self, fd: BorrowedFd<'_>, id: MemoryId) {
        if id.1 == Object(0) {
            return;
        }
        let freed = self.as_caller(|| Control::new(fd).free(id.0, id.0.as_object(), id.1));
        let gone = || self.broker.driver.exists(id.0, id.1) == Some(false);
        if matches!(freed, Ok(Ok(()))) || gone() {
            let freed = self.broker.state().keeper.free(id);
            self.broker.written(freed);
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
        let again = before.is_some_and(|before| before.is_again(call));
        count(&self.broker.counts.repeated, again.into());
        again
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
        let mut state = self.broker.state();
        let container = match state.keeper.books().may_charge(id.0, card, bytes) {
            Err(Refusal::Max { container, .. }) => Some(Some(container)),
            Err(Refusal::Min { .. }) => Some(None),
            _ => None,
        };
        if let Some(container) = container {
            drop(state);
            self.broker.look_for_gone(container.as_ref());
            state = self.broker.state();
        }
        // What is there already is not this call's to free when it comes again.
        let begun = (!state.keeper.books().knows(id)).then_some(Begun {
            session: &self.session.id,
            tid: self.notification.tid,
            call,
        });
        state.keeper.charge_for(id, card, bytes, begun)
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

    /// The driver did not do it: nothing is to be undone when the thread tries again.
    fn end(&self) {
        let mut state = self.broker.state();
        let ended = state.keeper.end(&self.session.id, self.notification.tid);
        drop(state);
        self.broker.written(ended);
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

    /// A name is gone by this call, unless it is another memory's by now.
    fn forget_memory(&self, id: MemoryId, ticket: Ticket) {
        let mut state = self.broker.state();
        if state.keeper.books().ticket(id) == Some(ticket) {
            let tid = self.notification.tid;
            let freed = state.keeper.free_by(id, &self.session.id, tid);
            drop(state);
            self.broker.written(freed);
        }
    }

    /// Writes what was made into the caller's memory; gives it back if that is not there.
    fn hand_over(&mut self, fd: BorrowedFd<'_>, id: MemoryId, params: Option<&Params>) -> Answer {
        let answer = self.write_back(params);
        if !matches!(answer, Answer::Return(Ok(_))) {
            self.has_made_nothing();
            self.undo(fd, id);
        }
        self.broker.step(Step::Written);
        answer
    }
}

impl Broker {
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
pub(super) fn at_most(memory: DeviceMemory) -> u64 {
    let anywhere = memory.attr & MemoryParams::LOCATION == MemoryParams::LOCATION;
    let on_device = memory.on_device || anywhere && memory.flags & MemoryParams::VIRTUAL == 0;
    DeviceMemory {
        on_device,
        ..memory
    }
    .bytes()
}
