//! Changing the books. Nothing here refuses or fails: what makes no sense, as an op after a damaged
//! piece of the journal may, changes nothing. Bounds are looser than those of the decisions, which
//! come first.

use ghost_model::{MemoryEvents, Name, ProcId};
use ghost_rm::{Client, Object};

use super::tree::Protection;
use super::{
    Books, Card, CardInfo, MAX_BYTES, MAX_CALLS, MAX_CLIENTS, MAX_NAMES, Memory, MemoryId, Op,
    Owned, Pending, PerCard, Process, Ticket,
};

impl Books {
    /// Makes one change.
    pub fn apply(&mut self, op: &Op) {
        self.version = self.version.saturating_add(1);
        match op {
            Op::Open {
                client,
                owner,
                container,
            } => self.open(*client, *owner, container),
            Op::Charge {
                ticket,
                id,
                card,
                bytes,
            } => {
                if let Some(container) = self.clients.get(&id.0).map(|client| client.container) {
                    self.add(*ticket, *id, container, (*card, *bytes), Some(*ticket));
                }
            }
            Op::Refuse { client, card, max } => self.refuse(*client, *card, max.as_ref()),
            Op::Settle { ticket, id, bytes } => self.settle(*ticket, *id, *bytes),
            Op::Cancel { ticket, failed } => self.cancel(*ticket, *failed),
            Op::Share { ticket, memory, id } => self.share(*ticket, *memory, *id),
            Op::Free { id } => self.free(*id),
            Op::Close { client } => self.close(*client),
            Op::Residual {
                owner,
                card,
                bytes,
                container,
            } => self.residual(*owner, *card, *bytes, container.as_ref()),
            Op::Gone { owner } => self.gone(*owner),
            Op::Limits { wanted } => {
                for name in wanted.0.keys() {
                    self.tree.ensure(name);
                }
                self.wanted = wanted.clone();
                self.tree.limit(&self.wanted, &self.cards);
                self.tidy();
            }
            Op::Cards { cards } => {
                let bounded = |info: &CardInfo| {
                    let mut info = info.clone();
                    info.total.0 = info.total.0.min(MAX_BYTES);
                    (info.card, info)
                };
                self.cards = cards.iter().map(bounded).collect();
                self.tree.limit(&self.wanted, &self.cards);
            }
            Op::Begin { session, tid, call } => {
                let key = (session.clone(), *tid);
                if self.calls.len() < MAX_CALLS || self.calls.contains_key(&key) {
                    self.calls.insert(key, *call);
                }
            }
            Op::End { session, tid } => _ = self.calls.remove(&(session.clone(), *tid)),
            Op::Container { number, name } => self.tree.restore(*number, name),
            Op::Memory {
                ticket,
                id,
                container,
                card,
                bytes,
                pending,
            } => self.add(*ticket, *id, *container, (*card, *bytes), *pending),
            Op::Name { memory, id } => {
                let is_settled = self.memories.get(memory).is_some_and(|m| m.settled);
                if is_settled && self.clients.contains_key(&id.0) {
                    self.name_memory(*memory, *id, None);
                }
            }
            Op::Process {
                owner,
                container,
                changed,
            } => {
                self.rebase(*owner, *container);
                if let Some(process) = self.processes.get_mut(owner) {
                    process.changed = *changed;
                    self.version = self.version.max(*changed);
                }
            }
            Op::Counted {
                container,
                card,
                peak,
                events,
                events_local,
            } => {
                if let Some(node) = self.tree.nodes.get_mut(container) {
                    let line = node.lines.entry(*card).or_default();
                    line.peak = (*peak).max(line.current - line.pending);
                    line.events = *events;
                    line.events_local = *events_local;
                }
            }
            Op::Stamp {
                version,
                ticket,
                container,
            } => {
                let changed = self.processes.values().map(|process| process.changed);
                self.version = changed.fold(*version, u64::max);
                self.next_ticket = self.next_ticket.max(ticket.0);
                self.tree.skip_to(*container);
            }
        }
    }

