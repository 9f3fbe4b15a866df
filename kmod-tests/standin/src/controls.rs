//! The controls that the stand-in answers, each with the semantics that were measured on a real
//! driver.

use ghost_model::Micros;
use ghost_rm::abi::discover::{
    self, AccessRights, AttachedIds, ChannelGroupIds, ClientDatabase, GpuId, GpuUuid, HandleInfo,
    IdInfo, Pids,
};
use ghost_rm::abi::memory::{
    FIND_SUBDEVICE, FindSubdevice, MemoryInfo, MemoryInfoEntry, PID_INFO, PidInfos,
    READ_MEMORY_INFO,
};
use ghost_rm::abi::{
    self, CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, CLASS_SUBDEVICE_DIAG,
    ChannelState, DisableChannels, Plain, Preempt, Timeslice, TsgInfo,
};
use ghost_rm::{Channel, Client, Object, Status};

use crate::driver::{CLASS_CHANNEL, Driver, Kind};
use crate::inventory;
use crate::memory::MEMORY;

/// Reads a channel's work-submit token: runlist and number.
const TOKEN: u32 = 0xC36F_0108;
/// Reads the channels of a runlist: its number, then a bit for each channel.
const ALLOCATED_CHANNELS: u32 = 0x2080_1119;
/// Runlist of the copy engine; compute has 0.
const COPY_RUNLIST: u32 = 1;

/// Id of the GPU with this index, as the driver counts them.
fn gpu_id(index: usize) -> u32 {
    0x100 * (index as u32 + 1)
}

/// Runs `call` on parameters that are exactly a `T`.
pub(crate) fn with<T: Plain>(params: &mut [u8], call: impl FnOnce(&mut T) -> Status) -> Status {
    if params.len() != size_of::<T>() {
        return Status::INVALID_PARAM_STRUCT;
    }
    // SAFETY: the bytes are as many as a T has, and `Plain` says that every pattern is one.
    let mut value: T = unsafe { std::ptr::read_unaligned(params.as_ptr().cast()) };
    let status = call(&mut value);
    // SAFETY: as above; a T is integers without gaps between them.
    unsafe { std::ptr::write_unaligned(params.as_mut_ptr().cast(), value) };
    status
}

impl Driver {
    /// Carries out a control for a caller with `uid`; the answer is in `params`.
    pub(crate) fn control(
        &mut self,
        file: u64,
        uid: u32,
        target: Channel,
        cmd: u32,
        params: &mut [u8],
    ) -> Status {
        let (Client(root), Object(handle)) = (target.client, target.object);
        let client = match self.client_on(file, root) {
            Ok(client) => client,
            Err(status) => return status,
        };
        let (class, gpu) = match client.objects.get(&handle) {
            Some(object) => (object.class, object.gpu),
            None if handle == root => (CLASS_CLIENT, 0),
            None => return Status::OBJECT_NOT_FOUND,
        };
        let family = match cmd >> 16 {
            0 => CLASS_CLIENT,
            0xC36F => CLASS_CHANNEL,
            class => class,
        };
        if family != class {
            return Status::NOT_SUPPORTED;
        }
        match class {
            CLASS_CLIENT => self.ask_client(root, cmd, params),
            CLASS_DEVICE => self.ask_device(root, handle, cmd, params),
            CLASS_SUBDEVICE => self.ask_subdevice(gpu, uid, cmd, params),
            CLASS_SUBDEVICE_DIAG => self.ask_diagnostics(cmd, params),
            CLASS_CHANNEL_GROUP => self.ask_group(root, handle, cmd, params),
            CLASS_CHANNEL if cmd == TOKEN => self.ask_token(root, handle, params),
            _ => Status::NOT_SUPPORTED,
        }
    }

