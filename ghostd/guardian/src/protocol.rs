//! What the guardian and its clients say to each other, as bytes.
//!
//! A frame is an eight-byte head (`"GGD"`, the version as a byte, the length
//! of the body as a little-endian u32) and a JSON body.
//! A client sends [`Request`]s, one at a time, and gets one [`Answer`] for
//! each. The parser takes bytes from anyone: it never panics, never holds more
//! than [`MAX_BODY`] of a body, and whatever is wrong ends the connection.

use std::collections::BTreeSet;

use ghost_notify::ProcId;
use ghost_rm::{Channel, Client, Gpu, Object};
use serde::{Deserialize, Serialize};

/// Version of the frames and bodies; another is refused.
pub const VERSION: u8 = 1;

/// The largest body in bytes, either way.
pub const MAX_BODY: usize = 1 << 20;

/// The most channels that one pause may name.
pub const MAX_CHANNELS: usize = 4096;

/// The longest key in bytes.
pub const MAX_KEY: usize = 255;

/// The longest lease: a minute. A lease is for outliving a scheduling hiccup,
/// not for leaving a pause alone.
pub const MAX_LEASE_US: u64 = 60_000_000;

const HEAD: usize = 8;
const MAGIC: [u8; 3] = *b"GGD";

/// Why bytes are not a frame, or a body not a message.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The bytes are not Ghost's.
    #[error("frame head {0:02x?} is not the guardian's: is this the right socket?")]
    NotOurs([u8; 4]),
    /// The other side is of another version.
    #[error("protocol version {theirs}: this side speaks {VERSION}; restart the older of the two")]
    Version {
        /// What the frame says.
        theirs: u8,
    },
    /// The body is larger than allowed.
    #[error("frame of {size} bytes: the most is {most}; send smaller batches")]
    TooLarge {
        /// Bytes of its body.
        size: usize,
        /// The most that is taken.
        most: usize,
    },
    /// The body is not a message.
    #[error("frame body is not a message of version {VERSION}")]
    Body(#[source] serde_json::Error),
    /// A value is outside its range.
    #[error("pause {key:?}: {what}")]
    Value {
        /// Key of the pause, cut.
        key: String,
        /// What is wrong with it, and the range.
        what: &'static str,
    },
}

/// What a client calls a pause; it means something within its connection only.
pub type Key = String;

/// One pause: channels of one process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// The client's name for it. A key already paused is given these channels
    /// instead of those it had, and this lease.
    pub key: Key,
    /// Microseconds until it lapses, 1 to [`MAX_LEASE_US`].
    pub lease_us: u64,
    /// The GPU that the channels are on.
    #[serde(with = "as_gpu")]
    pub gpu: Gpu,
    /// The process that owns the channels.
    #[serde(with = "as_proc")]
    pub owner: ProcId,
    /// The channels, 1 to [`MAX_CHANNELS`]; one named twice counts once.
    #[serde(with = "as_channels")]
    pub channels: Vec<Channel>,
}

impl Pause {
    /// Whether each value is in its range.
    ///
    /// # Errors
    ///
    /// [`ProtocolError::Value`].
    pub fn check(&self) -> Result<(), ProtocolError> {
        let what = if self.key.is_empty() || self.key.len() > MAX_KEY {
            "a key has 1 to 255 bytes"
        } else if !(1..=MAX_LEASE_US).contains(&self.lease_us) {
            "lease_us is 1 to 60000000"
        } else if self.channels.is_empty() || self.channels.len() > MAX_CHANNELS {
            "a pause has 1 to 4096 channels"
        } else if self.owner.pid <= 0 {
            "the owner's pid is positive"
        } else {
            return Ok(());
        };
        Err(ProtocolError::Value {
            key: self.key.chars().take(64).collect(),
            what,
        })
    }
}

/// Which pauses a renewal is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// All of this connection's.
    All,
    /// These.
    Some(Vec<Key>),
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Pause, in as few driver calls as possible. Answered [`Answer::Done`].
    Pause(Vec<Pause>),
    /// Resume; a key that is not paused is no error. Answered [`Answer::Done`].
    Resume(Vec<Key>),
    /// Set the lease anew; a key that is not paused (any more) is an error for
    /// that key. Answered [`Answer::Done`], for [`Keys::All`] with one outcome
    /// for each key that this connection has paused.
    Renew {
        /// Which.
        keys: Keys,
        /// Microseconds from now, 1 to [`MAX_LEASE_US`].
        lease_us: u64,
    },
    /// Tell what is paused, by any client. Answered [`Answer::Listing`].
    List,
    /// Tell that you are there. Answered [`Answer::Pong`].
    Ping,
    /// A pause on this GPU may come: have the driver open for it, so that the first is as quick
    /// as any. Answered [`Answer::Pong`], also where the driver cannot be opened: the pause says
    /// why.
    Ready {
        /// Which.
        #[serde(with = "as_gpu")]
        gpu: Gpu,
    },
}