    /// Forgets the containers that nothing refers to and nobody wants, as the first ops of a
    /// snapshot leave them when the others are lost.
    pub fn tidy(&mut self) {
        let numbers: Vec<u32> = self.tree.nodes.keys().copied().collect();
        for number in numbers {
            self.tree.forget(number, &self.wanted);
        }
    }

    fn open(&mut self, client: Client, owner: ProcId, container: &Name) {
        if self.clients.contains_key(&client) || self.clients.len() >= MAX_CLIENTS {
            return;
        }
        let container = self.tree.ensure(container);
        if self.process(owner, container).clients == 0 {
            self.rebase(owner, container);
        }
        if let Some(process) = self.processes.get_mut(&owner) {
            process.clients += 1;
        }
        self.changed(owner);
        self.clients.insert(client, Owned { owner, container });
        if let Some(node) = self.tree.nodes.get_mut(&container) {
            node.clients += 1;
            node.uses += 1;
        }
    }

    /// The process, made if it is not there.
    fn process(&mut self, owner: ProcId, container: u32) -> &Process {
        let tree = &mut self.tree;
        self.processes.entry(owner).or_insert_with(|| {
            if let Some(node) = tree.nodes.get_mut(&container) {
                node.uses += 1;
            }
            Process {
                container,
                clients: 0,
                changed: 0,
                held: PerCard::default(),
                residual: PerCard::default(),
            }
        })
    }

    fn changed(&mut self, owner: ProcId) {
        if let Some(process) = self.processes.get_mut(&owner) {
            process.changed = self.version;
        }
    }

    /// Adds a memory with its first name, which is pending under a ticket or is not.
    fn add(
        &mut self,
        ticket: Ticket,
        id: MemoryId,
        container: u32,
        (card, bytes): (Card, u64),
        pending: Option<Ticket>,
    ) {
        if !self.clients.contains_key(&id.0)
            || !self.tree.nodes.contains_key(&container)
            || !self.is_new(ticket)
            || !pending.is_none_or(|pending| self.is_new(pending))
        {
            return;
        }
        let settled = pending != Some(ticket);
        let memory = Memory {
            container,
            card,
            bytes: bytes.min(MAX_BYTES),
            settled,
            holders: Vec::new(),
        };
        self.use_ticket(ticket);
        self.tree.charge(container, card, memory.bytes, !settled);
        self.memories.insert(ticket, memory);
        if let Some(node) = self.tree.nodes.get_mut(&container) {
            node.uses += 1;
        }
        self.name_memory(ticket, id, pending);
    }

    /// Gives a memory a name more, pending or not.
    fn name_memory(&mut self, memory: Ticket, id: MemoryId, pending: Option<Ticket>) {
        self.hold_memory(memory, id.0);
        match pending {
            Some(ticket) => {
                self.use_ticket(ticket);
                self.pending.insert(ticket, Pending { id, memory });
            }
            None => {
                self.free(id);
                self.names.insert(id, memory);
            }
        }
    }

    /// Whether a ticket is unused, and there is room for a name.
    fn is_new(&self, ticket: Ticket) -> bool {
        ticket.0 < u64::MAX
            && !self.memories.contains_key(&ticket)
            && !self.pending.contains_key(&ticket)
            && self.names.len() + self.pending.len() < 2 * MAX_NAMES
    }

    fn use_ticket(&mut self, ticket: Ticket) {
        self.next_ticket = self.next_ticket.max(ticket.0.saturating_add(1));
    }

    /// A client has a name of the memory more.
    fn hold_memory(&mut self, memory: Ticket, client: Client) {
        let Some(Owned { owner, container }) = self.clients.get(&client).copied() else {
            return;
        };
        let Some(memory) = self.memories.get_mut(&memory) else {
            return;
        };
        let (card, bytes) = (memory.card, memory.bytes);
        let holders = &mut memory.holders;
        match holders.iter_mut().find(|(holder, _)| *holder == owner) {
            Some((_, names)) => *names += 1,
            None => {
                holders.push((owner, 1));
                holders.sort_unstable();
                self.hold(owner, card, bytes);
            }
        }
        self.name_count(container, 1);
        self.changed(owner);
    }

