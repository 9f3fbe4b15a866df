//! Who holds which channels paused, and the way from there to the driver.
//!
//! # What must hold
//!
//! 1. No channel stays disabled for which nobody holds a pause, whatever dies
//!    and whenever.
//! 2. The guardian takes back no disable that is not its own.
//!
//! Several pauses may name one channel (a freeze and a budget, say), but the
//! driver is asked to disable it once: the guardian's own nest count on a
//! channel is 0 or 1, and its ledger is therefore a set. The order is always
//! *ledger off, driver off* and *driver on, ledger on*, so whatever the driver
//! has disabled for us is in the ledger.
//!
//! # After a death
//!
//! A guardian that reads a ledger with a target in it cannot know from the
//! ledger alone whether the driver was called: it may have died between the
//! ledger's *off* and the call, or between the enabling call and the ledger's
//! *on*. Counting does not help; any string of disables and enables that is
//! right for one case is off by one for the other. So it asks the driver
//! ([`Channels::state`]): *enabled* means that no disable is outstanding, and
//! there is nothing to do; *disabled* is answered with one enable.
//!
//! What is left: a channel that someone else (its own program, a debugger) had
//! disabled in that window of one call, and that we had not. There rule 1 wins
//! over rule 2, and the stranger's disable is undone. A second record, "done",
//! would not narrow this: it could be missing in the same window.
//!
//! Where the driver cannot tell, one enable is sent all the same. Measured on
//! an H200 with driver 580.159.04: an enable of an enabled channel is answered
//! with success and changes nothing, nor does it count: the next disable stops
//! the channel and one enable lets it run.
//!
//! # A call that fails in the middle
//!
//! A call with a list goes through it in order and stops at the first channel
//! that is not there; those before it are switched (measured too). The rest is
//! then settled one by one, with the same question first. A channel that could
//! not be settled is *stuck*: it stays in the ledger and is tried again until
//! the driver takes it or its owner dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ghost_notify::{PidFd, ProcError, ProcId};
use ghost_rm::{Channel, Gpu};

use crate::channels::{ChannelState, Channels, SwitchErrorKind, chain};
use crate::ledger::{Ledger, LedgerError, Store, Target};
use crate::protocol::{
    Failure, FailureKind, Key, Keys, Listed, Listing, MAX_LEASE_US, Outcome, Pause, distinct,
};

/// A connection's number; never used twice.
pub type ClientId = u64;

/// The most pauses at a time, and the most channels in all.
const MAX_PAUSES: usize = 4096;
const MAX_TARGETS: usize = 65_536;

/// How long a stuck channel is left alone between tries.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Held {
    gpu: Gpu,
    owner: ProcId,
    targets: BTreeSet<Target>,
    until: Instant,
}

/// Why a target could not be disabled.
#[derive(Clone, Debug)]
enum Bad {
    Gone,
    Failed(Failure),
}

/// All pauses of all clients. Every method that takes `now` wants a clock that
/// does not go back.
#[derive(Debug)]
pub struct Pauses<C, S> {
    channels: C,
    ledger: Ledger<S>,
    held: BTreeMap<(ClientId, Key), Held>,
    // For each target that some pause names: how many do.
    holders: BTreeMap<Target, u32>,
    // In the ledger, named by no pause, and not enabled for certain.
    stuck: BTreeSet<Target>,
    retry_at: Option<Instant>,
    // Owners of what is held or in the ledger.
    owners: BTreeMap<ProcId, PidFd>,
    notes: Vec<String>,
}