    fn ask_client(&mut self, root: u32, cmd: u32, params: &mut [u8]) -> Status {
        if cmd == discover::ATTACHED_IDS.number() {
            return with(params, |p: &mut AttachedIds| {
                p.ids = [u32::MAX; discover::MAX_GPUS];
                let ids = (0..self.gpus.len()).map(gpu_id);
                p.ids.iter_mut().zip(ids).for_each(|(slot, id)| *slot = id);
                Status::OK
            });
        }
        let gpu = |id| (0..self.gpus.len()).find(|&index| gpu_id(index) == id);
        if cmd == discover::ID_INFO.number() {
            return with(params, |p: &mut IdInfo| {
                let Some(index) = gpu(p.gpu_id) else {
                    return Status::INVALID_ARGUMENT;
                };
                *p = IdInfo {
                    gpu_id: p.gpu_id,
                    device_instance: index as u32,
                    gpu_instance: index as u32,
                    board: p.gpu_id,
                    numa: -1,
                    ..IdInfo::default()
                };
                Status::OK
            });
        }
        if cmd == discover::UUID_OF_ID.number() {
            return with(params, |p: &mut GpuUuid| {
                let Some(index) = gpu(p.gpu_id).filter(|_| p.flags == 0) else {
                    return Status::INVALID_ARGUMENT;
                };
                let text = inventory::uuid(index);
                p.uuid = [0; 256];
                p.uuid
                    .iter_mut()
                    .zip(text.bytes())
                    .for_each(|(slot, b)| *slot = b);
                p.len = text.len() as u32 + 1;
                Status::OK
            });
        }
        if cmd == discover::CLIENT_DATABASE.number() {
            return with(params, |p: &mut ClientDatabase| {
                p.clients = self.clients.len() as u32;
                p.resources = self
                    .clients
                    .values()
                    .map(|c| c.objects.len() as u64 + 1)
                    .sum();
                Status::OK
            });
        }
        if cmd == discover::HANDLE_INFO.number() {
            if let Some(client) = self.clients.get_mut(&root) {
                client.asked += 1;
            }
            return with(params, |p: &mut HandleInfo| {
                let (parent, class) = match self.object(root, p.object) {
                    Some(object) => (object.parent, object.class),
                    None if p.object == root => (0, CLASS_CLIENT),
                    None => return Status::OBJECT_NOT_FOUND,
                };
                p.value = match p.index {
                    HandleInfo::PARENT => parent.into(),
                    HandleInfo::CLASS => class.into(),
                    _ => return Status::INVALID_ARGUMENT,
                };
                Status::OK
            });
        }
        if cmd == discover::ACCESS_RIGHTS.number() {
            return with(params, |p: &mut AccessRights| {
                p.mask = 0;
                match self.clients.get(&p.client) {
                    None => Status::INVALID_CLIENT,
                    Some(c) if p.object == p.client || c.objects.contains_key(&p.object) => {
                        Status::OK
                    }
                    Some(_) => Status::OBJECT_NOT_FOUND,
                }
            });
        }
        Status::NOT_SUPPORTED
    }

    fn ask_device(&self, root: u32, handle: u32, cmd: u32, params: &mut [u8]) -> Status {
        if cmd != FIND_SUBDEVICE.number() {
            return Status::NOT_SUPPORTED;
        }
        with(params, |p: &mut FindSubdevice| {
            let objects = self.clients.get(&root).into_iter().flat_map(|c| &c.objects);
            let mut below = objects.filter(|(_, o)| o.parent == handle);
            match below.find(|(_, o)| o.class == CLASS_SUBDEVICE) {
                Some((&subdevice, _)) => p.subdevice = subdevice,
                None => return Status::OBJECT_NOT_FOUND,
            }
            Status::OK
        })
    }

    fn ask_memory(&self, gpu: usize, p: &mut MemoryInfo) -> Status {
        let Some(entries) = p.entries.get_mut(..p.count as usize) else {
            return Status::INVALID_ARGUMENT;
        };
        for entry in entries {
            let bytes = match entry.index {
                MemoryInfoEntry::RAM_SIZE
                | MemoryInfoEntry::TOTAL_RAM_SIZE
                | MemoryInfoEntry::HEAP_SIZE
                | MemoryInfoEntry::USABLE_RAM_SIZE => MEMORY,
                MemoryInfoEntry::HEAP_FREE | MemoryInfoEntry::LARGEST_FREE => self.memory_free(gpu),
                _ => 0,
            };
            entry.data = (bytes >> 10) as u32;
        }
        Status::OK
    }

    fn ask_processes(&self, gpu: usize, p: &mut PidInfos) -> Status {
        let Some(entries) = p.entries.get_mut(..p.count as usize) else {
            return Status::INVALID_ARGUMENT;
        };
        if entries.is_empty() {
            return Status::INVALID_ARGUMENT;
        }
        for entry in entries {
            let (owned, shared) = self.memory_of(entry.pid, gpu);
            // Of CUDA's all counts as shared: UVM has a duplicate.
            entry.memory = [0, owned, shared, 0, 0, 0];
            entry.mig = [u32::MAX; 2];
            entry.result = Status::OK.0;
        }
        Status::OK
    }

