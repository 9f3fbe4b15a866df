//! What is always so.

use std::collections::{BTreeMap, BTreeSet};

use ghost_model::ProcId;

use super::{Books, Card, MAX_BYTES};

/// What of the books is not as it must be: a mistake in Ghost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory books are wrong: {0}; please report it")]
pub struct Violation(String);

/// What is said of something must be what is counted.
fn same<T: PartialEq + std::fmt::Debug>(
    what: impl FnOnce() -> String,
    said: T,
    counted: T,
) -> Result<(), Violation> {
    if said == counted {
        return Ok(());
    }
    Err(Violation(format!("{}: {said:?} is {counted:?}", what())))
}

/// Bytes in all, and the pending part.
type Sum = (u64, u64);

impl Books {
    /// The invariants: every sum is the sum of its parts, every reference leads somewhere and is
    /// counted, settled use is at most `peak`, and nothing is kept that nobody needs.
    ///
    /// # Errors
    ///
    /// The first [`Violation`].
    pub fn is_valid(&self) -> Result<(), Violation> {
        self.tree_is_valid()?;
        self.names_are_valid()?;
        self.sums_are_valid()?;
        self.references_are_valid()
    }

    fn tree_is_valid(&self) -> Result<(), Violation> {
        same(
            || "containers by name".into(),
            self.tree.numbers.len(),
            self.tree.nodes.len(),
        )?;
        for (number, node) in &self.tree.nodes {
            let name = &node.name;
            same(
                || format!("number of {name}"),
                self.tree.number(name),
                Some(*number),
            )?;
            same(
                || format!("{number} used before next"),
                *number < self.tree.next,
                true,
            )?;
            let parent = name.parent().and_then(|parent| self.tree.number(&parent));
            same(|| format!("parent of {name}"), node.parent, parent)?;
            same(
                || format!("{name} at the top"),
                parent.is_none(),
                name.parent().is_none(),
            )?;
            let below = self
                .tree
                .nodes
                .iter()
                .filter(|(_, n)| n.parent == Some(*number));
            let below: BTreeSet<u32> = below.map(|(number, _)| *number).collect();
            same(|| format!("children of {name}"), &node.children, &below)?;
            let is_needed = node.uses > 0 || !below.is_empty() || self.wanted.0.contains_key(name);
            same(|| format!("{name} is needed"), is_needed, true)?;
        }
        for name in self.wanted.0.keys() {
            same(
                || format!("{name} is there"),
                self.tree.number(name).is_some(),
                true,
            )?;
        }
        Ok(())
    }

    fn names_are_valid(&self) -> Result<(), Violation> {
        let mut holders: BTreeMap<_, BTreeMap<ProcId, u32>> = BTreeMap::new();
        let pending = self.pending.values().map(|p| (p.id, p.memory));
        let names = self.names.iter().map(|(id, ticket)| (*id, *ticket));
        for (id, ticket) in names.chain(pending) {
            let Some(client) = self.clients.get(&id.0) else {
                return Err(Violation(format!("a name in {}, which is not open", id.0)));
            };
            let names = holders.entry(ticket).or_default();
            *names.entry(client.owner).or_default() += 1;
        }
        same(
            || "memories with names".into(),
            self.memories.len(),
            holders.len(),
        )?;
        for ticket in self.pending.keys().chain(self.memories.keys()) {
            same(
                || format!("{ticket:?} used before next"),
                ticket.0 < self.next_ticket,
                true,
            )?;
        }
        for (ticket, memory) in &self.memories {
            let counted = holders.remove(ticket).unwrap_or_default();
            let said: BTreeMap<_, _> = memory.holders.iter().copied().collect();
            same(|| format!("names of {ticket:?}"), said, counted)?;
            same(
                || format!("{ticket:?} twice held"),
                memory.holders.is_sorted(),
                true,
            )?;
            let pending = self.pending.get(ticket);
            let pending = pending.is_some_and(|p| p.memory == *ticket);
            same(|| format!("{ticket:?} settled"), memory.settled, !pending)?;
            same(
                || format!("{ticket:?} too large"),
                memory.bytes > MAX_BYTES,
                false,
            )?;
        }
        Ok(())
    }