    /// A client has a name of the memory less. The last one takes it out of the books.
    fn release_memory(&mut self, ticket: Ticket, client: Client) {
        let Some(Owned { owner, container }) = self.clients.get(&client).copied() else {
            return;
        };
        self.name_count(container, -1);
        self.changed(owner);
        let Some(memory) = self.memories.get_mut(&ticket) else {
            return;
        };
        let mut is_held = false;
        memory.holders.retain_mut(|(holder, names)| {
            *names -= u32::from(*holder == owner);
            is_held |= *holder == owner && *names > 0;
            *names > 0
        });
        let is_last = memory.holders.is_empty();
        let (at, card, bytes, settled) =
            (memory.container, memory.card, memory.bytes, memory.settled);
        if !is_held {
            self.unhold(owner, card, bytes);
        }
        if is_last {
            self.memories.remove(&ticket);
            self.tree.uncharge(at, card, bytes, !settled);
            self.release(at);
        }
    }

    fn refuse(&mut self, client: Client, card: Card, max: Option<&Name>) {
        let Some(asker) = self.clients.get(&client).map(|client| client.container) else {
            return;
        };
        if let Some(number) = max.and_then(|name| self.tree.number(name)) {
            self.tree.count(number, card, |events| {
                events.max = events.max.saturating_add(1)
            });
        }
        self.tree.count(asker, card, |events| {
            events.fail = events.fail.saturating_add(1)
        });
    }

    fn settle(&mut self, ticket: Ticket, id: MemoryId, bytes: u64) {
        let Some(Pending { id: asked, memory }) = self.pending.get(&ticket).copied() else {
            return;
        };
        if asked.0 != id.0 {
            return self.cancel(ticket, false);
        }
        self.pending.remove(&ticket);
        // The driver gave the name, so what had it before is gone.
        self.free(id);
        self.names.insert(id, memory);
        let owner = self.clients.get(&id.0).map(|client| client.owner);
        if let Some(owner) = owner {
            self.changed(owner);
        }
        let Some(memory) = self.memories.get_mut(&memory) else {
            return;
        };
        if std::mem::replace(&mut memory.settled, true) {
            return;
        }
        let (container, card) = (memory.container, memory.card);
        let bytes = bytes.min(MAX_BYTES);
        let before = std::mem::replace(&mut memory.bytes, bytes);
        self.tree.uncharge(container, card, before, true);
        self.tree.charge(container, card, bytes, false);
        if let Some(owner) = owner {
            self.unhold(owner, card, before);
            self.hold(owner, card, bytes);
        }
        self.grew(container, card);
    }

    fn cancel(&mut self, ticket: Ticket, failed: bool) {
        let Some(Pending { id, memory }) = self.pending.remove(&ticket) else {
            return;
        };
        let asker = self.clients.get(&id.0).map(|client| client.container);
        let card = self.memories.get(&memory).map(|memory| memory.card);
        if let (true, Some(asker), Some(card)) = (failed, asker, card) {
            let fail = |events: &mut MemoryEvents| events.fail = events.fail.saturating_add(1);
            self.tree.count(asker, card, fail);
        }
        self.release_memory(memory, id.0);
    }

    fn share(&mut self, ticket: Ticket, memory: Ticket, id: MemoryId) {
        let is_settled = self.memories.get(&memory).is_some_and(|m| m.settled);
        if is_settled && self.clients.contains_key(&id.0) && self.is_new(ticket) {
            self.name_memory(memory, id, Some(ticket));
        }
    }

    fn free(&mut self, id: MemoryId) {
        if let Some(memory) = self.names.remove(&id) {
            self.release_memory(memory, id.0);
        }
    }

