//! Doing what a plan asks, and seeing to it that it stays done.

use std::collections::BTreeMap;
use std::mem::discriminant;

use ghost_guardian::Pause;
use ghost_model::plan::Why;
use ghost_model::sample::GroupId;
use ghost_model::{Action, Micros};
use ghost_rm::{Client, RmError};

use super::Stock;
use super::groups::settable;
use super::pauses::{Pauses, Target, Unpaused};
use super::tenants::{AUDIT, Tenant};
use crate::{Event, Failure};

impl Stock {
    pub(super) fn carry_out(&mut self, actions: &[Action], now: Micros) -> Vec<Failure> {
        let mut failed = Vec::new();
        for alike in actions.chunk_by(|a, b| discriminant(a) == discriminant(b)) {
            match alike.first() {
                Some(Action::SetSlice { .. }) => failed.extend(self.set_slices(alike, now)),
                _ => failed.extend(self.switch_pauses(alike, now)),
            }
        }
        failed
    }

    /// Sets timeslices, with one duplicate a client.
    fn set_slices(&mut self, actions: &[Action], now: Micros) -> Vec<Failure> {
        let mut by_client = BTreeMap::<(u32, Client), Vec<(GroupId, u64, &Action)>>::new();
        for action in actions {
            let Action::SetSlice {
                group: id, slice, ..
            } = action
            else {
                continue;
            };
            let us = settable(*slice);
            // One that is gone needs nothing.
            let Some(group) = self.groups.get_mut(*id) else {
                continue;
            };
            group.wanted = Some(us);
            if group.slice.is_none_or(|(in_force, _)| in_force != us) {
                let of_client = by_client.entry((group.pid, group.client)).or_default();
                of_client.push((*id, us, action));
            }
        }
        let mut failed = Vec::new();
        for ((pid, client), list) in by_client {
            let (Some(tenant), Some(rm)) = (self.tenants.get(&pid), &self.rm) else {
                continue;
            };
            let groups = &self.groups;
            let done = tenant.on_client(&rm.session, client, |control| {
                let each = list.iter().map(|&(id, us, _)| {
                    let object = groups.get(id).map(|group| group.object);
                    object.map_or(Ok(()), |object| control.set_timeslice(client, object, us))
                });
                Ok(each.collect::<Vec<Result<(), RmError>>>())
            });
            let done = match done {
                Ok(done) => done,
                Err(error) if error.is_gone() => continue,
                Err(error) => {
                    failed.extend(list.iter().map(|(_, _, action)| failure(action, &error)));
                    continue;
                }
            };
            for ((id, us, action), done) in list.into_iter().zip(done) {
                match done {
                    Ok(()) => self.note_slice(id, us, now),
                    Err(error) if error.status().is_some_and(ghost_rm::Status::is_gone) => {}
                    Err(error) => failed.push(failure(action, &error)),
                }
            }
        }
        failed
    }

    fn note_slice(&mut self, id: GroupId, us: u64, now: Micros) {
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        group.slice = Some((us, now));
        let board = self.boards.get_mut(group.gpu);
        if let Some(driven) = board.and_then(|board| board.driven.as_mut()) {
            driven.meter.set_slice(id, us);
        }
    }

    /// Reads timeslices back, those of each process within a second, and sets back what a tenant
    /// changed. Finds out, too, which groups are gone though their process is not.
    pub(super) fn audit(&mut self, now: Micros) {
        let due: Vec<u32> = self
            .tenants
            .values()
            .filter(|tenant| tenant.audit_due <= now)
            .map(|tenant| tenant.id.pid)
            .collect();
        let (count, blind) = (self.discovery.count(), self.is_blind());
        for pid in due {
            let mut clients: BTreeMap<Client, Vec<GroupId>> = BTreeMap::new();
            for (id, group) in self.groups.of(pid).filter(|(_, group)| group.compute) {
                clients.entry(group.client).or_default().push(id);
            }
            let verified = self.tenants.get(&pid).and_then(|tenant| tenant.verified);
            // Where a group came and another went between two counts, the trace tells.
            let verify = blind || verified.is_none() || verified != count;
            let mut complete = true;
            for (client, ids) in clients {
                complete &= self.audit_client(pid, client, &ids, verify, now);
            }
            if let Some(tenant) = self.tenants.get_mut(&pid) {
                tenant.audit_due = now + AUDIT;
                tenant.verified = count.filter(|_| complete);
            }
        }
    }