    fn sums_are_valid(&self) -> Result<(), Violation> {
        let mut lines: BTreeMap<(u32, Card), Sum> = BTreeMap::new();
        let mut cards: BTreeMap<Card, u64> = BTreeMap::new();
        let mut held: BTreeMap<(ProcId, Card), u64> = BTreeMap::new();
        let mut add = |container, card, bytes, pending| {
            *cards.entry(card).or_default() += bytes;
            for (number, _) in self.tree.lineage(container) {
                let sum = lines.entry((number, card)).or_default();
                sum.0 += bytes;
                sum.1 += if pending { bytes } else { 0 };
            }
        };
        for memory in self.memories.values() {
            add(memory.container, memory.card, memory.bytes, !memory.settled);
            for (owner, _) in &memory.holders {
                *held.entry((*owner, memory.card)).or_default() += memory.bytes;
            }
        }
        for process in self.processes.values() {
            for (card, bytes) in &process.residual.0 {
                add(process.container, *card, *bytes, false);
            }
        }
        for (number, node) in &self.tree.nodes {
            for (card, line) in &node.lines {
                let sum = lines.remove(&(*number, *card)).unwrap_or_default();
                let what = || format!("use of {} on {card:?}", node.name);
                same(what, (line.current, line.pending), sum)?;
                let settled = line.current - line.pending;
                same(
                    || format!("peak of {}", node.name),
                    line.peak >= settled,
                    true,
                )?;
            }
        }
        lines.retain(|_, sum| *sum != (0, 0));
        same(|| "uses without a line".into(), lines.len(), 0)?;
        for (card, said) in &self.tree.charged.0 {
            let counted = cards.remove(card).unwrap_or_default();
            same(|| format!("all of {card:?}"), *said, counted)?;
        }
        cards.retain(|_, sum| *sum > 0);
        same(|| "cards without a sum".into(), cards.len(), 0)?;
        held.retain(|_, sum| *sum > 0);
        let said = self.processes.iter().flat_map(|(owner, process)| {
            let held = process.held.0.iter();
            held.map(|(card, bytes)| ((*owner, *card), *bytes))
        });
        same(|| "held by processes".into(), said.collect(), held)
    }

    fn references_are_valid(&self) -> Result<(), Violation> {
        // Of each container: uses, clients, names.
        let mut counted: BTreeMap<u32, (u32, u32, u32)> = BTreeMap::new();
        let mut clients: BTreeMap<ProcId, u32> = BTreeMap::new();
        for client in self.clients.values() {
            let of = counted.entry(client.container).or_default();
            of.0 += 1;
            of.1 += 1;
            *clients.entry(client.owner).or_default() += 1;
        }
        for memory in self.memories.values() {
            counted.entry(memory.container).or_default().0 += 1;
        }
        for (owner, process) in &self.processes {
            counted.entry(process.container).or_default().0 += 1;
            let clients = clients.remove(owner).unwrap_or_default();
            same(|| format!("clients of {owner:?}"), process.clients, clients)?;
            let is_needed = clients > 0 || !process.residual.0.is_empty();
            same(|| format!("{owner:?} is needed"), is_needed, true)?;
            same(
                || format!("{owner:?} of the future"),
                process.changed > self.version,
                false,
            )?;
        }
        same(|| "clients without a process".into(), clients.len(), 0)?;
        let pending = self.pending_names().map(|(_, id)| id);
        for id in self.names.keys().copied().chain(pending) {
            if let Some(client) = self.clients.get(&id.0) {
                counted.entry(client.container).or_default().2 += 1;
            }
        }
        for (number, node) in &self.tree.nodes {
            let counted = counted.remove(number).unwrap_or_default();
            let said = (node.uses, node.clients, node.names);
            same(|| format!("references to {}", node.name), said, counted)?;
        }
        same(|| "references to no container".into(), counted.len(), 0)
    }
}
