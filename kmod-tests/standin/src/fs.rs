//! The file system: a few files whose ioctls, reads and writes go to the driver.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use ghost_model::Micros;
use nix::time::{ClockId, clock_gettime};

use crate::calls::process_of;
use crate::driver::{Driver, Node};
use crate::inventory;

/// How long the kernel may keep names; they never change.
const KEEP: Duration = Duration::from_secs(3600);

pub(crate) fn now() -> Micros {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(|t| Micros(Duration::from(t).as_micros() as u64))
        .unwrap_or_default()
}

#[derive(Debug)]
enum What {
    Directory,
    Node(Node),
    Version,
    Information(usize),
    Telemetry,
}

#[derive(Debug)]
struct Entry {
    parent: u64,
    name: String,
    what: What,
}

pub(crate) struct Files {
    // Entry i is inode i + 1; the first is the root.
    entries: Vec<Entry>,
    driver: Arc<Mutex<Driver>>,
    /// The telemetry as of each open of its file: one that reads it in pieces reads one text.
    /// The lock guards this map alone.
    texts: Mutex<BTreeMap<u64, Vec<u8>>>,
}

/// Set in the handles of open texts, which the driver does not give.
const TEXT: u64 = 1 << 63;

impl Files {
    pub(crate) fn new(gpus: u32, driver: Arc<Mutex<Driver>>) -> Self {
        let mut files = Files {
            entries: Vec::new(),
            driver,
            texts: Mutex::default(),
        };
        let root = files.add(1, "", What::Directory);
        files.add(root, "nvidiactl", What::Node(Node::Control));
        files.add(root, "telemetry.json", What::Telemetry);
        let mut dir = root;
        for name in ["proc", "driver", "nvidia"] {
            dir = files.add(dir, name, What::Directory);
        }
        files.add(dir, "version", What::Version);
        let dir = files.add(dir, "gpus", What::Directory);
        for index in 0..gpus as usize {
            files.add(
                root,
                &format!("nvidia{index}"),
                What::Node(Node::Gpu(index)),
            );
            let gpu = files.add(dir, &inventory::pci(index), What::Directory);
            files.add(gpu, "information", What::Information(index));
        }
        files
    }

    fn add(&mut self, parent: u64, name: &str, what: What) -> u64 {
        self.entries.push(Entry {
            parent,
            name: name.to_owned(),
            what,
        });
        self.entries.len() as u64
    }

    fn entry(&self, ino: INodeNo) -> Option<&Entry> {
        self.entries
            .get(usize::try_from(ino.0.checked_sub(1)?).ok()?)
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm) = match self.entry(ino)?.what {
            What::Directory => (FileType::Directory, 0o755),
            What::Node(_) => (FileType::RegularFile, 0o666),
            _ => (FileType::RegularFile, 0o444),
        };
        Some(FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// The driver at this moment. The lock guards all of it.
    pub(crate) fn driver(&self) -> MutexGuard<'_, Driver> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.advance(now());
        driver
    }

    fn texts(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is = |e: &Entry| e.parent == parent.0 && OsStr::new(&e.name) == name;
        let found = self.entries.iter().position(is);
        let attr = found.and_then(|i| self.attr(INodeNo(i as u64 + 1)));
        match attr {
            Some(attr) => reply.entry(&KEEP, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&KEEP, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let children = self.entries.iter().zip(1..).skip(1);
        let children = children.filter(|(e, _)| e.parent == ino.0);
        for ((entry, number), next) in children.zip(1u64..).skip(offset as usize) {
            let kind = match entry.what {
                What::Directory => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(number), next, kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, caller: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let file = match self.entry(ino).map(|e| &e.what) {
            Some(What::Node(node)) => self.driver().open(*node, process_of(caller.pid())),
            Some(What::Telemetry) => {
                let text = inventory::telemetry(&self.driver()).into_bytes();
                let mut texts = self.texts();
                let handle = texts.last_key_value().map_or(TEXT, |(last, _)| last + 1);
                texts.insert(handle, text);
                handle
            }
            _ => 0,
        };
        reply.opened(FileHandle(file), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if self.texts().remove(&file.0).is_none() {
            self.driver().release(file.0);
        }
        reply.ok();
    }

    fn ioctl(
        &self,
        caller: &Request,
        _: INodeNo,
        file: FileHandle,
        _: IoctlFlags,
        cmd: u32,
        arg: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let mut arg = arg.to_vec();
        match self.call(caller, file.0, cmd, &mut arg) {
            Ok(()) => reply.ioctl(0, &arg),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let text = match self.entry(ino).map(|e| &e.what) {
            Some(What::Version) => inventory::version().into_bytes(),
            Some(What::Information(index)) => inventory::information(*index).into_bytes(),
            Some(What::Telemetry) => self.texts().get(&file.0).cloned().unwrap_or_default(),
            // An answer is read from its start, wherever the descriptor stands.
            Some(What::Node(_)) => {
                let driver = self.driver();
                let answer = driver.hear(file.0);
                reply.data(answer.get(..size as usize).unwrap_or(answer));
                return;
            }
            _ => return reply.error(Errno::EISDIR),
        };
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|o| text.get(o..))
            .unwrap_or(&[]);
        reply.data(rest.get(..size as usize).unwrap_or(rest));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.entry(ino).map(|e| &e.what) {
            Some(What::Node(Node::Control)) => {
                self.driver().tell(file.0, data);
                reply.written(data.len() as u32);
            }
            _ => reply.error(Errno::EINVAL),
        }
    }
}
