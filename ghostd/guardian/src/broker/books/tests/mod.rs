//! Cases by hand; random ones are in [`random`] and [`ops`].

mod ops;
mod random;

use std::collections::BTreeMap;

use ghost_model::{Bytes, MemoryEvents, MemoryLimits, MemoryUse, MemoryWanted, Name, ProcId};
use ghost_rm::{Client, Object};

use super::*;
use crate::broker::journal::tests::{Memory, keeper};
use crate::broker::journal::{KeepError, Keeper};

const CARD: Card = Card(0x100);
const SECOND: Card = Card(0x200);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn process(pid: u32) -> ProcId {
    ProcId { pid, start: 7 }
}

fn info(card: Card, total: u64, others: u64) -> CardInfo {
    CardInfo {
        card,
        id: format!("GPU-{:x}", card.0).parse().unwrap(),
        total: Bytes(total),
        others: Bytes(others),
    }
}

fn max(bytes: u64) -> MemoryLimits {
    MemoryLimits {
        max: Some(Bytes(bytes)),
        ..MemoryLimits::default()
    }
}

fn min(bytes: u64) -> MemoryLimits {
    MemoryLimits {
        min: Bytes(bytes),
        ..MemoryLimits::default()
    }
}

/// Limits on the first card; the others exist without.
fn wanted(limits: &[(&str, MemoryLimits)]) -> MemoryWanted {
    let gpu = info(CARD, 0, 0).id;
    let of = |(container, limits): &(&str, MemoryLimits)| {
        (name(container), BTreeMap::from([(gpu.clone(), *limits)]))
    };
    MemoryWanted(limits.iter().map(of).collect())
}

/// A keeper with a card of 100 bytes and limits.
fn kept(limits: &[(&str, MemoryLimits)]) -> Keeper<Memory> {
    let mut keeper = keeper();
    keeper
        .set_cards(vec![info(CARD, 100, 0), info(SECOND, 100, 0)])
        .unwrap();
    keeper.set_limits(wanted(limits)).unwrap();
    keeper
}

fn id(client: u32, object: u32) -> MemoryId {
    (Client(client), Object(object))
}

/// Opens a client of the process with the same number.
fn open(keeper: &mut Keeper<Memory>, client: u32, container: &str) {
    let owner = process(client);
    keeper
        .open(Client(client), owner, &name(container))
        .unwrap();
}

fn alloc(keeper: &mut Keeper<Memory>, id: MemoryId, bytes: u64) -> Result<(), Refusal> {
    match keeper.charge(id, CARD, bytes) {
        Ok(ticket) => keeper.settle(ticket, id, bytes).unwrap(),
        Err(KeepError::Refused(refusal)) => return Err(refusal),
        Err(KeepError::Journal(error)) => panic!("{error}"),
    }
    valid(keeper);
    Ok(())
}

fn share(keeper: &mut Keeper<Memory>, of: MemoryId, id: MemoryId) {
    let ticket = keeper.share(of, id).unwrap().unwrap();
    keeper.settle(ticket, id, 0).unwrap();
    valid(keeper);
}

#[track_caller]
fn valid(keeper: &Keeper<Memory>) {
    keeper.books().is_valid().unwrap_or_else(|e| panic!("{e}"));
}

fn usage(keeper: &Keeper<Memory>, container: &str) -> MemoryUse {
    let seen = keeper.books().usage();
    let of = seen.containers.get(&name(container));
    of.and_then(|of| of.get(&info(CARD, 0, 0).id))
        .copied()
        .unwrap_or_default()
}

fn current(keeper: &Keeper<Memory>, container: &str) -> u64 {
    usage(keeper, container).current.0
}

fn observe(keeper: &mut Keeper<Memory>, pid: u32, bytes: u64, container: Option<&str>) -> bool {
    let version = keeper.books().version();
    observe_at(keeper, pid, bytes, container, version)
}

