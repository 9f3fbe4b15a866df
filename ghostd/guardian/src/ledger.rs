//! What is, or may be, disabled in the driver, written down before each call
//! that disables.
//!
//! The ledger is a set of [`Target`]s, kept as a log of fixed-size records:
//! *off* adds a target, *on* takes it out. Each record carries the boot that it
//! was written in and a checksum, so that a damaged one is skipped and the rest
//! still counts. A batch is one `write`; a log grown long is replaced by a
//! short one with `rename`. Nothing is synced to a disk: what a `kill -9` must
//! not lose is safe in the page cache, and a power cut resets the GPU too.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ghost_notify::ProcId;
use ghost_rm::{Channel, Client, Gpu, Object};
use nix::fcntl::{Flock, FlockArg};

/// A channel that may be disabled: where it is and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its GPU.
    pub gpu: Gpu,
    /// The process that it belongs to.
    pub owner: ProcId,
    /// The channel.
    pub channel: Channel,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "channel {} of process {} on {}",
            self.channel, self.owner, self.gpu
        )
    }
}

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file cannot be read, written or replaced.
    #[error("{path}: cannot {what} the ledger; is the file system full or read-only?")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// Another guardian has it.
    #[error("{path}: another guardian uses this state directory; stop it, or give --state")]
    InUse {
        /// The lock.
        path: PathBuf,
    },
    /// The kernel's name for this boot cannot be had.
    #[error("/proc/sys/kernel/random/boot_id: not readable as a boot id")]
    BootId,
}

/// The kernel's name for one run of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId([u8; 16]);

impl BootId {
    /// This boot.
    ///
    /// # Errors
    ///
    /// [`LedgerError::BootId`].
    pub fn current() -> Result<Self, LedgerError> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|_| LedgerError::BootId)?;
        Self::parse(text.trim()).ok_or(LedgerError::BootId)
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|&c| c != '-').collect();
        let number = u128::from_str_radix(&digits, 16).ok()?;
        (digits.len() == 32).then_some(Self(number.to_be_bytes()))
    }
}

/// Where the log's bytes are kept. `append` and `replace` are each all that
/// happens between two steps of the guardian, so a test can end it at any of
/// them.
pub trait Store {
    /// All bytes.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    fn load(&mut self) -> Result<Vec<u8>, LedgerError>;
    /// Adds to the end.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; part of `bytes` may be there then.
    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError>;
    /// Puts `bytes` in place of all, or fails and leaves all.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    fn replace(&mut self, bytes: &[u8]) -> Result<(), LedgerError>;
}

/// The log in a directory, locked against a second guardian.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    file: File,
    _lock: Flock<File>,
}

/// A ledger longer than this was not written by a guardian, which compacts.
const MAX_FILE: u64 = 64 << 20;

impl FileStore {
    /// Opens or makes the ledger in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// [`LedgerError::InUse`], [`LedgerError::Io`].
    pub fn open(dir: &Path) -> Result<Self, LedgerError> {
        Self::open_as(dir, "lock", "ledger")
    }

    /// Opens or makes the broker's journal in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// [`LedgerError::InUse`], [`LedgerError::Io`].
    pub fn open_journal(dir: &Path) -> Result<Self, LedgerError> {
        Self::open_as(dir, "journal.lock", "journal")
    }

    fn open_as(dir: &Path, lock: &str, name: &str) -> Result<Self, LedgerError> {
        let lock = dir.join(lock);
        let file = Self::open_file(&lock, "lock")?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| LedgerError::InUse { path: lock })?;
        let path = dir.join(name);
        let file = Self::open_file(&path, "open")?;
        Ok(Self {
            path,
            file,
            _lock: lock,
        })
    }

    fn open_file(path: &Path, what: &'static str) -> Result<File, LedgerError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        options.open(path).map_err(|source| LedgerError::Io {
            path: path.to_owned(),
            what,
            source,
        })
    }

    fn error(&self, what: &'static str) -> impl FnOnce(io::Error) -> LedgerError + use<> {
        let path = self.path.clone();
        move |source| LedgerError::Io { path, what, source }
    }
}

impl Store for FileStore {
    fn load(&mut self) -> Result<Vec<u8>, LedgerError> {
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(self.error("read"))?;
        file.take(MAX_FILE)
            .read_to_end(&mut bytes)
            .map_err(self.error("read"))?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        let written = self.file.write_all(bytes);
        written.map_err(|source| self.error("append to")(source))
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        // A thread that has just worked for a tenant may be without them.
        ghost_notify::own_rights();
        let new = self.path.with_extension("new");
        let replace = || {
            let _ = std::fs::remove_file(&new);
            let mut options = OpenOptions::new();
            options.append(true).create_new(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(bytes)?;
            std::fs::rename(&new, &self.path)?;
            Ok(file)
        };
        self.file = replace().map_err(self.error("replace"))?;
        Ok(())
    }
}

const RECORD: usize = 64;
const MAGIC: [u8; 4] = *b"GLR1";
const OFF: u8 = 1;
const ON: u8 = 2;

fn encode(kind: u8, boot: BootId, target: &Target) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let fields = MAGIC
        .into_iter()
        .chain([kind, 0, 0, 0])
        .chain(target.gpu.instance.to_le_bytes())
        .chain(target.gpu.minor.to_le_bytes())
        .chain(target.owner.pid.to_le_bytes())
        .chain(target.channel.client.0.to_le_bytes())
        .chain(target.channel.object.0.to_le_bytes())
        .chain([0; 4])
        .chain(target.owner.start_ticks.to_le_bytes())
        .chain(boot.0);
    for (slot, byte) in record.iter_mut().zip(fields) {
        *slot = byte;
    }
    if let Some((fields, crc)) = record.split_last_chunk_mut::<4>() {
        *crc = crc32fast::hash(fields).to_le_bytes();
    }
    record
}