/// What became of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The key.
    pub key: Key,
    /// Channels of a pause that were not there (any more): they need none.
    pub gone: u32,
    /// Why it was not done; `None` if it was.
    pub error: Option<Failure>,
}

/// Why a key was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What a program would act on.
    pub kind: FailureKind,
    /// What a person reads.
    pub detail: String,
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A value was out of range.
    Invalid,
    /// The owner has exited, or its pid was reused.
    OwnerGone,
    /// The key is not paused: never was, was resumed, or its lease lapsed.
    NotPaused,
    /// The driver refused, or cannot be reached. Nothing of it is paused.
    Driver,
    /// The ledger cannot be written, so nothing may be paused.
    Ledger,
    /// There are too many pauses already.
    Full,
}

/// One pause as [`Request::List`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// Whether it is the asking connection's own.
    pub own: bool,
    /// The GPU.
    #[serde(with = "as_gpu")]
    pub gpu: Gpu,
    /// The owner of the channels.
    #[serde(with = "as_proc")]
    pub owner: ProcId,
    /// How many channels it holds.
    pub channels: u32,
    /// Microseconds until it lapses.
    pub left_us: u64,
}

/// What the guardian answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// One outcome for each key of the request, in its order.
    Done(Vec<Outcome>),
    /// What is paused.
    Listing(Listing),
    /// Here.
    Pong {
        /// Version of the program.
        version: String,
    },
    /// The request could not be read; the connection ends after this.
    Refused {
        /// Why.
        detail: String,
    },
}

/// What is paused, and what should not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Every pause.
    pub pauses: Vec<Listed>,
    /// Channels that nobody holds paused and that the driver would not enable
    /// yet; tried again all the time.
    pub stuck: u32,
}

/// Puts `message` into a frame.
///
/// # Errors
///
/// [`ProtocolError::TooLarge`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProtocolError> {
    encode_within(message, MAX_BODY)
}

/// As [`encode`], with a body of `most` bytes at most.
pub(crate) fn encode_within<T: Serialize>(
    message: &T,
    most: usize,
) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, message).map_err(ProtocolError::Body)?;
    let size = frame.len() - HEAD;
    let length = u32::try_from(size)
        .ok()
        .filter(|_| size <= most)
        .ok_or(ProtocolError::TooLarge { size, most })?;
    let head = [MAGIC[0], MAGIC[1], MAGIC[2], VERSION];
    let bytes = head.into_iter().chain(length.to_le_bytes());
    for (slot, byte) in frame.iter_mut().zip(bytes) {
        *slot = byte;
    }
    Ok(frame)
}

/// Takes one message off the front of `bytes` and says how many bytes it was;
/// `None` while the frame is not complete.
///
/// # Errors
///
/// Any [`ProtocolError`]: the stream is of no further use.
pub fn decode<T: for<'a> Deserialize<'a>>(
    bytes: &[u8],
) -> Result<Option<(T, usize)>, ProtocolError> {
    decode_within(bytes, MAX_BODY)
}

/// As [`decode`], with a body of `most` bytes at most.
pub(crate) fn decode_within<T: for<'a> Deserialize<'a>>(
    bytes: &[u8],
    most: usize,
) -> Result<Option<(T, usize)>, ProtocolError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let [a, b, c, version, length @ ..] = *head;
    if [a, b, c] != MAGIC {
        return Err(ProtocolError::NotOurs([a, b, c, version]));
    }
    if version != VERSION {
        return Err(ProtocolError::Version { theirs: version });
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(ProtocolError::TooLarge { size: length, most });
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body).map_err(ProtocolError::Body)?;
    Ok(Some((message, HEAD + length)))
}

/// `channels` without repetitions.
pub(crate) fn distinct(channels: &[Channel]) -> BTreeSet<Channel> {
    channels.iter().copied().collect()
}

