//! The ioctls of the files: their arguments and parameters, which are in the caller's memory.

use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;

use fuser::{Errno, Request};
use ghost_rm::abi::memory::{
    CLASS_DEVICE_MEMORY, Dup, Heap, HeapLayout, MAX_MEMORY_INFOS, MEMORY_INFO, MEMORY_INFO_LIST,
    MemoryInfo, MemoryInfoEntry, MemoryInfoList, MemoryParams, OldAlloc,
};
use ghost_rm::abi::{Alloc, CLASS_DEVICE, ESC_REGISTER_FD, iowr};
use ghost_rm::tenant::{self, AllocCall, Call, ControlCall, HeapCall, HeapFunction, OldAllocCall};
use ghost_rm::{Channel, Status};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::controls::with;
use crate::driver::{CLASS_SYSTEM_MEMORY, Wanted};
use crate::fs::Files;
use crate::memory::{self, MEMORY};

/// The largest parameters of an alloc or a control, bytes.
const MAX_PARAMS: u32 = 1 << 16;

impl Files {
    /// Carries out an ioctl whose argument is `arg`; what is left in it goes back.
    pub(crate) fn call(
        &self,
        caller: &Request,
        file: u64,
        cmd: u32,
        arg: &mut [u8],
    ) -> Result<(), Errno> {
        if !self.driver().is_control(file) {
            return match u64::from(cmd) == iowr(ESC_REGISTER_FD, size_of::<i32>()) {
                true => Ok(()),
                false => Err(Errno::ENOTTY),
            };
        }
        let status = match tenant::parse(cmd, arg).map_err(|_| Errno::ENOTTY)? {
            Call::Alloc(call) => self.alloc(caller, file, &call, arg),
            Call::Free(call) => {
                let (root, old) = (call.client.0, call.object.0);
                status_of(self.driver().free(file, root, old))
            }
            Call::Dup(call) => {
                let to = (call.client.0, call.object.0);
                let from = (call.from_client.0, call.from_object.0);
                let made = self.driver().dup(file, to, call.parent.0, from);
                made_at(arg, offset_of!(Dup, object), made)
            }
            Call::Control(call) => self.control(caller, file, &call),
            Call::Heap(call) => self.heap(caller, file, &call, arg),
            Call::OldAlloc(call) => self.old_alloc(caller, file, &call, arg),
            Call::Wrapped(call) => {
                let cmd = call.cmd.ok_or(Errno::EINVAL)?;
                let size = tenant::argument_size(cmd).ok_or(Errno::EINVAL)? as u32;
                let mut arg = fetch(caller, call.at, size).map_err(|_| Errno::EFAULT)?;
                self.call(caller, file, cmd, &mut arg)?;
                return give(caller, call.at, &arg).map_err(|_| Errno::EFAULT);
            }
        };
        tenant::set_status(cmd, arg, status);
        Ok(())
    }

    /// Both forms of an alloc begin alike.
    fn alloc(&self, caller: &Request, file: u64, call: &AllocCall, arg: &mut [u8]) -> Status {
        // The driver takes as many bytes as the class has, whatever the caller says.
        let size = match call.class {
            CLASS_DEVICE_MEMORY => size_of::<MemoryParams>() as u32,
            _ => call.params_size,
        };
        let mut params = match fetch(caller, call.params_at, size) {
            Ok(params) => params,
            Err(status) => return status,
        };
        let mut wanted = Wanted {
            root: call.client.0,
            parent: call.parent.0,
            new: call.object.0,
            class: call.class,
            instance: 0,
            size: 0,
        };
        if call.class == CLASS_DEVICE {
            wanted.instance = word(&params, 0);
        } else if call.class == CLASS_DEVICE_MEMORY {
            let status = with(&mut params, |p: &mut MemoryParams| {
                let granted = memory::grant(p, || is_admin(caller));
                wanted.size = p.size;
                status_of(granted)
            });
            if !status.is_ok() {
                return status;
            }
        }
        let made = self
            .driver()
            .alloc(file, || process_of(caller.pid()), wanted);
        if let Ok(object) = made
            && call.class == CLASS_DEVICE_MEMORY
            && let Err(status) = give(caller, call.params_at, &params)
        {
            let freed = self.driver().free(file, wanted.root, object);
            return freed.err().unwrap_or(status);
        }
        made_at(arg, offset_of!(Alloc, new), made)
    }

