//! Processes that use a GPU: each held by a pidfd, and nothing else of theirs kept open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::RawFd;

use ghost_model::{GpuId, Members, Micros, Name, ProcId};
use ghost_notify::{PidFd, ProcError};
use ghost_rm::abi::discover::{CLIENT_BASE, CLIENT_SPACE, ClientDatabase};
use ghost_rm::{Client, Control, Object, RmError, Session};

use crate::{cgroup, procs};

use super::scan::{Asked, Found, Objects, Reach};

/// The most clients that a tenant is searched for.
const MAX_CLIENTS: usize = 64;
/// The most control nodes that a tenant is looked at on.
const MAX_NODES: usize = 64;
/// Handles of clients that are asked about in one step: 50 ms.
const STEP: u32 = 16_384;
/// When a new tenant is looked at again: a context takes its time to be complete.
const SETTLING_US: [u64; 3] = [100_000, 400_000, 1_200_000];

/// How often timeslices are read back; those of different processes at different times.
pub(super) const AUDIT: Micros = Micros(850_000);

/// Why something of a tenant cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum TenantError {
    /// The process, or its descriptor.
    #[error(transparent)]
    Process(#[from] ProcError),
    /// The driver refused.
    #[error(transparent)]
    Rm(#[from] RmError),
    /// The descriptor is no longer the control node.
    #[error("process {pid}: descriptor {fd} is not the nvidia control node any more")]
    NotOurs {
        /// The process.
        pid: u32,
        /// Its descriptor.
        fd: RawFd,
    },
}

impl TenantError {
    /// Whether the process, its client or the object is not there any more.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Process(error) => {
                matches!(error, ProcError::Gone { .. } | ProcError::NoSuchFd { .. })
            }
            Self::Rm(error) => error.status().is_some_and(ghost_rm::Status::is_gone),
            Self::NotOurs { .. } => true,
        }
    }
}

/// Clients of all processes that no tenant is known to own.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    clients: BTreeSet<Client>,
    /// How far the handles were looked at; they are given out upwards, and begin again.
    mark: u32,
}

impl Unclaimed {
    /// Those of nobody who is known.
    pub(super) fn clients(&self) -> impl Iterator<Item = Client> + '_ {
        self.clients.iter().copied()
    }

    /// These are somebody's.
    pub(super) fn claim(&mut self, clients: impl IntoIterator<Item = Client>) {
        for client in clients {
            self.clients.remove(&client);
        }
    }

    /// Looks at the handles given out since the last call; false if there are more than one
    /// step's worth.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn refresh(&mut self, session: &Session) -> Result<bool, RmError> {
        self.clients.retain(|&client| session.client_exists(client));
        let newest = session.newest_client()?.0.wrapping_sub(CLIENT_BASE) % CLIENT_SPACE;
        let ahead = newest.wrapping_sub(self.mark).wrapping_add(CLIENT_SPACE) % CLIENT_SPACE;
        for _ in 0..ahead.min(STEP) {
            let client = Client(CLIENT_BASE + self.mark);
            if client != session.client() && session.client_exists(client) {
                self.clients.insert(client);
            }
            self.mark = (self.mark + 1) % CLIENT_SPACE;
        }
        Ok(ahead <= STEP)
    }
}

#[derive(Debug)]
struct Own {
    client: Client,
    fd: RawFd,
    objects: Objects,
}

/// A channel group as a scan found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) client: Client,
    pub(super) object: Object,
    pub(super) found: Found,
    /// Its timeslice, where it was asked for.
    pub(super) slice_us: Option<u64>,
}

/// One process.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) id: ProcId,
    pub(super) held: PidFd,
    pub(super) command: String,
    pub(super) container: Name,
    /// Why it is left alone, if it is.
    pub(super) refused: Option<String>,
    /// The GPUs on which it was seen to compute.
    pub(super) appeared: BTreeSet<GpuId>,
    /// Its cgroup must be looked at again then.
    pub(super) cgroup_due: Micros,
    /// Its timeslices must be read back then.
    pub(super) audit_due: Micros,
    /// The driver's count of objects when its groups were last seen to be those that are known.
    pub(super) verified: Option<ClientDatabase>,
    cgroup: Option<String>,
    /// The kernel's number of it, if it tells.
    cgroup_id: Option<u64>,
    clients: Vec<Own>,
    settling: Vec<Micros>,
    /// Scans in vain, since the last that found something.
    in_vain: u32,
    quiet_until: Micros,
}

