//! The handshake, and the tables that answer the client's questions from then on.
//!
//! Each connection begins with the client's [`Hello`] and is answered with a [`Verdict`]; both are
//! postcard behind a length of four bytes (little-endian), at most [`MAX`]. When all four stand, the
//! executor sends a [`Welcome`] as the first of the replies.

use crate::codec::Malformed;
use crate::result::Code;
use serde::{Deserialize, Serialize};

/// Most bytes of a hello or a verdict.
pub const MAX: usize = 64 << 10;

/// The first bytes of a hello: tells Ghost from everything else that may knock at a port.
pub const MAGIC: [u8; 8] = *b"GHOSTOVF";

/// Which connection of the session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Commands, to the executor.
    Commands,
    /// Replies, to the client.
    Replies,
    /// Bulk data to the executor.
    Up,
    /// Bulk data to the client.
    Down,
    /// None of a session's: asks what is free there. After the verdict comes a [`Room`], as the
    /// verdict is sent, and then the end.
    Look,
}

impl Role {
    /// The four of a session, in the order in which they are opened.
    pub const ALL: [Self; 4] = [Self::Commands, Self::Replies, Self::Up, Self::Down];
}

/// What the client says first on each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::VERSION`].
    pub version: u32,
    /// [`crate::api::fingerprint`].
    pub table: u64,
    /// Which connection.
    pub role: Role,
    /// The same on the four connections of a session, random.
    pub session: [u8; 16],
    /// The secret that the peer gave to this host; empty where none is asked for.
    pub token: String,
    /// Whose work it is.
    pub tenant: Tenant,
    /// Delays to be injected.
    pub inject: Inject,
    /// Variables of the program's environment that are meant for the driver: the session's process
    /// gets those that [`Hello::variables`] lets through before it loads the driver.
    pub environment: Vec<(String, String)>,
}

/// The variables that a client may set for the driver that serves it.
pub const ENVIRONMENT: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
];

impl Hello {
    /// The variables to set, with their values: those of [`ENVIRONMENT`], no others.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.environment.iter();
        pairs
            .filter(|(name, value)| ENVIRONMENT.contains(&name.as_str()) && !value.contains('\0'))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Whose work a session is, and what holds it there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The container's name, as on the client's host.
    pub container: String,
    /// The client's host, as it calls itself.
    pub host: String,
    /// Keys of the container and their values (`gpu.weight`, `gpu.memory.max`, ...), as a file
    /// would have them.
    pub limits: Vec<(String, String)>,
    /// The process, for people.
    pub pid: u32,
    /// Its program, for people.
    pub program: String,
}

/// A path that is worse than it is: for measurements and tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inject {
    /// Microseconds added to each reply's way.
    pub rtt_us: u64,
    /// Bytes a second of bulk data, each way; 0: as fast as it goes.
    pub rate: u64,
}

/// The answer to a hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Go on.
    Welcome,
    /// No; why, and what to do about it.
    Refused(String),
}

/// What is free on a host, for those who choose where to compute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The GPUs that are shared there.
    pub gpus: Vec<Space>,
    /// How many more sessions are taken.
    pub sessions: u32,
}

/// What is free on one GPU, for clients of that host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Product name.
    pub name: String,
    /// Bytes of memory on the card.
    pub total: u64,
    /// Bytes that clients can get yet.
    pub free: u64,
    /// Percent of its time that was used lately.
    pub busy: u8,
}

/// What the client knows of the far side from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// `cuDriverGetVersion`.
    pub driver: u32,
    /// What `cuInit` answered there: the answer to the client's. Where it failed there are no devices.
    pub init: Code,
    /// Whether a program computes the kernels (the CPU device), rather than a GPU.
    pub emulated: bool,
    /// The devices, by number.
    pub devices: Vec<Device>,
}

/// A device's table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDeviceGetUuid_v2`.
    pub uuid: [u8; 16],
    /// `cuDeviceGetPCIBusId`.
    pub bus: String,
    /// `cuDeviceTotalMem_v2`, bytes.
    pub memory: u64,
    /// `cuDeviceGetAttribute`: the value of attribute n at n; `None` where the driver has no such.
    pub attributes: Vec<Option<i32>>,
}

/// How a device does, by the NVML of its host; each `None` where that does not tell or is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// Version of the GPU's driver.
    pub driver: Option<String>,
    /// Version of NVML.
    pub nvml: Option<String>,
    /// Bytes of memory, as the executor's container has them: total, free, used. Where there is no
    /// NVML, as `cuMemGetInfo` has them.
    pub memory: Option<[u64; 3]>,
    /// Percent of time in which kernels ran, and in which memory was read or written.
    pub utilization: Option<[u32; 2]>,
    /// Degrees Celsius of the GPU.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// Milliwatts that are allowed: by whatever limits it, and as it was set.
    pub power_limits: [Option<u32>; 2],
    /// MHz, by `nvmlClockType_t`: graphics, multiprocessors, memory, video.
    pub clocks: [Option<u32>; 4],
    /// The most that they go to.
    pub most_clocks: [Option<u32>; 4],
    /// `nvmlBrandType_t`.
    pub brand: Option<u32>,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: Option<u32>,
    /// n of `/dev/nvidia<n>`, there.
    pub minor: Option<u32>,
    /// Whether persistence mode is on.
    pub persistence: Option<u32>,
    /// PCI ids: device and vendor, and the subsystem's.
    pub pci: Option<[u32; 2]>,
}

