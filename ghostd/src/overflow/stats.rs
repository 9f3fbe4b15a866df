//! What is counted of work that is computed on another host than its program's: by the programs of
//! this host, and by the executors of others' here.
//!
//! `ghostctl run` makes a directory for each program
//! that it starts so, below one that everybody may write; in it are a file that says for whom
//! ([`About`]) and the counters of each process ([`ghost_wire::stats`]). A user's directory counts
//! for a container only if the user owns it or administers. An executor, which runs as another user,
//! is handed an open file that nobody else has.

use crate::caller::Admins;
use crate::core::Catalog;
use ghost_model::Name;
use ghost_model::name::sanitize;
use ghost_model::report::Remote;
use ghost_wire::stats::{self, COUNTERS, Counter, SIZE};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The file that says for whom a directory's counters are.
pub const ABOUT: &str = "about.json";
/// Most bytes of it.
const MOST: u64 = 4 << 10;
/// The most directories, and processes of one, that are looked at.
const DIRECTORIES: usize = 1024;

/// Whose counters a directory has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct About {
    /// The container.
    pub container: Name,
    /// The peer.
    pub peer: String,
    /// Whether it is the peer's work that is done here.
    #[serde(skip)]
    pub incoming: bool,
}

/// By [`Counter`].
pub type Counters = [u64; COUNTERS];

/// All counters.
#[derive(Debug)]
pub struct Stats {
    directory: PathBuf,
    /// Guards what was seen last, and is held to look again.
    seen: Mutex<Seen>,
    /// Guards the sessions that are served here, and their number so far.
    served: Mutex<(u64, BTreeMap<u64, Session>)>,
}

/// Where counters are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Those of a program of this host.
    Directory(PathBuf),
    /// Those of a session that is served here.
    Session(u64),
}

/// A session that is served here.
#[derive(Debug)]
struct Session {
    about: About,
    pid: u32,
    file: Arc<File>,
}

/// Its counters are looked at until this is dropped.
#[derive(Debug)]
pub struct Served {
    stats: Arc<Stats>,
    number: u64,
    /// What the executor writes to.
    pub file: Arc<File>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let ended = self.stats.served().1.remove(&self.number);
        let Some(Session { about, pid, file }) = ended else {
            return;
        };
        let counters = read_at(&file);
        let mut seen = self.stats.seen();
        seen.live.remove(&(Place::Session(self.number), pid));
        add(seen.gone.entry(about).or_default(), counters);
    }
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Processes that are still listed.
    live: BTreeMap<(Place, u32), (About, Counters)>,
    /// What others counted, who are not.
    gone: BTreeMap<About, Counters>,
}