/// Reads numbers off the front of a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

fn decode(record: &[u8]) -> Option<(u8, BootId, Target)> {
    let (fields, crc) = record.split_last_chunk::<4>()?;
    if crc32fast::hash(fields) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut fields = Fields(fields);
    let magic: [u8; 4] = fields.take()?;
    let [kind, ..]: [u8; 4] = fields.take()?;
    if magic != MAGIC || !matches!(kind, OFF | ON) {
        return None;
    }
    let gpu = Gpu {
        instance: fields.u32()?,
        minor: fields.u32()?,
    };
    let pid = i32::from_le_bytes(fields.take()?);
    let channel = Channel {
        client: Client(fields.u32()?),
        object: Object(fields.u32()?),
    };
    fields.u32()?;
    let start_ticks = u64::from_le_bytes(fields.take()?);
    let owner = ProcId { pid, start_ticks };
    let boot = BootId(fields.take()?);
    Some((
        kind,
        boot,
        Target {
            gpu,
            owner,
            channel,
        },
    ))
}

/// What was found when the ledger was opened, besides what is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Places where bytes were no record. Each may hide a channel that stays
    /// disabled: say so.
    pub damaged: usize,
    /// Records of another boot, whose channels died with it.
    pub other_boot: usize,
}

/// Replays a log. A place that is no record is skipped up to the next magic.
fn replay(bytes: &[u8], boot: BootId) -> (BTreeSet<Target>, Found) {
    let mut live = BTreeSet::new();
    let mut found = Found::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        if let Some((record, after)) = rest.split_at_checked(RECORD)
            && let Some((kind, written, target)) = decode(record)
        {
            rest = after;
            match kind {
                _ if written != boot => found.other_boot += 1,
                OFF => _ = live.insert(target),
                _ => _ = live.remove(&target),
            }
            continue;
        }
        found.damaged += 1;
        let next = rest.windows(MAGIC.len()).skip(1).position(|w| w == MAGIC);
        rest = next
            .and_then(|next| rest.get(next + 1..))
            .unwrap_or_default();
    }
    (live, found)
}

/// The set of targets that are or may be disabled, and its log.
#[derive(Debug)]
pub struct Ledger<S> {
    store: S,
    boot: BootId,
    live: BTreeSet<Target>,
    records: usize,
    // The log's end may be half a record: replace before appending.
    torn: bool,
}

/// Records beyond which a log is replaced, besides four for each live target.
const COMPACT: usize = 4096;

