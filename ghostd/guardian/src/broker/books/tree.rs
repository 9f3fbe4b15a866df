//! The containers, and what each holds of each card with all below it.

use std::collections::{BTreeMap, BTreeSet};

use ghost_model::{Bytes, MemoryEvents, MemoryLimits, MemoryWanted, Name};

use super::{Card, CardInfo, PerCard};

/// The containers by number. Numbers are not used twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<u32, Node>,
    pub(super) numbers: BTreeMap<Name, u32>,
    pub(super) next: u32,
    /// All charges and residuals, by card.
    pub(super) charged: PerCard,
    /// Containers at the top that `min` or `low` protects on some card.
    protected: Vec<u32>,
}

/// No snapshot gives a container a larger number: as many again are left for new ones.
const MOST: u32 = 1 << 31;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: Name,
    pub(super) parent: Option<u32>,
    pub(super) children: BTreeSet<u32>,
    /// Clients, memories and processes that refer to it.
    pub(super) uses: u32,
    /// Its own clients, and the names in them, pending ones included.
    pub(super) clients: u32,
    pub(super) names: u32,
    pub(super) lines: BTreeMap<Card, Line>,
}

/// What a container, with all below it, holds of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) limits: MemoryLimits,
    /// Memories and residuals.
    pub(super) current: u64,
    /// The part of `current` that the driver was asked for and has not answered.
    pub(super) pending: u64,
    pub(super) peak: u64,
    pub(super) events: MemoryEvents,
    pub(super) events_local: MemoryEvents,
}

/// The two protections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Min,
    Low,
}

impl Protection {
    fn of(self, limits: &MemoryLimits) -> u64 {
        match self {
            Protection::Min => limits.min.0,
            Protection::Low => limits.low.0,
        }
    }
}

impl Tree {
    /// The number of a container that is there.
    pub(super) fn number(&self, name: &Name) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The container's number; it and those above it are made if they are not there.
    pub(super) fn ensure(&mut self, name: &Name) -> u32 {
        match self.number(name) {
            Some(number) => number,
            None => {
                let parent = name.parent().map(|parent| self.ensure(&parent));
                self.add(self.next, name, parent)
            }
        }
    }

    /// Makes a container under a number that a snapshot gives it, unless either is taken.
    pub(super) fn restore(&mut self, number: u32, name: &Name) {
        let taken = self.nodes.contains_key(&number) || self.numbers.contains_key(name);
        if taken || number >= MOST {
            return;
        }
        // A snapshot lists parents first; one that damage took gets a number of its own.
        self.skip_to(number + 1);
        let parent = name.parent().map(|parent| self.ensure(&parent));
        self.add(number, name, parent);
    }

    /// Numbers from here on, at least.
    pub(super) fn skip_to(&mut self, number: u32) {
        self.next = self.next.max(number.min(MOST));
    }