impl<C: Channels, S: Store> Pauses<C, S> {
    /// Takes over `ledger`: enables what is left from a guardian that died,
    /// drops what belonged to processes that are gone.
    pub fn recover(channels: C, ledger: Ledger<S>, now: Instant) -> Self {
        let mut pauses = Self {
            channels,
            ledger,
            held: BTreeMap::new(),
            holders: BTreeMap::new(),
            stuck: BTreeSet::new(),
            retry_at: None,
            owners: BTreeMap::new(),
            notes: Vec::new(),
        };
        let left: Vec<Target> = pauses.ledger.live().iter().copied().collect();
        let owners: BTreeSet<ProcId> = left.iter().map(|target| target.owner).collect();
        let mut dead = BTreeSet::new();
        for owner in owners {
            match pauses.hold_owner(owner) {
                Ok(()) => {}
                Err(ProcError::Gone { .. } | ProcError::Reused { .. }) => _ = dead.insert(owner),
                // Better one question to the driver too many than one too few.
                Err(error) => pauses.note(format!("owner not held: {}", chain(&error))),
            }
        }
        let (gone, alive): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|target| dead.contains(&target.owner));
        pauses.forget(&gone);
        if !alive.is_empty() {
            let note = format!("{} channels left by a guardian that died", alive.len());
            pauses.note(note);
        }
        for target in alive {
            pauses.settle_on(target, now);
        }
        pauses.tidy();
        pauses
    }

    /// Pauses for `client`, all of `wanted` together; one outcome for each.
    pub fn pause(&mut self, client: ClientId, wanted: &[Pause], now: Instant) -> Vec<Outcome> {
        let mut idle = BTreeSet::new();
        let mut fresh = BTreeSet::new();
        let mut outcomes = Vec::with_capacity(wanted.len());
        for pause in wanted {
            let error = self.admit(client, pause).err();
            if error.is_none() {
                self.release(&(client, pause.key.clone()), &mut idle);
                let target = |channel| Target {
                    gpu: pause.gpu,
                    owner: pause.owner,
                    channel,
                };
                let targets: BTreeSet<Target> =
                    distinct(&pause.channels).into_iter().map(target).collect();
                for target in &targets {
                    *self.holders.entry(*target).or_insert(0) += 1;
                }
                fresh.extend(targets.iter().copied());
                let held = Held {
                    gpu: pause.gpu,
                    owner: pause.owner,
                    targets,
                    until: now + Duration::from_micros(pause.lease_us),
                };
                self.held.insert((client, pause.key.clone()), held);
            }
            outcomes.push(Outcome {
                key: pause.key.clone(),
                gone: 0,
                error,
            });
        }
        let bad = self.switch_off(&fresh, now);
        if !bad.is_empty() {
            for outcome in outcomes.iter_mut().filter(|o| o.error.is_none()) {
                let key = (client, outcome.key.clone());
                let Some(held) = self.held.get_mut(&key) else {
                    continue;
                };
                let (mut gone, mut failed) = (Vec::new(), None);
                for target in &held.targets {
                    match bad.get(target) {
                        Some(Bad::Gone) => gone.push(*target),
                        Some(Bad::Failed(failure)) => failed = Some(failure.clone()),
                        None => {}
                    }
                }
                outcome.gone = gone.len().try_into().unwrap_or(u32::MAX);
                for target in &gone {
                    held.targets.remove(target);
                }
                for target in gone {
                    self.let_go(target, &mut idle);
                }
                if failed.is_some() {
                    self.release(&key, &mut idle);
                    outcome.error = failed;
                }
            }
        }
        self.switch_on(idle, now);
        self.tidy();
        outcomes
    }

    /// Resumes `keys` of `client`; a key that is not paused is no error.
    pub fn resume(&mut self, client: ClientId, keys: &[Key], now: Instant) -> Vec<Outcome> {
        let keys_of_client = keys.iter().map(|key| (client, key.clone()));
        self.resume_keys(keys_of_client.collect(), now);
        let outcome = |key: &Key| Outcome {
            key: key.clone(),
            ..Outcome::default()
        };
        keys.iter().map(outcome).collect()
    }

    /// Sets the lease of `keys` of `client` to end `lease_us` from `now`.
    pub fn renew(
        &mut self,
        client: ClientId,
        keys: &Keys,
        lease_us: u64,
        now: Instant,
    ) -> Vec<Outcome> {
        let all;
        let keys = match keys {
            Keys::Some(keys) => keys,
            Keys::All => {
                all = self.keys_of(client).map(|(_, key)| key.clone()).collect();
                &all
            }
        };
        let renew = |key: &Key| {
            let error = if !(1..=MAX_LEASE_US).contains(&lease_us) {
                Some(failure(FailureKind::Invalid, "lease_us is 1 to 60000000"))
            } else if let Some(held) = self.held.get_mut(&(client, key.clone())) {
                held.until = now + Duration::from_micros(lease_us);
                None
            } else {
                let detail = "not paused: resumed, or its lease lapsed; pause it again";
                Some(failure(FailureKind::NotPaused, detail))
            };
            Outcome {
                key: key.clone(),
                gone: 0,
                error,
            }
        };
        keys.iter().map(renew).collect()
    }

    /// What is paused, as `client` sees it.
    pub fn list(&self, client: ClientId, now: Instant) -> Listing {
        let listed = |((of, key), held): (&(ClientId, Key), &Held)| Listed {
            key: key.clone(),
            own: *of == client,
            gpu: held.gpu,
            owner: held.owner,
            channels: held.targets.len().try_into().unwrap_or(u32::MAX),
            left_us: held
                .until
                .saturating_duration_since(now)
                .as_micros()
                .try_into()
                .unwrap_or(u64::MAX),
        };
        Listing {
            pauses: self.held.iter().map(listed).collect(),
            stuck: self.stuck.len().try_into().unwrap_or(u32::MAX),
        }
    }

    /// Resumes all of a client that is gone.
    pub fn drop_client(&mut self, client: ClientId, now: Instant) {
        let keys: Vec<_> = self.keys_of(client).cloned().collect();
        if !keys.is_empty() {
            self.note(format!(
                "client {client} is gone: {} pauses end",
                keys.len()
            ));
        }
        self.resume_keys(keys, now);
    }

    /// Resumes everything.
    pub fn resume_all(&mut self, now: Instant) {
        self.resume_keys(self.held.keys().cloned().collect(), now);
    }

    /// Does what is due at `now`: ends leases, tries stuck channels again.
    pub fn tick(&mut self, now: Instant) {
        let lapsed: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for (client, key) in &lapsed {
            self.note(format!("lease of {key:?} of client {client} lapsed"));
        }
        self.resume_keys(lapsed, now);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for target in std::mem::take(&mut self.stuck) {
                self.settle_on(target, now);
            }
            self.tidy();
        }
    }

    /// When [`Pauses::tick`] has something to do next.
    pub fn next_due(&self) -> Option<Instant> {
        let lease = self.held.values().map(|held| held.until).min();
        lease.into_iter().chain(self.retry_at).min()
    }

    /// The processes whose exit matters; poll them.
    pub fn owners(&self) -> impl Iterator<Item = &PidFd> {
        self.owners.values()
    }

    /// `owner` has exited and its channels with it: drops what names it, and
    /// asks the driver nothing about handles that are dead.
    pub fn owner_exited(&mut self, owner: ProcId) {
        let of_owner = |target: &&Target| target.owner == owner;
        let gone: Vec<Target> = self
            .ledger
            .live()
            .iter()
            .filter(of_owner)
            .copied()
            .collect();
        self.held.retain(|_, held| held.owner != owner);
        self.holders.retain(|target, _| target.owner != owner);
        self.stuck.retain(|target| target.owner != owner);
        self.forget(&gone);
        self.owners.remove(&owner);
    }

    /// A pause on `gpu` may come.
    pub fn ready(&mut self, gpu: Gpu) {
        self.channels.ready(gpu);
    }

    /// Nobody is connected: holds nothing of the driver's open, unless some
    /// channel is stuck.
    pub fn rest(&mut self) {
        if self.stuck.is_empty() {
            self.channels.release();
        }
    }

    /// What happened since the last call, for the log.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// What is or may be disabled.
    pub fn live(&self) -> &BTreeSet<Target> {
        self.ledger.live()
    }

    fn keys_of(&self, client: ClientId) -> impl Iterator<Item = &(ClientId, Key)> {
        let all = self.held.range((client, Key::new())..);
        all.map(|(key, _)| key)
            .take_while(move |(of, _)| *of == client)
    }

    fn admit(&mut self, client: ClientId, pause: &Pause) -> Result<(), Failure> {
        pause
            .check()
            .map_err(|error| failure(FailureKind::Invalid, error.to_string()))?;
        let known = self.held.contains_key(&(client, pause.key.clone()));
        if (!known && self.held.len() >= MAX_PAUSES)
            || self.holders.len() + pause.channels.len() > MAX_TARGETS
        {
            let detail = format!("at most {MAX_PAUSES} pauses of {MAX_TARGETS} channels in all");
            return Err(failure(FailureKind::Full, detail));
        }
        self.hold_owner(pause.owner)
            .map_err(|error| failure(FailureKind::OwnerGone, chain(&error)))
    }

    fn hold_owner(&mut self, owner: ProcId) -> Result<(), ProcError> {
        if let Some(held) = self.owners.get(&owner) {
            return match held.is_alive()? {
                true => Ok(()),
                false => Err(ProcError::Gone { pid: owner.pid }),
            };
        }
        let held = PidFd::open(owner)?;
        self.owners.insert(owner, held);
        Ok(())
    }

    fn resume_keys(&mut self, keys: Vec<(ClientId, Key)>, now: Instant) {
        let mut idle = BTreeSet::new();
        for key in &keys {
            self.release(key, &mut idle);
        }
        self.switch_on(idle, now);
        self.tidy();
    }

    /// Ends a pause; what nobody holds any more is added to `idle`.
    fn release(&mut self, key: &(ClientId, Key), idle: &mut BTreeSet<Target>) {
        if let Some(held) = self.held.remove(key) {
            for target in held.targets {
                self.let_go(target, idle);
            }
        }
    }

    fn let_go(&mut self, target: Target, idle: &mut BTreeSet<Target>) {
        if let Some(count) = self.holders.get_mut(&target) {
            *count -= 1;
            if *count == 0 {
                self.holders.remove(&target);
                idle.insert(target);
            }
        }
    }

    /// Disables those of `targets` that are not; tells which could not be.
    fn switch_off(&mut self, targets: &BTreeSet<Target>, now: Instant) -> BTreeMap<Target, Bad> {
        let mut bad = BTreeMap::new();
        let live = self.ledger.live();
        let fresh: Vec<Target> = targets.difference(live).copied().collect();
        // In the ledger but perhaps enabled: to be settled, not counted.
        let stuck: Vec<Target> = targets.intersection(&self.stuck).copied().collect();
        for target in stuck {
            self.stuck.remove(&target);
            self.settle_off(target, now, &mut bad);
        }
        if let Err(error) = self.ledger.record_off(&fresh) {
            let why = Bad::Failed(failure(FailureKind::Ledger, chain(&error)));
            bad.extend(fresh.into_iter().map(|target| (target, why.clone())));
            return bad;
        }
        for (gpu, some) in by_gpu(fresh) {
            let channels: Vec<Channel> = some.iter().map(|target| target.channel).collect();
            let Err(error) = self.channels.disable(gpu, &channels) else {
                continue;
            };
            let rest = some.get(error.done..).unwrap_or_default();
            if error.kind == SwitchErrorKind::Unreached {
                self.forget(rest);
                let why = Bad::Failed(failure(FailureKind::Driver, error.detail));
                bad.extend(rest.iter().map(|target| (*target, why.clone())));
                continue;
            }
            for &target in rest {
                self.settle_off(target, now, &mut bad);
            }
        }
        bad
    }

    /// Makes sure that a target of the ledger is disabled once.
    fn settle_off(&mut self, target: Target, now: Instant, bad: &mut BTreeMap<Target, Bad>) {
        let only = [target.channel];
        match self.channels.state(target.gpu, target.channel) {
            ChannelState::Disabled => return,
            ChannelState::Enabled => {}
            ChannelState::Unknown => {
                // Back to nothing of ours first; that it fails, or changes
                // nothing, is as good.
                let _ = self.channels.enable(target.gpu, &only);
            }
        }
        let Err(error) = self.channels.disable(target.gpu, &only) else {
            return;
        };
        if error.kind == SwitchErrorKind::Gone {
            self.forget(&[target]);
            bad.insert(target, Bad::Gone);
        } else {
            self.stuck(target, now);
            let why = failure(FailureKind::Driver, error.detail);
            bad.insert(target, Bad::Failed(why));
        }
    }

    /// Enables those of `idle` that the ledger has and nobody holds.
    fn switch_on(&mut self, idle: BTreeSet<Target>, now: Instant) {
        let on: Vec<Target> = idle
            .into_iter()
            .filter(|target| {
                self.ledger.live().contains(target)
                    && !self.holders.contains_key(target)
                    && !self.stuck.contains(target)
            })
            .collect();
        for (gpu, some) in by_gpu(on) {
            let channels: Vec<Channel> = some.iter().map(|target| target.channel).collect();
            let (done, rest) = match self.channels.enable(gpu, &channels) {
                Ok(()) => (some.as_slice(), [].as_slice()),
                Err(error) => some
                    .split_at_checked(error.done)
                    .unwrap_or((&[], some.as_slice())),
            };
            self.forget(done);
            for &target in rest {
                self.settle_on(target, now);
            }
        }
    }

    /// Makes sure that a target of the ledger is not disabled by us.
    fn settle_on(&mut self, target: Target, now: Instant) {
        let enabled = self.channels.state(target.gpu, target.channel) == ChannelState::Enabled;
        let result = match enabled {
            true => Ok(()),
            false => self.channels.enable(target.gpu, &[target.channel]),
        };
        match result {
            Err(error) if error.kind != SwitchErrorKind::Gone => {
                self.note(format!("{target} is stuck: {}", error.detail));
                self.stuck(target, now);
            }
            _ => self.forget(&[target]),
        }
    }

    fn stuck(&mut self, target: Target, now: Instant) {
        self.stuck.insert(target);
        self.retry_at.get_or_insert(now + RETRY);
    }

    /// Takes out of the ledger what is enabled, or gone.
    fn forget(&mut self, targets: &[Target]) {
        if let Err(error) = self.ledger.record_on(targets) {
            self.note_ledger(&error);
        }
    }

    fn tidy(&mut self) {
        let wanted: BTreeSet<ProcId> = self
            .ledger
            .live()
            .iter()
            .map(|target| target.owner)
            .chain(self.held.values().map(|held| held.owner))
            .collect();
        self.owners.retain(|owner, _| wanted.contains(owner));
    }

    fn note_ledger(&mut self, error: &LedgerError) {
        self.note(chain(error));
    }

    fn note(&mut self, note: String) {
        // A driver that refuses everything must not fill the memory.
        if self.notes.len() < 100 {
            self.notes.push(note);
        }
    }
}

fn failure(kind: FailureKind, detail: impl Into<String>) -> Failure {
    let detail = detail.into();
    Failure { kind, detail }
}

fn by_gpu(targets: Vec<Target>) -> BTreeMap<Gpu, Vec<Target>> {
    let mut gpus: BTreeMap<Gpu, Vec<Target>> = BTreeMap::new();
    for target in targets {
        gpus.entry(target.gpu).or_default().push(target);
    }
    gpus
}

#[cfg(test)]
mod tests;
