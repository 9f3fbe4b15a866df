use super::*;
use crate::double::{Driver, Killed, MemoryStore};
use crate::ledger::tests::BOOT;
use ghost_rm::{Client, Object};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};

const GPU: Gpu = Gpu {
    instance: 0,
    minor: 0,
};

fn channel(object: u32) -> Channel {
    Channel {
        client: Client(0xc1d0_0000),
        object: Object(object),
    }
}

fn own() -> ProcId {
    ProcId::of_pid(std::process::id() as i32).unwrap()
}

fn pause_of(owner: ProcId, key: &str, objects: &[u32]) -> Pause {
    Pause {
        key: key.into(),
        lease_us: 1_000_000,
        gpu: GPU,
        owner,
        channels: objects.iter().copied().map(channel).collect(),
    }
}

fn pause(key: &str, objects: &[u32]) -> Pause {
    pause_of(own(), key, objects)
}

fn start(driver: &Driver, now: Instant) -> Pauses<Driver, MemoryStore> {
    let (ledger, _) = Ledger::open(MemoryStore(driver.clone()), BOOT).unwrap();
    Pauses::recover(driver.clone(), ledger, now)
}

/// One thing that happens to a guardian.
#[derive(Clone, Debug)]
enum Step {
    Pause(ClientId, Vec<Pause>),
    Resume(ClientId, &'static str),
    Renew(ClientId),
    Drop(ClientId),
    Wait(u64),
    Gone(u32),
    Back(u32),
    Refuse(bool),
    Full(bool),
}

fn play(pauses: &mut Pauses<Driver, MemoryStore>, now: &mut Instant, step: &Step) {
    let driver = pauses.channels.clone();
    match step {
        Step::Pause(client, wanted) => _ = pauses.pause(*client, wanted, *now),
        Step::Resume(client, key) => _ = pauses.resume(*client, &[(*key).into()], *now),
        Step::Renew(client) => _ = pauses.renew(*client, &Keys::All, 1_000_000, *now),
        Step::Drop(client) => pauses.drop_client(*client, *now),
        Step::Wait(ms) => {
            *now += Duration::from_millis(*ms);
            pauses.tick(*now);
        }
        Step::Gone(object) => {
            let mut world = driver.world();
            world.gone.insert(channel(*object));
            world.counts.remove(&(GPU, channel(*object)));
        }
        Step::Back(object) => _ = driver.world().gone.remove(&channel(*object)),
        Step::Refuse(refuse) => driver.world().refuse = *refuse,
        Step::Full(full) => driver.world().full = *full,
    }
}

/// What rules 1 and 2 say while the guardian lives: a channel has one disable
/// of ours exactly if somebody holds it, or none is known of a stuck one.
fn check(pauses: &Pauses<Driver, MemoryStore>) {
    let driver = &pauses.channels;
    for (&(gpu, channel), &count) in &driver.world().counts {
        assert!(
            (0..=1).contains(&count),
            "{channel} is disabled {count} times"
        );
        let target = Target {
            gpu,
            owner: own(),
            channel,
        };
        if !pauses.stuck.contains(&target) {
            assert_eq!(count == 1, pauses.holders.contains_key(&target), "{target}");
        }
        assert!(count == 0 || pauses.live().contains(&target), "{target}");
    }
    for (target, &count) in &pauses.holders {
        let holds = |held: &&Held| held.targets.contains(target);
        assert_eq!(count as usize, pauses.held.values().filter(holds).count());
    }
    assert_eq!(driver.world().idle_enables, 0);
}

fn script() -> Vec<Step> {
    vec![
        Step::Pause(1, vec![pause("a", &[1, 2, 3]), pause("b", &[3, 4])]),
        Step::Pause(1, vec![pause("a", &[1, 2, 3])]),
        Step::Pause(2, vec![pause("a", &[4, 5, 6, 7])]),
        Step::Renew(1),
        Step::Pause(1, vec![pause("a", &[2, 8])]),
        Step::Gone(5),
        Step::Pause(2, vec![pause("c", &[9, 5, 10])]),
        Step::Resume(1, "b"),
        Step::Resume(2, "a"),
        Step::Resume(2, "a"),
        Step::Wait(600),
        Step::Renew(2),
        Step::Wait(600),
        Step::Pause(1, vec![pause("d", &[1, 11])]),
        Step::Drop(2),
    ]
}

/// Plays `steps` with the fuse set to `kill`; `true` if it blew.
fn play_until_killed(driver: &Driver, steps: &[Step], kill: Option<usize>) -> bool {
    driver.fuse.set(kill);
    let killed = catch_unwind(AssertUnwindSafe(|| {
        let mut now = Instant::now();
        let mut pauses = start(driver, now);
        for step in steps {
            play(&mut pauses, &mut now, step);
        }
    }));
    driver.fuse.set(None);
    match killed {
        Ok(()) => false,
        Err(panic) if panic.is::<Killed>() => true,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn silent() {
    std::panic::set_hook(Box::new(|info| {
        if !info.payload().is::<Killed>() {
            eprintln!("{info}");
        }
    }));
}

fn recovered(driver: &Driver) {
    let now = Instant::now();
    let mut pauses = start(driver, now);
    pauses.tick(now + RETRY);
    assert!(driver.none_disabled(), "{:?}", driver.world().counts);
    assert!(pauses.live().is_empty());
    assert_eq!(driver.world().idle_enables, 0);
}

#[test]
fn killed_at_any_step_nothing_stays_disabled_and_nothing_is_enabled_twice() {
    silent();
    let mut kills = 0;
    while play_until_killed(&Driver::default(), &[], Some(kills)) {
        kills += 1;
    }
    let opening = kills;
    for kill in 0.. {
        let driver = Driver::default();
        if !play_until_killed(&driver, &script(), Some(kill)) {
            break;
        }
        kills += 1;
        recovered(&driver);
    }
    assert!(
        kills > opening + 60,
        "only {kills} steps: is the fuse wired?"
    );
}

#[test]
fn killed_again_at_any_step_of_the_recovery_too() {
    silent();
    let mut kills = 0;
    for first in 0.. {
        let driver = Driver::default();
        if !play_until_killed(&driver, &script(), Some(first)) {
            break;
        }
        for second in 0.. {
            let driver = Driver::default();
            play_until_killed(&driver, &script(), Some(first));
            if !play_until_killed(&driver, &[], Some(second)) {
                break;
            }
            kills += 1;
            recovered(&driver);
        }
    }
    assert!(kills > 300, "only {kills} pairs of steps");
}

#[test]
fn with_a_driver_that_cannot_tell_nothing_stays_disabled_either() {
    silent();
    for kill in 0.. {
        let driver = Driver::default();
        driver.world().blind = true;
        if !play_until_killed(&driver, &script(), Some(kill)) {
            break;
        }
        start(&driver, Instant::now());
        assert!(driver.none_disabled(), "killed at {kill}");
    }
}

#[test]
fn a_strangers_disable_is_lost_at_most_in_the_one_window() {
    silent();
    let steps = [Step::Pause(1, vec![pause("a", &[1])]), Step::Drop(1)];
    let mut lost = 0;
    for kill in 0.. {
        let driver = Driver::default();
        let stranger = (GPU, channel(1));
        driver.world().counts.insert(stranger, 1);
        if !play_until_killed(&driver, &steps, Some(kill)) {
            assert_eq!(driver.count(GPU, channel(1)), 1);
            break;
        }
        start(&driver, Instant::now());
        let left = driver.count(GPU, channel(1));
        assert!(left <= 1, "killed at {kill}: {left} disables stay");
        lost += usize::from(left == 0);
    }
    // Between the ledger's off and the call, and between the enabling call and
    // the ledger's on: each is cut in a few places by the fuse.
    assert!((1..=6).contains(&lost), "{lost}");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let pauses = proptest::collection::vec(
        (key(), proptest::collection::btree_set(1u32..9, 1..6)),
        1..3,
    );
    let step = prop_oneof![
        4 => (1u64..3, pauses).prop_map(|(client, pauses)| {
            let one = |(key, objects): (&str, BTreeSet<u32>)| {
                pause(key, &objects.into_iter().collect::<Vec<_>>())
            };
            Step::Pause(client, pauses.into_iter().map(one).collect())
        }),
        3 => (1u64..3, key()).prop_map(|(client, key)| Step::Resume(client, key)),
        1 => (1u64..3).prop_map(Step::Renew),
        1 => (1u64..3).prop_map(Step::Drop),
        1 => (0u64..1200).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => any::<bool>().prop_map(Step::Full),
    ];
    proptest::collection::vec(step, 1..25)
}

proptest! {
    #[test]
    fn any_life_keeps_the_counts_right(steps in steps(), gone in 1u32..9, back in 1u32..9) {
        let driver = Driver::default();
        let mut now = Instant::now();
        let mut pauses = start(&driver, now);
        play(&mut pauses, &mut now, &Step::Gone(gone));
        for (place, step) in steps.iter().enumerate() {
            play(&mut pauses, &mut now, step);
            check(&pauses);
            if place == steps.len() / 2 {
                play(&mut pauses, &mut now, &Step::Back(back));
            }
        }
        play(&mut pauses, &mut now, &Step::Refuse(false));
        play(&mut pauses, &mut now, &Step::Full(false));
        play(&mut pauses, &mut now, &Step::Wait(5000));
        play(&mut pauses, &mut now, &Step::Wait(200));
        check(&pauses);
        prop_assert!(driver.none_disabled());
        prop_assert!(pauses.held.is_empty() && pauses.stuck.is_empty());
    }

    #[test]
    fn any_life_ended_anywhere_is_recovered(steps in steps(), kill in 0usize..200) {
        silent();
        let driver = Driver::default();
        play_until_killed(&driver, &steps, Some(kill));
        driver.world().refuse = false;
        driver.world().full = false;
        recovered(&driver);
    }
}

#[test]
fn a_pause_again_disables_nothing_again_and_takes_the_new_channels() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    pauses.pause(1, &[pause("a", &[1, 2])], now);
    let calls = driver.world().calls;
    pauses.pause(1, &[pause("a", &[1, 2])], now);
    assert_eq!(driver.world().calls, calls);
    pauses.pause(1, &[pause("a", &[2, 3])], now);
    let counts = [1, 2, 3].map(|object| driver.count(GPU, channel(object)));
    assert_eq!(counts, [0, 1, 1]);
    check(&pauses);
}

#[test]
fn one_channel_of_two_pauses_runs_when_both_ended() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    pauses.pause(1, &[pause("freeze", &[1])], now);
    pauses.pause(2, &[pause("budget", &[1])], now);
    pauses.drop_client(1, now);
    assert_eq!(driver.count(GPU, channel(1)), 1);
    pauses.resume(2, &["budget".into()], now);
    assert_eq!(driver.count(GPU, channel(1)), 0);
}

#[test]
fn a_batch_is_as_few_calls_as_it_can_be() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    let batch = [
        pause("a", &[1]),
        pause("b", &[2]),
        pause("c", &[3]),
        pause("d", &[4]),
    ];
    pauses.pause(1, &batch, now);
    // The double takes two channels a call.
    assert_eq!(driver.world().calls, 2);
}

