//! Addresses of the far device, kept free here: an address is either the program's own or the
//! device's, never both. What was reserved once stays so.

use crate::session::say;
use ghost_wire::result::{Code, OUT_OF_MEMORY};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, Once, PoisonError};

const PAGE: u64 = 4096;

/// How often the far side is asked for another block when the address that it gave is taken here.
const TRIES: usize = 16;

/// Why the far side's memory can't be at its addresses here.
#[derive(Debug, thiserror::Error)]
enum ReserveError {
    #[error(
        "the far host has {len} bytes at {at:#x}, where this process has {by}; started again, it \
         may find the addresses free"
    )]
    Taken { at: u64, len: u64, by: String },
    #[error(
        "this process can't have {len} bytes at {at:#x}, as the far host has: {source}; is there a \
         limit on its addresses (ulimit -v)?"
    )]
    Refused {
        at: u64,
        len: u64,
        source: io::Error,
    },
    #[error("the far host has {len} bytes at {at:#x}, which is no address on this host")]
    Outside { at: u64, len: u64 },
}

impl ReserveError {
    /// Says it, once a process; the call's answer.
    fn told(&self) -> Code {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            say(format_args!(
                "a call is answered with CUDA_ERROR_OUT_OF_MEMORY: {self}"
            ));
        });
        OUT_OF_MEMORY
    }
}

/// What of this process is between `start` and `end`.
fn owner(start: u64, end: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let overlaps = |line: &&str| {
        let span = line
            .split_once(' ')
            .and_then(|(span, _)| span.split_once('-'));
        let bounds = span.map(|(from, to)| [from, to].map(|at| u64::from_str_radix(at, 16)));
        matches!(bounds, Some([Ok(from), Ok(to)]) if from < end && to > start)
    };
    let line = maps.lines().find(overlaps).unwrap_or_default();
    let name = line.splitn(6, ' ').nth(5).map(str::trim);
    let name = name.filter(|name| !name.is_empty());
    name.unwrap_or("memory of its own").to_owned()
}

/// Spans of addresses, start to end; none touches another.
#[derive(Debug, Default)]
struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// The parts of `start..end` that are in no span.
    fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.0.range(..start).next_back();
        let mut at = before.map_or(start, |(_, &end)| end.max(start));
        let mut missing = Vec::new();
        for (&from, &to) in self.0.range(start..end) {
            if from > at {
                missing.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// Adds `start..end`.
    fn add(&mut self, mut start: u64, mut end: u64) {
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }
}

/// Guards what is reserved, and the calls that reserve it.
static RESERVED: Mutex<Spans> = Mutex::new(Spans(BTreeMap::new()));

fn pages(at: u64, len: u64) -> Option<(u64, u64)> {
    let end = at.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    (end <= 1 << 47 && at >= PAGE).then_some((at - at % PAGE, end))
}

fn map(start: u64, end: u64, access: i32, how: i32) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
    let len = (end - start) as usize;
    // SAFETY: either nothing is there, or it is a span of this module's own.
    let got = unsafe { libc::mmap(start as *mut _, len, access, flags, -1, 0) };
    if got as u64 == start {
        return Ok(());
    }
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: what an old kernel has put elsewhere just now.
    unsafe { libc::munmap(got, len) };
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Keeps `len` bytes at `at` free, if they were not before.
fn reserve(at: u64, len: u64) -> Result<(), ReserveError> {
    let (start, end) = pages(at, len).ok_or(ReserveError::Outside { at, len })?;
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut done = Vec::new();
    for (start, end) in reserved.missing(start, end) {
        if let Err(source) = map(start, end, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE) {
            for (start, end) in done {
                // SAFETY: mapped just now, and known to no one.
                unsafe { libc::munmap(start as *mut _, (end - start) as usize) };
            }
            return Err(match source.raw_os_error() {
                Some(libc::EEXIST) => ReserveError::Taken {
                    at,
                    len,
                    by: owner(start, end),
                },
                _ => ReserveError::Refused { at, len, source },
            });
        }
        done.push((start, end));
    }
    reserved.add(start, end);
    Ok(())
}

/// Gives the reserved addresses memory that the program can use. It is zero.
///
/// # Errors
/// `OUT_OF_MEMORY`; why is said on stderr.
pub(super) fn back(at: u64, len: u64) -> Result<(), Code> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let backed = pages(at, len)
        .ok_or(ReserveError::Outside { at, len })
        .and_then(|(start, end)| {
            map(start, end, access, libc::MAP_FIXED).map_err(|source| ReserveError::Refused {
                at,
                len,
                source,
            })
        });
    backed.map_err(|error| error.told())
}