    fn add(&mut self, number: u32, name: &Name, parent: Option<u32>) -> u32 {
        let node = Node {
            name: name.clone(),
            parent,
            children: BTreeSet::new(),
            uses: 0,
            clients: 0,
            names: 0,
            lines: BTreeMap::new(),
        };
        self.nodes.insert(number, node);
        self.numbers.insert(name.clone(), number);
        self.next = self.next.max(number + 1);
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children.insert(number);
        }
        number
    }

    /// Removes a container that nothing refers to and nobody wants, then those above it likewise.
    pub(super) fn forget(&mut self, number: u32, wanted: &MemoryWanted) {
        let Some(node) = self.nodes.get(&number) else {
            return;
        };
        if node.uses > 0 || !node.children.is_empty() || wanted.0.contains_key(&node.name) {
            return;
        }
        let parent = node.parent;
        self.numbers.remove(&node.name);
        self.nodes.remove(&number);
        if let Some(parent) = parent {
            if let Some(above) = self.nodes.get_mut(&parent) {
                above.children.remove(&number);
            }
            self.forget(parent, wanted);
        }
    }

    /// This container and all above it, nearest first.
    pub(super) fn lineage(&self, number: u32) -> impl Iterator<Item = (u32, &Node)> {
        let node = |number: u32| Some((number, self.nodes.get(&number)?));
        std::iter::successors(node(number), move |(_, below)| below.parent.and_then(node))
    }

    /// Calls `f` with the card's line of this container and of all above it, nearest first.
    fn each_line(&mut self, number: u32, card: Card, mut f: impl FnMut(&mut Line)) {
        let mut next = Some(number);
        while let Some(node) = next.and_then(|number| self.nodes.get_mut(&number)) {
            f(node.lines.entry(card).or_default());
            next = node.parent;
        }
    }

    pub(super) fn charge(&mut self, number: u32, card: Card, bytes: u64, pending: bool) {
        self.charged.add(card, bytes);
        self.each_line(number, card, |line| {
            line.current += bytes;
            line.pending += if pending { bytes } else { 0 };
            line.peak = line.peak.max(line.current - line.pending);
        });
    }

    pub(super) fn uncharge(&mut self, number: u32, card: Card, bytes: u64, pending: bool) {
        self.charged.sub(card, bytes);
        self.each_line(number, card, |line| {
            line.current -= bytes;
            line.pending -= if pending { bytes } else { 0 };
        });
    }

    /// Settled use of the container grew: `high` of each container that is beyond it.
    pub(super) fn grew(&mut self, number: u32, card: Card) {
        let mut beyond = 0;
        self.each_line(number, card, |line| {
            let settled = line.current - line.pending;
            if line.limits.high.is_some_and(|high| settled > high.0) {
                line.events_local.high = line.events_local.high.saturating_add(1);
                beyond += 1;
            }
            line.events.high = line.events.high.saturating_add(beyond);
        });
    }

    /// Counts an event of the container, as its own and up the tree.
    pub(super) fn count(&mut self, number: u32, card: Card, one: fn(&mut MemoryEvents)) {
        let mut own = true;
        self.each_line(number, card, |line| {
            if own {
                one(&mut line.events_local);
            }
            own = false;
            one(&mut line.events);
        });
    }

    /// What the containers outside of the lineage of `asker` lack of their protection, together,
    /// and those that lack of their own, with how much.
    pub(super) fn lacking(
        &self,
        asker: u32,
        card: Card,
        protection: Protection,
    ) -> (u64, Vec<(u32, u64)>) {
        let mut who = Vec::new();
        if self.protected.is_empty() {
            return (0, who);
        }
        let lineage: Vec<u32> = self.lineage(asker).map(|(number, _)| number).collect();
        let lacking = Lacking {
            tree: self,
            lineage: &lineage,
            card,
            protection,
        };
        let need = |need: u64, &top| need.saturating_add(lacking.below(top, u64::MAX, &mut who));
        (self.protected.iter().fold(0, need), who)
    }

    /// Gives every line its limits.
    pub(super) fn limit(&mut self, wanted: &MemoryWanted, cards: &BTreeMap<Card, CardInfo>) {
        for node in self.nodes.values_mut() {
            for line in node.lines.values_mut() {
                line.limits = MemoryLimits::default();
            }
            for (gpu, limits) in wanted.0.get(&node.name).into_iter().flatten() {
                for card in cards.values().filter(|card| card.id == *gpu) {
                    node.lines.entry(card.card).or_default().limits = *limits;
                }
            }
        }
        let is_protected = |node: &Node| {
            let protects = |l: &Line| l.limits.min > Bytes(0) || l.limits.low > Bytes(0);
            node.parent.is_none() && node.lines.values().any(protects)
        };
        let protected = self.nodes.iter().filter(|(_, node)| is_protected(node));
        self.protected = protected.map(|(number, _)| *number).collect();
    }
}

/// A question about protection.
struct Lacking<'a> {
    tree: &'a Tree,
    lineage: &'a [u32],
    card: Card,
    protection: Protection,
}

impl Lacking<'_> {
    /// What a container and those below it lack, of which those above protect `cap`.
    fn below(&self, number: u32, cap: u64, who: &mut Vec<(u32, u64)>) -> u64 {
        let Some(node) = self.tree.nodes.get(&number) else {
            return 0;
        };
        let Some(line) = node.lines.get(&self.card) else {
            return 0;
        };
        let effective = self.protection.of(&line.limits).min(cap);
        if effective == 0 {
            return 0;
        }
        let children = node.children.iter();
        let children = children.fold(0, |sum: u64, &child| {
            sum.saturating_add(self.below(child, effective, who))
        });
        if self.lineage.contains(&number) {
            return children;
        }
        let own = effective.saturating_sub(line.current);
        if own > 0 {
            who.push((number, own));
        }
        own.max(children.min(effective))
    }
}
