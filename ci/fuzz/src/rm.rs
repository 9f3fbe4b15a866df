//! What tenants send to the driver, as the broker reads it, and the driver's answers, as it makes
//! them the container's.

use std::fs::File;
use std::os::fd::AsFd;

use ghost_rm::abi::iowr;
use ghost_rm::card::{self, Card, Pid, Query};
use ghost_rm::{Status, tenant};

/// Two bytes choose the call and 32- or 64-bit forms of its size, the rest is its argument and
/// the parameters behind it.
pub fn tenant_call(data: &[u8]) {
    let Some((&[number, size], rest)) = data.split_first_chunk() else {
        return;
    };
    let number = tenant::NUMBERS[usize::from(number) % tenant::NUMBERS.len()];
    let sizes = [16, 28, 32, 48, 56, 184, rest.len()];
    let cmd = iowr(number, sizes[usize::from(size) % sizes.len()]) as u32;
    let size = tenant::argument_size(cmd).unwrap_or(rest.len());
    let (argument, params) = rest.split_at(size.min(rest.len()));
    let _ = tenant::device_memory(params).map(|m| (m.bytes(), m.held()));

    let read = tenant::parse(cmd, argument);
    assert_eq!(
        read.is_ok(),
        tenant::argument_size(cmd) == Some(argument.len())
    );
    let mut answered = argument.to_vec();
    if tenant::set_status(cmd, &mut answered, Status::NO_MEMORY) {
        assert_eq!(tenant::status_of(cmd, &answered), Some(Status::NO_MEMORY));
        assert_eq!(tenant::parse(cmd, &answered), read);
    }
    // It is no driver, and leaves all as it was.
    let null = File::open("/dev/null").expect("there is one");
    for params in [None, Some(&mut params.to_vec()[..])] {
        let mut done = argument.to_vec();
        assert!(tenant::perform(null.as_fd(), cmd, &mut done, params).is_err());
        assert_eq!(done, argument);
    }
}

/// A byte chooses the query, eight are the card's total and free in KiB, two its processes; the
/// rest is the driver's answer.
pub fn card_answer(data: &[u8]) {
    let Some((&[query, total @ .., a, b], answer)) = data.split_first_chunk::<11>() else {
        return;
    };
    let kinds = [
        Query::MemoryInfo,
        Query::MemoryInfoList,
        Query::Pids,
        Query::PidInfo,
    ];
    let kind = kinds[usize::from(query) % kinds.len()];
    let size = |bytes: [u8; 4]| u64::from(u32::from_le_bytes(bytes)) << 10;
    let [t0, t1, t2, t3, free @ ..] = total;
    let card = Card {
        total: size([t0, t1, t2, t3]),
        free: size(free),
        pids: [a, b]
            .map(|n| Pid {
                host: u32::from(n),
                seen: u32::from(n) + 1,
            })
            .to_vec(),
    };
    let mut asked = answer.to_vec();
    card::prepare(kind, &mut asked, &card);
    let mut told = answer.to_vec();
    card::rewrite(kind, answer, &mut told, &card);
    assert_eq!((asked.len(), told.len()), (answer.len(), answer.len()));
    match kind {
        Query::MemoryInfo | Query::MemoryInfoList => {
            assert_eq!(asked, answer);
            let again = told.clone();
            card::rewrite(kind, answer, &mut told, &card);
            assert_eq!(told, again, "it is the container's already");
        }
        Query::Pids => {
            let listed = told.get(12..).unwrap_or(&[]).as_chunks::<4>().0.iter();
            let mut listed = listed.map(|pid| u32::from_ne_bytes(*pid));
            let own = |pid| pid == 0 || card.pids.iter().any(|p| p.seen == pid);
            assert!(listed.all(own));
        }
        Query::PidInfo => {}
    }
}
