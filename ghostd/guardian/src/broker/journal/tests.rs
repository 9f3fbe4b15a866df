//! Files cut, damaged, full and long.

use super::*;
use crate::ledger::FileStore;
use crate::ledger::tests::BOOT;
use ghost_model::Bytes;
use ghost_rm::Object;
use proptest::prelude::*;
use std::path::Path;

/// A file in memory that fails when told to.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    full: bool,
}

impl Memory {
    fn check(&self, what: &'static str) -> Result<(), LedgerError> {
        let source = std::io::ErrorKind::StorageFull.into();
        let path = "memory".into();
        match self.full {
            true => Err(LedgerError::Io { path, what, source }),
            false => Ok(()),
        }
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Vec<u8>, LedgerError> {
        Ok(self.bytes.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        let half = bytes.len() / 2;
        self.bytes.extend_from_slice(&bytes[..half]);
        self.check("append to")?;
        self.bytes.extend_from_slice(&bytes[half..]);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.check("replace")?;
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// Empty books.
pub(crate) fn keeper() -> Keeper<Memory> {
    Keeper::start(Memory::default(), BOOT).unwrap().0
}

/// The books that the next guardian would read.
pub(crate) fn reread(keeper: &Keeper<Memory>) -> (Books, Found) {
    replay(&keeper.store.bytes, BOOT)
}

const CARD: Card = Card(1);

fn fill<S: Store>(keeper: &mut Keeper<S>, objects: u32) {
    let card = CardInfo {
        card: CARD,
        id: "GPU-0".parse().unwrap(),
        total: Bytes(1 << 30),
        others: Bytes(0),
    };
    keeper.set_cards(vec![card]).unwrap();
    let owner = ProcId { pid: 1, start: 2 };
    keeper
        .open(Client(1), owner, &"a/b".parse().unwrap())
        .unwrap();
    for object in 1..=objects {
        let id = (Client(1), Object(object));
        let ticket = keeper.charge(id, CARD, 10).unwrap();
        keeper.settle(ticket, id, 16).unwrap();
    }
}

#[test]
fn what_the_driver_tells_again_waits_for_the_next_change() {
    let (session, tid) = (&"s".parse().unwrap(), 7);
    let begun = |object| Begun {
        session,
        tid,
        call: Call {
            number: 0x29,
            notification: 1,
            client: Client(1),
            object: Object(object),
            class: 0,
        },
    };
    let id = |object| (Client(1), Object(object));
    let mut keeper = keeper();
    fill(&mut keeper, 1);
    // Both are written at once, and that it is as large as was asked for is not.
    let ticket = keeper.charge_for(id(2), CARD, 32, Some(begun(2))).unwrap();
    let asked = keeper.books.clone();
    keeper.settle(ticket, id(2), 32).unwrap();
    assert_eq!(reread(&keeper), (asked.clone(), Found::default()));
    assert_eq!(asked.pending(ticket), Some((id(2), 32)));
    keeper.free_by(id(2), session, tid).unwrap();
    assert!(!keeper.books.knows(id(2)));
    assert_eq!(reread(&keeper).0, asked);
    // Of a free that was not begun nobody will ask the driver.
    keeper.free_by(id(1), session, tid).unwrap();
    assert_eq!(reread(&keeper), (keeper.books.clone(), Found::default()));
    let ticket = keeper.charge(id(3), CARD, 5).unwrap();
    keeper.settle(ticket, id(3), 5).unwrap();
    assert_ne!(reread(&keeper).0, keeper.books);
    keeper.flush().unwrap();
    assert_eq!(reread(&keeper), (keeper.books.clone(), Found::default()));
    // What waits is not lost where a write fails, either.
    let ticket = keeper.charge(id(4), CARD, 5).unwrap();
    keeper.settle(ticket, id(4), 5).unwrap();
    keeper.store.full = true;
    keeper.charge(id(5), CARD, 5).unwrap_err();
    keeper.store.full = false;
    keeper.begin(session, tid, begun(4).call).unwrap();
    let (books, _) = reread(&keeper);
    assert_eq!(books, keeper.books);
    assert!(books.knows(id(4)) && !books.knows(id(5)));
}

#[test]
fn a_file_is_read_back_by_the_next_guardian_with_what_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let start = |dir: &Path| Keeper::start(FileStore::open_journal(dir).unwrap(), BOOT).unwrap();
    let (mut keeper, found) = start(dir.path());
    assert_eq!(found, Found::default());
    fill(&mut keeper, 3);
    let (lost, kept) = ((Client(1), Object(8)), (Client(1), Object(9)));
    keeper.charge(lost, CARD, 5).unwrap();
    keeper.charge(kept, CARD, 6).unwrap();
    let before = keeper.books.clone();
    drop(keeper);
    let (mut keeper, found) = start(dir.path());
    assert_eq!((found, &keeper.books), (Found::default(), &before));
    let pending: Vec<_> = keeper.books.pending_names().collect();
    for (ticket, id) in pending {
        keeper.resolve(ticket, id == kept).unwrap();
        keeper.resolve(ticket, true).unwrap();
    }
    assert!(keeper.books.knows(kept) && !keeper.books.knows(lost));
    let seen = keeper.books.usage();
    let (_, used) = seen.containers["a"].first_key_value().unwrap();
    assert_eq!((used.current.0, used.events.fail), (3 * 16 + 6, 0));
    drop(keeper);
    let other = BootId::current().unwrap();
    let store = FileStore::open_journal(dir.path()).unwrap();
    let (keeper, found) = Keeper::start(store, other).unwrap();
    assert!(found.other_boot && found.damaged == 0);
    assert_eq!(keeper.books, Books::default());
}

#[test]
fn the_file_does_not_grow_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open_journal(dir.path()).unwrap();
    let (mut keeper, _) = Keeper::start(store, BOOT).unwrap();
    for _ in 0..10 {
        fill(&mut keeper, 10_000);
    }
    keeper.close(Client(1)).unwrap();
    let length = std::fs::metadata(dir.path().join("journal")).unwrap().len();
    assert!(length < 2 * COMPACT as u64, "{length}");
    assert_eq!(replay(&keeper.store.load().unwrap(), BOOT).0, keeper.books);
}

#[test]
fn a_full_file_system_refuses_what_takes_and_forgets_nothing_that_gives() {
    let mut keeper = keeper();
    fill(&mut keeper, 3);
    let id = |object| (Client(1), Object(object));
    keeper.store.full = true;
    let refused = keeper.charge(id(4), CARD, 1);
    assert!(matches!(refused, Err(KeepError::Journal(_))));
    assert!(keeper.free(id(1)).is_err());
    assert!(!keeper.books.knows(id(1)) && keeper.books.pending_names().count() == 0);
    let (_, found) = reread(&keeper);
    assert!(
        found.cut && found.damaged == 0,
        "half a record is at the end"
    );
    keeper.store.full = false;
    keeper.free(id(2)).unwrap();
    keeper.books.is_valid().unwrap();
    assert_eq!(reread(&keeper), (keeper.books.clone(), Found::default()));
}

proptest! {
    #[test]
    fn a_cut_tail_is_the_state_before_it(cut: usize) {
        let mut keeper = keeper();
        fill(&mut keeper, 5);
        let whole = keeper.store.bytes.len();
        let before = keeper.books.clone();
        keeper.free((Client(1), Object(3))).unwrap();
        let last = keeper.store.bytes.len() - whole;
        keeper.store.bytes.truncate(whole + cut % last);
        let (books, found) = reread(&keeper);
        prop_assert_eq!(books, before);
        prop_assert_eq!(found, Found { cut: cut % last > 0, ..Found::default() });
    }

    #[test]
    fn damage_is_told_and_what_is_read_is_valid(at: usize, with in 1u8..) {
        let mut keeper = keeper();
        fill(&mut keeper, 5);
        let at = at % keeper.store.bytes.len();
        keeper.store.bytes[at] ^= with;
        let (books, found) = reread(&keeper);
        prop_assert!(found.damaged + usize::from(found.cut) + usize::from(found.other_boot) > 0);
        prop_assert_eq!(books.is_valid(), Ok(()));
    }

    #[test]
    fn a_length_beyond_the_end_is_damage_when_records_follow(length in 1000u32..) {
        let mut keeper = keeper();
        fill(&mut keeper, 1);
        keeper.store.bytes.extend_from_slice(b"GBK\x07");
        keeper.store.bytes.extend_from_slice(&length.to_le_bytes());
        fill(&mut keeper, 2);
        let found = Found { damaged: 1, ..Found::default() };
        prop_assert_eq!(reread(&keeper), (keeper.books, found));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (books, found) = replay(&bytes, BOOT);
        prop_assert_eq!(books, Books::default());
        prop_assert_eq!(found == Found::default(), bytes.is_empty());
    }

    #[test]
    fn any_fields_are_read_without_a_panic_and_written_back(
        kind in 0u8..30, fields in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Some(op) = Op::take(kind, &fields) {
            let mut again = Vec::new();
            op.put(&mut again);
            prop_assert_eq!((op.kind(), again), (kind, fields));
        }
    }
}

/// What a charge costs with its record: `cargo test --release -- --ignored --nocapture cost`.
#[test]
#[ignore = "prints a number and asserts none"]
fn cost_of_a_charge() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = FileStore::open_journal(dir.path()).unwrap();
    let (mut keeper, _) = Keeper::start(store, BOOT).unwrap();
    fill(&mut keeper, 1000);
    let mut took = std::time::Duration::ZERO;
    let mut longest = took;
    const N: u32 = 200_000;
    for object in 0..N {
        let id = (Client(1), Object(5000 + object % 1000));
        let start = std::time::Instant::now();
        let ticket = keeper.charge(id, CARD, 10).unwrap();
        let one = start.elapsed();
        took += one;
        longest = longest.max(one);
        keeper.settle(ticket, id, 10).unwrap();
        keeper.free(id).unwrap();
    }
    println!("a charge: {:?}, at most {longest:?}", took / N);
}