fn observe_at(
    keeper: &mut Keeper<Memory>,
    pid: u32,
    bytes: u64,
    container: Option<&str>,
    version: u64,
) -> bool {
    let counted = keeper.observe(&Observed {
        owner: process(pid),
        card: CARD,
        bytes: Bytes(bytes),
        version,
        container: container.map(name),
    });
    valid(keeper);
    counted.unwrap()
}

#[test]
fn max_binds_the_sum_of_all_below_and_is_counted_where_it_bound() {
    let mut keeper = kept(&[("team", max(50)), ("team/a", max(40)), ("team/b", max(40))]);
    open(&mut keeper, 1, "team/a");
    open(&mut keeper, 2, "team/b");
    alloc(&mut keeper, id(1, 1), 30).unwrap();
    let refusal = alloc(&mut keeper, id(2, 1), 21).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Max { container, current: Bytes(30), .. } if *container == name("team")),
        "{refusal}"
    );
    alloc(&mut keeper, id(2, 1), 20).unwrap();
    let refusal = alloc(&mut keeper, id(1, 2), 11).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Max { container, .. } if *container == name("team/a")),
        "the nearest that binds: {refusal}"
    );
    let events = |max, fail| MemoryEvents {
        max,
        fail,
        ..MemoryEvents::default()
    };
    let all = |container| {
        let used = usage(&keeper, container);
        (used.current.0, used.events, used.events_local)
    };
    assert_eq!(all("team"), (50, events(2, 2), events(1, 0)));
    assert_eq!(all("team/a"), (30, events(1, 1), events(1, 1)));
    assert_eq!(all("team/b"), (20, events(0, 1), events(0, 1)));
}

#[test]
fn limits_are_per_card_and_a_second_card_has_none() {
    let mut keeper = kept(&[("a", max(10))]);
    open(&mut keeper, 1, "a");
    assert!(alloc(&mut keeper, id(1, 1), 11).is_err());
    keeper.charge(id(1, 1), SECOND, 11).unwrap();
    valid(&keeper);
}

#[test]
fn max_below_use_is_accepted_and_refuses_until_use_is_back() {
    let mut keeper = kept(&[("a", max(40))]);
    open(&mut keeper, 1, "a");
    alloc(&mut keeper, id(1, 1), 30).unwrap();
    alloc(&mut keeper, id(1, 2), 10).unwrap();
    keeper.set_limits(wanted(&[("a", max(20))])).unwrap();
    assert_eq!(current(&keeper, "a"), 40);
    let view = keeper.books().card_of(Client(1), CARD).unwrap();
    assert_eq!((view.total, view.free), (Bytes(20), Bytes(0)));
    assert!(alloc(&mut keeper, id(1, 3), 1).is_err());
    keeper.free(id(1, 1)).unwrap();
    alloc(&mut keeper, id(1, 3), 10).unwrap();
    assert_eq!(usage(&keeper, "a").peak, Bytes(40));
}

#[test]
fn high_counts_each_allocation_that_ends_beyond_it_once_it_succeeded() {
    let high = MemoryLimits {
        high: Some(Bytes(10)),
        ..MemoryLimits::default()
    };
    let mut keeper = kept(&[("t", high), ("t/a", high)]);
    open(&mut keeper, 1, "t/a");
    alloc(&mut keeper, id(1, 1), 10).unwrap();
    let ticket = keeper.charge(id(1, 2), CARD, 1).unwrap();
    keeper.cancel(ticket, true).unwrap();
    assert_eq!(usage(&keeper, "t").events.high, 0, "the driver refused it");
    alloc(&mut keeper, id(1, 2), 1).unwrap();
    alloc(&mut keeper, id(1, 3), 1).unwrap();
    let highs = |container| {
        let used = usage(&keeper, container);
        (used.events.high, used.events_local.high)
    };
    assert_eq!(highs("t/a"), (2, 2));
    assert_eq!(highs("t"), (4, 2), "its own, and its child's");
    assert_eq!(usage(&keeper, "t/a").events.fail, 1);
    assert_eq!(usage(&keeper, "t/a").peak, Bytes(12));
}

