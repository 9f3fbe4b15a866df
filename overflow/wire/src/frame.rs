//! Frames: what stands before each message on a connection. Fixed size, little-endian.
//! Messages count themselves: the first command is number 1 on both sides.

use crate::api::Op;
use crate::codec::Malformed;

/// Most bytes of a command's body.
pub const COMMAND_MAX: u32 = 1 << 20;
/// Most bytes of a reply's body (the layout of a large library's kernels).
pub const REPLY_MAX: u32 = 64 << 20;

/// Before a command: 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Which message.
    pub op: Op,
    /// Whether the client waits for a reply.
    pub waited: bool,
    /// Bytes of the body.
    pub len: u32,
}

impl Command {
    /// Bytes of the header.
    pub const SIZE: usize = 8;

    /// As sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[..2].copy_from_slice(&self.op.0.to_le_bytes());
        out[2..4].copy_from_slice(&u16::from(self.waited).to_le_bytes());
        out[4..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// As received.
    ///
    /// # Errors
    /// [`Malformed`] for a body that is too large or flags that are not known.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Result<Self, Malformed> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let flags = u16::from_le_bytes([c, d]);
        let len = u32::from_le_bytes([e, f, g, h]);
        if flags > 1 {
            return Err(Malformed::Range {
                what: "flags",
                value: flags.into(),
            });
        }
        if len > COMMAND_MAX {
            return Err(Malformed::Frame(len.into()));
        }
        Ok(Self {
            op: Op(u16::from_le_bytes([a, b])),
            waited: flags == 1,
            len,
        })
    }
}

/// What a message to the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ReplyKind {
    /// The answer to command `seq`; the body is the call's.
    Answer = 1,
    /// Command `seq`, which was not waited for, failed with `code`; `op` is its number.
    Late,
    /// Bytes that the device's code printed.
    Print,
    /// A function of the program's is due: its token is `seq`. The stream waits until
    /// [`crate::message::CallbackDone`].
    Callback,
    /// The session ends; the body is a text that says why.
    Bye,
    /// The first message: a [`crate::hello::Welcome`].
    Welcome,
}

/// Before a reply: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// What it is.
    pub kind: ReplyKind,
    /// The message it is about, or 0.
    pub op: Op,
    /// The `CUresult`.
    pub code: u32,
    /// The command's number, or a token.
    pub seq: u64,
    /// How many frames the executor had sent on `down` before: the client acts on this reply only
    /// when it has taken as many.
    pub delivered: u64,
    /// Bytes of the body.
    pub len: u32,
}

impl Reply {
    /// Bytes of the header.
    pub const SIZE: usize = 32;

    /// As sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[2..4].copy_from_slice(&self.op.0.to_le_bytes());
        out[4..8].copy_from_slice(&self.code.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.delivered.to_le_bytes());
        out[24..28].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// As received.
    ///
    /// # Errors
    /// [`Malformed`] for a kind that is not known or a body that is too large.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Result<Self, Malformed> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let single = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let double = |at: usize| u64::from(single(at)) | u64::from(single(at + 4)) << 32;
        let kind = match half(0) {
            1 => ReplyKind::Answer,
            2 => ReplyKind::Late,
            3 => ReplyKind::Print,
            4 => ReplyKind::Callback,
            5 => ReplyKind::Bye,
            6 => ReplyKind::Welcome,
            other => return Err(Malformed::Op(other)),
        };
        let len = single(24);
        if len > REPLY_MAX {
            return Err(Malformed::Frame(len.into()));
        }
        Ok(Self {
            kind,
            op: Op(half(2)),
            code: single(4),
            seq: double(8),
            delivered: double(16),
            len,
        })
    }
}

/// What bulk data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DataKind {
    /// Part of command `seq`'s data, at `at` bytes into it.
    Part = 1,
    /// Down only: `len` bytes of shared memory at address `at`, which the device changed.
    Memory,
}

/// Before bulk data, on `up` and `down`: 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// What it is.
    pub kind: DataKind,
    /// Bytes that follow, at most [`crate::CHUNK`].
    pub len: u32,
    /// The command's number, or 0.
    pub seq: u64,
    /// The offset or the address.
    pub at: u64,
}

impl Data {
    /// Bytes of the header.
    pub const SIZE: usize = 24;

    /// As sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..].copy_from_slice(&self.at.to_le_bytes());
        out
    }

    /// As received.
    ///
    /// # Errors
    /// [`Malformed`] for a kind that is not known or more data than [`crate::CHUNK`].
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Result<Self, Malformed> {
        let (words, _) = bytes.as_chunks::<8>();
        let [first, seq, at] = [words[0], words[1], words[2]].map(u64::from_le_bytes);
        let kind = match first & 0xffff_ffff {
            1 => DataKind::Part,
            2 => DataKind::Memory,
            value => {
                return Err(Malformed::Range {
                    what: "kind of data",
                    value,
                });
            }
        };
        let len = first >> 32;
        if len > crate::CHUNK as u64 {
            return Err(Malformed::Frame(len));
        }
        Ok(Self {
            kind,
            len: len as u32,
            seq,
            at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_back(op: u16, waited: bool, len in 0..=COMMAND_MAX, code: u32, seq: u64, at: u64) {
            let command = Command { op: Op(op), waited, len };
            prop_assert_eq!(Command::from_bytes(command.to_bytes()), Ok(command));
            for kind in [ReplyKind::Answer, ReplyKind::Late, ReplyKind::Print, ReplyKind::Callback, ReplyKind::Bye, ReplyKind::Welcome] {
                let reply = Reply { kind, op: Op(op), code, seq, delivered: at, len };
                prop_assert_eq!(Reply::from_bytes(reply.to_bytes()), Ok(reply));
            }
            for kind in [DataKind::Part, DataKind::Memory] {
                let data = Data { kind, len, seq, at };
                prop_assert_eq!(Data::from_bytes(data.to_bytes()), Ok(data));
            }
        }
    }

    #[test]
    fn oversized_and_unknown_frames_are_refused() {
        assert_eq!(
            Command::from_bytes([0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff]),
            Err(Malformed::Frame(u32::MAX.into()))
        );
        assert_eq!(
            Command::from_bytes([0, 0, 2, 0, 0, 0, 0, 0]),
            Err(Malformed::Range {
                what: "flags",
                value: 2
            })
        );
        assert_eq!(Reply::from_bytes([0; 32]), Err(Malformed::Op(0)));
        let mut data = Data {
            kind: DataKind::Part,
            len: 0,
            seq: 0,
            at: 0,
        }
        .to_bytes();
        data[7] = 1;
        assert_eq!(Data::from_bytes(data), Err(Malformed::Frame(1 << 24)));
    }
}
