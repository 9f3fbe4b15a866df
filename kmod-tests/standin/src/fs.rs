//! The file system: a few files whose ioctls, reads and writes go to the driver.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use ghost_model::Micros;
use ghost_rm::abi::{
    Alloc, AllocShort, CLASS_DEVICE, ControlArgs, ESC_REGISTER_FD, ESC_RM_ALLOC, ESC_RM_CONTROL,
    ESC_RM_FREE, Free, iowr,
};
use ghost_rm::{Channel, Client, Object, Status};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::driver::{CLASS_MEMORY, Driver, Node, Wanted};
use crate::inventory;

/// How long the kernel may keep names; they never change.
const KEEP: Duration = Duration::from_secs(3600);

/// The largest parameters of an alloc or a control, bytes.
const MAX_PARAMS: u32 = 1 << 16;

/// Where the size lies in the parameters of a memory allocation.
const MEMORY_SIZE: usize = 64;

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
    fn driver(&self) -> MutexGuard<'_, Driver> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.advance(now());
        driver
    }

    fn texts(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an ioctl whose argument is `arg`; what is left in it goes back.
    fn call(&self, caller: &Request, file: u64, cmd: u32, arg: &mut [u8]) -> Result<(), Errno> {
        let control = self.driver().is_control(file);
        let is = |number, size| u64::from(cmd) == iowr(number, size);
        if !control {
            return match is(ESC_REGISTER_FD, size_of::<i32>()) {
                true => Ok(()),
                false => Err(Errno::ENOTTY),
            };
        }
        if is(ESC_RM_ALLOC, size_of::<Alloc>()) {
            let size = word(arg, offset_of!(Alloc, params_size));
            let status = self.alloc(caller, file, arg, size);
            put(arg, offset_of!(Alloc, status), status.0);
        } else if is(ESC_RM_ALLOC, size_of::<AllocShort>()) {
            let size = word(arg, offset_of!(AllocShort, params_size));
            let status = self.alloc(caller, file, arg, size);
            put(arg, offset_of!(AllocShort, status), status.0);
        } else if is(ESC_RM_FREE, size_of::<Free>()) {
            let (root, old) = (
                word(arg, offset_of!(Free, root)),
                word(arg, offset_of!(Free, old)),
            );
            let freed = self.driver().free(file, root, old);
            put(arg, offset_of!(Free, status), status_of(freed).0);
        } else if is(ESC_RM_CONTROL, size_of::<ControlArgs>()) {
            let status = self.control(caller, file, arg);
            put(arg, offset_of!(ControlArgs, status), status.0);
        } else {
            return Err(Errno::ENOTTY);
        }
        Ok(())
    }

    /// Both forms of an alloc begin alike.
    fn alloc(&self, caller: &Request, file: u64, arg: &mut [u8], size: u32) -> Status {
        let address = long(arg, offset_of!(Alloc, params));
        let params = match fetch(caller, address, size) {
            Ok(params) => params,
            Err(status) => return status,
        };
        let class = word(arg, offset_of!(Alloc, class));
        let wanted = Wanted {
            root: word(arg, offset_of!(Alloc, root)),
            parent: word(arg, offset_of!(Alloc, parent)),
            new: word(arg, offset_of!(Alloc, new)),
            class,
            instance: if class == CLASS_DEVICE {
                word(&params, 0)
            } else {
                0
            },
            size: if class == CLASS_MEMORY {
                long(&params, MEMORY_SIZE)
            } else {
                0
            },
        };
        let allocated = self.driver().alloc(file, process_of(caller.pid()), wanted);
        if let Ok(handle) = allocated {
            put(arg, offset_of!(Alloc, new), handle);
        }
        status_of(allocated.map(drop))
    }

    fn control(&self, caller: &Request, file: u64, arg: &[u8]) -> Status {
        let address = long(arg, offset_of!(ControlArgs, params));
        let size = word(arg, offset_of!(ControlArgs, params_size));
        let mut params = match fetch(caller, address, size) {
            Ok(params) => params,
            Err(status) => return status,
        };
        let target = Channel {
            client: Client(word(arg, offset_of!(ControlArgs, client))),
            object: Object(word(arg, offset_of!(ControlArgs, object))),
        };
        let cmd = word(arg, offset_of!(ControlArgs, cmd));
        let status = self
            .driver()
            .control(file, caller.uid(), target, cmd, &mut params);
        if status.is_ok()
            && let Err(status) = give(caller, address, &params)
        {
            return status;
        }
        status
    }
}

fn status_of(done: Result<(), Status>) -> Status {
    done.err().unwrap_or(Status::OK)
}

/// The `u32` at `offset`, 0 past the end.
fn word(bytes: &[u8], offset: usize) -> u32 {
    let at = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    at.map_or(0, |b| u32::from_ne_bytes(*b))
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    let at = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    at.map_or(0, |b| u64::from_ne_bytes(*b))
}

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    let at = bytes
        .get_mut(offset..)
        .and_then(|rest| rest.first_chunk_mut());
    if let Some(at) = at {
        *at = value.to_ne_bytes();
    }
}

/// The kernel names the thread that calls; the driver knows processes.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group
        .and_then(|id| id.trim().parse().ok())
        .unwrap_or(thread)
}

/// The caller's parameters, which the ioctl only points to.
fn fetch(caller: &Request, address: u64, size: u32) -> Result<Vec<u8>, Status> {
    if size > MAX_PARAMS {
        return Err(Status::INVALID_PARAM_STRUCT);
    }
    let mut params = vec![0; size as usize];
    if size == 0 {
        return Ok(params);
    }
    let there = [RemoteIoVec {
        base: address as usize,
        len: params.len(),
    }];
    let pid = Pid::from_raw(caller.pid() as i32);
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut params)], &there);
    match read {
        Ok(n) if n == size as usize => Ok(params),
        _ => Err(Status::INVALID_ADDRESS),
    }
}

fn give(caller: &Request, address: u64, params: &[u8]) -> Result<(), Status> {
    if params.is_empty() {
        return Ok(());
    }
    let there = [RemoteIoVec {
        base: address as usize,
        len: params.len(),
    }];
    let pid = Pid::from_raw(caller.pid() as i32);
    match process_vm_writev(pid, &[IoSlice::new(params)], &there) {
        Ok(n) if n == params.len() => Ok(()),
        _ => Err(Status::INVALID_ADDRESS),
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