    /// Audits groups of one client; `verify` if their handles may be those of others by now.
    /// Whether the client answered.
    fn audit_client(
        &mut self,
        pid: u32,
        client: Client,
        ids: &[GroupId],
        verify: bool,
        now: Micros,
    ) -> bool {
        let (Some(tenant), Some(rm)) = (self.tenants.get(&pid), &self.rm) else {
            return false;
        };
        let groups = &self.groups;
        let read = tenant.on_client(&rm.session, client, |control| {
            let each = ids.iter().filter_map(|&id| {
                let group = groups.get(id)?;
                let in_force = control.get_timeslice(client, group.object);
                let changed = match (&in_force, group.wanted) {
                    (Ok(in_force), Some(wanted)) if *in_force != wanted => Some(
                        control
                            .set_timeslice(client, group.object, wanted)
                            .map(|()| wanted),
                    ),
                    _ => None,
                };
                Some((id, in_force, changed))
            });
            Ok(each.collect::<Vec<_>>())
        });
        let Ok(read) = read else {
            // It is exiting, or closed the file; the next look finds out.
            return false;
        };
        let mut gone = Vec::new();
        for (id, in_force, changed) in read {
            let Some(group) = self.groups.get(id) else {
                continue;
            };
            let driven = self
                .boards
                .get(group.gpu)
                .and_then(|board| board.driven.as_ref());
            let (Some(driven), Some(rm)) = (driven, &self.rm) else {
                continue;
            };
            let ids = || rm.session.group_ids(driven.subdevice, client, group.object);
            if (verify && ids().is_ok_and(|ids| ids.uid != group.uid))
                || matches!(&in_force, Err(error) if error.status().is_some_and(ghost_rm::Status::is_gone))
            {
                gone.push(id);
                continue;
            }
            match (in_force, changed) {
                (Ok(_), Some(Ok(us))) => {
                    self.note_slice(id, us, now);
                    self.count_reassertion(pid, id);
                }
                (Ok(us), None) => self.note_slice(id, us, now),
                (Ok(_), Some(Err(error))) | (Err(error), _) => {
                    tracing::debug!(pid, %error, "timeslice is not audited");
                }
            }
        }
        if gone.is_empty() {
            return true;
        }
        for id in gone {
            self.drop_group(id);
        }
        // Its copy groups may be gone with it: all of the client's are found again.
        let copies = self
            .groups
            .of(pid)
            .filter(|(_, g)| g.client == client && !g.compute);
        for id in copies.map(|(id, _)| id).collect::<Vec<_>>() {
            self.drop_group(id);
        }
        if let Some(tenant) = self.tenants.get_mut(&pid) {
            tenant.forget_objects(client);
        }
        true
    }

    fn count_reassertion(&mut self, pid: u32, id: GroupId) {
        self.reasserted += 1;
        let gpu = self
            .groups
            .get(id)
            .and_then(|group| self.boards.get(group.gpu));
        if let (Some(tenant), Some(board)) = (self.tenants.get(&pid), gpu) {
            self.events.push(Event::Reasserted {
                pid,
                container: tenant.container.clone(),
                gpu: board.info.id.clone(),
            });
        }
    }

    fn switch_pauses(&mut self, actions: &[Action], now: Micros) -> Vec<Failure> {
        for action in actions {
            match action {
                Action::Pause {
                    gpu,
                    container,
                    why,
                } => {
                    if let Some(board) = self.board_of(gpu) {
                        self.wanted_pauses.insert((board, container.clone()), *why);
                    }
                }
                Action::Resume { gpu, container } => {
                    if let Some(board) = self.board_of(gpu) {
                        self.wanted_pauses.remove(&(board, container.clone()));
                    }
                }
                Action::SetSlice { .. } => {}
            }
        }
        let unpaused = self.hold_pauses(now);
        let failures = actions.iter().filter_map(|action| {
            let Action::Pause { gpu, container, .. } = action else {
                return None;
            };
            let board = self.board_of(gpu)?;
            let is_it = |u: &&Unpaused| u.gpu == board && u.container == *container;
            Some(failure(action, &unpaused.iter().find(is_it)?.cause))
        });
        failures.collect()
    }

    /// Makes the guardian hold what is to be paused now: groups that came since included, groups
    /// of processes that left the container excluded.
    pub(super) fn hold_pauses(&mut self, now: Micros) -> Vec<Unpaused> {
        if self.wanted_pauses.is_empty() && self.pauses.is_empty() {
            return Vec::new();
        }
        let mut targets = Vec::new();
        for ((gpu, container), why) in &self.wanted_pauses {
            let driven = self
                .boards
                .get(*gpu)
                .and_then(|board| board.driven.as_ref());
            let Some(driven) = driven else { continue };
            let inside = self.tenants.values().filter(|t| t.container == *container);
            for tenant in inside.filter(|tenant| tenant.refused.is_none()) {
                let groups = self.groups.of(tenant.id.pid);
                let channels: Vec<_> = groups
                    .filter(|(_, g)| g.gpu == *gpu && (g.compute || stops_copies(*why)))
                    .map(|(_, group)| group.channel())
                    .collect();
                if channels.is_empty() {
                    continue;
                }
                targets.push(Target {
                    container: container.clone(),
                    gpu: *gpu,
                    pause: Pause {
                        key: key_of(*gpu, tenant),
                        lease_us: Pauses::lease_us(),
                        gpu: driven.gpu,
                        owner: tenant.held.id(),
                        channels,
                    },
                });
            }
        }
        let unpaused = self.pauses.reconcile(targets, now);
        for tenant in self.tenants.values() {
            for (id, group) in self.groups.of(tenant.id.pid).filter(|(_, g)| g.compute) {
                let paused = self.is_paused(group.gpu, tenant);
                let board = self.boards.get_mut(group.gpu);
                if let Some(driven) = board.and_then(|board| board.driven.as_mut()) {
                    driven.meter.set_paused(id, paused);
                }
            }
        }
        unpaused
    }

    pub(super) fn is_paused(&self, gpu: usize, tenant: &Tenant) -> bool {
        !self.pauses.is_empty()
            && self
                .wanted_pauses
                .contains_key(&(gpu, tenant.container.clone()))
            && self.pauses.is_held(&key_of(gpu, tenant))
    }
}

/// A container that may not use a GPU at all does not copy either; one whose share is used up
/// may have its data ready.
fn stops_copies(why: Why) -> bool {
    match why {
        Why::Freeze | Why::Devices => true,
        Why::Max | Why::Idle => false,
    }
}

fn key_of(gpu: usize, tenant: &Tenant) -> String {
    format!("{gpu}/{}/{}", tenant.id.pid, tenant.id.start)
}

fn failure(action: &Action, cause: &impl ToString) -> Failure {
    Failure {
        action: action.clone(),
        cause: cause.to_string(),
    }
}