/// Takes that memory away again; the addresses stay reserved.
pub(super) fn unback(at: u64, len: u64) {
    if let Some((start, end)) = pages(at, len) {
        // If it fails the memory stays, which nobody uses.
        let _ = map(start, end, libc::PROT_NONE, libc::MAP_FIXED);
    }
}

/// Keeps these addresses free, which were not for the asking.
///
/// # Errors
/// `OUT_OF_MEMORY`; why is said on stderr.
pub(super) fn claim(at: u64, len: u64) -> Result<(), Code> {
    reserve(at, len).map_err(|error| error.told())
}

/// Asks the far side for a block (`ask` answers where it is and how long) until the addresses are
/// free here too; what is set aside is given back by `give_back`.
pub(super) fn until_free<T>(
    mut ask: impl FnMut() -> Result<(u64, u64, T), Code>,
    mut give_back: impl FnMut(u64, u64),
) -> Result<(u64, T), Code> {
    let mut aside = Vec::new();
    let found = loop {
        let (at, len, more) = match ask() {
            Ok(block) => block,
            Err(code) => break Err(code),
        };
        let Err(error) = reserve(at, len) else {
            break Ok((at, more));
        };
        aside.push((at, len));
        if aside.len() == TRIES {
            break Err(error.told());
        }
    };
    for (at, len) in aside {
        give_back(at, len);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_what_was_added(
            added in prop::collection::vec((0u64..100, 1u64..20), 0..20),
            start in 0u64..100, len in 1u64..30,
        ) {
            let mut spans = Spans::default();
            let mut held = [false; 200];
            for (start, len) in added {
                spans.add(start, start + len);
                held[start as usize..(start + len) as usize].fill(true);
            }
            let mut missing = [false; 200];
            for (from, to) in spans.missing(start, start + len) {
                missing[from as usize..to as usize].fill(true);
            }
            for at in 0..200 {
                let inside = (start..start + len).contains(&(at as u64));
                prop_assert_eq!(missing[at], inside && !held[at]);
            }
            for ((_, end), (next, _)) in spans.0.iter().zip(spans.0.iter().skip(1)) {
                prop_assert!(end < next);
            }
        }
    }

    #[test]
    fn a_block_whose_addresses_are_taken_is_set_aside() {
        let taken = vec![0_u8; 1 << 16];
        let here = taken.as_ptr() as u64;
        let free = 0x2a00_0000_0000;
        let mut answers = [here, free].into_iter();
        let mut back = Vec::new();
        let got = until_free(
            || Ok((answers.next().unwrap_or(0), 8192, ())),
            |at, _| back.push(at),
        );
        assert_eq!(got, Ok((free, ())));
        assert_eq!(back, [here]);
        let again = reserve(free + 4096, 64);
        assert!(again.is_ok(), "what is reserved may be used again");
        assert_eq!(super::back(free, 8192), Ok(()));
        // SAFETY: given memory just now.
        unsafe { (free as *mut u8).write(7) };
        unback(free, 8192);
        assert_eq!(until_free::<()>(|| Err(2), |_, _| ()), Err(2));
    }
}