#[test]
fn a_failed_or_pending_allocation_is_in_use_and_in_no_peak() {
    let mut keeper = kept(&[("a", max(90))]);
    open(&mut keeper, 1, "a");
    let ticket = keeper.charge(id(1, 0), CARD, 80).unwrap();
    assert_eq!(current(&keeper, "a"), 80);
    assert!(
        alloc(&mut keeper, id(1, 1), 11).is_err(),
        "it may succeed yet"
    );
    keeper.cancel(ticket, true).unwrap();
    assert_eq!(
        (current(&keeper, "a"), usage(&keeper, "a").peak),
        (0, Bytes(0))
    );
    let ticket = keeper.charge(id(1, 0), CARD, 5).unwrap();
    keeper.settle(ticket, id(1, 9), 6).unwrap();
    valid(&keeper);
    assert_eq!(
        (current(&keeper, "a"), usage(&keeper, "a").peak),
        (6, Bytes(6))
    );
    assert!(keeper.books().knows(id(1, 9)) && !keeper.books().knows(id(1, 0)));
}

#[test]
fn two_threads_may_ask_for_one_name() {
    let mut keeper = kept(&[]);
    open(&mut keeper, 1, "a");
    let first = keeper.charge(id(1, 0), CARD, 3).unwrap();
    let second = keeper.charge(id(1, 0), CARD, 4).unwrap();
    keeper.settle(second, id(1, 5), 4).unwrap();
    keeper.settle(first, id(1, 6), 3).unwrap();
    let third = keeper.charge(id(1, 5), CARD, 7).unwrap();
    keeper.cancel(third, true).unwrap();
    valid(&keeper);
    assert_eq!(
        current(&keeper, "a"),
        7,
        "the driver refused the name: 5 stays"
    );
    // The driver gives a name only once, so what the books knew under it is gone.
    alloc(&mut keeper, id(1, 5), 10).unwrap();
    assert_eq!(current(&keeper, "a"), 13);
}

#[test]
fn min_is_kept_free_for_its_container_and_for_nobody_else() {
    let mut keeper = kept(&[("kept", min(40)), ("other", MemoryLimits::default())]);
    open(&mut keeper, 1, "kept");
    open(&mut keeper, 2, "other");
    alloc(&mut keeper, id(1, 1), 10).unwrap();
    let free = |keeper: &Keeper<Memory>| keeper.books().card_of(Client(2), CARD).unwrap().free;
    assert_eq!(free(&keeper), Bytes(60));
    let refusal = alloc(&mut keeper, id(2, 1), 61).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Min { container, needed: Bytes(30), free: Bytes(90), .. } if *container == name("kept")),
        "{refusal}"
    );
    assert_eq!(usage(&keeper, "other").events_local.fail, 1);
    assert_eq!(usage(&keeper, "other").events_local.max, 0);
    alloc(&mut keeper, id(2, 1), 60).unwrap();
    alloc(&mut keeper, id(1, 2), 30).unwrap();
    keeper.set_cards(vec![info(CARD, 100, 60)]).unwrap();
    assert_eq!(
        free(&keeper),
        Bytes(0),
        "what others hold is not free, and never negative"
    );
}

#[test]
fn min_is_effective_as_far_as_those_above_are_protected() {
    // a asks; beside it b, and elsewhere d below the unprotected c.
    let mut keeper = kept(&[("t", min(30)), ("t/b", min(50)), ("c/d", min(90))]);
    open(&mut keeper, 1, "t/a");
    open(&mut keeper, 2, "e");
    let free = |client| keeper.books().card_of(Client(client), CARD).unwrap().free;
    assert_eq!(
        free(1),
        Bytes(70),
        "t keeps 30 of it for b; a has t's protection itself"
    );
    assert_eq!(free(2), Bytes(70), "t's 30 and b's 30 are the same");
    // t's min is used up by a, b's part of it is not.
    alloc(&mut keeper, id(1, 1), 40).unwrap();
    assert_eq!(
        keeper.books().card_of(Client(2), CARD).unwrap().free,
        Bytes(30)
    );
}