#[test]
fn a_lease_ends_at_its_time_and_a_renewal_moves_it() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    pauses.pause(1, &[pause("a", &[1])], now);
    let due = pauses.next_due().unwrap();
    assert_eq!(due, now + Duration::from_secs(1));
    pauses.renew(1, &Keys::All, 500, due - Duration::from_micros(100));
    pauses.tick(due);
    assert_eq!(driver.count(GPU, channel(1)), 1);
    pauses.tick(due + Duration::from_micros(400));
    assert_eq!(driver.count(GPU, channel(1)), 0);
    let late = pauses.renew(1, &Keys::Some(vec!["a".into()]), 500, due);
    let kind = late.first().and_then(|o| o.error.as_ref()).map(|e| e.kind);
    assert_eq!(kind, Some(FailureKind::NotPaused));
    assert_eq!(pauses.next_due(), None);
}

#[test]
fn a_refused_pause_leaves_nothing_and_says_why() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    driver.world().refuse = true;
    let outcome = pauses.pause(1, &[pause("a", &[1, 2, 3])], now);
    let kind = outcome[0].error.as_ref().map(|error| error.kind);
    assert_eq!(kind, Some(FailureKind::Driver));
    assert!(pauses.list(1, now).pauses.is_empty());
    driver.world().refuse = false;
    pauses.tick(now + RETRY);
    assert!(driver.none_disabled() && pauses.live().is_empty());
}

