//! From context switches to GPU time. Pure: time comes with the switches.
//!
//! The trace tells who was resident, and a context with nothing to do stays resident until
//! another one wants the GPU. So a span no longer than the group's timeslice is time used (some
//! other context waited, or the group came and went), and counted when it ends; a longer one is
//! *uncontended* and may hold any amount of idling. That is counted when the driver's samples of
//! utilization, which know how long the whole GPU was busy but not for whom, cover it: what the
//! contended spans leave of the busy time belongs to the uncontended ones.
//!
//! A span that ends because its group was paused says nothing by its length. Samples are too
//! coarse to steer a budget by (their edges are off by some 20 ms of 200), so if those of late
//! found such a group busy nearly all the time that it was resident, the span is *presumed* used,
//! and counted when it ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ghost_model::sample::GroupId;
use ghost_rm::{Busy, Edge, Switch};

/// The driver's default for compute.
const DEFAULT_SLICE_US: u64 = 2048;
/// A switch takes some 100 us, and a turn is 2.4 % longer than the number set.
const SWITCH_US: u64 = 400;
/// The time between two samples of utilization is 200 ms; after a longer gap, one holds for this.
const SAMPLE_NS: u64 = 200_000_000;
/// Who worked all the time of late is looked at this often.
const DENSE_NS: u64 = 500_000_000;
/// Busy for less than this part, in 1/10000, is the noise of an idle GPU.
const IDLE: u32 = 50;
/// Busy for this part of its time as resident, in 1/10000, a paused group is presumed to be.
const DENSE: u64 = 8_500;
/// Each sample leaves three quarters of what the ones before it say: they reach back a second.
const FADE: (u64, u64) = (3, 4);
/// Intervals that wait for a sample: 16 s of the shortest turns.
const MAX_WAITING: usize = 1 << 16;
/// Contended turns are of use for this long: until a sample covers them, if one is wanted.
const KEEP_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Interval {
    group: GroupId,
    from: u64,
    to: u64,
    /// Counted upon a presumption, which samples may yet prove wrong.
    presumed: bool,
}

impl Interval {
    fn overlap(&self, from: u64, to: u64) -> u64 {
        self.to.min(to).saturating_sub(self.from.max(from))
    }
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    pid: u32,
    context: u32,
    from: u64,
    /// Until when it is counted or dismissed; `from` at first.
    settled: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    used: u64,
    slice_us: Option<u64>,
    came: Option<u64>,
    paused: bool,
    /// Of late: time resident with nobody waiting, and the part of it that was busy.
    alone: u64,
    busy: u64,
    /// The end of the last sample that covers it alone and found the GPU idle.
    idle: u64,
}

/// GPU time of each group of one GPU. All times are nanoseconds of one clock, whichever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    accounts: BTreeMap<GroupId, Account>,
    owners: BTreeMap<(u32, u32), GroupId>,
    resident: Option<Resident>,
    contended: VecDeque<Interval>,
    waiting: VecDeque<Interval>,
    sampled: u64,
    unknown: BTreeSet<u32>,
}

/// What a ledger says of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balance {
    /// Nanoseconds used up to `at`.
    pub(crate) used: u64,
    /// The moment up to which all is counted.
    pub(crate) at: u64,
    /// Whether it has work.
    pub(crate) active: bool,
}

impl Ledger {
    /// Makes `group` known: `contexts` of process `pid` are its own. Whether any of it was news.
    pub(crate) fn add(&mut self, group: GroupId, pid: u32, contexts: &[u32]) -> bool {
        let mut news = !self.accounts.contains_key(&group);
        self.accounts.entry(group).or_default();
        for &context in contexts {
            news |= self.owners.insert((pid, context), group) != Some(group);
        }
        news
    }

    /// The timeslice in force.
    pub(crate) fn set_slice(&mut self, group: GroupId, slice_us: u64) {
        if let Some(account) = self.accounts.get_mut(&group) {
            account.slice_us = Some(slice_us);
        }
    }

    /// Whether its channels are disabled from now on.
    pub(crate) fn set_paused(&mut self, group: GroupId, paused: bool) {
        if let Some(account) = self.accounts.get_mut(&group) {
            account.paused = paused;
        }
    }

    pub(crate) fn remove(&mut self, group: GroupId) {
        self.accounts.remove(&group);
        self.owners.retain(|_, owner| *owner != group);
        self.waiting.retain(|interval| interval.group != group);
    }

