//! When to look for what. Looking costs, so it waits for a sign: the driver's count of clients
//! and objects moved, the trace tells of a context that nobody knows, or a process is new.

use std::collections::{BTreeMap, BTreeSet};

use ghost_model::sample::GroupId;
use ghost_model::{GpuState, Micros};
use ghost_notify::poll_exits;
use ghost_rm::abi::discover::{CLASS_MPS, ClientDatabase};
use ghost_rm::{Client, Status};

use super::groups::Group;
use super::scan::{Asked, Reach};
use super::tenants::{Seen, Tenant};
use super::{Rm, Stock};
use crate::Event;
use crate::nvidia::inventory::Board;
use crate::nvidia::meter::Meter;

/// Processes are listed this often without any sign: with a hundred of them that takes 4 ms.
const LIST: Micros = Micros(10_000_000);
/// The same where no trace tells of processes that nobody knows.
const LIST_BLIND: Micros = Micros(1_000_000);
/// And at most this often with one: each allocation of memory is one.
const LIST_AT_MOST: Micros = Micros(20_000);
/// One known process is scanned this often, as long as the count moved since its last scan.
const SWEEP: Micros = Micros(4_000_000);
/// The same where no trace tells of new contexts.
const SWEEP_BLIND: Micros = Micros(100_000);
/// Each process's cgroup is read this often.
const FOLLOW: Micros = Micros(850_000);
/// Compute classes, newest first, from Blackwell to Volta. A chip has one that is in use.
const COMPUTE_CLASSES: [u32; 9] = [
    0xCEC0, 0xCDC0, 0xCBC0, 0xC9C0, 0xC7C0, 0xC6C0, 0xC5C0, 0xC3C0, 0xC1C0,
];
/// What MPS calls its server.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// Why a process is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// It is new, or was so a while ago.
    Due,
    /// The broker says that it made channel groups.
    Made,
    /// It is its turn.
    Swept,
    /// It used a GPU by a context that nobody knows.
    Used,
}

/// What was seen, and when.
#[derive(Debug, Default)]
pub(super) struct State {
    count: Option<ClientDatabase>,
    /// There is a sign that processes came or went.
    stirred: bool,
    listed: Option<Micros>,
    swept: Micros,
    /// Processes that were not scanned since the count last moved.
    dirty: BTreeSet<u32>,
    /// More handles of clients are left to look at.
    behind: bool,
    adopted: bool,
    /// Processes that had contexts and have none, as one does a moment before its end: they may
    /// make others, and when they exit it is told.
    idle: BTreeMap<u32, Tenant>,
}

impl State {
    /// Clients and objects of all processes, when they were last counted.
    pub(super) fn count(&self) -> Option<ClientDatabase> {
        self.count
    }
}

impl Stock {
    /// Whether there is a sign that something came or went since [`Stock::discover`], or something
    /// is to be looked at now.
    pub(super) fn has_stirred(&self, now: Micros) -> bool {
        let counted = self.rm.as_ref().and_then(|rm| rm.session.clients().ok());
        self.is_blind()
            || counted.is_none()
            || counted != self.discovery.count
            || self.discovery.stirred
            || self.discovery.behind
            || self.tenants.values().any(|tenant| tenant.settles(now))
    }

    /// Whether there is a GPU on which no trace tells of new contexts.
    pub(super) fn is_blind(&self) -> bool {
        self.boards.iter().any(|board| {
            let meter = board.driven.as_ref().map(|driven| &driven.meter);
            matches!(meter, Some(Meter::Telemetry(_)))
        })
    }

    /// Lets go of processes that have exited.
    pub(super) fn notice_exits(&mut self) {
        let idle = &self.discovery.idle;
        let held = self.tenants.values().chain(idle.values());
        let held = held.map(|tenant| &tenant.held);
        let places = match poll_exits(held, Some(std::time::Duration::ZERO)) {
            Ok(places) => places,
            Err(error) => {
                tracing::warn!(%error, "cannot poll processes");
                return;
            }
        };
        let pids: Vec<u32> = self.tenants.keys().chain(idle.keys()).copied().collect();
        for pid in places.into_iter().filter_map(|place| pids.get(place)) {
            let tenant = self.tenants.remove(pid);
            if let Some(tenant) = tenant.or_else(|| self.discovery.idle.remove(pid)) {
                self.has_exited(tenant);
            }
        }
    }

    fn has_exited(&mut self, tenant: Tenant) {
        let pid = tenant.id.pid;
        self.drop_groups(pid);
        self.discovery.stirred = true;
        if !tenant.appeared.is_empty() {
            let container = tenant.container;
            self.events.push(Event::Exited { pid, container });
        }
    }