/// What a load brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loaded {
    /// The image is not known here: send it.
    Needed,
    /// It is loaded, and this is in it.
    Done {
        /// Its functions, in the order of their index.
        functions: Vec<Function>,
        /// The compiler's informational log.
        log: String,
    },
    /// The driver refused it (the reply's code says how); the compiler's log of errors.
    Failed {
        /// The log.
        log: String,
    },
}

/// A function's layout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Offset and size of each parameter, bytes.
    pub params: Vec<(u32, u32)>,
}

impl Function {
    /// Bytes of all parameters together.
    #[must_use]
    pub fn size(&self) -> usize {
        let ends = self
            .params
            .iter()
            .map(|&(offset, size)| u64::from(offset) + u64::from(size));
        ends.max().unwrap_or(0) as usize
    }
}

/// How a process gets to the executor: `ghostctl run --on` writes it as JSON to a file, and the
/// environment variable [`TICKET_ENV`] names that to the shim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// `host:port` of the peer.
    pub address: String,
    /// The secret, empty where none is asked for.
    #[serde(default)]
    pub token: String,
    /// SHA-256 of the peer's certificate, hexadecimal; empty: no TLS (loopback).
    #[serde(default)]
    pub fingerprint: String,
    /// The container's name.
    pub container: String,
    /// Its keys and values.
    #[serde(default)]
    pub limits: Vec<(String, String)>,
    /// A directory for the counters of each process ([`crate::stats`]); none: not counted.
    #[serde(default)]
    pub stats: Option<String>,
    /// Delays to be injected.
    #[serde(default)]
    pub inject: Inject,
    /// Wait for every call.
    #[serde(default)]
    pub wait_always: bool,
}

/// The environment variable that names the ticket's file.
pub const TICKET_ENV: &str = "GHOST_OVERFLOW";

/// Writes a message of the handshake.
///
/// # Panics
/// Never: these types have no map and no unsized sequence, so postcard takes them all.
#[must_use]
pub fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Reads a message of the handshake.
///
/// # Errors
/// [`Malformed::Text`] where the bytes are none, [`Malformed::Left`] where there are too many.
pub fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(Malformed::Left(rest.len())),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(Malformed::Short),
        Err(_) => Err(Malformed::Text),
    }
}

/// Why a client of this hello can't be served, as far as versions go; for the verdict.
#[must_use]
pub fn unlike(hello: &Hello) -> Option<String> {
    if hello.magic != MAGIC {
        return Some("this is ghostd's port for overflow; the client is no Ghost".to_owned());
    }
    if hello.version != crate::VERSION {
        return Some(format!(
            "the client speaks version {} of the overflow protocol, this host version {}: install \
             the same release of Ghost on both",
            hello.version,
            crate::VERSION
        ));
    }
    if hello.table != crate::api::fingerprint() {
        return Some(format!(
            "the client's table of the driver API is another ({:016x}) than this host's \
             ({:016x}): install the same release of Ghost on both",
            hello.table,
            crate::api::fingerprint()
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            magic: MAGIC,
            version: crate::VERSION,
            table: crate::api::fingerprint(),
            role: Role::Up,
            session: [7; 16],
            token: "secret".to_owned(),
            tenant: Tenant {
                container: "job".to_owned(),
                limits: vec![("gpu.weight".to_owned(), "200".to_owned())],
                ..Tenant::default()
            },
            inject: Inject {
                rtt_us: 1000,
                rate: 0,
            },
            environment: vec![("CUDA_VISIBLE_DEVICES".to_owned(), "1".to_owned())],
        }
    }

    #[test]
    fn a_hello_comes_back_whole() {
        let bytes = to_bytes(&hello());
        assert_eq!(from_bytes::<Hello>(&bytes), Ok(hello()));
        assert_eq!(
            from_bytes::<Hello>(&bytes[..bytes.len() - 1]),
            Err(Malformed::Short)
        );
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(from_bytes::<Hello>(&longer), Err(Malformed::Left(1)));
    }

    #[test]
    fn only_the_drivers_variables_are_let_through() {
        let mut hello = hello();
        let preload = ("LD_PRELOAD".to_owned(), "/tmp/x.so".to_owned());
        let order = ("CUDA_DEVICE_ORDER".to_owned(), "a\0b".to_owned());
        hello.environment.extend([preload, order]);
        let variables: Vec<_> = hello.variables().collect();
        assert_eq!(variables, [("CUDA_VISIBLE_DEVICES", "1")]);
    }

    #[test]
    fn unlike_versions_are_refused_with_both_named() {
        assert_eq!(unlike(&hello()), None);
        let other = Hello {
            version: 99,
            ..hello()
        };
        assert!(
            unlike(&other)
                .is_some_and(|why| why.contains("version 99") && why.contains("version 4"))
        );
        let other = Hello {
            table: 1,
            ..hello()
        };
        assert!(unlike(&other).is_some_and(|why| why.contains("0000000000000001")));
        let other = Hello {
            magic: *b"GET / HT",
            ..hello()
        };
        assert!(unlike(&other).is_some_and(|why| why.contains("no Ghost")));
    }

    #[test]
    fn the_size_of_parameters_is_the_furthest_end() {
        let function = Function {
            name: "f".to_owned(),
            params: vec![(0, 8), (8, 4), (16, 8)],
        };
        assert_eq!(function.size(), 24);
        assert_eq!(Function::default().size(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            let _ = from_bytes::<Hello>(&bytes);
            let _ = from_bytes::<Welcome>(&bytes);
            let _ = from_bytes::<Loaded>(&bytes);
            let _ = from_bytes::<Readings>(&bytes);
            let _ = from_bytes::<Room>(&bytes);
        }
    }
}