    /// The processes that had contexts that nobody made known, since the last call.
    pub(crate) fn take_unknown(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.unknown)
    }

    /// Takes in one switch, at `at`; false if one before it is missing.
    pub(crate) fn switch(&mut self, switch: Switch, at: u64) -> bool {
        let key = (switch.pid, switch.context);
        match switch.edge {
            Edge::Start => {
                let complete = self.resident.is_none();
                self.resident = Some(Resident {
                    pid: switch.pid,
                    context: switch.context,
                    from: at,
                    settled: at,
                });
                match self.owners.get(&key).and_then(|g| self.accounts.get_mut(g)) {
                    Some(account) => account.came = Some(at),
                    None => {
                        self.unknown.insert(switch.pid);
                    }
                }
                complete
            }
            Edge::End => match self.resident {
                Some(resident) if (resident.pid, resident.context) == key => {
                    self.resident = None;
                    self.close(resident, at);
                    true
                }
                // The first end after the trace began has no start.
                _ => false,
            },
        }
    }

    /// Forgets who is resident: what was said of it may be wrong.
    pub(crate) fn lose_track(&mut self) {
        self.resident = None;
    }

    fn close(&mut self, resident: Resident, at: u64) {
        let Some(&group) = self.owners.get(&(resident.pid, resident.context)) else {
            return;
        };
        let Some(account) = self.accounts.get_mut(&group) else {
            return;
        };
        let length = at.saturating_sub(resident.from);
        let interval = Interval {
            group,
            from: resident.settled,
            to: at,
            presumed: account.paused,
        };
        let counts = if account.paused {
            account.is_dense()
        } else {
            length <= longest_turn(account)
        };
        let list = if counts {
            account.used += at.saturating_sub(resident.settled);
            &mut self.contended
        } else {
            &mut self.waiting
        };
        list.push_back(interval);
        if list.len() > MAX_WAITING {
            list.pop_front();
        }
        // Where all is contended, no sample comes that would clear them away.
        let is_old = |i: &Interval| i.to + KEEP_NS < at;
        while self.contended.front().is_some_and(is_old) {
            self.contended.pop_front();
        }
    }

    /// How soon after the last one a sample of utilization is wanted, in nanoseconds: never where
    /// there is nothing to settle, and later where only those are to be settled that worked all
    /// the time of late.
    pub(crate) fn wants_sample(&self, now: u64) -> Option<u64> {
        let open = self.open(now).filter(|open| {
            let account = self.accounts.get(&open.group);
            let turn = account.map_or(u64::MAX, longest_turn);
            self.resident
                .is_some_and(|resident| now.saturating_sub(resident.from) > turn)
        });
        let unsettled = self.waiting.iter().chain(&open);
        let dense = |i: &Interval| self.accounts.get(&i.group).is_some_and(Account::is_dense);
        unsettled
            .map(|i| if dense(i) { DENSE_NS } else { SAMPLE_NS })
            .min()
    }

    /// The unsettled time of the group that is resident.
    fn open(&self, now: u64) -> Option<Interval> {
        let resident = self.resident.filter(|r| r.settled < now)?;
        let group = *self.owners.get(&(resident.pid, resident.context))?;
        Some(Interval {
            group,
            from: resident.settled,
            to: now,
            presumed: false,
        })
    }

    /// Takes in samples of utilization, oldest first, their times on this ledger's clock.
    pub(crate) fn sample(&mut self, samples: &[Busy]) {
        let mut before = None;
        for sample in samples {
            let to = sample.at_ns;
            let from = before.replace(to).unwrap_or(0);
            if to <= self.sampled {
                continue;
            }
            let from = from.max(to.saturating_sub(SAMPLE_NS * 5 / 4));
            self.settle(from, to, sample.busy);
            self.sampled = to;
        }
    }

    fn settle(&mut self, from: u64, to: u64, busy: u32) {
        let busy_ns = to.saturating_sub(from) * u64::from(busy) / 10_000;
        let within = |presumed: bool| -> u64 {
            let alike = self.contended.iter().filter(|i| i.presumed == presumed);
            alike.map(|i| i.overlap(from, to)).sum()
        };
        let (contended, presumed) = (within(false), within(true));
        let open = self.open(to);
        let mut shares: BTreeMap<GroupId, u64> = BTreeMap::new();
        for interval in self.waiting.iter().chain(&open) {
            *shares.entry(interval.group).or_default() += interval.overlap(from, to);
        }
        let uncontended: u64 = shares.values().sum();
        // A sample's edges are off by some milliseconds, so that one has what belongs to the next:
        // only what is counted must keep within the spans, not what is found of late.
        let alone = busy_ns.saturating_sub(contended);
        let left = alone.min(presumed + uncontended).saturating_sub(presumed);
        let mut resident = shares.clone();
        for interval in self.contended.iter().filter(|i| i.presumed) {
            *resident.entry(interval.group).or_default() += interval.overlap(from, to);
        }
        for (group, resident) in resident.iter().filter(|(_, resident)| **resident > 0) {
            if let Some(account) = self.accounts.get_mut(group) {
                let busy = of(alone, *resident, presumed + uncontended);
                account.alone = account.alone * FADE.0 / FADE.1 + resident;
                account.busy = account.busy * FADE.0 / FADE.1 + busy;
            }
        }
        for (group, resident) in &shares {
            if let Some(account) = self.accounts.get_mut(group) {
                account.used += of(left, *resident, uncontended);
                let is_idle = shares.len() == 1 && contended + presumed == 0 && busy < IDLE;
                account.idle = if is_idle { to } else { 0 };
            }
        }
        self.contended.retain(|interval| interval.to > to);
        self.waiting.retain_mut(|interval| {
            interval.from = interval.from.max(to);
            interval.to > interval.from
        });
        if let (Some(_), Some(resident)) = (open, &mut self.resident) {
            resident.settled = resident.settled.max(to);
        }
    }

    /// What is known of `group` at `now`; it has work if it came within `window` or is there.
    pub(crate) fn balance(&self, group: GroupId, now: u64, window: u64) -> Option<Balance> {
        let account = self.accounts.get(&group)?;
        let resident = self
            .resident
            .filter(|r| self.owners.get(&(r.pid, r.context)) == Some(&group));
        let waiting = self.waiting.iter().find(|i| i.group == group);
        let unsettled = waiting.map(|i| i.from).or(resident.map(|r| r.settled));
        let at = unsettled.unwrap_or(now).min(now);
        // A turn that ended after a span that still waits is counted, but not yet due.
        let since = self.contended.iter().rev().take_while(|i| i.to > at);
        let own = since.filter(|i| i.group == group);
        let later: u64 = own.map(|i| i.overlap(at, u64::MAX)).sum();
        let recent = account.came.is_some_and(|came| came + window > now);
        // Who works on after it idled does not come anew: the next sample tells.
        let at_work = resident.is_some_and(|r| account.idle <= r.from);
        Some(Balance {
            used: account.used.saturating_sub(later),
            at,
            active: recent || at_work,
        })
    }

    /// The longest that a full round of all groups takes.
    pub(crate) fn round(&self) -> u64 {
        self.accounts.values().map(longest_turn).sum()
    }
}

