//! Counters of a process whose work is elsewhere: a file `PID` in the directory that its ticket
//! names, mapped by the shim and read by ghostd. Words, little-endian, in this order.

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

/// Bytes of the file.
pub const SIZE: usize = COUNTERS * 8;

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

    #[test]
    fn words_are_read_in_order() {
        let mut file = vec![0; SIZE];
        file[Counter::Waited as usize * 8] = 5;
        assert_eq!(read(&file)[Counter::Waited as usize], 5);
        assert_eq!(read(&file[..12]), [0; COUNTERS]);
    }
}