    /// Reads again where processes are, each of them within a second.
    pub(super) fn follow_cgroups(&mut self, now: Micros) {
        for tenant in self.tenants.values_mut() {
            if tenant.cgroup_due <= now {
                tenant.cgroup_due = now + FOLLOW;
                tenant.follow(&self.members);
            }
        }
    }

    /// Looks for processes and channel groups where there is a sign of new ones; `unknown` are
    /// processes that used a GPU by contexts that are not known, `made` those of which the broker
    /// says that they made some. Whether any were found.
    pub(super) fn discover(
        &mut self,
        unknown: &BTreeSet<u32>,
        made: &BTreeSet<u32>,
        now: Micros,
    ) -> bool {
        // Taken out while the tenants that it knows nothing of are changed.
        let Some(mut rm) = self.rm.take() else {
            return false;
        };
        let count = rm.session.clients().ok();
        if count.is_none() || count != self.discovery.count {
            self.discovery.count = count;
            self.discovery.stirred = true;
            self.discovery.dirty = self.tenants.keys().copied().collect();
        }
        let blind = self.is_blind();
        let making = self.memory.making();
        let mut signs = unknown.difference(&making).chain(made);
        self.discovery.stirred |= signs.any(|pid| !self.tenants.contains_key(pid));
        let since = self.discovery.listed.map(|listed| now.since(listed));
        let mut due = BTreeMap::new();
        let list = if blind { LIST_BLIND } else { LIST };
        let stirred = self.discovery.stirred;
        if since.is_none_or(|since| since >= list || (stirred && since >= LIST_AT_MOST)) {
            self.discovery.listed = Some(now);
            self.discovery.stirred = false;
            let new = self.list_processes(&rm, now);
            due.extend(new.into_iter().map(|pid| (pid, Sign::Due)));
        }
        let behind = self.discovery.behind;
        let left_alone = |pid: &u32| making.contains(pid);
        for (&pid, tenant) in self.tenants.iter_mut().filter(|(pid, _)| !left_alone(pid)) {
            if tenant.settle(now) || (tenant.is_new() && behind) {
                due.entry(pid).or_insert(Sign::Due);
            }
            if unknown.contains(&pid) && tenant.may_search(now) {
                due.insert(pid, Sign::Used);
            }
            // The use that nobody knew of may be that of what was made.
            if made.contains(&pid) {
                due.insert(pid, Sign::Made);
            }
        }
        let sweep = if blind { SWEEP_BLIND } else { SWEEP };
        if now.since(self.discovery.swept) >= sweep {
            self.discovery.swept = now;
            let dirty = self.discovery.dirty.iter().find(|pid| !left_alone(pid));
            if let Some(&pid) = dirty {
                self.discovery.dirty.remove(&pid);
                due.entry(pid).or_insert(Sign::Swept);
            }
        }
        due.retain(|pid, _| !left_alone(pid));
        // Looking for new clients is dear: who is only swept, or was told of, may do with those
        // that were found.
        let needs_clients = |(pid, sign): (&u32, &Sign)| {
            let tenant = self.tenants.get(pid);
            tenant.is_some_and(|tenant| match sign {
                Sign::Used => true,
                Sign::Swept => tenant.is_new(),
                Sign::Due | Sign::Made => self.memory.told_of(tenant.id).is_empty(),
            })
        };
        if (blind && !due.is_empty()) || due.iter().any(needs_clients) {
            self.discovery.behind = match rm.unclaimed.refresh(&rm.session) {
                Ok(complete) => !complete,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for clients");
                    false
                }
            };
            let owned = self.tenants.values().flat_map(Tenant::clients);
            rm.unclaimed.claim(owned);
        }
        let mut found = false;
        for (pid, sign) in due {
            found |= self.look(&mut rm, pid, sign, now);
        }
        if !self.discovery.adopted && !self.discovery.behind {
            self.discovery.adopted = true;
            self.wake_trace(&rm);
        }
        self.rm = Some(rm);
        found
    }

    /// Holds processes that are new; returns those.
    fn list_processes(&mut self, rm: &Rm, now: Micros) -> BTreeSet<u32> {
        let mut listed = BTreeSet::new();
        let mut mps = BTreeSet::new();
        let mut complete = true;
        for board in &mut self.boards {
            let Some((pids, mps_here)) = pids_on(board, rm) else {
                complete &= board.driven.is_none();
                let told = self.telemetry.processes(&board.info.id).unwrap_or_default();
                listed.extend(told.into_keys());
                continue;
            };
            if pids.iter().any(|pid| !self.tenants.contains_key(pid)) {
                mps.extend(self.telemetry.mps(&board.info.id).unwrap_or_default());
            }
            listed.extend(pids);
            mps.extend(mps_here);
        }
        listed.remove(&0);
        self.unreachable.retain(|pid, _| listed.contains(pid));
        let mut new = BTreeSet::new();
        for &pid in &listed {
            if self.tenants.contains_key(&pid) || self.unreachable.contains_key(&pid) {
                continue;
            }
            match Tenant::open(pid, now) {
                Ok(mut tenant) => {
                    tenant.place(&self.members);
                    tenant.cgroup_due = now + FOLLOW;
                    match self.discovery.idle.remove(&pid) {
                        Some(before) if before.id == tenant.id => tenant.appeared = before.appeared,
                        Some(other) => self.has_exited(other),
                        None => {}
                    }
                    self.tenants.insert(pid, tenant);
                    new.insert(pid);
                }
                Err(error) => {
                    let reason = format!("{error}; it may be of another pid namespace");
                    self.unreachable.insert(pid, reason.clone());
                    let pid = Some(pid);
                    self.events.push(Event::Refused { pid, reason });
                }
            }
        }
        if complete {
            // Alive, but without a context.
            let idle = self.tenants.keys().filter(|pid| !listed.contains(pid));
            for pid in idle.copied().collect::<Vec<_>>() {
                let tenant = self.tenants.remove(&pid);
                let appeared = tenant.filter(|tenant| !tenant.appeared.is_empty());
                self.discovery
                    .idle
                    .extend(appeared.map(|tenant| (pid, tenant)));
                self.drop_groups(pid);
            }
        }
        for pid in listed {
            let tenant = self.tenants.get(&pid);
            if tenant.is_some_and(|tenant| tenant.command.starts_with(MPS_SERVER)) {
                self.refuse(
                    pid,
                    "it is an MPS server, whose clients share one channel group",
                );
            } else if mps.contains(&pid) {
                self.refuse(
                    pid,
                    "it is an MPS client and shares one channel group with others; \
                     stop MPS to have it held",
                );
            }
        }
        new
    }

    /// Looks at one process: at what the broker tells of it, and scans it where that is not
    /// enough. Whether something was found.
    fn look(&mut self, rm: &mut Rm, pid: u32, sign: Sign, now: Micros) -> bool {
        let Some(mut tenant) = self.tenants.remove(&pid) else {
            return false;
        };
        let mut found = false;
        if tenant.refused.is_none() {
            let told = self.memory.told_of(tenant.id);
            if !told.is_empty() {
                tenant.find_clients(&rm.session, told.keys().copied());
                rm.unclaimed.claim(tenant.clients());
                found = self.scan(rm, &mut tenant, None, &told, now);
            }
            let scans = match sign {
                Sign::Used => !found,
                Sign::Swept => true,
                Sign::Due | Sign::Made => told.is_empty(),
            };
            if scans {
                let search = matches!(sign, Sign::Used | Sign::Made);
                tenant.find_clients(&rm.session, rm.unclaimed.clients());
                rm.unclaimed.claim(tenant.clients());
                let reach = if search {
                    tenant.reach()
                } else {
                    Reach::Frontier
                };
                found = self.scan(rm, &mut tenant, Some(reach), &told, now);
                if search {
                    tenant.searched(found, now);
                }
            }
        }
        self.tenants.insert(pid, tenant);
        self.refuse_shared(pid);
        found
    }

    /// Takes in what was `told`, or scans as far as `reach`; whether something was found.
    fn scan(
        &mut self,
        rm: &Rm,
        tenant: &mut Tenant,
        reach: Option<Reach>,
        told: &BTreeMap<Client, Vec<Asked>>,
        now: Micros,
    ) -> bool {
        let pid = tenant.id.pid;
        let groups = self.groups.of(pid);
        let known: BTreeSet<_> = groups.map(|(_, g)| (g.client, g.object)).collect();
        let is_new = |client, object| !known.contains(&(client, object));
        let (seen, complete) = tenant.scan(&rm.session, reach, told, is_new);
        match reach {
            Some(Reach::Frontier) if !complete => _ = self.discovery.dirty.insert(pid),
            Some(_) => _ = self.discovery.dirty.remove(&pid),
            None => {}
        }
        let mut found = false;
        for seen in seen {
            found |= self.take_in(rm, tenant, seen, now);
        }
        found
    }

    /// Keeps what a scan found; whether that was news.
    fn take_in(&mut self, rm: &Rm, tenant: &mut Tenant, seen: Seen, now: Micros) -> bool {
        let pid = tenant.id.pid;
        let drives = |board: &Board| {
            let driven = board.driven.as_ref();
            driven.is_some_and(|driven| driven.rm_id == seen.found.gpu_id)
        };
        let Some(gpu) = self.boards.iter().position(drives) else {
            return false;
        };
        let Some(board) = self.boards.get_mut(gpu) else {
            return false;
        };
        let Some(driven) = &mut board.driven else {
            return false;
        };
        let mut of_tenant = self.groups.of(pid);
        let known = of_tenant
            .find(|(_, group)| (group.client, group.object) == (seen.client, seen.object))
            .map(|(id, group)| (id, group.compute));
        drop(of_tenant);
        if known.is_some() && !seen.found.compute {
            return false;
        }
        // It may be gone by now; and one that is not complete yet is looked at again.
        let session = &rm.session;
        let Ok(ids) = session.group_ids(driven.subdevice, seen.client, seen.object) else {
            return false;
        };
        let id = known.map(|(id, _)| id).unwrap_or_else(|| {
            self.groups.add(Group {
                pid,
                client: seen.client,
                object: seen.object,
                gpu,
                compute: false,
                uid: ids.uid,
                wanted: None,
                slice: seen.slice_us.map(|us| (us, now)),
            })
        });
        if !seen.found.compute {
            return known.is_none();
        }
        let news = driven.meter.add(id, pid, &ids.contexts);
        if let Some(group) = self.groups.get_mut(id) {
            group.compute = true;
            if let Some((us, _)) = group.slice {
                driven.meter.set_slice(id, us);
            }
        }
        if tenant.appeared.insert(board.info.id.clone()) {
            self.events.push(Event::Appeared {
                pid,
                container: tenant.container.clone(),
                gpu: board.info.id.clone(),
            });
        }
        news || known.is_none()
    }

    /// Channel groups that two processes share are held for neither: this is what MPS does.
    fn refuse_shared(&mut self, pid: u32) {
        let uids: BTreeSet<(usize, u32)> =
            self.groups.of(pid).map(|(_, g)| (g.gpu, g.uid)).collect();
        let sharing = self.groups.iter().filter(|(_, group)| {
            group.pid != pid && group.compute && uids.contains(&(group.gpu, group.uid))
        });
        let others: BTreeSet<u32> = sharing.map(|(_, group)| group.pid).collect();
        if others.is_empty() {
            return;
        }
        for pid in others.into_iter().chain([pid]) {
            self.refuse(
                pid,
                "it shares its channel group with another process, as MPS clients do",
            );
        }
    }

    pub(super) fn refuse(&mut self, pid: u32, reason: &str) {
        let Some(tenant) = self.tenants.get_mut(&pid) else {
            return;
        };
        if tenant.refused.is_none() {
            tenant.refused = Some(reason.to_owned());
            self.events.push(Event::Refused {
                pid: Some(pid),
                reason: reason.to_owned(),
            });
            self.drop_groups(pid);
        }
    }

    pub(super) fn drop_groups(&mut self, pid: u32) {
        let ids: Vec<GroupId> = self.groups.of(pid).map(|(id, _)| id).collect();
        for id in ids {
            self.drop_group(id);
        }
    }

    pub(super) fn drop_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(id) else {
            return;
        };
        let board = self.boards.get_mut(group.gpu);
        if let Some(driven) = board.and_then(|board| board.driven.as_mut()) {
            driven.meter.remove(id);
        }
    }

    /// Who was resident before the trace began is not in it; taken off once, those that have work
    /// come again.
    fn wake_trace(&self, rm: &Rm) {
        for (_, group) in self.groups.iter().filter(|(_, group)| group.compute) {
            let driven = self.boards.get(group.gpu).and_then(|b| b.driven.as_ref());
            let traced = driven.is_some_and(|d| matches!(d.meter, Meter::ContextSwitches(_)));
            if let Some(tenant) = self.tenants.get(&group.pid).filter(|_| traced) {
                let preempted = tenant.on_client(&rm.session, group.client, |control| {
                    control.preempt(group.client, group.object, None)
                });
                if let Err(error) = preempted {
                    tracing::debug!(pid = group.pid, %error, "not preempted");
                }
            }
        }
    }
}

/// The processes with contexts on one GPU, and the MPS clients among them; `None` if the driver
/// does not say. A GPU that is lost is refused from then on.
fn pids_on(board: &mut Board, rm: &Rm) -> Option<(BTreeSet<u32>, Vec<u32>)> {
    let driven = board.driven.as_mut()?;
    let mut pids = BTreeSet::new();
    let all = COMPUTE_CLASSES.as_slice();
    let classes = driven.class.as_ref().map_or(all, std::slice::from_ref);
    let mut used = None;
    for &class in classes {
        match rm.session.pids(driven.subdevice, class) {
            Ok(some) => {
                if !some.is_empty() {
                    used = Some(class);
                }
                pids.extend(some);
            }
            Err(error) => {
                tracing::warn!(gpu = %board.info.id, %error, "processes are not listed");
                if error.status() == Some(Status::GPU_IS_LOST) {
                    board.info.state = GpuState::Refused("it fell off the bus".to_owned());
                    board.driven = None;
                }
                return None;
            }
        }
    }
    driven.class = driven.class.or(used);
    let mps = rm
        .session
        .pids(driven.subdevice, CLASS_MPS)
        .unwrap_or_default();
    Some((pids, mps))
}
