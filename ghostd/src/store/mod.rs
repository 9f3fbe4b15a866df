//! The durable store: an append-only log of checksummed records, compacted into a new file by
//! atomic rename. A change is on the disk before anybody is told that it was made; a change that
//! could not be written is not made.

mod record;

pub use record::{Op, Record, RecordError, Saved, SavedDeclared, SavedFile};

use ghost_model::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

const LOG: &str = "containers.log";
const VERSION: u32 = 1;
/// The log is rewritten when it is larger than this and than twice what it holds.
const COMPACT_ABOVE: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    ghost_store: u32,
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on a file failed.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another ghostd has it.
    #[error("{0} is in use by another ghostd: stop that one, or choose another --state-dir")]
    Locked(PathBuf),
    /// A later Ghost wrote it.
    #[error(
        "{path} is of version {found}, this ghostd reads up to {VERSION}: install the later Ghost"
    )]
    TooNew {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A change could not be turned into a record.
    #[error("a record cannot be written: {0}")]
    Encode(#[from] serde_json::Error),
}

/// What the store holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Containers.
    pub containers: BTreeMap<Name, Saved>,
    /// Container files as they were when last good, by path.
    pub files: BTreeMap<String, SavedFile>,
}

impl Contents {
    fn apply(&mut self, record: Record) {
        for op in record.ops {
            match op {
                Op::Put(saved) => {
                    self.containers.insert(saved.name.clone(), *saved);
                }
                Op::Delete { name } => {
                    self.containers.remove(&name);
                }
                Op::Files { files } => self.files = files,
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        let files = (!self.files.is_empty()).then(|| Op::Files {
            files: self.files.clone(),
        });
        let puts = self.containers.values().cloned().map(|s| Op::Put(s.into()));
        files
            .into_iter()
            .chain(puts)
            .map(|op| Record { ops: vec![op] })
    }
}

/// The store, held by one ghostd at a time.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    path: PathBuf,
    log: File,
    /// Bytes of the log that are known to be whole and on the disk.
    good: u64,
    /// Bytes that the last compaction wrote.
    live: u64,
    /// An append failed, so that what follows `good` is not known.
    doubtful: bool,
    contents: Contents,
    /// Held, not read: another ghostd that tries to lock it is refused.
    _lock: File,
}

impl Store {
    /// Opens the store in `directory`, which is made if need be, and gives what was damaged in
    /// it, in sentences for people. A damaged log is kept under another name as evidence.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn open(directory: &Path) -> Result<(Store, Vec<String>), StoreError> {
        std::fs::create_dir_all(directory).map_err(at(directory, "create it"))?;
        let lock = lock(&directory.join("lock"))?;
        let path = directory.join(LOG);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(at(&path, "read it")(e)),
        };
        let fresh = bytes.is_empty();
        let (contents, damage) = read(&path, &bytes)?;
        let mut notes = Vec::new();
        if !damage.is_empty() {
            let aside = set_aside(&path)?;
            notes.push(format!(
                "{} was damaged: {}; what could be read is in force, the damaged file is kept as {}",
                path.display(),
                damage.join("; "),
                aside.display()
            ));
        }
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(at(&path, "open it"))?;
        let mut store = Store {
            directory: directory.to_owned(),
            path,
            log,
            good: bytes.len() as u64,
            live: bytes.len() as u64,
            doubtful: false,
            contents,
            _lock: lock,
        };
        if fresh || !notes.is_empty() {
            store.compact()?;
        }
        Ok((store, notes))
    }

    /// What is confirmed.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Makes a change durable. When this returns an error, nothing has changed.
    ///
    /// # Errors
    /// [`StoreError`]: a full disk, for one.
    pub fn commit(&mut self, ops: Vec<Op>) -> Result<(), StoreError> {
        let record = Record { ops };
        let line = record::encode(&record)?;
        if self.doubtful {
            self.compact()?;
        }
        let written = self
            .log
            .write_all(&line)
            .and_then(|()| self.log.sync_data());
        if let Err(e) = written {
            // Whatever of the line did arrive must not be read as a change after a restart.
            let undone = self
                .log
                .set_len(self.good)
                .and_then(|()| self.log.sync_data());
            self.doubtful = undone.is_err();
            return Err(at(&self.path, "write to it")(e));
        }
        self.good += line.len() as u64;
        self.contents.apply(record);
        if self.good > COMPACT_ABOVE
            && self.good > 2 * self.live
            && let Err(error) = self.compact()
        {
            // The log is whole as it is; the next change tries again.
            tracing::warn!(%error, "the store could not be compacted");
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        let new = self.path.with_extension("new");
        let write = || -> io::Result<(File, u64)> {
            let mut out = io::BufWriter::new(File::create(&new)?);
            out.write_all(&record::encode(&Header {
                ghost_store: VERSION,
            })?)?;
            for record in self.contents.records() {
                out.write_all(&record::encode(&record)?)?;
            }
            let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let length = file.stream_position()?;
            std::fs::rename(&new, &self.path)?;
            File::open(&self.directory)?.sync_all()?;
            Ok((OpenOptions::new().append(true).open(&self.path)?, length))
        };
        match write() {
            Ok((log, length)) => {
                self.log = log;
                self.good = length;
                self.live = length;
                self.doubtful = false;
                Ok(())
            }
            Err(e) => {
                // The rename may or may not have happened: the handle may be of the old file.
                self.doubtful = true;
                let _ = std::fs::remove_file(&new);
                Err(at(&self.path, "rewrite it")(e))
            }
        }
    }
}

