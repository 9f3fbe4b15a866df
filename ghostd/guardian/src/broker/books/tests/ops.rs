//! Ops in an order that no broker makes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::random::{CARDS, NAMES, limits};
use super::*;

proptest! {
    #[test]
    fn any_ops_in_any_order_keep_the_books_valid(ops in vec(op(), 0..60)) {
        let mut books = Books::default();
        for op in &ops {
            books.apply(op);
            books.tidy();
            if let Err(wrong) = books.is_valid() {
                prop_assert!(false, "{} after {:?}", wrong, op);
            }
        }
        let mut copy = Books::default();
        books.snapshot(|op| copy.apply(op));
        prop_assert_eq!(copy.is_valid(), Ok(()));
        prop_assert_eq!(copy.usage().held, books.usage().held);
    }
}

/// Ops as a damaged journal may have them, with numbers that meet often.
fn op() -> impl Strategy<Value = Op> {
    let number = || prop_oneof![9 => 0u64..4, 1 => any::<u64>()];
    let numbers = (0u8..26, vec(number(), 8), vec(0..NAMES.len(), 2), limits());
    numbers.prop_map(|(kind, n, at, limits)| {
        let (client, owner) = (Client(n[0] as u32), process(n[1] as u32));
        let (asked, id) = (
            (client, Object(n[2] as u32)),
            (Client(n[3] as u32), Object(n[4] as u32)),
        );
        let (ticket, card, bytes) = (Ticket(n[5]), CARDS[at[1] % 2], n[6]);
        let (container, number) = (name(NAMES[at[0]]), n[7] as u32);
        let events = MemoryEvents {
            low: n[1],
            high: n[2],
            max: n[3],
            fail: n[4],
        };
        match kind {
            0..3 => Op::Open {
                client,
                owner,
                container,
            },
            3..6 => Op::Charge {
                ticket,
                id: asked,
                card,
                bytes,
            },
            6..8 => Op::Settle {
                ticket,
                id: asked,
                bytes,
            },
            8 => Op::Cancel {
                ticket,
                failed: bytes > 1,
            },
            9..11 => Op::Share {
                memory: Ticket(n[0]),
                ticket,
                id,
            },
            11 => Op::Free { id },
            12 => Op::Close { client },
            13 => Op::Residual {
                owner,
                card,
                bytes,
                container: (number > 1).then_some(container),
            },
            14 => Op::Gone { owner },
            15 => Op::Limits {
                wanted: wanted(&[(NAMES[at[1]], limits)]),
            },
            16 => Op::Cards {
                cards: vec![info(card, bytes, n[0])],
            },
            17 => Op::Refuse {
                client,
                card,
                max: Some(container),
            },
            18 => Op::Container {
                number,
                name: container,
            },
            19..21 => Op::Memory {
                ticket,
                id: asked,
                container: number,
                card,
                bytes,
                pending: (n[0] > 1).then_some(Ticket(n[0])),
            },
            21 => Op::Process {
                owner,
                container: number,
                changed: bytes,
            },
            22 | 23 => Op::Counted {
                container: number,
                card,
                peak: bytes,
                events,
                events_local: events,
            },
            24 => Op::Name { memory: ticket, id },
            _ => Op::Stamp {
                version: bytes,
                ticket,
                container: number,
            },
        }
    })
}
