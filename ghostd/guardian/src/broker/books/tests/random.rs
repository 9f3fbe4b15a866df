//! Random sequences against books that add everything up anew each time.

use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

use super::*;
use crate::broker::journal::Found;
use crate::broker::journal::tests::reread;

pub(super) const NAMES: [&str; 6] = ["t", "t/a", "t/a/x", "t/b", "u", "u/c"];
pub(super) const CARDS: [Card; 2] = [CARD, SECOND];
const TOTAL: u64 = 100;

/// Something that the broker or ghostd does. Small numbers pick what there is.
#[derive(Clone, Debug)]
enum Step {
    Open {
        client: u32,
        pid: u32,
        container: usize,
    },
    Charge {
        client: u32,
        object: u32,
        card: usize,
        bytes: u64,
    },
    Settle {
        pending: usize,
        object: u32,
        more: u64,
    },
    Cancel {
        pending: usize,
        failed: bool,
    },
    Share {
        name: usize,
        client: u32,
        object: u32,
    },
    Free {
        client: u32,
        object: u32,
    },
    Close {
        client: u32,
    },
    Observe {
        pid: u32,
        card: usize,
        bytes: u64,
        container: Option<usize>,
    },
    Gone {
        pid: u32,
    },
    Limit {
        container: usize,
        card: usize,
        limits: MemoryLimits,
    },
    Others {
        card: usize,
        bytes: u64,
    },
}