#[test]
fn low_is_taken_and_counted() {
    let low = MemoryLimits {
        low: Bytes(50),
        ..MemoryLimits::default()
    };
    let mut keeper = kept(&[("t", low), ("t/a", low)]);
    open(&mut keeper, 1, "b");
    alloc(&mut keeper, id(1, 1), 50).unwrap();
    assert_eq!(usage(&keeper, "t").events.low, 0);
    alloc(&mut keeper, id(1, 2), 1).unwrap();
    assert_eq!(usage(&keeper, "t/a").events_local.low, 1);
    let of_t = usage(&keeper, "t");
    assert_eq!((of_t.events.low, of_t.events_local.low), (2, 1));
    assert_eq!(usage(&keeper, "b").events.low, 0);
}

#[test]
fn a_duplicate_is_charged_once_where_it_was_allocated_until_its_last_name_is_gone() {
    let mut keeper = kept(&[("a", max(50)), ("b", max(5))]);
    open(&mut keeper, 1, "a");
    open(&mut keeper, 2, "b");
    alloc(&mut keeper, id(1, 1), 30).unwrap();
    share(&mut keeper, id(1, 1), id(2, 1));
    share(&mut keeper, id(2, 1), id(2, 2));
    assert_eq!(keeper.share(id(9, 9), id(2, 3)).unwrap(), None);
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (30, 0));
    keeper.close(Client(1)).unwrap();
    valid(&keeper);
    assert_eq!(
        current(&keeper, "a"),
        30,
        "the first client's death leaves it"
    );
    let names: Vec<Object> = keeper.books().memories_of(Client(2)).collect();
    assert_eq!(names, [Object(1), Object(2)]);
    keeper.free(id(2, 1)).unwrap();
    keeper.free(id(2, 1)).unwrap();
    assert_eq!(current(&keeper, "a"), 30);
    keeper.free(id(2, 2)).unwrap();
    valid(&keeper);
    assert_eq!(current(&keeper, "a"), 0);
}

#[test]
fn a_free_while_the_driver_makes_a_duplicate_does_not_lose_the_memory() {
    let mut keeper = kept(&[]);
    open(&mut keeper, 1, "a");
    open(&mut keeper, 2, "b");
    alloc(&mut keeper, id(1, 1), 30).unwrap();
    let made = keeper.share(id(1, 1), id(2, 0)).unwrap().unwrap();
    let failed = keeper.share(id(1, 1), id(2, 7)).unwrap().unwrap();
    keeper.close(Client(1)).unwrap();
    valid(&keeper);
    assert!(!keeper.books().knows(id(1, 1)));
    keeper.settle(made, id(2, 5), 0).unwrap();
    keeper.cancel(failed, false).unwrap();
    valid(&keeper);
    assert_eq!(current(&keeper, "a"), 30);
    keeper.free(id(2, 5)).unwrap();
    assert_eq!(current(&keeper, "a"), 0);
    alloc(&mut keeper, id(2, 1), 30).unwrap();
    let failed = keeper.share(id(2, 1), id(2, 7)).unwrap().unwrap();
    keeper.free(id(2, 1)).unwrap();
    assert_eq!(current(&keeper, "b"), 30);
    keeper.cancel(failed, false).unwrap();
    valid(&keeper);
    assert_eq!(current(&keeper, "b"), 0);
}

#[test]
fn a_process_that_moves_is_charged_there_for_new_clients_only() {
    let mut keeper = kept(&[]);
    let (old, new) = (Client(1), Client(2));
    keeper.open(old, process(1), &name("a")).unwrap();
    keeper.open(old, process(1), &name("b")).unwrap();
    keeper.open(new, process(1), &name("b")).unwrap();
    alloc(&mut keeper, (old, Object(1)), 3).unwrap();
    alloc(&mut keeper, (new, Object(1)), 4).unwrap();
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (3, 4));
    let of_a: Vec<Client> = keeper.books().clients_of(&name("a")).collect();
    assert_eq!(of_a, [old]);
}

