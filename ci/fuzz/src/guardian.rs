//! What the guardian reads: frames from whoever reaches its sockets, its own ledger and the broker's
//! journal.

use ghost_guardian::broker::books::{Books, CardInfo, Op};
use ghost_guardian::broker::journal::{Found, Keeper};
use ghost_guardian::broker::wire::{Ask, Reply};
use ghost_guardian::ledger::{BootId, Ledger, LedgerError, Store, Target};
use ghost_guardian::protocol::{self, Answer, Request};
use ghost_model::Bytes;
use ghost_notify::ProcId;
use ghost_rm::{Channel, Client, Gpu, Object};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Debug;

/// Bytes as a frame, and as the body of one.
pub fn guardian_frame(data: &[u8]) {
    let framed = framed(data);
    for bytes in [data, &framed] {
        frame::<Request>(bytes);
        frame::<Answer>(bytes);
    }
    if let Ok(Some((Request::Pause(pauses), _))) = protocol::decode(&framed) {
        for pause in pauses {
            // Refused or not, it says so without a panic.
            let _ = pause.check().map_err(|e| e.to_string());
        }
    }
}

/// Bytes as a frame of the broker's socket, and as the body of one; what is told there goes into the
/// books.
pub fn broker_frame(data: &[u8]) {
    let framed = framed(data);
    for bytes in [data, &framed] {
        frame::<Ask>(bytes);
        frame::<Reply>(bytes);
    }
    let Ok(Some((ask, _))) = protocol::decode::<Ask>(&framed) else {
        return;
    };
    let boot = BootId::current().expect("Linux has a boot id");
    let mut memory = Memory::default();
    let (mut keeper, _) = Keeper::start(&mut memory, boot).expect("memory does not fail");
    let told = match ask {
        Ask::Limits(wanted) => keeper.set_limits(wanted),
        Ask::Cards(cards) => keeper.set_cards(cards),
        Ask::Observed(seen) => seen.iter().try_for_each(|one| {
            let card = CardInfo {
                card: one.card,
                id: "GPU-0".parse().expect("an id"),
                total: Bytes(1 << 36),
                others: Bytes(0),
            };
            keeper.set_cards(vec![card])?;
            keeper.observe(one).map(drop)
        }),
        _ => Ok(()),
    };
    told.expect("memory does not fail");
    let books = keeper.books().clone();
    let (again, _) = Keeper::start(&mut memory, boot).expect("memory does not fail");
    assert_eq!(*again.books(), books);
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut framed = b"GGD".to_vec();
    framed.push(protocol::VERSION);
    framed.extend((body.len() as u32).to_le_bytes());
    framed.extend(body);
    framed
}

fn frame<T: Serialize + for<'a> Deserialize<'a> + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(Some((message, taken))) = protocol::decode::<T>(bytes) else {
        return;
    };
    let cut = bytes.get(..taken - 1).expect("it was taken from there");
    assert!(matches!(protocol::decode::<T>(cut), Ok(None)));
    // One of the largest bodies may be larger when it is printed.
    if let Ok(printed) = protocol::encode(&message) {
        let (again, length) = protocol::decode(&printed)
            .expect("a frame")
            .expect("a whole one");
        assert_eq!((again, length), (message, printed.len()));
    }
}

#[derive(Clone, Debug, Default)]
struct Memory(Vec<u8>);

impl Store for &mut Memory {
    fn load(&mut self) -> Result<Vec<u8>, LedgerError> {
        Ok(self.0.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.0.extend(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

/// Bytes as a ledger, and as what a guardian does until something damages its ledger. Two bytes
/// are a step: a channel to disable or enable, or a byte to change somewhere.
pub fn guardian_ledger(data: &[u8]) {
    let boot = BootId::current().expect("Linux has a boot id");
    let mut memory = Memory(data.to_vec());
    let (ledger, _) = Ledger::open(&mut memory, boot).expect("memory does not fail");
    let live = ledger.live().clone();
    assert_eq!(reopened(&mut memory, boot), (live, 0));

    let mut memory = Memory::default();
    let (mut ledger, _) = Ledger::open(&mut memory, boot).expect("memory does not fail");
    let mut disabled = BTreeSet::new();
    let mut damage = Vec::new();
    for &[what, number] in data.as_chunks::<2>().0 {
        let target = target(number);
        let done = match what % 4 {
            0 => {
                damage.push((what, number));
                Ok(())
            }
            1 => ledger.record_on(&[target]),
            _ => {
                disabled.insert(target);
                ledger.record_off(&[target])
            }
        };
        done.expect("memory does not fail");
    }
    let live = ledger.live().clone();
    let mut whole = memory.clone();
    assert_eq!(reopened(&mut whole, boot), (live, 0));
    for (mask, place) in damage {
        let at = usize::from(place) * 7 % memory.0.len().max(1);
        if let Some(byte) = memory.0.get_mut(at) {
            *byte ^= mask;
        }
    }
    // A lost record may bring one back that was enabled, never one that was not disabled.
    assert!(reopened(&mut memory, boot).0.is_subset(&disabled));
}

fn reopened(memory: &mut Memory, boot: BootId) -> (BTreeSet<Target>, usize) {
    let (ledger, found) = Ledger::open(memory, boot).expect("memory does not fail");
    (ledger.live().clone(), found.damaged)
}

fn target(number: u8) -> Target {
    Target {
        gpu: Gpu {
            instance: u32::from(number % 2),
            minor: 0,
        },
        owner: ProcId {
            pid: i32::from(number) + 1,
            start_ticks: 5,
        },
        channel: Channel {
            client: Client(0xc1d0_0000),
            object: Object(number.into()),
        },
    }
}

/// Bytes as a journal, and as ops: a kind, the length of its fields, its fields.
pub fn guardian_journal(data: &[u8]) {
    let boot = BootId::current().expect("Linux has a boot id");
    let mut memory = Memory(data.to_vec());
    let (keeper, _) = Keeper::start(&mut memory, boot).expect("memory does not fail");
    let books = keeper.books().clone();
    books.is_valid().expect("what is read is valid");
    let (again, found) = Keeper::start(&mut memory, boot).expect("memory does not fail");
    assert_eq!((again.books(), found), (&books, Found::default()));

    let mut books = Books::default();
    let mut rest = data;
    while let Some((&[kind, length], after)) = rest.split_first_chunk() {
        let length = usize::from(length).min(after.len());
        let (fields, after) = after.split_at(length);
        rest = after;
        let Some(op) = Op::take(kind, fields) else {
            continue;
        };
        let mut printed = Vec::new();
        op.put(&mut printed);
        assert_eq!(Op::take(op.kind(), &printed).as_ref(), Some(&op));
        books.apply(&op);
    }
    books.tidy();
    books.is_valid().expect("ops keep the books valid");
    let mut copy = Books::default();
    books.snapshot(|op| copy.apply(op));
    copy.is_valid().expect("a snapshot is valid");
}
