//! What the books say, and what they would grant.

use std::collections::BTreeSet;

use ghost_model::{Bytes, GpuId, MemorySeen, MemoryUse, MemoryWanted, Name, ProcId};
use ghost_rm::{Client, Object};

use super::tree::Protection;
use super::{
    Books, Call, Card, CardInfo, MAX_CALLS, MAX_CLIENTS, MAX_NAMES, MemoryId, Observed, Op,
    Refusal, SessionId, Ticket,
};

/// A client in the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant<'a> {
    /// The client.
    pub client: Client,
    /// Who made it.
    pub owner: ProcId,
    /// Where it is charged.
    pub container: &'a Name,
}

/// A container's own card: what it can have at most and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The least `max` of its lineage, or all that the card has.
    pub total: Bytes,
    /// What an allocation would be granted now.
    pub free: Bytes,
}

impl Books {
    /// Moves with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The card that limits call `gpu`.
    #[must_use]
    pub fn card(&self, gpu: &GpuId) -> Option<Card> {
        let is = |card: &&CardInfo| card.id == *gpu;
        self.cards.values().find(is).map(|info| info.card)
    }

    /// All cards, in order of [`Card`].
    pub fn cards(&self) -> impl Iterator<Item = &CardInfo> {
        self.cards.values()
    }

    /// The limits given last.
    #[must_use]
    pub fn wanted(&self) -> &MemoryWanted {
        &self.wanted
    }

    /// Whether a memory has this name.
    #[must_use]
    pub fn knows(&self, id: MemoryId) -> bool {
        self.names.contains_key(&id)
    }