    fn close(&mut self, client: Client) {
        let Some(Owned { owner, container }) = self.clients.get(&client).copied() else {
            return;
        };
        let all = (client, Object(0))..=(client, Object(u32::MAX));
        let names: Vec<MemoryId> = self.names.range(all).map(|(id, _)| *id).collect();
        for id in names {
            self.free(id);
        }
        let pending: Vec<Ticket> = self
            .pending_names()
            .filter(|p| p.1.0 == client)
            .map(|p| p.0)
            .collect();
        for ticket in pending {
            self.cancel(ticket, false);
        }
        self.clients.remove(&client);
        if let Some(node) = self.tree.nodes.get_mut(&container) {
            node.clients -= 1;
        }
        self.release(container);
        if let Some(process) = self.processes.get_mut(&owner) {
            process.clients -= 1;
            if process.clients == 0 {
                self.gone(owner);
            }
        }
    }

    fn residual(&mut self, owner: ProcId, card: Card, bytes: u64, container: Option<&Name>) {
        let bytes = bytes.min(MAX_BYTES);
        match (self.processes.get(&owner), container) {
            (None, None) => return,
            (None, Some(_)) if bytes == 0 || self.processes.len() >= 2 * MAX_CLIENTS => return,
            (None, Some(name)) => {
                let container = self.tree.ensure(name);
                self.process(owner, container);
            }
            (Some(process), Some(name)) if process.clients == 0 => {
                let container = self.tree.ensure(name);
                self.rebase(owner, container);
            }
            _ => {}
        }
        let Some(process) = self.processes.get_mut(&owner) else {
            return;
        };
        let container = process.container;
        let before = process.residual.set(card, bytes);
        self.tree.uncharge(container, card, before, false);
        self.tree.charge(container, card, bytes, false);
        if bytes > before {
            self.grew(container, card);
        }
        self.drop_process(owner);
    }

    fn gone(&mut self, owner: ProcId) {
        let Some(process) = self.processes.get_mut(&owner) else {
            return;
        };
        let container = process.container;
        for (card, bytes) in std::mem::take(&mut process.residual).0 {
            self.tree.uncharge(container, card, bytes, false);
        }
        self.drop_process(owner);
    }

    fn drop_process(&mut self, owner: ProcId) {
        let Some(process) = self.processes.get(&owner) else {
            return;
        };
        if process.clients == 0 && process.residual.0.is_empty() {
            let container = process.container;
            self.processes.remove(&owner);
            self.release(container);
        }
    }

    /// Moves a process's residual.
    fn rebase(&mut self, owner: ProcId, container: u32) {
        let Some(process) = self.processes.get_mut(&owner) else {
            return;
        };
        let Some(node) = self.tree.nodes.get_mut(&container) else {
            return;
        };
        let before = std::mem::replace(&mut process.container, container);
        node.uses += 1;
        let residual = process.residual.clone();
        for (card, bytes) in residual.0.into_iter().filter(|_| before != container) {
            self.tree.uncharge(before, card, bytes, false);
            self.tree.charge(container, card, bytes, false);
            self.grew(container, card);
        }
        self.release(before);
    }

    /// Settled use grew: `high`, and `low` of those whose protected memory it took.
    fn grew(&mut self, container: u32, card: Card) {
        self.tree.grew(container, card);
        let (needed, who) = self.tree.lacking(container, card, Protection::Low);
        if needed > self.physically_free(card) {
            for (number, _) in who {
                self.tree.count(number, card, |events| {
                    events.low = events.low.saturating_add(1)
                });
            }
        }
    }

    /// One reference to the container is gone.
    fn release(&mut self, container: u32) {
        if let Some(node) = self.tree.nodes.get_mut(&container) {
            node.uses -= 1;
        }
        self.tree.forget(container, &self.wanted);
    }

    fn name_count(&mut self, container: u32, change: i32) {
        if let Some(node) = self.tree.nodes.get_mut(&container) {
            node.names = node.names.saturating_add_signed(change);
        }
    }

    fn hold(&mut self, owner: ProcId, card: Card, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&owner) {
            process.held.add(card, bytes);
        }
        self.changed(owner);
    }

    fn unhold(&mut self, owner: ProcId, card: Card, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&owner) {
            process.held.sub(card, bytes);
        }
        self.changed(owner);
    }
}