    fn ask_subdevice(&mut self, gpu: usize, uid: u32, cmd: u32, params: &mut [u8]) -> Status {
        if cmd == abi::DISABLE_CHANNELS.number() {
            if uid != 0 {
                return Status::INSUFFICIENT_PERMISSIONS;
            }
            return with(params, |p: &mut DisableChannels| {
                // In order, up to the first that is not there: what was done stays done.
                let done = p
                    .channels()
                    .try_for_each(|c| self.switch(gpu, c, p.is_disable()));
                done.err().unwrap_or(Status::OK)
            });
        }
        if cmd == READ_MEMORY_INFO.number() {
            return with(params, |p: &mut MemoryInfo| self.ask_memory(gpu, p));
        }
        if cmd == PID_INFO.number() {
            return with(params, |p: &mut PidInfos| self.ask_processes(gpu, p));
        }
        if cmd == discover::PIDS.number() {
            return with(params, |p: &mut Pids| {
                let has = |c: &&crate::driver::Client| {
                    let mut objects = c.objects.values();
                    objects.any(|o| o.class == p.class && o.gpu == gpu)
                };
                let all = self.clients.values().filter(has).map(|c| c.pid);
                let mut pids: Vec<u32> = all.collect();
                pids.sort_unstable();
                pids.dedup();
                p.pids
                    .iter_mut()
                    .zip(&pids)
                    .for_each(|(slot, &pid)| *slot = pid);
                p.count = pids.len().min(discover::MAX_PIDS) as u32;
                Status::OK
            });
        }
        if cmd == discover::CHANNEL_GROUP_IDS.number() {
            return with(params, |p: &mut ChannelGroupIds| {
                let (root, mut group) = (p.client, p.group);
                if let Some(object) = self.object(root, group)
                    && matches!(object.kind, Kind::Channel { .. })
                {
                    group = object.parent;
                }
                let Some(Kind::Group { uid, .. }) = self.object(root, group).map(|o| &o.kind)
                else {
                    return Status::OBJECT_NOT_FOUND;
                };
                p.uid = *uid;
                let contexts = self
                    .channels_of(root, group)
                    .map(|(_, _, context, _)| context);
                p.count = 0;
                for (slot, context) in p.context_ids.iter_mut().zip(contexts) {
                    *slot = context;
                    p.count += 1;
                }
                Status::OK
            });
        }
        if cmd == discover::GPU_ID.number() {
            return with(params, |p: &mut GpuId| {
                p.gpu_id = gpu_id(gpu);
                Status::OK
            });
        }
        if cmd == ALLOCATED_CHANNELS {
            return self.ask_allocated(gpu, params);
        }
        Status::NOT_SUPPORTED
    }

    fn ask_allocated(&self, gpu: usize, params: &mut [u8]) -> Status {
        const SIZE: usize = 4 + 4 * 128;
        let Some((runlist, mask)) = params.split_first_chunk_mut::<4>() else {
            return Status::INVALID_PARAM_STRUCT;
        };
        if mask.len() + 4 != SIZE {
            return Status::INVALID_PARAM_STRUCT;
        }
        mask.fill(0);
        let runlist = u32::from_ne_bytes(*runlist);
        for (root, group, on, ..) in self.groups() {
            if on != gpu || self.runlist(root, group) != runlist {
                continue;
            }
            for (_, number, ..) in self.channels_of(root, group) {
                if let Some(byte) = mask.get_mut(number as usize / 8) {
                    *byte |= 1 << (number % 8);
                }
            }
        }
        Status::OK
    }

    fn ask_diagnostics(&mut self, cmd: u32, params: &mut [u8]) -> Status {
        if cmd != abi::CHANNEL_STATE.number() {
            return Status::NOT_SUPPORTED;
        }
        with(params, |p: &mut ChannelState| {
            let object = self.object(p.client, p.channel);
            let Some(Kind::Channel { disables, .. }) = object.map(|o| &o.kind) else {
                return Status::INVALID_CHANNEL;
            };
            p.bound = 1;
            p.enabled = (*disables == 0).into();
            p.scheduled = p.enabled;
            Status::OK
        })
    }

    fn ask_group(&mut self, root: u32, handle: u32, cmd: u32, params: &mut [u8]) -> Status {
        let Some((gpu, id)) = self.group_at(root, handle) else {
            return Status::OBJECT_NOT_FOUND;
        };
        let Some(gpu) = self.gpus.get_mut(gpu) else {
            return Status::INVALID_DEVICE;
        };
        if cmd == abi::SET_TIMESLICE.number() {
            return with(params, |p: &mut Timeslice| {
                gpu.set_slice(id, Micros(p.micros));
                Status::OK
            });
        }
        if cmd == abi::GET_TIMESLICE.number() {
            return with(params, |p: &mut Timeslice| {
                p.micros = gpu.group(id).map_or(0, |group| group.slice().0);
                Status::OK
            });
        }
        if cmd == abi::PREEMPT.number() {
            return with(params, |_: &mut Preempt| {
                gpu.preempt(id);
                Status::OK
            });
        }
        if cmd == abi::TSG_INFO.number() {
            return with(params, |p: &mut TsgInfo| {
                p.id = id.0 as u32;
                Status::OK
            });
        }
        Status::NOT_SUPPORTED
    }

    fn ask_token(&self, root: u32, handle: u32, params: &mut [u8]) -> Status {
        let Some(object) = self.object(root, handle) else {
            return Status::OBJECT_NOT_FOUND;
        };
        let Kind::Channel { number, .. } = object.kind else {
            return Status::INVALID_CHANNEL;
        };
        let token = self.runlist(root, object.parent) << 16 | number;
        let Ok(params) = <&mut [u8; 4]>::try_from(params) else {
            return Status::INVALID_PARAM_STRUCT;
        };
        *params = token.to_ne_bytes();
        Status::OK
    }

    fn runlist(&self, root: u32, group: u32) -> u32 {
        if self.is_compute(root, group) {
            0
        } else {
            COPY_RUNLIST
        }
    }
}