fn at(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io {
        path,
        action,
        source,
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(at(path, "open it"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            let directory = path.parent().unwrap_or(path);
            Err(StoreError::Locked(directory.to_owned()))
        }
        Err(std::fs::TryLockError::Error(e)) => Err(at(path, "lock it")(e)),
    }
}

fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let aside = (1..)
        .map(|n| path.with_extension(format!("damaged-{n}")))
        .find(|p| !p.exists())
        .unwrap_or_else(|| path.with_extension("damaged"));
    std::fs::copy(path, &aside)
        .and_then(|_| File::open(&aside)?.sync_all())
        .map_err(at(&aside, "keep the damaged store there"))?;
    Ok(aside)
}

/// Reads all that can be read, and says what could not.
fn read(path: &Path, bytes: &[u8]) -> Result<(Contents, Vec<String>), StoreError> {
    let mut contents = Contents::default();
    let mut damage = Vec::new();
    if bytes.is_empty() {
        return Ok((contents, damage));
    }
    for (i, line) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let number = i + 1;
        let Some(line) = line.strip_suffix(b"\n") else {
            damage.push(format!(
                "line {number}, the last, is half written (it was never confirmed)"
            ));
            continue;
        };
        if i == 0 {
            match record::decode::<Header>(line) {
                Ok(h) if h.ghost_store > VERSION => {
                    return Err(StoreError::TooNew {
                        path: path.to_owned(),
                        found: h.ghost_store,
                    });
                }
                Ok(_) => {}
                Err(e) => damage.push(format!("line 1, the header: {e}")),
            }
            continue;
        }
        match record::decode(line) {
            Ok(record) => contents.apply(record),
            Err(e) => damage.push(format!("line {number}: {e}")),
        }
    }
    Ok((contents, damage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(name: &str, generation: u64) -> Op {
        Op::Put(Box::new(Saved {
            name: name.parse().unwrap(),
            uid: format!("uid-{name}"),
            generation,
            owner: 0,
            by_command: true,
            labels: BTreeMap::new(),
            over: Default::default(),
            pids: vec![],
            cgroups: vec![],
            boot: String::new(),
        }))
    }

    fn generations(store: &Store) -> Vec<(String, u64)> {
        let all = store.contents().containers.values();
        all.map(|s| (s.name.to_string(), s.generation)).collect()
    }

    #[test]
    fn what_was_confirmed_is_there_after_reopening_and_compaction() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, notes) = Store::open(dir.path()).unwrap();
        assert!(notes.is_empty());
        store.commit(vec![put("a", 1), put("b", 1)]).unwrap();
        store
            .commit(vec![
                put("a", 2),
                Op::Delete {
                    name: "b".parse().unwrap(),
                },
            ])
            .unwrap();
        let want = store.contents().clone();
        drop(store);
        let (mut store, notes) = Store::open(dir.path()).unwrap();
        assert!(notes.is_empty());
        assert_eq!(store.contents(), &want);
        store.compact().unwrap();
        store.commit(vec![put("c", 1)]).unwrap();
        drop(store);
        let (store, _) = Store::open(dir.path()).unwrap();
        assert_eq!(generations(&store), [("a".into(), 2), ("c".into(), 1)]);
    }

    #[test]
    fn a_second_ghostd_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Store::open(dir.path()).unwrap();
        assert!(matches!(
            Store::open(dir.path()),
            Err(StoreError::Locked(_))
        ));
    }

    #[test]
    fn a_later_version_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOG);
        std::fs::write(&path, record::encode(&Header { ghost_store: 9 }).unwrap()).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(
            Store::open(dir.path()),
            Err(StoreError::TooNew { found: 9, .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_failed_write_changes_nothing_and_the_next_one_works() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path()).unwrap();
        store.commit(vec![put("a", 1)]).unwrap();
        let log = std::mem::replace(
            &mut store.log,
            OpenOptions::new().write(true).open("/dev/full").unwrap(),
        );
        let error = store.commit(vec![put("a", 2)]).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(generations(&store), [("a".into(), 1)]);
        drop(log);
        store.commit(vec![put("b", 1)]).unwrap();
        drop(store);
        let (store, notes) = Store::open(dir.path()).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(generations(&store), [("a".into(), 1), ("b".into(), 1)]);
    }

    #[test]
    fn a_log_of_rubbish_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOG), b"\0\0\0rubbish\n").unwrap();
        let (store, notes) = Store::open(dir.path()).unwrap();
        assert!(store.contents().containers.is_empty());
        assert!(notes[0].contains("containers.damaged-1"), "{notes:?}");
        let kept = std::fs::read(dir.path().join("containers.damaged-1")).unwrap();
        assert_eq!(kept, b"\0\0\0rubbish\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Cut anywhere, the log gives a prefix of what was confirmed, and says that it was cut.
        #[test]
        fn a_cut_log_gives_a_prefix(n in 1u64..12, cut: prop::sample::Index) {
            let mut bytes = record::encode(&Header { ghost_store: VERSION }).unwrap();
            let mut ends = vec![bytes.len()];
            for g in 1..=n {
                bytes.extend(record::encode(&Record { ops: vec![put("a", g)] }).unwrap());
                ends.push(bytes.len());
            }
            let cut = cut.index(bytes.len()) + 1;
            let (contents, damage) = read(Path::new("x"), &bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|e| **e <= cut).count().saturating_sub(1) as u64;
            let got = contents.containers.values().next().map_or(0, |s| s.generation);
            prop_assert_eq!(got, whole);
            prop_assert_eq!(damage.is_empty(), ends.contains(&cut));
        }
    }
}