    /// A client, if it is known.
    #[must_use]
    pub fn tenant(&self, client: Client) -> Option<Tenant<'_>> {
        let owned = self.clients.get(&client)?;
        let container = &self.tree.nodes.get(&owned.container)?.name;
        Some(Tenant {
            client,
            owner: owned.owner,
            container,
        })
    }

    /// All clients.
    pub fn tenants(&self) -> impl Iterator<Item = Tenant<'_>> {
        self.clients
            .keys()
            .filter_map(|client| self.tenant(*client))
    }

    /// The clients of a container and of all below it.
    pub fn clients_of(&self, container: &Name) -> impl Iterator<Item = Client> {
        self.tenants()
            .filter(|tenant| tenant.container.is_within(container))
            .map(|tenant| tenant.client)
    }

    /// The names of memories in a client.
    pub fn memories_of(&self, client: Client) -> impl Iterator<Item = Object> {
        let all = (client, Object(0))..=(client, Object(u32::MAX));
        self.names.range(all).map(|(id, _)| id.1)
    }

    /// The memory that has this name, by the ticket of its charge.
    #[must_use]
    pub fn ticket(&self, id: MemoryId) -> Option<Ticket> {
        self.names.get(&id).copied()
    }

    /// Names, of new memories and of others, that the driver was asked for and has not given.
    pub fn pending_names(&self) -> impl Iterator<Item = (Ticket, MemoryId)> {
        self.pending.iter().map(|(ticket, p)| (*ticket, p.id))
    }

    /// The name that was asked for under a ticket, and the bytes of its memory.
    #[must_use]
    pub fn pending(&self, ticket: Ticket) -> Option<(MemoryId, u64)> {
        let pending = self.pending.get(&ticket)?;
        let memory = self.memories.get(&pending.memory)?;
        Some((pending.id, memory.bytes))
    }

    /// Whether a process holds more than its clients' names.
    #[must_use]
    pub fn has_residual(&self, owner: ProcId) -> bool {
        let process = self.processes.get(&owner);
        process.is_some_and(|process| !process.residual.0.is_empty())
    }

    /// The calls that were begun and not ended: session, thread, call.
    pub fn calls(&self) -> impl Iterator<Item = (&SessionId, i32, &Call)> {
        let calls = self.calls.iter();
        calls.map(|((session, tid), call)| (session, *tid, call))
    }

    /// The call that was begun for a thread and not ended.
    #[must_use]
    pub fn call_of(&self, session: &SessionId, tid: i32) -> Option<&Call> {
        self.calls.get(&(session.clone(), tid))
    }

    /// The card as the client's container sees it; `None` if either is unknown.
    #[must_use]
    pub fn card_of(&self, client: Client, card: Card) -> Option<View> {
        let container = self.clients.get(&client)?.container;
        let mut total = self.cards.get(&card)?.total.0;
        let (kept, _) = self.tree.lacking(container, card, Protection::Min);
        let mut free = self.physically_free(card).saturating_sub(kept);
        for (_, node) in self.tree.lineage(container) {
            if let Some(line) = node.lines.get(&card)
                && let Some(Bytes(max)) = line.limits.max
            {
                total = total.min(max);
                free = free.min(max.saturating_sub(line.current));
            }
        }
        Some(View {
            total: Bytes(total),
            free: Bytes(free),
        })
    }

    /// The processes of the client's container and of all below it.
    #[must_use]
    pub fn processes_of(&self, client: Client) -> BTreeSet<ProcId> {
        let Some(container) = self.tenant(client).map(|tenant| tenant.container) else {
            return BTreeSet::new();
        };
        let within = |number| {
            let node = self.tree.nodes.get(number);
            node.is_some_and(|node| node.name.is_within(container))
        };
        let residual = self.processes.iter().filter(|(_, p)| within(&p.container));
        let clients = self.clients.values().filter(|c| within(&c.container));
        let residual = residual.map(|(owner, _)| *owner);
        residual.chain(clients.map(|c| c.owner)).collect()
    }

    /// What every container holds and counted.
    #[must_use]
    pub fn usage(&self) -> MemorySeen {
        let mut seen = MemorySeen::default();
        for node in self.tree.nodes.values() {
            for (card, line) in &node.lines {
                let used = MemoryUse {
                    current: Bytes(line.current),
                    peak: Bytes(line.peak),
                    events: line.events,
                    events_local: line.events_local,
                };
                if let Some(info) = self.cards.get(card)
                    && used != MemoryUse::default()
                {
                    let of = seen.containers.entry(node.name.clone()).or_default();
                    of.insert(info.id.clone(), used);
                }
            }
        }
        seen.held = self.clients.values().map(|client| client.owner).collect();
        seen
    }

    /// What of the card is nobody's, protected or not.
    pub(super) fn physically_free(&self, card: Card) -> u64 {
        let charged = self.tree.charged.get(card);
        self.cards.get(&card).map_or(0, |info| {
            let free = info.total.0.saturating_sub(info.others.0);
            free.saturating_sub(charged)
        })
    }

    /// Whether a client can be added.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooMany`].
    pub fn may_open(&self, container: &Name) -> Result<(), Refusal> {
        let node = self.tree.number(container);
        let node = node.and_then(|number| self.tree.nodes.get(&number));
        let own = node.map_or(0, |node| node.clients) as usize;
        bound(
            "clients",
            self.clients.len(),
            own,
            (MAX_CLIENTS, 4),
            CONTAINER,
        )
    }

    /// Whether a client can have one more name, and under which ticket.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoClient`], [`Refusal::TooMany`].
    pub fn may_name(&self, client: Client) -> Result<Ticket, Refusal> {
        let owned = self.clients.get(&client);
        let owned = owned.ok_or(Refusal::NoClient { client })?;
        let node = self.tree.nodes.get(&owned.container);
        let own = node.map_or(0, |node| node.names) as usize;
        let all = self.names.len() + self.pending.len();
        bound("memories", all, own, (MAX_NAMES, 2), CONTAINER)?;
        Ok(Ticket(self.next_ticket))
    }

    /// Whether an allocation is granted, and under which ticket.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn may_charge(&self, client: Client, card: Card, bytes: u64) -> Result<Ticket, Refusal> {
        let ticket = self.may_name(client)?;
        let info = self.cards.get(&card);
        let info = info.ok_or(Refusal::NoCard { card: card.0 })?;
        let gpu = || info.id.clone();
        let container = self.clients.get(&client).map(|client| client.container);
        let container = container.ok_or(Refusal::NoClient { client })?;
        for (_, node) in self.tree.lineage(container) {
            if let Some(line) = node.lines.get(&card)
                && let Some(limit) = line.limits.max
                && line.current.saturating_add(bytes) > limit.0
            {
                return Err(Refusal::Max {
                    container: node.name.clone(),
                    gpu: gpu(),
                    limit,
                    current: Bytes(line.current),
                    asked: Bytes(bytes),
                });
            }
        }
        if bytes > info.total.0 {
            return Err(Refusal::Total {
                gpu: gpu(),
                total: info.total,
                asked: Bytes(bytes),
            });
        }
        let (needed, who) = self.tree.lacking(container, card, Protection::Min);
        let free = self.physically_free(card);
        if let Some((most, _)) = who.iter().max_by_key(|(_, lacks)| *lacks)
            && let Some(node) = self.tree.nodes.get(most)
            && free.saturating_sub(bytes) < needed
        {
            return Err(Refusal::Min {
                container: node.name.clone(),
                gpu: gpu(),
                needed: Bytes(needed),
                free: Bytes(free),
                asked: Bytes(bytes),
            });
        }
        Ok(ticket)
    }

    /// Whether a call can be begun.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooMany`].
    pub fn may_begin(&self, session: &SessionId, tid: i32) -> Result<(), Refusal> {
        if self.call_of(session, tid).is_some() {
            return Ok(());
        }
        let own = (session.clone(), i32::MIN)..=(session.clone(), i32::MAX);
        let own = || self.calls.range(own).count();
        // Counted only when it can matter.
        let own = if self.calls.len() < MAX_CALLS / 8 {
            0
        } else {
            own()
        };
        bound(
            "calls begun",
            self.calls.len(),
            own,
            (MAX_CALLS, 8),
            "for one session",
        )
    }

    /// Whether a reading counts: no name of the process changed since it began, and there is a
    /// card and a container to charge.
    #[must_use]
    pub fn is_current(&self, seen: &Observed) -> bool {
        let unchanged = match self.processes.get(&seen.owner) {
            Some(process) => process.changed <= seen.version,
            None => seen.container.is_some(),
        };
        unchanged && seen.version <= self.version && self.cards.contains_key(&seen.card)
    }

    /// What a reading that counts changes, if anything.
    #[must_use]
    pub fn reading(&self, seen: &Observed) -> Option<Op> {
        let process = self.processes.get(&seen.owner);
        let held = process.map_or(0, |process| process.held.get(seen.card));
        let before = process.map_or(0, |process| process.residual.get(seen.card));
        let bytes = seen.bytes.0.saturating_sub(held);
        let unfiltered = process.is_none_or(|process| process.clients == 0);
        let container = seen.container.clone().filter(|_| unfiltered);
        let moved = container.as_ref().is_some_and(|name| {
            process.is_some_and(|process| self.tree.number(name) != Some(process.container))
        });
        (bytes != before || moved).then_some(Op::Residual {
            owner: seen.owner,
            card: seen.card,
            bytes,
            container,
        })
    }
}

const CONTAINER: &str = "for one container";

/// Refuses beyond a bound for all, of which one may have the `part`th.
fn bound(
    what: &'static str,
    all: usize,
    own: usize,
    (most, part): (usize, usize),
    whose: &'static str,
) -> Result<(), Refusal> {
    let refuse = |most, whose| Err(Refusal::TooMany { what, most, whose });
    match (all >= most, own >= most / part) {
        (true, _) => refuse(most, "in all"),
        (_, true) => refuse(most / part, whose),
        _ => Ok(()),
    }
}
