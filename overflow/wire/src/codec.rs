//! The encoding of messages: little-endian words of eight bytes, and byte strings padded to them.
//! Encoding appends to a buffer that is kept, so nothing is allocated for a call.

/// What is wrong with bytes that came from the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends inside of a value.
    #[error("the message ends too early")]
    Short,
    /// Bytes are left after the last value.
    #[error("{0} bytes are left over after the message")]
    Left(usize),
    /// A number is beyond what its field holds.
    #[error("{value} is out of range for {what}")]
    Range {
        /// The field.
        what: &'static str,
        /// What was sent.
        value: u64,
    },
    /// A text is not UTF-8, or has a NUL inside.
    #[error("a name is not text")]
    Text,
    /// A frame's header says more than a frame may hold.
    #[error("a frame of {0} bytes is larger than any")]
    Frame(u64),
    /// No such message.
    #[error("there is no message {0:#x}")]
    Op(u16),
}

/// Appends values to a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Encoder<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// One value in a word of its own.
    #[inline]
    pub fn word(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// A byte string: its length in a word, the bytes, zeroes up to the next word.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
        self.pad(bytes.len());
    }

    /// A byte string of `len` bytes that `fill` writes in place.
    #[inline]
    pub fn bytes_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        self.word(len as u64);
        let start = self.out.len();
        self.out.resize(start + len, 0);
        fill(&mut self.out[start..]);
        self.pad(len);
    }

    fn pad(&mut self, len: usize) {
        let pad = len.next_multiple_of(8) - len;
        self.out.extend_from_slice(&[0; 8][..pad]);
    }
}

/// Takes values from a message.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Reads `message` from its beginning.
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next word.
    #[inline]
    pub fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// The next word as a narrower number; `what` names the field in the error.
    #[inline]
    pub fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, Malformed> {
        let value = self.word()?;
        T::try_from(value).map_err(|_| Malformed::Range { what, value })
    }

    /// The next byte string.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.word()?).map_err(|_| Malformed::Short)?;
        let padded = len.checked_next_multiple_of(8).ok_or(Malformed::Short)?;
        let (bytes, rest) = self.rest.split_at_checked(padded).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(&bytes[..len])
    }

    /// What is not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Refuses what is left over.
    pub fn end(self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Malformed::Left(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(word: u64, bytes: Vec<u8>, last: u32) {
            let mut out = vec![];
            let mut encoder = Encoder::new(&mut out);
            encoder.word(word);
            encoder.bytes(&bytes);
            encoder.bytes_with(bytes.len(), |to| to.copy_from_slice(&bytes));
            encoder.word(last.into());
            prop_assert_eq!(out.len() % 8, 0);
            let mut decoder = Decoder::new(&out);
            prop_assert_eq!(decoder.word(), Ok(word));
            prop_assert_eq!(decoder.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(decoder.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(decoder.narrow::<u32>("last"), Ok(last));
            prop_assert_eq!(decoder.end(), Ok(()));
        }

        #[test]
        fn a_cut_message_is_short(bytes: Vec<u8>, cut: prop::sample::Index) {
            let mut out = vec![];
            Encoder::new(&mut out).bytes(&bytes);
            let cut = cut.index(out.len());
            prop_assert_eq!(Decoder::new(&out[..cut]).bytes(), Err(Malformed::Short));
        }
    }

    #[test]
    fn lengths_beyond_memory_are_short() {
        let huge = u64::MAX.to_le_bytes();
        assert_eq!(Decoder::new(&huge).bytes(), Err(Malformed::Short));
        let mut narrow = Decoder::new(&huge);
        assert_eq!(
            narrow.narrow::<u8>("kind"),
            Err(Malformed::Range {
                what: "kind",
                value: u64::MAX
            })
        );
    }
}
