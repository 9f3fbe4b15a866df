//! Counters of a process whose work is elsewhere: a file `PID` in the directory that its ticket
//! names, mapped by the shim and read by ghostd. Words, little-endian: the counters in this order,
//! then how often each call was waited for.

use crate::Op;
use crate::api::ENTRIES;
use crate::message::FIRST;

/// Which word is which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Calls sent and not waited for.
    Posted,
    /// Calls that were waited for.
    Waited,
    /// Bytes to the executor.
    BytesUp,
    /// Bytes from it.
    BytesDown,
    /// Calls that the table refuses.
    Refused,
    /// Microseconds spent in waits, all threads together.
    WaitedMicros,
}

/// How many there are.
pub const COUNTERS: usize = 6;

/// Bytes of the counters.
pub const SIZE: usize = COUNTERS * 8;

/// How many words of calls that were waited for follow: rows of the table, then messages.
pub const WAITS: usize = ENTRIES.len() + 256;

/// Bytes of the file.
pub const FILE_SIZE: usize = SIZE + WAITS * 8;

/// The word, after the counters, of waits for this call.
#[must_use]
pub fn waits_at(op: Op) -> Option<usize> {
    let at = match op.0.checked_sub(FIRST.0) {
        Some(message) => ENTRIES.len() + usize::from(message),
        None => op.0.into(),
    };
    (at < WAITS).then_some(at)
}

/// The call whose waits this word counts, by name.
#[must_use]
pub fn waits_of(at: usize) -> &'static str {
    let op = match at.checked_sub(ENTRIES.len()) {
        Some(message) => message.saturating_add(FIRST.0.into()),
        None => at,
    };
    Op(u16::try_from(op).unwrap_or(u16::MAX)).name()
}

/// Reads the file's content; a short file reads as zeroes.
#[must_use]
pub fn read(bytes: &[u8]) -> [u64; COUNTERS] {
    let mut counters = [0; COUNTERS];
    for (counter, word) in counters.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *counter = u64::from_le_bytes(*word);
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn each_call_has_its_word() {
        for op in [
            Op(0),
            Op(7),
            crate::api::op::cuMemAlloc_v2,
            FIRST,
            crate::message::Bye::OP,
        ] {
            let at = waits_at(op).unwrap();
            assert_eq!(waits_of(at), op.name());
        }
        assert_eq!(waits_at(Op(u16::MAX)), None);
        assert_eq!(waits_of(usize::MAX), "an unknown message");
    }

    #[test]
    fn words_are_read_in_order() {
        let mut file = vec![0; SIZE];
        file[Counter::Waited as usize * 8] = 5;
        assert_eq!(read(&file)[Counter::Waited as usize], 5);
        assert_eq!(read(&file[..12]), [0; COUNTERS]);
    }
}