mod as_gpu {
    use super::{Deserialize, Gpu, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(gpu: &Gpu, to: S) -> Result<S::Ok, S::Error> {
        (gpu.instance, gpu.minor).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Gpu, D::Error> {
        let (instance, minor) = Deserialize::deserialize(from)?;
        Ok(Gpu { instance, minor })
    }
}

mod as_proc {
    use super::{Deserialize, ProcId, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &ProcId, to: S) -> Result<S::Ok, S::Error> {
        (id.pid, id.start_ticks).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ProcId, D::Error> {
        let (pid, start_ticks) = Deserialize::deserialize(from)?;
        Ok(ProcId { pid, start_ticks })
    }
}

mod as_channels {
    use super::{Channel, Client, Deserialize, Object};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(all: &[Channel], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|c| (c.client.0, c.object.0)))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Channel>, D::Error> {
        let pairs: Vec<(u32, u32)> = Deserialize::deserialize(from)?;
        let channel = |(client, object)| Channel {
            client: Client(client),
            object: Object(object),
        };
        Ok(pairs.into_iter().map(channel).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn pause()(
            key in ".{0,40}",
            lease_us: u64,
            gpu: (u32, u32),
            owner: (i32, u64),
            channels in proptest::collection::vec(any::<(u32, u32)>(), 0..20),
        ) -> Pause {
            let channel = |(client, object)| Channel { client: Client(client), object: Object(object) };
            Pause {
                key,
                lease_us,
                gpu: Gpu { instance: gpu.0, minor: gpu.1 },
                owner: ProcId { pid: owner.0, start_ticks: owner.1 },
                channels: channels.into_iter().map(channel).collect(),
            }
        }
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            proptest::collection::vec(pause(), 0..4).prop_map(Request::Pause),
            proptest::collection::vec(".{0,20}", 0..4).prop_map(Request::Resume),
            any::<u64>().prop_map(|lease_us| Request::Renew {
                keys: Keys::All,
                lease_us
            }),
            (proptest::collection::vec(".{0,20}", 0..4), any::<u64>()).prop_map(
                |(keys, lease_us)| Request::Renew {
                    keys: Keys::Some(keys),
                    lease_us
                }
            ),
            Just(Request::List),
            Just(Request::Ping),
            (any::<u32>(), any::<u32>()).prop_map(|(instance, minor)| Request::Ready {
                gpu: Gpu { instance, minor }
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(requests in proptest::collection::vec(request(), 1..4)) {
            let stream: Vec<u8> = requests.iter().flat_map(|r| encode(r).unwrap()).collect();
            let mut rest = stream.as_slice();
            for request in &requests {
                let (read, taken) = decode::<Request>(rest).unwrap().unwrap();
                prop_assert_eq!(&read, request);
                rest = &rest[taken..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn a_cut_frame_is_waited_for(request in request(), cut in 0.0f64..1.0) {
            let frame = encode(&request).unwrap();
            let cut = (frame.len() as f64 * cut) as usize;
            prop_assert!(decode::<Request>(&frame[..cut]).unwrap().is_none());
        }

        #[test]
        fn any_bytes_are_refused_or_waited_for(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            framed: bool,
        ) {
            let mut frame = bytes.clone();
            if framed {
                let length = u32::try_from(bytes.len()).unwrap();
                frame = [b"GGD\x01".as_slice(), &length.to_le_bytes(), &bytes].concat();
            }
            let read = decode::<Request>(&frame);
            prop_assert!(!framed || read.is_err());
        }

        #[test]
        fn a_damaged_request_never_panics(request in request(), at: usize, with: u8) {
            let mut frame = encode(&request).unwrap();
            let at = at % frame.len();
            frame[at] = with;
            if let Ok(Some((Request::Pause(pauses), _))) = decode::<Request>(&frame) {
                for pause in pauses {
                    let _ = pause.check();
                }
            }
        }
    }

    #[test]
    fn heads_are_checked_before_the_body_is_waited_for() {
        assert!(matches!(
            decode::<Request>(b"GET / HT"),
            Err(ProtocolError::NotOurs(_))
        ));
        assert!(matches!(
            decode::<Request>(b"GGD\x02\0\0\0\0"),
            Err(ProtocolError::Version { theirs: 2 })
        ));
        assert!(matches!(
            decode::<Request>(b"GGD\x01\xff\xff\xff\xff"),
            Err(ProtocolError::TooLarge { .. })
        ));
    }

    #[test]
    fn ranges_are_held() {
        let channel = Channel {
            client: Client(1),
            object: Object(2),
        };
        let good = Pause {
            key: "a".into(),
            lease_us: 1,
            gpu: Gpu {
                instance: 0,
                minor: 0,
            },
            owner: ProcId {
                pid: 1,
                start_ticks: 0,
            },
            channels: vec![channel],
        };
        good.check().unwrap();
        let bad = [
            Pause {
                key: String::new(),
                ..good.clone()
            },
            Pause {
                key: "k".repeat(MAX_KEY + 1),
                ..good.clone()
            },
            Pause {
                lease_us: 0,
                ..good.clone()
            },
            Pause {
                lease_us: MAX_LEASE_US + 1,
                ..good.clone()
            },
            Pause {
                channels: vec![],
                ..good.clone()
            },
            Pause {
                channels: vec![channel; MAX_CHANNELS + 1],
                ..good.clone()
            },
            Pause {
                owner: ProcId {
                    pid: 0,
                    start_ticks: 0,
                },
                ..good.clone()
            },
        ];
        for pause in bad {
            assert!(pause.check().is_err());
        }
    }
}