impl Stats {
    /// Those below `directory`, which is made for everybody, as `/tmp` is.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(directory: &Path) -> io::Result<Stats> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o1777))?;
        Ok(Stats {
            directory: directory.to_owned(),
            seen: Mutex::default(),
            served: Mutex::default(),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Session>)> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters for an executor of `container`, for the process `pid` of `host`.
    ///
    /// # Errors
    /// Their file can't be made.
    pub fn serve(self: &Arc<Self>, container: &Name, host: &str, pid: u32) -> io::Result<Served> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"ghost-overflow", flags)?);
        file.set_len(SIZE as u64)?;
        // The executor runs what a stranger sends: it gets no memory by this.
        let size = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
        let file = Arc::new(file);
        let about = About {
            container: container.clone(),
            peer: sanitize(host),
            incoming: true,
        };
        let mut served = self.served();
        served.0 += 1;
        let number = served.0;
        let session = Session {
            about,
            pid,
            file: Arc::clone(&file),
        };
        served.1.insert(number, session);
        Ok(Served {
            stats: Arc::clone(self),
            number,
            file,
        })
    }

    /// A directory's name that nobody has, for a program's counters.
    pub fn name(&self, uid: &str) -> PathBuf {
        self.directory.join(uid)
    }

    /// Looks again.
    pub fn look(&self, catalog: &Catalog, admins: &Admins) -> Seen {
        let mut seen = self.seen();
        let mut live = BTreeMap::new();
        for (number, session) in &self.served().1 {
            let counters = read_at(&session.file);
            let key = (Place::Session(*number), session.pid);
            live.insert(key, (session.about.clone(), counters));
        }
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        for entry in entries.flatten().take(DIRECTORIES) {
            if let Some((about, processes)) = read(&entry.path(), catalog, admins) {
                for (pid, counters) in processes {
                    let key = (Place::Directory(entry.path()), pid);
                    live.insert(key, (about.clone(), counters));
                }
            }
        }
        // A counter never falls: what is no more, or began again, is kept.
        let old = std::mem::replace(&mut seen.live, live);
        for (key, (about, counters)) in old {
            let goes_on =
                |(_, new): &(About, Counters)| counters.iter().zip(new).all(|(a, b)| a <= b);
            if !seen.live.get(&key).is_some_and(goes_on) {
                add(seen.gone.entry(about).or_default(), counters);
            }
        }
        let known = |about: &About| catalog.entries.contains_key(&about.container);
        seen.gone.retain(|about, _| known(about));
        seen.clone()
    }
}

impl Seen {
    /// The processes of a container whose work is computed on another host than their own.
    pub fn of(&self, name: &Name) -> Vec<Remote> {
        let all = self.live.iter();
        let mine = all.filter(|(_, (about, _))| about.container == *name);
        let show = |((_, pid), (about, counters)): (&(Place, u32), &(About, Counters))| {
            let of = |counter: Counter| counters[counter as usize];
            Remote {
                peer: about.peer.clone(),
                incoming: about.incoming,
                pid: *pid,
                posted: of(Counter::Posted),
                waited: of(Counter::Waited),
                refused: of(Counter::Refused),
                bytes_up: of(Counter::BytesUp),
                bytes_down: of(Counter::BytesDown),
                wait_usec: of(Counter::WaitedMicros),
            }
        };
        mine.map(show).collect()
    }

    /// How many processes of this host there are.
    pub fn processes(&self) -> usize {
        let here = |(about, _): &&(About, Counters)| !about.incoming;
        self.live.values().filter(here).count()
    }

    /// The sums of each container and peer, those included who have ended.
    pub fn totals(&self) -> BTreeMap<About, Counters> {
        let mut sums = self.gone.clone();
        for (about, counters) in self.live.values() {
            add(sums.entry(about.clone()).or_default(), *counters);
        }
        sums
    }
}

fn add(sum: &mut Counters, counters: Counters) {
    for (sum, n) in sum.iter_mut().zip(counters) {
        *sum = sum.saturating_add(n);
    }
}

/// The counters of an executor.
fn read_at(file: &File) -> Counters {
    let mut bytes = [0; SIZE];
    // What can't be read counts nothing.
    let _ = file.read_exact_at(&mut bytes, 0);
    stats::read(&bytes)
}

/// The counters in a directory, if they are those of a container that its owner may speak for.
fn read(dir: &Path, catalog: &Catalog, admins: &Admins) -> Option<(About, Vec<(u32, Counters)>)> {
    let owner = fs::symlink_metadata(dir)
        .ok()
        .filter(fs::Metadata::is_dir)?;
    let mut text = Vec::new();
    let file = open(&dir.join(ABOUT), owner.uid())?;
    file.take(MOST).read_to_end(&mut text).ok()?;
    let about: About = serde_json::from_slice(&text).ok()?;
    let entry = catalog.entries.get(&about.container)?;
    let peer = |b: u8| b.is_ascii_graphic();
    if about.peer.len() > 255 || !about.peer.bytes().all(peer) {
        return None;
    }
    if entry.owner != owner.uid() && !admins.caller(owner.uid(), owner.gid()).admin {
        return None;
    }
    let files = fs::read_dir(dir).ok()?.flatten().take(DIRECTORIES);
    let processes = files.filter_map(|file| {
        let pid = file.file_name().to_str()?.parse().ok()?;
        let mut bytes = [0; SIZE];
        open(&file.path(), owner.uid())?
            .read_exact(&mut bytes)
            .ok()?;
        Some((pid, stats::read(&bytes)))
    });
    Some((about, processes.collect()))
}

