//! What a CUDA program is to the driver: the files and objects of its contexts.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use ghost_backend::sim::wire::{Request, Response};
use ghost_rm::abi::discover::{self, MAX_PIDS, Pids};
use ghost_rm::abi::memory::{
    CLASS_DEVICE_MEMORY, ESC_RM_VID_HEAP_CONTROL, HEAP_ALLOC_SIZE, HEAP_INFO, Heap,
    MAX_MEMORY_INFOS, MAX_PID_INFOS, MEMORY_INFO_LIST, MemoryInfo, MemoryInfoEntry, MemoryInfoList,
    MemoryParams, PID_INFO, PidInfo, PidInfos, READ_MEMORY_INFO,
};
use ghost_rm::abi::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, ControlArgs, DeviceParams,
    ESC_RM_CONTROL, SubdeviceParams, iowr,
};
use ghost_rm::{AllocForm, Client, Control, Object, RmError, Status};

use crate::{CLASS_CHANNEL, CLASS_COMPUTE, CLASS_COPY};

/// Handles between one context and the next.
const CONTEXT_HANDLES: u32 = 0x100;
/// Compute channels, and copy channels in each of as many groups.
const COMPUTE_CHANNELS: u32 = 8;
const COPY_GROUPS: u32 = 3;
const COPY_CHANNELS: u32 = 4;
/// The timeslice that the driver gives copy engines, us.
const COPY_SLICE: u64 = 1024;
/// Memory that CUDA allocates for a context, MiB: 518 in all (H200, driver 580).
const CONTEXT_MEMORY: [u64; 17] = [414, 70, 6, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2];
/// Bytes of that.
pub const CONTEXT_BYTES: u64 = 518 << 20;
/// Where its handles begin, after those of the groups of any context.
const MEMORY_HANDLES: u32 = 0x5D00_0000;
/// As libcuda asks for memory (driver 580): pages as large as the driver likes.
const MEMORY_FLAGS: u32 = 0x1_C101;
const MEMORY_ATTR: u32 = 0x1800_0000;

/// Why a tenant could not do something.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The stand-in's files.
    #[error("{0}: is a stand-in mounted there?")]
    Io(String, #[source] io::Error),
    /// Its driver.
    #[error(transparent)]
    Rm(#[from] RmError),
    /// Its driver's answer to a call that is made by hand.
    #[error("rm status {0}")]
    Status(Status),
    /// The line that says what is launched.
    #[error("the stand-in refused: {0}")]
    Refused(String),
}

/// A program with open files and a client.
#[derive(Debug)]
pub struct Tenant {
    control: File,
    // Never used: open for the driver to see.
    _node: File,
    client: Client,
    device: Object,
    groups: Vec<Object>,
    // Handles of memory that were given out.
    memories: Cell<u32>,
}

impl TenantError {
    /// The driver's answer, `None` when the call did not get that far.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Rm(error) => error.status(),
            Self::Status(status) => Some(*status),
            _ => None,
        }
    }
}

impl Tenant {
    /// Opens the files in `dir` and allocates a client, a device and its subdevice on the GPU
    /// with this index.
    ///
    /// # Errors
    /// [`TenantError`].
    pub fn open(dir: &Path, gpu: u32) -> Result<Self, TenantError> {
        let open = |name: &str| {
            let path = dir.join(name);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            file.map_err(|e| TenantError::Io(path.display().to_string(), e))
        };
        let control = open("nvidiactl")?;
        let node = open(&format!("nvidia{gpu}"))?;
        let rm = Control::new(control.as_fd());
        let form = AllocForm::WithRights;
        let none = None::<&mut DeviceParams>;
        let root = rm.alloc(form, Client(0), Object(0), Object(0), CLASS_CLIENT, none)?;
        let client = Client(root.0);
        let mut params = DeviceParams {
            device_id: gpu,
            ..DeviceParams::default()
        };
        let wanted = Object(0x5C00_0002);
        let device = rm.alloc(form, client, root, wanted, CLASS_DEVICE, Some(&mut params))?;
        let mut params = SubdeviceParams::default();
        let wanted = Object(0x5C00_0003);
        rm.alloc(
            form,
            client,
            device,
            wanted,
            CLASS_SUBDEVICE,
            Some(&mut params),
        )?;
        Ok(Tenant {
            control,
            _node: node,
            client,
            device,
            groups: Vec::new(),
            memories: Cell::new(0),
        })
    }

