//! Memory of the simulated GPUs, by the books that hold it on real ones.

use std::collections::{BTreeMap, BTreeSet};

use ghost_guardian::broker::books::{Books, Card, CardInfo, MemoryId, Op, Refusal};
use ghost_model::{Bytes, GpuId, GroupId, MemorySeen, MemoryWanted, Name, ProcId};
use ghost_rm::{Client, Object};

/// What a context takes before it allocates anything, as measured on an H200.
pub(super) const CONTEXT: Bytes = Bytes(520 << 20);

/// Who holds what. A GPU is known by its index.
#[derive(Debug, Default)]
pub(super) struct Memory {
    books: Books,
    /// The handle that is given out next, of clients and of objects.
    next: u32,
    clients: BTreeMap<ProcId, Client>,
    allocations: BTreeMap<GroupId, Vec<(MemoryId, Bytes)>>,
}

impl Memory {
    /// Nobody holds anything of these GPUs.
    pub(super) fn new(gpus: impl Iterator<Item = GpuId>, total: Bytes) -> Self {
        let cards = gpus.zip(0..).map(|(id, card)| CardInfo {
            card: Card(card),
            id,
            total,
            others: Bytes(0),
        });
        let mut memory = Self::default();
        let cards = cards.collect();
        memory.books.apply(&Op::Cards { cards });
        memory
    }

    pub(super) fn set_limits(&mut self, wanted: &MemoryWanted) {
        let wanted = wanted.clone();
        self.books.apply(&Op::Limits { wanted });
    }

    /// A process has so many contexts, which no limit refuses. They are charged to `container`,
    /// or where its allocations are.
    pub(super) fn set_contexts(&mut self, owner: ProcId, gpu: usize, count: u64, container: &Name) {
        self.books.apply(&Op::Residual {
            owner,
            card: card(gpu),
            bytes: count * CONTEXT.0,
            container: Some(container.clone()),
        });
    }

    /// Takes memory for a group of the process. It is charged to `container`, or where its
    /// allocations before are.
    ///
    /// # Errors
    /// A limit's refusal.
    pub(super) fn allocate(
        &mut self,
        owner: ProcId,
        (group, gpu): (GroupId, usize),
        container: &Name,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        let client = match self.clients.get(&owner) {
            Some(client) => *client,
            None => {
                let client = Client(self.handle());
                self.books.apply(&Op::Open {
                    client,
                    owner,
                    container: container.clone(),
                });
                self.clients.insert(owner, client);
                client
            }
        };
        let card = card(gpu);
        let ticket = match self.books.may_charge(client, card, bytes.0) {
            Ok(ticket) => ticket,
            Err(refusal) => {
                let max = match &refusal {
                    Refusal::Max { container, .. } => Some(container.clone()),
                    _ => None,
                };
                self.books.apply(&Op::Refuse { client, card, max });
                return Err(refusal);
            }
        };
        let id = (client, Object(self.handle()));
        let bytes = bytes.0;
        self.books.apply(&Op::Charge {
            ticket,
            id,
            card,
            bytes,
        });
        self.books.apply(&Op::Settle { ticket, id, bytes });
        let of_group = self.allocations.entry(group).or_default();
        of_group.push((id, Bytes(bytes)));
        Ok(())
    }

    /// Frees what a group holds.
    pub(super) fn free(&mut self, group: GroupId) {
        for (id, _) in self.allocations.remove(&group).unwrap_or_default() {
            self.books.apply(&Op::Free { id });
        }
    }

    /// A process has ended, and its groups with it.
    pub(super) fn end(&mut self, owner: ProcId) {
        if let Some(client) = self.clients.remove(&owner) {
            self.books.apply(&Op::Close { client });
        }
        self.books.apply(&Op::Gone { owner });
    }

    /// What a group holds, its context included.
    pub(super) fn held_by(&self, group: GroupId) -> Bytes {
        let all = self.allocations.get(&group).into_iter().flatten();
        Bytes(all.fold(CONTEXT.0, |sum, (_, bytes)| sum + bytes.0))
    }

    /// Who holds what, where these processes run.
    pub(super) fn seen(&self, held: BTreeSet<ProcId>) -> MemorySeen {
        MemorySeen {
            held,
            ..self.books.usage()
        }
    }

    fn handle(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1).max(1);
        self.next
    }
}

fn card(gpu: usize) -> Card {
    Card(u32::try_from(gpu).unwrap_or(u32::MAX))
}