impl Tenant {
    /// Holds the process that has `pid` now.
    ///
    /// # Errors
    /// As [`PidFd::open_pid`].
    pub(super) fn open(pid: u32, now: Micros) -> Result<Self, ProcError> {
        let number = i32::try_from(pid).map_err(|_| ProcError::Gone { pid: -1 })?;
        let held = PidFd::open_pid(number)?;
        let id = ProcId {
            pid,
            start: held.id().start_ticks,
        };
        let mut settling: Vec<Micros> = SETTLING_US.iter().map(|&us| now + Micros(us)).collect();
        settling.reverse();
        Ok(Self {
            id,
            held,
            command: procs::command(pid).unwrap_or_default(),
            container: Name::system(),
            refused: None,
            appeared: BTreeSet::new(),
            cgroup_due: now,
            audit_due: now + Micros(u64::from(pid) * 37_000 % AUDIT.0),
            verified: None,
            cgroup: None,
            cgroup_id: None,
            clients: Vec::new(),
            settling,
            in_vain: 0,
            quiet_until: now,
        })
    }

    /// Reads its cgroup again and puts it where it belongs.
    pub(super) fn place(&mut self, members: &Members) {
        // Asked before the path is read: it may move between the two.
        self.cgroup_id = self.held.cgroup_id();
        if let Some(path) = cgroup::path_of(self.id.pid) {
            self.cgroup = Some(path);
        }
        self.container = members.container_of(self.id, self.cgroup.as_deref());
    }

    /// The same for one that these `members` have placed before.
    pub(super) fn follow(&mut self, members: &Members) {
        if self.cgroup_id.is_none() || self.held.cgroup_id() != self.cgroup_id {
            self.place(members);
        }
    }

    /// Why it is not held, if it is not.
    pub(super) fn trouble(&self, has_groups: bool) -> Option<String> {
        let lost = !has_groups && self.settling.is_empty();
        let lost = lost.then(|| "its channel groups were not found".to_owned());
        self.refused.clone().or(lost)
    }

    /// Whether none of its clients was found yet.
    pub(super) fn is_new(&self) -> bool {
        self.clients.is_empty()
    }

    /// Whether it is time to look at a process that is new.
    pub(super) fn settles(&self, now: Micros) -> bool {
        self.settling.last().is_some_and(|&at| at <= now)
    }

    /// The same; that time is over then.
    pub(super) fn settle(&mut self, now: Micros) -> bool {
        let due = self.settles(now);
        if due {
            self.settling.pop();
        }
        due
    }

    /// Whether it may be searched for what is not known of it.
    pub(super) fn may_search(&self, now: Micros) -> bool {
        self.quiet_until <= now
    }

    /// How far the next search goes.
    pub(super) fn reach(&self) -> Reach {
        if self.in_vain == 0 {
            Reach::Frontier
        } else {
            Reach::Deep
        }
    }

    /// Takes note of a search, and lets longer and longer pass where they are in vain.
    pub(super) fn searched(&mut self, found: bool, now: Micros) {
        let searching = self.clients.iter().any(|own| own.objects.is_searching());
        if found {
            self.in_vain = 0;
        } else if !searching {
            self.in_vain = (self.in_vain + 1).min(9);
            self.quiet_until = now + Micros(50_000 << self.in_vain);
        }
    }

