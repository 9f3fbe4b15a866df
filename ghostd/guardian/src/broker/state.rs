//! What the broker's lock guards: the books with their journal, and what was learnt besides.

use std::collections::BTreeMap;
use std::time::Instant;

use ghost_model::{Members, Name, ProcId};
use ghost_rm::{Client, Object};

use super::books::{Card, MemoryId};
use super::journal::Keeper;
use super::wire::{ClientInfo, MAX_CLIENTS_TOLD, TenantInfo, Usage};
use crate::ledger::FileStore;

/// Channel groups that are told of one client.
const MAX_GROUPS: usize = 64;

/// Channels of those that are remembered of one client.
const MAX_CHANNELS: usize = 512;

/// Parents of memory that are remembered of one client.
const MAX_PLACES: usize = 64;

pub(super) struct State {
    pub(super) keeper: Keeper<FileStore>,
    pub(super) members: Members,
    /// Processes that got a client since the thread that watches looked.
    pub(super) fresh: Vec<ProcId>,
    /// Clients that may have lost something, and until when they are looked at.
    pub(super) suspects: BTreeMap<Client, Instant>,
    learnt: BTreeMap<Client, Learnt>,
}

/// What is known of a client besides what is charged.
#[derive(Default)]
struct Learnt {
    /// The card that each parent of memory is on.
    places: BTreeMap<Object, Card>,
    /// The channel groups that were asked for.
    groups: BTreeMap<Object, Group>,
    /// The group of each channel of those.
    channels: BTreeMap<Object, Object>,
}

/// What was asked for of a channel group.
struct Group {
    card: Card,
    /// It has channels, so that it is there.
    told: bool,
    /// One of them computes.
    computes: bool,
}

impl State {
    pub(super) fn new(keeper: Keeper<FileStore>) -> Self {
        Self {
            keeper,
            members: Members::default(),
            fresh: Vec::new(),
            suspects: BTreeMap::new(),
            learnt: BTreeMap::new(),
        }
    }

    /// The card that is known to be that of a parent of memory.
    pub(super) fn place(&self, (client, parent): MemoryId) -> Option<Card> {
        self.learnt.get(&client)?.places.get(&parent).copied()
    }

    pub(super) fn learn_place(&mut self, (client, parent): MemoryId, card: Card) {
        let Some(places) = self.learnt(client).map(|learnt| &mut learnt.places) else {
            return;
        };
        if places.len() >= MAX_PLACES {
            places.clear();
        }
        places.insert(parent, card);
    }

    /// A channel group was asked for.
    pub(super) fn learn_group(&mut self, (client, group): MemoryId, card: Card) {
        let groups = self.learnt(client).map(|learnt| &mut learnt.groups);
        if let Some(groups) = groups.filter(|groups| groups.len() < MAX_GROUPS) {
            let group_of = Group {
                card,
                told: false,
                computes: false,
            };
            groups.insert(group, group_of);
        }
    }

    /// A channel of a group was asked for: the group is there, if it is one that was asked for.
    /// Whether that is news.
    pub(super) fn learn_channel(&mut self, (client, channel): MemoryId, group: Object) -> bool {
        let Some(learnt) = self.learnt.get_mut(&client) else {
            return false;
        };
        let Some(known) = learnt.groups.get_mut(&group) else {
            return false;
        };
        if learnt.channels.len() < MAX_CHANNELS {
            learnt.channels.insert(channel, group);
        }
        !std::mem::replace(&mut known.told, true)
    }

    /// A compute engine was asked for on a channel; whether that is news of its group.
    pub(super) fn learn_compute(&mut self, (client, channel): MemoryId) -> bool {
        let Some(learnt) = self.learnt.get_mut(&client) else {
            return false;
        };
        let group = learnt.channels.get(&channel);
        let group = group.and_then(|group| learnt.groups.get_mut(group));
        group.is_some_and(|group| !std::mem::replace(&mut group.computes, true))
    }

    /// An object is being freed that may be a parent or a group; whether it was known.
    pub(super) fn unlearn(&mut self, (client, object): MemoryId) -> bool {
        self.learnt.get_mut(&client).is_some_and(|learnt| {
            learnt.channels.remove(&object);
            let group = learnt.groups.remove(&object).is_some();
            if group {
                learnt.channels.retain(|_, of| *of != object);
            }
            learnt.places.remove(&object).is_some() || group
        })
    }

    /// A client is gone.
    pub(super) fn unlearn_client(&mut self, client: Client) {
        self.learnt.remove(&client);
    }

    /// Only of clients that the books know, so that they bound it.
    fn learnt(&mut self, client: Client) -> Option<&mut Learnt> {
        self.keeper.books().tenant(client)?;
        Some(self.learnt.entry(client).or_default())
    }

    pub(super) fn usage(&self) -> Usage {
        let books = self.keeper.books();
        let mut tenants: BTreeMap<ProcId, TenantInfo> = BTreeMap::new();
        let mut told = 0;
        for tenant in books.tenants().take(MAX_CLIENTS_TOLD) {
            let learnt = self.learnt.get(&tenant.client);
            let groups = || learnt.into_iter().flat_map(|learnt| &learnt.groups);
            let computing = groups().filter(|(_, group)| group.computes);
            let info = tenants.entry(tenant.owner).or_insert_with(|| TenantInfo {
                owner: tenant.owner,
                container: Name::clone(tenant.container),
                clients: Vec::new(),
            });
            info.clients.push(ClientInfo {
                client: tenant.client.0,
                groups: groups().map(|(at, group)| (group.card, at.0)).collect(),
                computing: computing.map(|(at, _)| at.0).collect(),
            });
            told += 1;
        }
        Usage {
            version: books.version(),
            seen: books.usage(),
            tenants: tenants.into_values().collect(),
            more: told == MAX_CLIENTS_TOLD && books.tenants().count() > told,
            ..Usage::default()
        }
    }
}