    fn heap(&self, caller: &Request, file: u64, call: &HeapCall, arg: &mut [u8]) -> Status {
        let (object, memory) = match call.function {
            HeapFunction::Alloc { object, memory } => (object, memory),
            HeapFunction::Free { .. } if word(arg, HeapLayout::FREE_FLAGS) & 1 == 0 => {
                return Status::INVALID_ARGUMENT;
            }
            HeapFunction::Free { object } => {
                return status_of(self.driver().free(file, call.client.0, object.0));
            }
            HeapFunction::Info => {
                let driver = self.driver();
                let device = driver.client_on(file, call.client.0).map(|client| {
                    let device = client.objects.get(&call.device.0);
                    device.filter(|o| o.class == CLASS_DEVICE).map(|o| o.gpu)
                });
                let free = match device {
                    Ok(Some(gpu)) => driver.memory_free(gpu),
                    Ok(None) => return Status::OBJECT_NOT_FOUND,
                    Err(status) => return status,
                };
                put_long(arg, offset_of!(Heap, total), MEMORY);
                put_long(arg, offset_of!(Heap, free), free);
                put_long(arg, HeapLayout::LARGEST, free);
                return Status::OK;
            }
            HeapFunction::Other(_) => return Status::NOT_SUPPORTED,
        };
        let Some(layout) = HeapLayout::of(word(arg, offset_of!(Heap, function))) else {
            return Status::INVALID_ARGUMENT;
        };
        let mut params = MemoryParams {
            owner: word(arg, offset_of!(Heap, body)),
            flags: memory.flags,
            attr: memory.attr,
            attr2: memory.attr2,
            size: memory.wanted,
            ..MemoryParams::default()
        };
        let class = if memory.on_device {
            CLASS_DEVICE_MEMORY
        } else {
            CLASS_SYSTEM_MEMORY
        };
        if class == CLASS_DEVICE_MEMORY
            && let Err(status) = memory::grant(&mut params, || is_admin(caller))
        {
            return status;
        }
        let wanted = Wanted {
            root: call.client.0,
            parent: call.device.0,
            new: object.0,
            class,
            instance: 0,
            size: params.size,
        };
        let made = self
            .driver()
            .alloc(file, || process_of(caller.pid()), wanted);
        if made.is_ok() {
            put(arg, layout.attr, params.attr);
            put(arg, layout.attr2, params.attr2);
            put_long(arg, layout.size, params.size);
            put_long(arg, layout.address, 0);
        }
        put_long(arg, offset_of!(Heap, total), 0);
        put_long(arg, offset_of!(Heap, free), 0);
        made_at(arg, HeapLayout::MEMORY, made)
    }

    /// Of device memory nothing is allocated: its last byte is told, and there is an object.
    fn old_alloc(
        &self,
        caller: &Request,
        file: u64,
        call: &OldAllocCall,
        arg: &mut [u8],
    ) -> Status {
        if call.class == CLASS_DEVICE_MEMORY {
            put_long(arg, offset_of!(OldAlloc, limit), MEMORY - 1);
        }
        let wanted = Wanted {
            root: call.client.0,
            parent: call.parent.0,
            new: call.object.0,
            class: match call.class {
                CLASS_DEVICE_MEMORY => CLASS_SYSTEM_MEMORY,
                class => class,
            },
            instance: 0,
            size: 0,
        };
        let made = self
            .driver()
            .alloc(file, || process_of(caller.pid()), wanted);
        status_of(made.map(drop))
    }

    fn control(&self, caller: &Request, file: u64, call: &ControlCall) -> Status {
        let (at, size) = (call.params_at, call.params_size);
        let mut params = match fetch(caller, at, size) {
            Ok(params) => params,
            Err(status) => return status,
        };
        let target = Channel {
            client: call.client,
            object: call.object,
        };
        let ask = |cmd, params: &mut [u8]| {
            self.driver()
                .control(file, caller.uid(), target, cmd, params)
        };
        if call.cmd != MEMORY_INFO_LIST {
            let status = ask(call.cmd, &mut params);
            return match status {
                Status::OK => status_of(give(caller, at, &params)),
                refused => refused,
            };
        }
        // The same question, with its list elsewhere.
        if params.len() != size_of::<MemoryInfoList>() {
            return Status::INVALID_PARAM_STRUCT;
        }
        let count = word(&params, offset_of!(MemoryInfoList, count));
        let list_at = long(&params, offset_of!(MemoryInfoList, entries));
        if count as usize > MAX_MEMORY_INFOS {
            return Status::INVALID_ARGUMENT;
        }
        let mut list = match fetch(caller, list_at, count * size_of::<MemoryInfoEntry>() as u32) {
            Ok(list) => list,
            Err(status) => return status,
        };
        let mut all = count.to_ne_bytes().to_vec();
        all.append(&mut list.clone());
        all.resize(size_of::<MemoryInfo>(), 0);
        let status = ask(MEMORY_INFO, &mut all);
        if !status.is_ok() {
            return status;
        }
        let answers = all.iter().skip(offset_of!(MemoryInfo, entries));
        list.iter_mut()
            .zip(answers)
            .for_each(|(to, from)| *to = *from);
        status_of(give(caller, list_at, &list))
    }
}

/// The handle of what was made goes to `offset`.
fn made_at(arg: &mut [u8], offset: usize, made: Result<u32, Status>) -> Status {
    if let Ok(handle) = made {
        put(arg, offset, handle);
    }
    status_of(made.map(drop))
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
    put_bytes(bytes, offset, value.to_ne_bytes());
}

fn put_long(bytes: &mut [u8], offset: usize, value: u64) {
    put_bytes(bytes, offset, value.to_ne_bytes());
}

fn put_bytes<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    let at = bytes
        .get_mut(offset..)
        .and_then(|rest| rest.first_chunk_mut());
    if let Some(at) = at {
        *at = value;
    }
}

/// Whether the driver takes the calling thread for an administrator: by its capabilities, in the
/// user namespace that the stand-in is in too.
fn is_admin(caller: &Request) -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let thread = caller.pid();
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    capabilities.is_some_and(|c| c & CAP_SYS_ADMIN != 0)
        && namespace("self") == namespace(&thread.to_string())
}

/// The kernel names the thread that calls; the driver knows processes.
pub(crate) fn process_of(thread: u32) -> u32 {
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