    /// Its clients that are known.
    pub(super) fn clients(&self) -> impl Iterator<Item = Client> + '_ {
        self.clients.iter().map(|own| own.client)
    }

    /// Looks for clients of it among `some`.
    pub(super) fn find_clients(
        &mut self,
        session: &Session,
        some: impl IntoIterator<Item = Client>,
    ) {
        let is_own = |client: &Client| self.clients.iter().any(|own| own.client == *client);
        let mut some: BTreeSet<Client> = some.into_iter().filter(|c| !is_own(c)).collect();
        for fd in control_nodes(self.id.pid) {
            if some.is_empty() || self.clients.len() >= MAX_CLIENTS {
                return;
            }
            let asked = self.held.with_fd(fd, |duplicate| {
                if !session.is_control_node(duplicate) {
                    return Vec::new();
                }
                let control = Control::new(duplicate);
                let is_here = |c: &&Client| control.class_of(**c, c.as_object()).is_ok();
                some.iter().filter(is_here).copied().collect()
            });
            // A descriptor that was closed meanwhile has no client.
            for client in asked.unwrap_or_default() {
                some.remove(&client);
                self.clients.push(Own {
                    client,
                    fd,
                    objects: Objects::new(client),
                });
            }
        }
    }

    /// Takes in what was `told` of its clients, or scans them as far as `reach`, and returns all
    /// channel groups known, with the timeslices of those that are `new`, and whether the scans
    /// came to their ends.
    pub(super) fn scan(
        &mut self,
        session: &Session,
        reach: Option<Reach>,
        told: &BTreeMap<Client, Vec<Asked>>,
        new: impl Fn(Client, Object) -> bool,
    ) -> (Vec<Seen>, bool) {
        let mut all = Vec::new();
        let mut complete = true;
        let (held, pid) = (&self.held, self.id.pid);
        self.clients.retain_mut(|own| {
            let scanned = on_node(held, session, pid, own.fd, |control| {
                for &group in told.get(&own.client).into_iter().flatten() {
                    own.objects.learn(control, group)?;
                }
                if let Some(reach) = reach {
                    complete &= own.objects.scan(control, reach)?;
                }
                for (object, found) in own.objects.groups() {
                    let slice_us = if new(own.client, object) {
                        control.get_timeslice(own.client, object).ok()
                    } else {
                        None
                    };
                    all.push(Seen {
                        client: own.client,
                        object,
                        found,
                        slice_us,
                    });
                }
                Ok(())
            });
            match scanned {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(pid, client = %own.client, %error, "client is not scanned");
                    !error.is_gone()
                }
            }
        });
        (all, complete)
    }

    /// Forgets the objects of `client`, to find those that are there now.
    pub(super) fn forget_objects(&mut self, client: Client) {
        for own in self.clients.iter_mut().filter(|own| own.client == client) {
            own.objects.reset();
        }
        self.quiet_until = Micros::ZERO;
    }

    /// Calls `act` with the tenant's own file, on which `client` is.
    ///
    /// # Errors
    /// [`TenantError`], or what `act` says.
    pub(super) fn on_client<R>(
        &self,
        session: &Session,
        client: Client,
        act: impl FnOnce(Control<'_>) -> Result<R, RmError>,
    ) -> Result<R, TenantError> {
        let pid = self.id.pid;
        let Some(own) = self.clients.iter().find(|own| own.client == client) else {
            return Err(TenantError::NotOurs { pid, fd: -1 });
        };
        on_node(&self.held, session, pid, own.fd, act)
    }
}

fn on_node<R>(
    held: &PidFd,
    session: &Session,
    pid: u32,
    fd: RawFd,
    act: impl FnOnce(Control<'_>) -> Result<R, RmError>,
) -> Result<R, TenantError> {
    held.with_fd(fd, |duplicate| {
        if session.is_control_node(duplicate) {
            act(Control::new(duplicate)).map_err(TenantError::from)
        } else {
            Err(TenantError::NotOurs { pid, fd })
        }
    })?
}

/// The descriptors of a process that look like the control node.
fn control_nodes(pid: u32) -> Vec<RawFd> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let numbers = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let is_it = target.file_name().is_some_and(|name| name == "nvidiactl");
        let number = entry.file_name().to_str()?.parse().ok()?;
        is_it.then_some(number)
    });
    numbers.take(MAX_NODES).collect()
}