pub(super) fn limits() -> impl Strategy<Value = MemoryLimits> {
    let some = || proptest::option::of((0u64..120).prop_map(Bytes));
    let protect = || prop_oneof![3 => Just(Bytes(0)), 1 => (0u64..60).prop_map(Bytes)];
    (protect(), protect(), some(), some()).prop_map(|(min, low, high, max)| MemoryLimits {
        min,
        low,
        high,
        max,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let (client, object, pid) = (0u32..5, 0u32..6, 0u32..4);
    let (container, card) = (0..NAMES.len(), 0..CARDS.len());
    let (c, o, p) = (client.clone(), object.clone(), pid.clone());
    prop_oneof![
        3 => (client.clone(), pid.clone(), container.clone())
            .prop_map(|(client, pid, container)| Step::Open { client, pid, container }),
        8 => (client.clone(), object.clone(), card.clone(), 0u64..40)
            .prop_map(|(client, object, card, bytes)| Step::Charge { client, object, card, bytes }),
        8 => (0usize..4, object.clone(), 0u64..4)
            .prop_map(|(pending, object, more)| Step::Settle { pending, object, more }),
        1 => (0usize..4, any::<bool>())
            .prop_map(|(pending, failed)| Step::Cancel { pending, failed }),
        4 => (0usize..8, client.clone(), object)
            .prop_map(|(name, client, object)| Step::Share { name, client, object }),
        3 => (c, o).prop_map(|(client, object)| Step::Free { client, object }),
        1 => client.prop_map(|client| Step::Close { client }),
        3 => (pid, card.clone(), 0u64..60, proptest::option::of(container.clone()))
            .prop_map(|(pid, card, bytes, container)| Step::Observe { pid, card, bytes, container }),
        1 => p.prop_map(|pid| Step::Gone { pid }),
        2 => (container, card.clone(), limits())
            .prop_map(|(container, card, limits)| Step::Limit { container, card, limits }),
        1 => (card, 0u64..50).prop_map(|(card, bytes)| Step::Others { card, bytes }),
    ]
}

/// One memory.
#[derive(Clone, Debug)]
struct Block {
    names: BTreeSet<MemoryId>,
    pending: BTreeMap<Ticket, MemoryId>,
    settled: bool,
    container: Name,
    card: Card,
    bytes: u64,
}

impl Block {
    fn all_names(&self) -> impl Iterator<Item = &MemoryId> {
        self.names.iter().chain(self.pending.values())
    }
}

#[derive(Default)]
struct Counts {
    peak: u64,
    events: MemoryEvents,
    local: MemoryEvents,
}

#[derive(Default)]
struct Naive {
    others: BTreeMap<Card, u64>,
    limits: BTreeMap<(Name, Card), MemoryLimits>,
    clients: BTreeMap<Client, (ProcId, Name)>,
    blocks: Vec<Block>,
    base: BTreeMap<ProcId, Name>,
    residual: BTreeMap<(ProcId, Card), u64>,
    counts: BTreeMap<(Name, Card), Counts>,
}

impl Naive {
    fn limit(&self, container: &Name, card: Card) -> MemoryLimits {
        self.limits
            .get(&(container.clone(), card))
            .copied()
            .unwrap_or_default()
    }

    fn sum(&self, container: Option<&Name>, card: Card, pending: bool) -> u64 {
        let within = |name: &Name| container.is_none_or(|container| name.is_within(container));
        let counted = |b: &&Block| b.card == card && within(&b.container) && (pending || b.settled);
        let blocks = self.blocks.iter().filter(counted).map(|b| b.bytes);
        let residual = self.residual.iter();
        let residual = residual.filter(|((owner, c), _)| *c == card && within(&self.base[owner]));
        blocks.sum::<u64>() + residual.map(|(_, bytes)| bytes).sum::<u64>()
    }

    fn free(&self, card: Card) -> u64 {
        let taken = self.others.get(&card).copied().unwrap_or_default();
        TOTAL.saturating_sub(taken + self.sum(None, card, true))
    }

    /// What those off the asker's lineage lack, and who of them does itself.
    fn lacking(&self, asker: &Name, card: Card, of: fn(MemoryLimits) -> u64) -> (u64, Vec<Name>) {
        let lineage: Vec<Name> = asker.lineage().collect();
        let mut who = Vec::new();
        let mut needs: BTreeMap<Name, u64> = BTreeMap::new();
        let mut names = NAMES.map(name).to_vec();
        names.sort_by_key(|n| std::cmp::Reverse(n.lineage().count()));
        for container in names {
            let above = container.lineage().map(|n| of(self.limit(&n, card)));
            let effective = above.min().unwrap();
            let children = needs
                .iter()
                .filter(|(n, _)| n.parent().as_ref() == Some(&container));
            let children = children.map(|(_, need)| need).sum::<u64>();
            let own = effective.saturating_sub(self.sum(Some(&container), card, true));
            let need = if lineage.contains(&container) {
                children
            } else {
                if own > 0 {
                    who.push(container.clone());
                }
                own.max(children.min(effective))
            };
            needs.insert(container, need);
        }
        let tops = needs.iter().filter(|(n, _)| n.parent().is_none());
        (tops.map(|(_, need)| need).sum(), who)
    }

    fn grants(&self, asker: &Name, card: Card, bytes: u64) -> Result<(), Option<Name>> {
        for container in asker.lineage() {
            if let Some(max) = self.limit(&container, card).max
                && self.sum(Some(&container), card, true) + bytes > max.0
            {
                return Err(Some(container));
            }
        }
        let (needed, _) = self.lacking(asker, card, |l| l.min.0);
        let fits = bytes <= TOTAL && (needed == 0 || self.free(card) >= needed + bytes);
        fits.then_some(()).ok_or(None)
    }

    fn count(&mut self, container: &Name, card: Card, one: fn(&mut MemoryEvents)) {
        one(&mut self
            .counts
            .entry((container.clone(), card))
            .or_default()
            .local);
        for above in container.lineage() {
            one(&mut self.counts.entry((above, card)).or_default().events);
        }
    }

    fn grew(&mut self, asker: &Name, card: Card) {
        for container in asker.lineage() {
            let settled = self.sum(Some(&container), card, false);
            if self
                .limit(&container, card)
                .high
                .is_some_and(|high| settled > high.0)
            {
                self.count(&container, card, |e| e.high += 1);
            }
        }
        let (needed, who) = self.lacking(asker, card, |l| l.low.0);
        if needed > self.free(card) {
            for container in who {
                self.count(&container, card, |e| e.low += 1);
            }
        }
    }

    fn free_name(&mut self, id: MemoryId) {
        self.blocks.iter_mut().for_each(|b| _ = b.names.remove(&id));
        self.blocks.retain(|b| b.all_names().next().is_some());
    }

    fn has_clients(&self, owner: ProcId) -> bool {
        self.clients.values().any(|(o, _)| *o == owner)
    }

    fn close(&mut self, client: Client) {
        let Some((owner, _)) = self.clients.remove(&client) else {
            return;
        };
        self.blocks
            .iter_mut()
            .for_each(|b| b.names.retain(|id| id.0 != client));
        for block in &mut self.blocks {
            block.pending.retain(|_, id| id.0 != client);
        }
        self.blocks.retain(|b| b.all_names().next().is_some());
        if !self.has_clients(owner) {
            self.residual.retain(|(o, _), _| *o != owner);
            self.base.remove(&owner);
        }
    }

    fn observe(&mut self, owner: ProcId, card: Card, bytes: u64, container: Option<Name>) {
        let filtered = self.has_clients(owner);
        let of = |id: &MemoryId| self.clients[&id.0].0 == owner;
        let held = |b: &&Block| b.card == card && b.all_names().any(of);
        let held: u64 = self.blocks.iter().filter(held).map(|b| b.bytes).sum();
        let bytes = bytes.saturating_sub(held);
        let known = self.base.contains_key(&owner);
        let counts = !filtered && (known || bytes > 0);
        if let Some(name) = container.filter(|_| counts) {
            let before = self.base.insert(owner, name.clone());
            if before.is_some_and(|before| before != name) {
                self.moved(owner, &name);
            }
        }
        let Some(base) = self.base.get(&owner).cloned() else {
            return;
        };
        let before = self.residual.remove(&(owner, card)).unwrap_or_default();
        if bytes > 0 {
            self.residual.insert((owner, card), bytes);
        }
        if bytes > before {
            self.grew(&base, card);
        }
        self.peaks();
        if !filtered && !self.residual.keys().any(|(o, _)| *o == owner) {
            self.base.remove(&owner);
        }
    }

    /// A residual goes with its process, one card after the other.
    fn moved(&mut self, owner: ProcId, container: &Name) {
        for card in CARDS {
            if self.residual.contains_key(&(owner, card)) {
                self.grew(container, card);
            }
        }
        self.peaks();
    }

    fn peaks(&mut self) {
        for container in NAMES.map(name) {
            for card in CARDS {
                let settled = self.sum(Some(&container), card, false);
                let counts = self.counts.entry((container.clone(), card)).or_default();
                counts.peak = counts.peak.max(settled);
            }
        }
    }
}

/// The books and the naive ones, side by side.
struct Both {
    keeper: Keeper<Memory>,
    naive: Naive,
}

impl Both {
    fn new() -> Self {
        let mut both = Both {
            keeper: keeper(),
            naive: Naive::default(),
        };
        both.push();
        both
    }

    fn push(&mut self) {
        let others = |card| self.naive.others.get(&card).copied().unwrap_or_default();
        let cards = CARDS.map(|card| info(card, TOTAL, others(card))).to_vec();
        self.keeper.set_cards(cards).unwrap();
        let of = |container: &Name| {
            let limits = |card| (info(card, 0, 0).id, self.naive.limit(container, card));
            CARDS.map(limits).into_iter().collect()
        };
        let all = NAMES.map(name).into_iter();
        let wanted = MemoryWanted(all.map(|n| (n.clone(), of(&n))).collect());
        self.keeper.set_limits(wanted).unwrap();
    }

    fn pending(&self, nth: usize) -> Option<(Ticket, MemoryId, usize)> {
        let blocks = self.naive.blocks.iter().enumerate();
        let pending = blocks.flat_map(|(at, b)| b.pending.iter().map(move |(t, id)| (*t, *id, at)));
        let mut pending: Vec<_> = pending.collect();
        pending.sort_unstable();
        let same = self.keeper.books().pending_names();
        assert!(same.eq(pending.iter().map(|(ticket, id, _)| (*ticket, *id))));
        pending.get(nth).copied()
    }

    fn step(&mut self, step: &Step) {
        let Both { keeper, naive } = self;
        match step.clone() {
            Step::Open {
                client,
                pid,
                container,
            } => {
                let (client, owner, container) =
                    (Client(client), process(pid), name(NAMES[container]));
                keeper.open(client, owner, &container).unwrap();
                if !naive.clients.contains_key(&client) {
                    let first = !naive.has_clients(owner);
                    naive.clients.insert(client, (owner, container.clone()));
                    let before = if first {
                        naive.base.insert(owner, container.clone())
                    } else {
                        None
                    };
                    if before.is_some_and(|before| before != container) {
                        naive.moved(owner, &container);
                    }
                }
            }
            Step::Charge {
                client,
                object,
                card,
                bytes,
            } => {
                let (id, card) = (id(client, object), CARDS[card]);
                let done = keeper.charge(id, card, bytes);
                let Some((_, container)) = naive.clients.get(&id.0).cloned() else {
                    assert!(matches!(
                        done,
                        Err(KeepError::Refused(Refusal::NoClient { .. }))
                    ));
                    return;
                };
                let granted = naive.grants(&container, card, bytes);
                assert_eq!(done.is_ok(), granted.is_ok(), "{done:?} {granted:?}");
                match granted {
                    Ok(()) => naive.blocks.push(Block {
                        names: BTreeSet::new(),
                        pending: [(done.unwrap(), id)].into(),
                        settled: false,
                        container,
                        card,
                        bytes,
                    }),
                    Err(max) => {
                        if let Some(max) = max {
                            naive.count(&max, card, |e| e.max += 1);
                        }
                        naive.count(&container, card, |e| e.fail += 1);
                    }
                }
            }
            Step::Settle {
                pending,
                object,
                more,
            } => {
                let Some((ticket, asked, at)) = self.pending(pending) else {
                    return;
                };
                let Both { keeper, naive } = self;
                let id = (asked.0, Object(object));
                let block = &mut naive.blocks[at];
                let (bytes, card, container) =
                    (block.bytes + more, block.card, block.container.clone());
                keeper.settle(ticket, id, bytes).unwrap();
                let is_new = !std::mem::replace(&mut block.settled, true);
                if is_new {
                    block.bytes = bytes;
                }
                // The block that had the name loses it first; this one stays, whatever it had.
                let mut block = naive.blocks.remove(at);
                block.pending.remove(&ticket);
                block.names.remove(&id);
                naive.free_name(id);
                block.names.insert(id);
                naive.blocks.push(block);
                if is_new {
                    naive.grew(&container, card);
                }
            }
            Step::Cancel { pending, failed } => {
                let Some((ticket, asked, at)) = self.pending(pending) else {
                    return;
                };
                self.keeper.cancel(ticket, failed).unwrap();
                let block = &mut self.naive.blocks[at];
                let card = block.card;
                block.pending.remove(&ticket);
                if block.all_names().next().is_none() {
                    self.naive.blocks.remove(at);
                }
                if failed {
                    let (_, asker) = self.naive.clients[&asked.0].clone();
                    self.naive.count(&asker, card, |e| e.fail += 1);
                }
            }
            Step::Share {
                name,
                client,
                object,
            } => {
                let all = naive.blocks.iter().flat_map(|b| b.names.iter());
                let Some(of) = all.copied().nth(name) else {
                    return;
                };
                let id = id(client, object);
                let done = keeper.share(of, id);
                if !naive.clients.contains_key(&id.0) {
                    assert!(matches!(
                        done,
                        Err(KeepError::Refused(Refusal::NoClient { .. }))
                    ));
                    return;
                }
                let block = naive.blocks.iter_mut().find(|b| b.names.contains(&of));
                let ticket = done.unwrap().unwrap();
                block.unwrap().pending.insert(ticket, id);
            }
            Step::Free { client, object } => {
                keeper.free(id(client, object)).unwrap();
                naive.free_name(id(client, object));
            }
            Step::Close { client } => {
                keeper.close(Client(client)).unwrap();
                naive.close(Client(client));
            }
            Step::Observe {
                pid,
                card,
                bytes,
                container,
            } => {
                let (card, container) = (CARDS[card], container.map(|c| name(NAMES[c])));
                let seen = Observed {
                    owner: process(pid),
                    card,
                    bytes: Bytes(bytes),
                    version: keeper.books().version(),
                    container: container.clone(),
                };
                let counted = keeper.observe(&seen).unwrap();
                let known = naive.base.contains_key(&process(pid));
                assert_eq!(counted, known || container.is_some());
                naive.observe(process(pid), card, bytes, container);
            }
            Step::Gone { pid } => {
                keeper.gone(process(pid)).unwrap();
                naive
                    .residual
                    .retain(|(owner, _), _| *owner != process(pid));
                if !naive.has_clients(process(pid)) {
                    naive.base.remove(&process(pid));
                }
            }
            Step::Limit {
                container,
                card,
                limits,
            } => {
                naive
                    .limits
                    .insert((name(NAMES[container]), CARDS[card]), limits);
                self.push();
            }
            Step::Others { card, bytes } => {
                naive.others.insert(CARDS[card], bytes);
                self.push();
            }
        }
        self.naive.peaks();
    }

    fn check(&self) {
        valid(&self.keeper);
        let seen = self.keeper.books().usage();
        for container in NAMES.map(name) {
            for card in CARDS {
                let counts = self.naive.counts.get(&(container.clone(), card));
                let wanted = MemoryUse {
                    current: Bytes(self.naive.sum(Some(&container), card, true)),
                    peak: Bytes(counts.map_or(0, |c| c.peak)),
                    events: counts.map(|c| c.events).unwrap_or_default(),
                    events_local: counts.map(|c| c.local).unwrap_or_default(),
                };
                let got = seen.containers.get(&container);
                let got = got.and_then(|of| of.get(&info(card, 0, 0).id));
                assert_eq!(
                    got.copied().unwrap_or_default(),
                    wanted,
                    "{container} {card:?}"
                );
            }
        }
        let held: BTreeSet<ProcId> = self.naive.clients.values().map(|c| c.0).collect();
        assert_eq!(seen.held, held);
        for client in self.naive.clients.keys() {
            for card in CARDS {
                let view = self.keeper.books().card_of(*client, card).unwrap();
                assert!(view.free <= view.total);
                let free = view.free.0;
                let may = |bytes| self.keeper.books().may_charge(*client, card, bytes);
                assert!(
                    free == 0 || may(free).is_ok(),
                    "what is shown as free can be had"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn books_are_what_adding_up_says(steps in vec(step(), 0..120)) {
        let mut both = Both::new();
        for step in &steps {
            both.step(step);
            both.check();
        }
        // The journal is the books, and a snapshot is.
        both.keeper.flush().unwrap();
        let (again, found) = reread(&both.keeper);
        prop_assert!(again == *both.keeper.books());
        prop_assert_eq!(found, Found::default());
        let mut copy = Books::default();
        both.keeper.books().snapshot(|op| copy.apply(op));
        prop_assert!(copy == *both.keeper.books());
        // When all is closed, nothing is left.
        let clients: Vec<Client> = both.naive.clients.keys().copied().collect();
        for client in clients {
            both.step(&Step::Close { client: client.0 });
        }
        for pid in 0..4 {
            both.step(&Step::Gone { pid });
        }
        both.check();
        let seen = both.keeper.books().usage();
        let left = seen.containers.values().flat_map(|of| of.values());
        prop_assert_eq!(left.map(|used| used.current.0).sum::<u64>(), 0);
    }
}
