//! Channel groups, their numbers and their timeslices.

use std::collections::{BTreeMap, BTreeSet};

use ghost_model::Micros;
use ghost_model::sample::{GroupId, Reading};
use ghost_rm::{Channel, Client, Object};

/// The longest timeslice that is set. The hardware takes 8.5 s and cuts what is longer.
const LONGEST_US: u64 = 8_000_000;
/// A timeslice read back longer ago than this is stale: each is read once a second.
const FRESH_US: u64 = 2_500_000;

/// One channel group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) pid: u32,
    pub(super) client: Client,
    pub(super) object: Object,
    /// Place of its GPU among the boards.
    pub(super) gpu: usize,
    /// Whether it computes; else it copies, and is only ever paused.
    pub(super) compute: bool,
    /// The driver's number of it.
    pub(super) uid: u32,
    /// What it should have.
    pub(super) wanted: Option<u64>,
    /// What it had, when it was last read or set.
    pub(super) slice: Option<(u64, Micros)>,
}

impl Group {
    /// How the guardian is told of it.
    pub(super) fn channel(&self) -> Channel {
        Channel {
            client: self.client,
            object: self.object,
        }
    }

    /// The timeslice, as a sample has it.
    pub(super) fn reading(&self, now: Micros) -> Reading<Micros> {
        match self.slice {
            Some((us, at)) if now.since(at).0 <= FRESH_US => Reading::Fresh {
                value: Micros(us),
                at,
            },
            Some((us, at)) => Reading::Stale {
                value: Micros(us),
                at,
            },
            None => Reading::Missing,
        }
    }
}

/// What the hardware would make of a timeslice.
pub(super) fn settable(slice: Micros) -> u64 {
    slice.0.clamp(1, LONGEST_US)
}

/// All groups of all tenants.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: BTreeMap<GroupId, Group>,
    /// By process.
    owned: BTreeSet<(u32, GroupId)>,
    last: u64,
}

impl Groups {
    /// Keeps a new group, under a number that no other ever had.
    pub(super) fn add(&mut self, group: Group) -> GroupId {
        self.last += 1;
        let id = GroupId(self.last);
        self.owned.insert((group.pid, id));
        self.all.insert(id, group);
        id
    }

    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.all.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: GroupId) -> Option<Group> {
        let group = self.all.remove(&id)?;
        self.owned.remove(&(group.pid, id));
        Some(group)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.all.iter().map(|(&id, group)| (id, group))
    }

    /// The groups of one process.
    pub(super) fn of(&self, pid: u32) -> impl Iterator<Item = (GroupId, &Group)> {
        let of_it = (pid, GroupId(0))..=(pid, GroupId(u64::MAX));
        let ids = self.owned.range(of_it);
        ids.filter_map(|&(_, id)| Some((id, self.all.get(&id)?)))
    }
}