/// A regular file of this user: no link to elsewhere, and nothing that makes a reader wait.
fn open(path: &Path, owner: u32) -> Option<File> {
    let flags = (nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    let about = file.metadata().ok()?;
    (about.is_file() && about.uid() == owner).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Entry;

    fn catalog(name: &str, owner: u32) -> Catalog {
        let name: Name = name.parse().unwrap();
        let entry = Entry::new(name.clone(), "u".into(), owner);
        let mut catalog = Catalog::default();
        catalog.entries.insert(name, Arc::new(entry));
        catalog
    }

    fn count(dir: &Path, pid: u32, posted: u64) {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&posted.to_le_bytes());
        fs::write(dir.join(pid.to_string()), bytes).unwrap();
    }

    #[test]
    fn counters_are_summed_and_never_fall() {
        let dir = tempfile::tempdir().unwrap();
        let stats = Stats::open(&dir.path().join("overflow")).unwrap();
        let (admins, name) = (Admins::new("no such group"), "job".parse().unwrap());
        let catalog = catalog("job", 0);
        let program = stats.name("one");
        fs::create_dir(&program).unwrap();
        count(&program, 7, 5);
        let look = || stats.look(&catalog, &admins);
        assert_eq!(look().processes(), 0, "nobody says for whom");
        fs::write(program.join(ABOUT), r#"{"container":"job","peer":"big"}"#).unwrap();
        count(&program, 8, 1);
        fs::write(program.join("9"), "short").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", program.join("10")).unwrap();
        let posted = |seen: &Seen| seen.totals().values().map(|c| c[0]).sum::<u64>();
        let seen = look();
        let pids: Vec<u32> = seen.of(&name).iter().map(|r| r.pid).collect();
        assert_eq!((pids, posted(&seen)), (vec![7, 8], 6));
        count(&program, 7, 2);
        assert_eq!(posted(&look()), 8, "another process has the pid");
        fs::remove_dir_all(&program).unwrap();
        let seen = look();
        assert_eq!((seen.processes(), posted(&seen)), (0, 8));
        assert!(stats.look(&Catalog::default(), &admins).totals().is_empty());
    }

    #[test]
    fn an_executors_counters_are_seen_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let stats = Arc::new(Stats::open(dir.path()).unwrap());
        let (admins, name) = (Admins::new("no such group"), "job".parse().unwrap());
        let catalog = catalog("job", 0);
        let served = stats.serve(&name, "there\x1b", 7).unwrap();
        served.file.write_all_at(&5_u64.to_le_bytes(), 0).unwrap();
        let beyond = served.file.write_all_at(&[0], SIZE as u64);
        assert!(beyond.is_err(), "it may not grow");
        let seen = stats.look(&catalog, &admins);
        let [remote] = &seen.of(&name)[..] else {
            panic!("{seen:?}");
        };
        let told = (
            remote.peer.as_str(),
            remote.incoming,
            remote.pid,
            remote.posted,
        );
        assert_eq!(told, ("there?", true, 7, 5));
        assert_eq!(seen.processes(), 0, "none of this host's");
        served.file.write_all_at(&9_u64.to_le_bytes(), 0).unwrap();
        drop(served);
        let seen = stats.look(&catalog, &admins);
        assert!(seen.of(&name).is_empty());
        let totals: Vec<u64> = seen.totals().values().map(|c| c[0]).collect();
        assert_eq!(totals, [9], "counted once, to its end");
    }
}