#[test]
fn residual_is_what_no_name_of_the_process_explains() {
    let mut keeper = kept(&[("a", max(50)), ("b", max(50))]);
    open(&mut keeper, 1, "a");
    open(&mut keeper, 2, "b");
    alloc(&mut keeper, id(1, 1), 10).unwrap();
    share(&mut keeper, id(1, 1), id(2, 1));
    assert!(observe(&mut keeper, 1, 30, None));
    assert!(observe(&mut keeper, 2, 10, None));
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (30, 0));
    assert!(
        alloc(&mut keeper, id(1, 2), 21).is_err(),
        "it counts against max"
    );
    alloc(&mut keeper, id(1, 2), 20).unwrap();
    assert!(observe(&mut keeper, 1, 35, None), "readings fall");
    assert_eq!(current(&keeper, "a"), 35);
    assert_eq!(usage(&keeper, "a").peak, Bytes(50));
    keeper.gone(process(1)).unwrap();
    valid(&keeper);
    assert_eq!(current(&keeper, "a"), 30);
    assert!(observe(&mut keeper, 1, 40, None));
    keeper.close(Client(1)).unwrap();
    valid(&keeper);
    assert_eq!(
        current(&keeper, "a"),
        10,
        "b's name keeps what was allocated, the residual went"
    );
}

#[test]
fn a_reading_counts_if_its_process_was_quiet_since_it_began() {
    let mut keeper = kept(&[]);
    open(&mut keeper, 1, "a");
    open(&mut keeper, 2, "a");
    alloc(&mut keeper, id(1, 1), 10).unwrap();
    let began = keeper.books().version();
    alloc(&mut keeper, id(2, 1), 10).unwrap();
    assert!(
        observe_at(&mut keeper, 1, 15, None, began),
        "a busy neighbour does not matter"
    );
    keeper.free(id(1, 1)).unwrap();
    assert!(
        !observe_at(&mut keeper, 1, 15, None, began),
        "it may have the freed memory in it"
    );
    assert!(observe_at(&mut keeper, 1, 5, None, began + 4));
    let pending = keeper.books().version();
    keeper.charge(id(1, 1), CARD, 10).unwrap();
    assert!(!observe_at(&mut keeper, 1, 5, None, pending));
    let future = keeper.books().version() + 1;
    assert!(!observe_at(&mut keeper, 1, 5, None, future));
    assert_eq!(current(&keeper, "a"), 25);
}

#[test]
fn a_process_without_a_filter_is_counted_where_it_is_said_to_be() {
    let mut keeper = kept(&[("a", max(50)), ("b", MemoryLimits::default())]);
    assert!(!observe(&mut keeper, 7, 20, None));
    assert!(observe(&mut keeper, 7, 20, Some("a")));
    assert_eq!(current(&keeper, "a"), 20);
    assert!(
        observe(&mut keeper, 7, 20, Some("b")),
        "it was attached elsewhere"
    );
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (0, 20));
    assert!(keeper.books().usage().held.is_empty());
    open(&mut keeper, 7, "a");
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (20, 0));
    assert!(observe(&mut keeper, 7, 30, Some("b")));
    assert_eq!(current(&keeper, "a"), 30, "a client says where it is");
    assert_eq!(keeper.books().usage().held, [process(7)].into());
    keeper.close(Client(7)).unwrap();
    assert!(observe(&mut keeper, 7, 5, Some("b")));
    assert!(observe(&mut keeper, 7, 0, Some("b")));
    assert_eq!((current(&keeper, "a"), current(&keeper, "b")), (0, 0));
}