impl<S: Store> Ledger<S> {
    /// Reads the log and starts a fresh one with what is live.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    pub fn open(mut store: S, boot: BootId) -> Result<(Self, Found), LedgerError> {
        let (live, found) = replay(&store.load()?, boot);
        let mut ledger = Self {
            store,
            boot,
            live,
            records: 0,
            torn: false,
        };
        ledger.compact()?;
        Ok((ledger, found))
    }

    /// What is or may be disabled.
    #[must_use]
    pub fn live(&self) -> &BTreeSet<Target> {
        &self.live
    }

    /// Writes down that `targets` are about to be disabled. Call it before.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]: then do not disable.
    pub fn record_off(&mut self, targets: &[Target]) -> Result<(), LedgerError> {
        self.append(OFF, targets)?;
        self.live.extend(targets);
        Ok(())
    }

    /// Writes down that `targets` are enabled, or gone. Call it after.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]. The set has forgotten them nevertheless; a log that
    /// still names them costs a question to the driver at the next start.
    pub fn record_on(&mut self, targets: &[Target]) -> Result<(), LedgerError> {
        for target in targets {
            self.live.remove(target);
        }
        self.append(ON, targets)
    }

    fn append(&mut self, kind: u8, targets: &[Target]) -> Result<(), LedgerError> {
        if targets.is_empty() {
            return Ok(());
        }
        if self.torn || self.records > COMPACT + 4 * self.live.len() {
            self.compact()?;
        }
        let boot = self.boot;
        let records = targets.iter().flat_map(|target| encode(kind, boot, target));
        let bytes: Vec<u8> = records.collect();
        self.torn = true;
        self.store.append(&bytes)?;
        self.torn = false;
        self.records += targets.len();
        Ok(())
    }

    fn compact(&mut self) -> Result<(), LedgerError> {
        let boot = self.boot;
        let records = self
            .live
            .iter()
            .flat_map(|target| encode(OFF, boot, target));
        let bytes: Vec<u8> = records.collect();
        self.store.replace(&bytes)?;
        self.records = self.live.len();
        self.torn = false;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const BOOT: BootId = BootId([7; 16]);

    prop_compose! {
        fn target()(
            gpu: (u8, u8),
            pid in 1i32..50,
            start_ticks: u64,
            channel: (u32, u32),
        ) -> Target {
            Target {
                gpu: Gpu { instance: gpu.0.into(), minor: gpu.1.into() },
                owner: ProcId { pid, start_ticks },
                channel: Channel { client: Client(channel.0), object: Object(channel.1) },
            }
        }
    }

    fn targets() -> impl Strategy<Value = Vec<Target>> {
        proptest::collection::vec(target(), 1..12)
    }

    fn log(kind: u8, boot: BootId, targets: &[Target]) -> Vec<u8> {
        targets.iter().flat_map(|t| encode(kind, boot, t)).collect()
    }

    proptest! {
        #[test]
        fn off_adds_and_on_takes(all in targets(), some in 0usize..12) {
            let back = &all[..some.min(all.len())];
            let bytes = [log(OFF, BOOT, &all), log(ON, BOOT, back)].concat();
            let (live, found) = replay(&bytes, BOOT);
            let wanted: BTreeSet<_> = all.iter().filter(|t| !back.contains(t)).copied().collect();
            prop_assert_eq!(live, wanted);
            prop_assert_eq!(found, Found::default());
        }

        #[test]
        fn another_boot_leaves_nothing(all in targets()) {
            let (live, found) = replay(&log(OFF, BootId([8; 16]), &all), BOOT);
            prop_assert!(live.is_empty());
            prop_assert_eq!(found.other_boot, all.len());
        }

        #[test]
        fn one_damaged_byte_costs_one_record_and_is_told(
            all in targets(), at: usize, with in 1u8..,
        ) {
            let mut bytes = log(OFF, BOOT, &all);
            let at = at % bytes.len();
            bytes[at] ^= with;
            let (live, found) = replay(&bytes, BOOT);
            prop_assert!(found.damaged >= 1);
            for (place, target) in all.iter().enumerate() {
                prop_assert!(place == at / RECORD || live.contains(target));
            }
        }

        #[test]
        fn a_cut_or_inserted_piece_is_stepped_over(
            first in targets(),
            second in targets(),
            piece in proptest::collection::vec(any::<u8>(), 1..RECORD),
        ) {
            let bytes = [log(OFF, BOOT, &first), piece, log(OFF, BOOT, &second)].concat();
            let (live, found) = replay(&bytes, BOOT);
            prop_assert!(found.damaged >= 1);
            prop_assert!(first.iter().chain(&second).all(|t| live.contains(t)));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (live, _) = replay(&bytes, BOOT);
            prop_assert!(live.is_empty());
        }
    }

    fn one(object: u32) -> Target {
        Target {
            gpu: Gpu {
                instance: 0,
                minor: 0,
            },
            owner: ProcId {
                pid: 1,
                start_ticks: 2,
            },
            channel: Channel {
                client: Client(3),
                object: Object(object),
            },
        }
    }

    fn open(dir: &Path) -> (Ledger<FileStore>, Found) {
        Ledger::open(FileStore::open(dir).unwrap(), BOOT).unwrap()
    }

    #[test]
    fn a_file_is_read_back_by_the_next_guardian() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path());
        ledger.record_off(&[one(1), one(2)]).unwrap();
        ledger.record_on(&[one(1)]).unwrap();
        assert!(matches!(
            FileStore::open(dir.path()),
            Err(LedgerError::InUse { .. })
        ));
        drop(ledger);
        let (ledger, found) = open(dir.path());
        assert_eq!(ledger.live().iter().copied().collect::<Vec<_>>(), [one(2)]);
        assert_eq!(found, Found::default());
    }

    #[test]
    fn the_log_does_not_grow_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = open(dir.path());
        ledger.record_off(&[one(0)]).unwrap();
        for object in 1..20_000 {
            ledger.record_off(&[one(object)]).unwrap();
            ledger.record_on(&[one(object)]).unwrap();
        }
        let length = std::fs::metadata(dir.path().join("ledger")).unwrap().len();
        assert!(length < (COMPACT as u64 + 10) * RECORD as u64, "{length}");
        drop(ledger);
        assert_eq!(open(dir.path()).0.live().len(), 1);
    }

    #[test]
    fn boot_ids_are_read() {
        BootId::current().unwrap();
        assert!(BootId::parse("0f0e0d0c-0b0a-0908-0706-050403020100").is_some());
        for bad in ["", "0f", "zf0e0d0c-0b0a-0908-0706-050403020100"] {
            assert!(BootId::parse(bad).is_none(), "{bad}");
        }
    }
}