#[test]
fn without_a_ledger_nothing_is_paused() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    driver.world().full = true;
    let outcome = pauses.pause(1, &[pause("a", &[1])], now);
    let kind = outcome[0].error.as_ref().map(|error| error.kind);
    assert_eq!(kind, Some(FailureKind::Ledger));
    assert_eq!(driver.world().calls, 0);
    // A resume must work all the same.
    driver.world().full = false;
    pauses.pause(1, &[pause("a", &[1])], now);
    driver.world().full = true;
    pauses.resume(1, &["a".into()], now);
    assert!(driver.none_disabled());
    driver.world().full = false;
    drop(pauses);
    recovered(&driver);
}

#[test]
fn channels_that_are_gone_are_counted_and_the_rest_is_paused() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    driver.world().gone = [channel(2), channel(5)].into();
    let outcome = pauses.pause(1, &[pause("a", &[1, 2, 3, 4, 5])], now);
    assert_eq!((outcome[0].gone, outcome[0].error.clone()), (2, None));
    let counts = [1, 3, 4].map(|object| driver.count(GPU, channel(object)));
    assert_eq!(counts, [1, 1, 1]);
    check(&pauses);
}

#[test]
fn bad_values_are_refused_one_by_one() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    let later = ProcId {
        start_ticks: own().start_ticks + 1,
        ..own()
    };
    let none = Pause {
        lease_us: 0,
        ..pause("c", &[3])
    };
    let batch = [pause_of(later, "a", &[1]), pause("b", &[2]), none];
    let kinds: Vec<_> = pauses
        .pause(1, &batch, now)
        .into_iter()
        .map(|outcome| outcome.error.map(|error| error.kind))
        .collect();
    let wanted = [
        Some(FailureKind::OwnerGone),
        None,
        Some(FailureKind::Invalid),
    ];
    assert_eq!(kinds, wanted);
    assert_eq!(driver.count(GPU, channel(1)), 0);
    assert_eq!(driver.count(GPU, channel(2)), 1);
}