    /// Its client.
    pub fn client(&self) -> Client {
        self.client
    }

    /// The subdevice.
    pub fn subdevice(&self) -> Object {
        Object(0x5C00_0003)
    }

    /// The compute channel groups of its contexts.
    pub fn groups(&self) -> &[Object] {
        &self.groups
    }

    /// The control file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Its calls.
    pub fn rm(&self) -> Control<'_> {
        Control::new(self.fd())
    }

    /// The device.
    pub fn device(&self) -> Object {
        self.device
    }

    /// Makes a context as CUDA does: its memory ([`CONTEXT_BYTES`]), a compute group with eight
    /// channels, and three groups of copy engines with four each. Gives the compute group.
    ///
    /// # Errors
    /// [`TenantError::Rm`]. Memory that it has by then stays, as CUDA's does.
    pub fn context(&mut self) -> Result<Object, TenantError> {
        for mib in CONTEXT_MEMORY {
            self.alloc(mib << 20)?;
        }
        let base = 0x5C00_0015 + CONTEXT_HANDLES * self.groups.len() as u32;
        let compute = self.group(base, COMPUTE_CHANNELS, &[CLASS_COMPUTE, CLASS_COPY])?;
        for n in 1..=COPY_GROUPS {
            let copy = self.group(base + 0x30 * n, COPY_CHANNELS, &[CLASS_COPY])?;
            self.rm().set_timeslice(self.client, copy, COPY_SLICE)?;
        }
        self.groups.push(compute);
        Ok(compute)
    }

    fn group(&self, handle: u32, channels: u32, engines: &[u32]) -> Result<Object, RmError> {
        let alloc = |parent: Object, handle: u32, class: u32| {
            let none = None::<&mut DeviceParams>;
            let form = AllocForm::Short;
            self.rm()
                .alloc(form, self.client, parent, Object(handle), class, none)
        };
        let group = alloc(self.device, handle, CLASS_CHANNEL_GROUP)?;
        for n in 0..channels {
            let handle = handle + 1 + 4 * n;
            let channel = alloc(group, handle, CLASS_CHANNEL)?;
            for (&class, engine) in engines.iter().zip(1..) {
                alloc(channel, handle + engine, class)?;
            }
        }
        Ok(group)
    }

    /// The parameters with which CUDA asks for device memory.
    pub fn memory_params(&self, bytes: u64) -> MemoryParams {
        MemoryParams {
            owner: self.client.0,
            flags: MEMORY_FLAGS,
            attr: MEMORY_ATTR,
            size: bytes,
            alignment: 2 << 20,
            ..MemoryParams::default()
        }
    }

    /// Allocates device memory, under a handle that was not used before.
    ///
    /// # Errors
    /// [`ghost_rm::Status::NO_MEMORY`] if there is not as much.
    pub fn alloc(&self, bytes: u64) -> Result<Object, RmError> {
        let mut params = self.memory_params(bytes);
        self.alloc_with(AllocForm::WithRights, &mut params)
    }

    /// As [`Tenant::alloc`], with parameters of the caller's.
    ///
    /// # Errors
    /// As [`Tenant::alloc`]; others by what the parameters ask for.
    pub fn alloc_with(
        &self,
        form: AllocForm,
        params: &mut MemoryParams,
    ) -> Result<Object, RmError> {
        let (client, wanted) = (self.client, self.new_memory());
        let class = CLASS_DEVICE_MEMORY;
        self.rm()
            .alloc(form, client, self.device, wanted, class, Some(params))
    }

    /// Allocates device memory by the older heap control; the driver picks the handle.
    ///
    /// # Errors
    /// As [`Tenant::alloc`].
    pub fn heap_alloc(&self, bytes: u64) -> Result<Object, TenantError> {
        let mut heap = self.heap(HEAP_ALLOC_SIZE);
        // Owner, handle, kind and flags; attributes; size.
        heap.body[0] = self.client.0.into();
        heap.body[2] = MEMORY_ATTR.into();
        heap.body[6] = bytes;
        self.call(ESC_RM_VID_HEAP_CONTROL, &mut heap)?;
        match Status(heap.status) {
            Status::OK => Ok(Object((heap.body[0] >> 32) as u32)),
            status => Err(TenantError::Status(status)),
        }
    }

    /// Total and free bytes of the GPU's memory as the older heap control tells them.
    ///
    /// # Errors
    /// [`TenantError`].
    pub fn heap_info(&self) -> Result<(u64, u64), TenantError> {
        let mut heap = self.heap(HEAP_INFO);
        self.call(ESC_RM_VID_HEAP_CONTROL, &mut heap)?;
        match Status(heap.status) {
            Status::OK => Ok((heap.total, heap.free)),
            status => Err(TenantError::Status(status)),
        }
    }

    fn heap(&self, function: u32) -> Heap {
        Heap {
            root: self.client.0,
            parent: self.device.0,
            function,
            vaspace: 0,
            ivc_heap: 0,
            pad: 0,
            status: 0,
            total: 0,
            free: 0,
            body: [0; 18],
        }
    }

    /// Frees memory.
    ///
    /// # Errors
    /// [`ghost_rm::Status::INVALID_OBJECT_OLD`] if it is not there.
    pub fn free(&self, memory: Object) -> Result<(), RmError> {
        self.rm().free(self.client, self.device, memory)
    }

    /// Takes memory of another process too, as CUDA does to import it.
    ///
    /// # Errors
    /// [`ghost_rm::Status::INVALID_CLIENT`], [`ghost_rm::Status::OBJECT_NOT_FOUND`].
    pub fn import(&self, from: Client, memory: Object) -> Result<Object, RmError> {
        let wanted = self.new_memory();
        self.rm()
            .dup(self.client, self.device, wanted, from, memory)
    }

    fn new_memory(&self) -> Object {
        let n = self.memories.get();
        self.memories.set(n + 1);
        Object(MEMORY_HANDLES + n)
    }

    /// Total and free bytes of the GPU's memory as `cuMemGetInfo` asks for them, and the total
    /// as NVML does.
    ///
    /// # Errors
    /// [`RmError`].
    pub fn memory_info(&self) -> Result<[u64; 3], RmError> {
        let mut params = MemoryInfo {
            count: 3,
            entries: [MemoryInfoEntry::default(); MAX_MEMORY_INFOS],
        };
        let asked = [
            MemoryInfoEntry::HEAP_SIZE,
            MemoryInfoEntry::HEAP_FREE,
            MemoryInfoEntry::TOTAL_RAM_SIZE,
        ];
        for (entry, index) in params.entries.iter_mut().zip(asked) {
            entry.index = index;
        }
        let (client, subdevice) = (self.client, self.subdevice());
        self.rm()
            .control(client, subdevice, READ_MEMORY_INFO, &mut params)?;
        let [total, free, ram, ..] = params.entries;
        Ok([total, free, ram].map(|entry| u64::from(entry.data) << 10))
    }

    /// As [`Tenant::memory_info`], with the list outside of the parameters, as older programs ask.
    ///
    /// # Errors
    /// [`TenantError`].
    pub fn memory_info_list(&self) -> Result<[u64; 3], TenantError> {
        let mut list = [
            MemoryInfoEntry::HEAP_SIZE,
            MemoryInfoEntry::HEAP_FREE,
            MemoryInfoEntry::TOTAL_RAM_SIZE,
        ]
        .map(|index| MemoryInfoEntry { index, data: 0 });
        let mut params = MemoryInfoList {
            count: list.len() as u32,
            pad: 0,
            entries: list.as_mut_ptr() as u64,
        };
        let mut args = ControlArgs {
            client: self.client.0,
            object: self.subdevice().0,
            cmd: MEMORY_INFO_LIST,
            params: std::ptr::from_mut(&mut params) as u64,
            params_size: size_of::<MemoryInfoList>() as u32,
            ..ControlArgs::default()
        };
        self.call(ESC_RM_CONTROL, &mut args)?;
        match Status(args.status) {
            Status::OK => Ok(list.map(|entry| u64::from(entry.data) << 10)),
            status => Err(TenantError::Status(status)),
        }
    }

    /// The processes that compute on the GPU and the bytes that each holds, as `nvidia-smi` asks
    /// for them.
    ///
    /// # Errors
    /// [`RmError`].
    pub fn processes(&self) -> Result<Vec<(u32, u64)>, RmError> {
        let (client, subdevice) = (self.client, self.subdevice());
        let mut pids = Pids {
            id_type: 0,
            class: CLASS_COMPUTE,
            count: 0,
            pids: [0; MAX_PIDS],
        };
        self.rm()
            .control(client, subdevice, discover::PIDS, &mut pids)?;
        let mut infos = PidInfos {
            count: (pids.count as usize).min(MAX_PID_INFOS) as u32,
            pad: 0,
            entries: [PidInfo::default(); MAX_PID_INFOS],
        };
        if infos.count == 0 {
            return Ok(Vec::new());
        }
        for (entry, pid) in infos.entries.iter_mut().zip(pids.pids) {
            entry.pid = pid;
        }
        self.rm().control(client, subdevice, PID_INFO, &mut infos)?;
        let [private, owned] = [0, 1];
        let held = |entry: PidInfo| (entry.pid, entry.memory[private] + entry.memory[owned]);
        let entries = infos.entries.into_iter().take(infos.count as usize);
        Ok(entries.map(held).collect())
    }

    /// Makes call `number` on the control file with `argument`, as it is.
    fn call<A>(&self, number: u8, argument: &mut A) -> Result<(), TenantError> {
        let request = iowr(number, size_of::<A>());
        // SAFETY: the argument is as many bytes as the request says. Where it holds an address,
        // that is of this process's memory or of none, which the stand-in reads and writes from
        // outside.
        let rc = unsafe { libc::ioctl(self.control.as_raw_fd(), request as _, argument) };
        if rc < 0 {
            let error = io::Error::last_os_error();
            return Err(TenantError::Io("nvidiactl".into(), error));
        }
        Ok(())
    }

    /// The channels of a compute group that [`Tenant::context`] made.
    pub fn channels(&self, group: Object) -> Vec<Object> {
        let handles = (0..COMPUTE_CHANNELS).map(|n| group.0 + 1 + 4 * n);
        handles.map(Object).collect()
    }

    /// Says what its groups launch, or asks how far they are.
    ///
    /// # Errors
    /// [`TenantError::Io`], [`TenantError::Refused`].
    pub fn ask(&mut self, request: &Request) -> Result<Response, TenantError> {
        let failed = |e| TenantError::Io("nvidiactl".into(), e);
        let line = serde_json::to_vec(request).map_err(|e| failed(e.into()))?;
        let mut control = &self.control;
        control.write_all(&line).map_err(failed)?;
        let mut answer = vec![0; 1 << 17];
        let n = control.read(&mut answer).map_err(failed)?;
        answer.truncate(n);
        match serde_json::from_slice(&answer).map_err(|e| failed(e.into()))? {
            Response::Error(why) => Err(TenantError::Refused(why)),
            response => Ok(response),
        }
    }
}