#[test]
fn the_card_and_the_processes_are_the_containers_own() {
    let mut keeper = kept(&[("t", max(60)), ("t/a", max(80))]);
    for (client, container) in [(1, "t/a"), (2, "t"), (3, "u"), (4, "t/b")] {
        open(&mut keeper, client, container);
    }
    alloc(&mut keeper, id(2, 1), 50).unwrap();
    let books = keeper.books();
    let view = |client| books.card_of(Client(client), CARD).unwrap();
    assert_eq!((view(1).total, view(1).free), (Bytes(60), Bytes(10)));
    assert_eq!((view(3).total, view(3).free), (Bytes(100), Bytes(50)));
    assert_eq!(books.card_of(Client(9), CARD), None);
    assert_eq!(books.card_of(Client(1), Card(9)), None);
    let pids = |client| {
        let of = books.processes_of(Client(client));
        of.into_iter().map(|p| p.pid).collect::<Vec<_>>()
    };
    assert_eq!(pids(2), [1, 2, 4]);
    assert_eq!(pids(1), [1]);
    assert_eq!(pids(3), [3]);
}

#[test]
fn a_container_is_forgotten_when_nobody_wants_it_and_it_holds_nothing() {
    let mut keeper = kept(&[("t/a", max(50))]);
    open(&mut keeper, 1, "t/a");
    alloc(&mut keeper, id(1, 1), 30).unwrap();
    keeper.set_limits(MemoryWanted::default()).unwrap();
    valid(&keeper);
    assert_eq!(usage(&keeper, "t/a").peak, Bytes(30));
    alloc(&mut keeper, id(1, 2), 60).unwrap();
    keeper.close(Client(1)).unwrap();
    valid(&keeper);
    assert!(keeper.books().usage().containers.is_empty());
    keeper.set_limits(wanted(&[("t/a", max(50))])).unwrap();
    assert_eq!(
        usage(&keeper, "t/a"),
        MemoryUse::default(),
        "a new one of that name"
    );
}

#[test]
fn what_is_not_known_is_refused() {
    let mut keeper = kept(&[]);
    let refusal = alloc(&mut keeper, id(1, 1), 1).unwrap_err();
    assert_eq!(refusal, Refusal::NoClient { client: Client(1) });
    open(&mut keeper, 1, "a");
    let refused = keeper.charge(id(1, 1), Card(9), 1);
    assert!(matches!(
        refused,
        Err(KeepError::Refused(Refusal::NoCard { card: 9 }))
    ));
    let refusal = alloc(&mut keeper, id(1, 1), u64::MAX).unwrap_err();
    assert!(matches!(refusal, Refusal::Total { .. }), "{refusal}");
    assert_eq!(usage(&keeper, "a").events.fail, 1);
}

#[test]
fn one_containers_clients_and_one_sessions_calls_are_bounded() {
    let mut keeper = kept(&[]);
    let most = (MAX_CLIENTS / 4) as u32;
    for client in 0..most {
        open(&mut keeper, client, "a");
    }
    let refused = keeper.open(Client(most), process(1), &name("a"));
    assert!(matches!(
        refused,
        Err(KeepError::Refused(Refusal::TooMany { .. }))
    ));
    open(&mut keeper, most, "b");
    let session = |text: &str| text.parse::<SessionId>().unwrap();
    let call = Call {
        number: 0x2b,
        notification: 1,
        client: Client(1),
        object: Object(2),
        class: 0x40,
    };
    for tid in 0..(MAX_CALLS / 8) as i32 {
        keeper.begin(&session("one"), tid, call).unwrap();
    }
    let refused = keeper.begin(&session("one"), -1, call);
    assert!(matches!(
        refused,
        Err(KeepError::Refused(Refusal::TooMany { .. }))
    ));
    keeper.begin(&session("one"), 1, call).unwrap();
    keeper.begin(&session("two"), 1, call).unwrap();
    keeper.end(&session("one"), 0).unwrap();
    keeper.begin(&session("one"), -1, call).unwrap();
}

#[test]
fn a_call_is_known_again_by_what_it_asks() {
    let call = Call {
        number: 0x2b,
        notification: 1,
        client: Client(1),
        object: Object(2),
        class: 0x40,
    };
    let again = Call {
        notification: 2,
        ..call
    };
    assert!(call.is_again(&again));
    assert!(!call.is_again(&Call {
        class: 0x3e,
        ..call
    }));
}