fn tenant() -> (Child, ProcId) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let id = ProcId::of_pid(child.id() as i32).unwrap();
    (child, id)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_tenant_that_dies_paused_is_dropped_without_a_call() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    let (child, id) = tenant();
    pauses.pause(1, &[pause_of(id, "a", &[1]), pause("b", &[2])], now);
    end(child);
    let exited = ghost_notify::poll_exits(pauses.owners(), None).unwrap();
    assert_eq!(exited.len(), 1);
    let calls = driver.world().calls;
    pauses.owner_exited(id);
    assert_eq!(driver.world().calls, calls);
    assert_eq!(pauses.list(1, now).pauses.len(), 1);
    assert_eq!(pauses.live().len(), 1);
    assert!(
        ghost_notify::poll_exits(pauses.owners(), Some(Duration::ZERO))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_ledger_of_a_tenant_that_died_meanwhile_is_dropped_without_a_call() {
    let (driver, now) = (Driver::default(), Instant::now());
    let (child, id) = tenant();
    let mut pauses = start(&driver, now);
    pauses.pause(1, &[pause_of(id, "a", &[1])], now);
    drop(pauses);
    end(child);
    let calls = driver.world().calls;
    let pauses = start(&driver, now);
    assert_eq!(driver.world().calls, calls);
    assert!(pauses.live().is_empty());
    assert_eq!(pauses.owners().count(), 0);
}

#[test]
fn a_stuck_channel_is_tried_until_it_runs_or_its_owner_dies() {
    let (driver, now) = (Driver::default(), Instant::now());
    let mut pauses = start(&driver, now);
    let (child, id) = tenant();
    pauses.pause(1, &[pause("a", &[1]), pause_of(id, "b", &[2])], now);
    driver.world().refuse = true;
    pauses.drop_client(1, now);
    assert_eq!(pauses.list(1, now).stuck, 2);
    pauses.tick(now + RETRY);
    assert_eq!(pauses.list(1, now).stuck, 2);
    assert!(!pauses.take_notes().is_empty());
    end(child);
    pauses.owner_exited(id);
    assert_eq!(pauses.list(1, now).stuck, 1);
    driver.world().refuse = false;
    pauses.tick(now + 3 * RETRY);
    assert_eq!(pauses.list(1, now).stuck, 0);
    assert_eq!(driver.count(GPU, channel(1)), 0);
}