impl Account {
    /// Whether it is presumed to work all the time that it is resident; it is until samples say
    /// otherwise.
    fn is_dense(&self) -> bool {
        u128::from(self.busy) * 10_000 >= u128::from(self.alone) * u128::from(DENSE)
    }
}

/// The part of `amount` that falls to `part` of `whole`.
fn of(amount: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(amount) * u128::from(part);
    product.checked_div(whole.into()).unwrap_or(0) as u64
}

/// Nanoseconds that a group with others waiting stays at most.
fn longest_turn(account: &Account) -> u64 {
    let slice = account.slice_us.unwrap_or(DEFAULT_SLICE_US);
    (slice.saturating_add(slice / 40).saturating_add(SWITCH_US)).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const WINDOW: u64 = 50 * MS;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(GroupId(1), 10, &[100, 101]);
        ledger.add(GroupId(2), 20, &[200]);
        ledger
    }

    fn edge(edge: Edge, pid: u32, context: u32, at_ns: u64) -> Switch {
        Switch {
            edge,
            context,
            pid,
            at_ns,
        }
    }

    fn turn(ledger: &mut Ledger, pid: u32, context: u32, from: u64, to: u64) {
        ledger.switch(edge(Edge::Start, pid, context, from), from);
        ledger.switch(edge(Edge::End, pid, context, to), to);
    }

    fn busy(at_ns: u64, busy: u32) -> Busy {
        Busy { at_ns, busy }
    }

    #[test]
    fn contended_turns_are_counted_as_they_end() {
        let mut ledger = ledger();
        for round in 0..100 {
            let at = 1000 * MS + round * 5 * MS;
            turn(&mut ledger, 10, 100, at, at + 2 * MS);
            turn(&mut ledger, 20, 200, at + 3 * MS, at + 4 * MS);
        }
        let now = 1500 * MS;
        let one = ledger.balance(GroupId(1), now, WINDOW).unwrap();
        let two = ledger.balance(GroupId(2), now, WINDOW).unwrap();
        assert_eq!((one.used, one.at, one.active), (200 * MS, now, true));
        assert_eq!((two.used, two.at, two.active), (100 * MS, now, true));
        assert_eq!(ledger.wants_sample(now), None);
        let later = ledger.balance(GroupId(2), now + 60 * MS, WINDOW).unwrap();
        assert!(!later.active, "it has not come for longer than the window");
    }

    #[test]
    fn contended_turns_do_not_pile_up_without_samples() {
        let mut ledger = ledger();
        for round in 0..10_000 {
            let at = round * 5 * MS;
            turn(&mut ledger, 10, 100, at, at + 2 * MS);
            turn(&mut ledger, 20, 200, at + 3 * MS, at + 4 * MS);
        }
        assert_eq!(ledger.wants_sample(50_000 * MS), None);
        assert!(ledger.contended.len() <= 802, "two seconds of them");
        let one = ledger.balance(GroupId(1), 50_000 * MS, WINDOW).unwrap();
        assert_eq!(one.used, 20_000 * MS);
    }

    #[test]
    fn who_has_the_gpu_alone_is_counted_by_utilization() {
        let mut ledger = ledger();
        ledger.switch(edge(Edge::Start, 10, 100, 1000 * MS), 1000 * MS);
        let before = ledger.balance(GroupId(1), 1100 * MS, WINDOW).unwrap();
        assert_eq!((before.used, before.at), (0, 1000 * MS));
        assert!(before.active, "nothing says that it is idle");
        assert_eq!(ledger.wants_sample(1100 * MS), Some(DENSE_NS));
        ledger.sample(&[busy(1000 * MS, 0), busy(1200 * MS, 2000)]);
        let after = ledger.balance(GroupId(1), 1250 * MS, WINDOW).unwrap();
        assert_eq!((after.used, after.at), (40 * MS, 1200 * MS));
        ledger.sample(&[busy(1200 * MS, 2000), busy(1400 * MS, 0)]);
        assert_eq!(ledger.wants_sample(1450 * MS), Some(SAMPLE_NS));
        let idle = ledger.balance(GroupId(1), 1450 * MS, WINDOW).unwrap();
        assert_eq!((idle.used, idle.active), (40 * MS, false));
        let mut again = ledger.clone();
        again.sample(&[busy(1400 * MS, 0), busy(1600 * MS, 10_000)]);
        let again = again.balance(GroupId(1), 1600 * MS, WINDOW).unwrap();
        assert_eq!((again.used, again.active), (240 * MS, true));
        // The other one comes, and it leaves: what it idled since is not counted.
        ledger.switch(edge(Edge::End, 10, 100, 1500 * MS), 1500 * MS);
        turn(&mut ledger, 20, 200, 1501 * MS, 1503 * MS);
        ledger.sample(&[busy(1400 * MS, 0), busy(1600 * MS, 100)]);
        let one = ledger.balance(GroupId(1), 1600 * MS, WINDOW).unwrap();
        let two = ledger.balance(GroupId(2), 1600 * MS, WINDOW).unwrap();
        assert_eq!((one.used, one.at), (40 * MS, 1600 * MS));
        assert_eq!(two.used, 2 * MS);
    }

    #[test]
    fn a_count_holds_for_its_moment() {
        let mut ledger = ledger();
        // A long span that waits for a sample, then a turn that needs none.
        turn(&mut ledger, 10, 100, 1000 * MS, 1030 * MS);
        turn(&mut ledger, 10, 100, 1100 * MS, 1102 * MS);
        let early = ledger.balance(GroupId(1), 1150 * MS, WINDOW).unwrap();
        assert_eq!((early.used, early.at), (0, 1000 * MS));
        ledger.sample(&[busy(1015 * MS, 10_000)]);
        let half = ledger.balance(GroupId(1), 1150 * MS, WINDOW).unwrap();
        assert_eq!((half.used, half.at), (15 * MS, 1015 * MS));
        ledger.sample(&[busy(1015 * MS, 10_000), busy(1090 * MS, 2000)]);
        let all = ledger.balance(GroupId(1), 1150 * MS, WINDOW).unwrap();
        assert_eq!((all.used, all.at), (32 * MS, 1150 * MS));
    }

    /// Runs 30 ms of each 100 ms, then is paused; `part` of what it ran is found busy, now in one
    /// sample and now in the next. Gives what was counted at the end, and its moment.
    fn capped(part: u32) -> Balance {
        let mut ledger = ledger();
        let mut samples = vec![busy(0, 0)];
        for period in 10..60 {
            let at = period * 100 * MS;
            ledger.set_paused(GroupId(1), false);
            ledger.switch(edge(Edge::Start, 10, 100, at), at);
            ledger.set_paused(GroupId(1), true);
            ledger.switch(edge(Edge::End, 10, 100, at + 30 * MS), at + 30 * MS);
            if period % 2 == 1 {
                let off = if period % 4 == 1 { 2000 } else { 0 };
                samples.push(busy(
                    at + 100 * MS,
                    (3000 * part / 100 + 1000).saturating_sub(off),
                ));
                ledger.sample(&samples);
            }
        }
        ledger.balance(GroupId(1), 6000 * MS, WINDOW).unwrap()
    }

    #[test]
    fn a_paused_group_that_works_all_the_time_is_counted_at_once() {
        let busy = capped(100);
        assert_eq!((busy.used, busy.at), (50 * 30 * MS, 6000 * MS));
    }

    #[test]
    fn a_paused_group_that_idles_is_counted_by_utilization() {
        let idle = capped(30);
        assert!((450 * MS..600 * MS).contains(&idle.used), "{idle:?}");
    }

    #[test]
    fn unknown_contexts_are_told_once_and_not_charged() {
        let mut ledger = ledger();
        turn(&mut ledger, 30, 300, MS, 2 * MS);
        assert_eq!(ledger.take_unknown(), BTreeSet::from([30]));
        assert!(ledger.take_unknown().is_empty());
        ledger.add(GroupId(3), 30, &[300]);
        turn(&mut ledger, 30, 300, 3 * MS, 4 * MS);
        assert!(ledger.take_unknown().is_empty());
        assert_eq!(ledger.balance(GroupId(3), 5 * MS, WINDOW).unwrap().used, MS);
    }

    #[test]
    fn a_start_upon_a_start_tells_of_a_loss() {
        let mut ledger = ledger();
        assert!(ledger.switch(edge(Edge::Start, 10, 100, MS), MS));
        assert!(!ledger.switch(edge(Edge::Start, 20, 200, 9 * MS), 9 * MS));
        assert!(ledger.switch(edge(Edge::End, 20, 200, 10 * MS), 10 * MS));
        assert_eq!(
            ledger.balance(GroupId(1), 10 * MS, WINDOW).unwrap().used,
            0,
            "when it left is not known"
        );
    }

    proptest! {
        /// Whatever the trace and the samples say, the groups together use no more time than
        /// there was, and no count shrinks.
        #[test]
        fn never_more_than_the_wall(
            steps in proptest::collection::vec((0u64..30_000, 0u32..3, any::<bool>(), 0u32..=10_000), 1..200),
        ) {
            let mut ledger = ledger();
            let mut now = 1_000_000_000;
            let begin = now;
            let mut last = [0, 0];
            for (us, who, start, part) in steps {
                now += us * 1000;
                let (pid, context) = [(10, 100), (10, 101), (20, 200)][who as usize];
                let kind = if start { Edge::Start } else { Edge::End };
                ledger.switch(edge(kind, pid, context, now), now);
                if part % 3 == 0 {
                    ledger.sample(&[busy(now, part)]);
                }
                let used = [1, 2].map(|g| ledger.balance(GroupId(g), now, WINDOW).unwrap());
                prop_assert!(used.iter().all(|b| b.at <= now));
                prop_assert!(used.iter().all(|b| b.used <= b.at.saturating_sub(begin)));
                let used = used.map(|b| b.used);
                prop_assert!(used.iter().sum::<u64>() <= now - begin);
                prop_assert!(used[0] >= last[0] && used[1] >= last[1]);
                last = used;
            }
        }
    }
}
