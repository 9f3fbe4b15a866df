//! The books as ops: applied to empty books, they make equal ones.

use std::collections::BTreeSet;

use ghost_model::{MemoryWanted, ProcId};

use super::{Books, MemoryId, Op, Pending, Process, Ticket};

impl Books {
    /// Calls `put` with each op of a snapshot, in order.
    pub fn snapshot(&self, mut put: impl FnMut(&Op)) {
        // By name, so that parents come before children.
        for (name, number) in &self.tree.numbers {
            put(&Op::Container {
                number: *number,
                name: name.clone(),
            });
        }
        let name_of = |number| self.tree.nodes.get(&number).map(|node| node.name.clone());
        for (client, owned) in &self.clients {
            if let Some(container) = name_of(owned.container) {
                put(&Op::Open {
                    client: *client,
                    owner: owned.owner,
                    container,
                });
            }
        }
        self.put_memories(&mut put);
        for (owner, process) in &self.processes {
            self.put_process(*owner, process, &mut put);
        }
        put(&Op::Cards {
            cards: self.cards.values().cloned().collect(),
        });
        put(&Op::Limits {
            wanted: MemoryWanted(self.wanted.0.clone()),
        });
        for (number, node) in &self.tree.nodes {
            for (card, line) in &node.lines {
                put(&Op::Counted {
                    container: *number,
                    card: *card,
                    peak: line.peak,
                    events: line.events,
                    events_local: line.events_local,
                });
            }
        }
        for ((session, tid), call) in &self.calls {
            put(&Op::Begin {
                session: session.clone(),
                tid: *tid,
                call: *call,
            });
        }
        put(&Op::Stamp {
            version: self.version,
            ticket: Ticket(self.next_ticket),
            container: self.tree.next,
        });
    }

    fn put_memories(&self, put: &mut impl FnMut(&Op)) {
        let mut seen: BTreeSet<Ticket> = BTreeSet::new();
        let mut is_first = |ticket: Ticket, id: MemoryId, pending, put: &mut dyn FnMut(&Op)| {
            let is_first = seen.insert(ticket);
            if let Some(memory) = self.memories.get(&ticket).filter(|_| is_first) {
                put(&Op::Memory {
                    ticket,
                    id,
                    container: memory.container,
                    card: memory.card,
                    bytes: memory.bytes,
                    pending,
                });
            }
            is_first
        };
        for (id, memory) in &self.names {
            if !is_first(*memory, *id, None, put) {
                put(&Op::Name {
                    memory: *memory,
                    id: *id,
                });
            }
        }
        for (ticket, Pending { id, memory }) in &self.pending {
            if !is_first(*memory, *id, Some(*ticket), put) {
                put(&Op::Share {
                    ticket: *ticket,
                    memory: *memory,
                    id: *id,
                });
            }
        }
    }

    fn put_process(&self, owner: ProcId, process: &Process, put: &mut impl FnMut(&Op)) {
        let is_client = process.clients > 0;
        let place = Op::Process {
            owner,
            container: process.container,
            changed: process.changed,
        };
        // Opening made it in its first client's container of those that are left, so it is moved
        // before a residual is charged there.
        if is_client {
            put(&place);
        }
        let container = self.tree.nodes.get(&process.container);
        let container = container.filter(|_| !is_client);
        for (card, bytes) in &process.residual.0 {
            put(&Op::Residual {
                owner,
                card: *card,
                bytes: *bytes,
                container: container.map(|node| node.name.clone()),
            });
        }
        if !is_client {
            put(&place);
        }
    }
}
