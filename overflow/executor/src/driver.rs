//! The driver: NVIDIA's, opened at run time, or the CPU device. Each function is looked up once, by
//! name; one that is missing answers that it is not supported.
//!
//! Handles and device addresses here are the driver's own. They come from the driver by way of
//! [`crate::handles`], never off the wire.

use ghost_wire::api::{ENTRIES, Op};
use ghost_wire::result::{Code, NOT_SUPPORTED, SUCCESS};
use std::ffi::{CString, c_char, c_void};
use std::mem::transmute;

/// The oldest driver that tells the layout of parameters: CUDA 12.4.
const OLDEST: i32 = 12040;

/// Names under which NVIDIA's driver is installed.
const NAMES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "libcuda.so.1",
];

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// This host's processor, by interpreting PTX: slow, for tests.
    Cpu,
    /// GPUs, by NVIDIA's driver.
    Nvidia,
}

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Not installed, or broken.
    #[error("NVIDIA's driver (libcuda.so.1) can't be loaded on this host: {0}")]
    Missing(libloading::Error),
    /// A function that each driver has.
    #[error("this host's driver lacks {0}: is it NVIDIA's?")]
    Lacks(&'static str),
    /// It does not start.
    #[error("this host's driver does not start: {0} answered {1}")]
    Start(&'static str, Code),
    /// Too old.
    #[error(
        "this host's driver serves CUDA {}.{}; overflow needs 12.4 or later: update the driver there",
        .0 / 1000, .0 % 1000 / 10
    )]
    Old(i32),
}

type Address = *const c_void;

enum Source {
    Nvidia(libloading::Library),
    Cpu,
}

impl Source {
    fn find(&self, symbol: &str) -> Option<Address> {
        match self {
            Self::Cpu => ghost_cpu_device::resolve(symbol),
            Self::Nvidia(library) => {
                let symbol = CString::new(symbol).ok()?;
                // SAFETY: only the address is taken; it is called with the type that cuda.h gives.
                let found = unsafe { library.get::<Address>(symbol.as_bytes_with_nul()) };
                found.ok().map(|found| *found)
            }
        }
    }
}

macro_rules! calls {
    ($($(#[$safety:ident])? fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> Code>,)*
        }

        impl Calls {
            fn find(source: &Source) -> Self {
                Self {
                    $($name: source.find(stringify!($name)).map(|at| {
                        // SAFETY: the function of this name has this type.
                        unsafe { transmute::<Address, unsafe extern "C" fn($($ty),*) -> Code>(at) }
                    }),)*
                }
            }
        }

        $(call!($($safety)? $name($($arg: $ty),*));)*
    };
}

macro_rules! call {
    (pointers $name:ident($($arg:ident: $ty:ty),*)) => {
        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Driver {
            /// Calls it.
            ///
            /// # Safety
            /// Pointers lead to what the call reads or writes, for as long as it may.
            #[inline]
            pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Code> {
                match self.calls.$name {
                    // SAFETY: the caller's promise.
                    Some(function) => answer(unsafe { function($($arg),*) }),
                    None => Err(NOT_SUPPORTED),
                }
            }
        }
    };
    ($name:ident($($arg:ident: $ty:ty),*)) => {
        #[allow(non_snake_case)]
        impl Driver {
            /// Calls it: nothing of the caller's is kept.
            #[inline]
            pub(crate) fn $name(&self, $($arg: $ty),*) -> Result<(), Code> {
                match self.calls.$name {
                    // SAFETY: handles are the driver's own, references are valid.
                    Some(function) => answer(unsafe { function($($arg),*) }),
                    None => Err(NOT_SUPPORTED),
                }
            }
        }
    };
}

/// A code as a result.
#[inline]
pub(crate) fn answer(code: Code) -> Result<(), Code> {
    match code {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// A function that the driver calls in a stream's order.
pub(crate) type HostFn = unsafe extern "C" fn(data: *mut c_void);
/// As `cuStreamAddCallback` has it.
pub(crate) type StreamFn = unsafe extern "C" fn(stream: u64, status: Code, data: *mut c_void);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: *const u64,
    pub(crate) count: u32,
}

/// One end in `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct BoxEnd {
    pub(crate) from: [u64; 3],
    pub(crate) level: u64,
    pub(crate) kind: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) reserved: u64,
    pub(crate) pitch: u64,
    pub(crate) height: u64,
}

impl BoxEnd {
    /// Whether it is memory of the host.
    pub(crate) fn host_end(&self) -> bool {
        self.kind == ghost_wire::message::place::HOST
    }
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct BoxCopy {
    pub(crate) from: BoxEnd,
    pub(crate) to: BoxEnd,
    pub(crate) extent: [u64; 3],
}

/// One end in `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PlaneEnd {
    from: [u64; 2],
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: u64,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneCopy {
    from: PlaneEnd,
    to: PlaneEnd,
    extent: [u64; 2],
}

impl BoxEnd {
    fn plane(&self) -> Option<PlaneEnd> {
        let [x, y, z] = self.from;
        (z == 0 && self.level == 0).then_some(PlaneEnd {
            from: [x, y],
            kind: self.kind,
            host: self.host,
            device: self.device,
            array: self.array,
            pitch: self.pitch,
        })
    }
}

impl BoxCopy {
    /// The same of two dimensions, if it has no more.
    fn plane(&self) -> Option<PlaneCopy> {
        let [width, rows, slices] = self.extent;
        if slices != 1 {
            return None;
        }
        Some(PlaneCopy {
            from: self.from.plane()?,
            to: self.to.plane()?,
            extent: [width, rows],
        })
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KernelNode {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) params: *mut *const u8,
    pub(crate) extra: *mut *const u8,
    pub(crate) kernel: u64,
    pub(crate) context: u64,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct HostNode {
    pub(crate) function: HostFn,
    pub(crate) data: *mut c_void,
}

calls! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: &mut i32);
    fn cuDeviceGetCount(count: &mut i32);
    fn cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: i32);
    fn cuDeviceTotalMem_v2(bytes: &mut u64, device: i32);
    fn cuDeviceGetAttribute(value: &mut i32, attribute: i32, device: i32);
    #[pointers] fn cuDeviceGetName(name: *mut u8, len: i32, device: i32);
    #[pointers] fn cuDeviceGetPCIBusId(id: *mut u8, len: i32, device: i32);
    fn cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDevicePrimaryCtxReset_v2(device: i32);
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32);
    fn cuCtxCreate_v2(context: &mut u64, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: u64);
    fn cuCtxSetCurrent(context: u64);
    fn cuCtxSynchronize();
    fn cuStreamSynchronize(stream: u64);
    fn cuStreamQuery(stream: u64);
    fn cuStreamIsCapturing(stream: u64, status: &mut u32);
    fn cuStreamGetCaptureInfo_v2(stream: u64, status: &mut u32, id: &mut u64, graph: &mut u64, nodes: &mut *const u64, count: &mut usize);
    fn cuEventCreate(event: &mut u64, flags: u32);
    fn cuEventRecord(event: u64, stream: u64);
    fn cuEventQuery(event: u64);
    fn cuEventSynchronize(event: u64);
    #[pointers] fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: u64);
    #[pointers] fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, len: usize, stream: u64);
    #[pointers] fn cuMemcpy2DAsync_v2(copy: &PlaneCopy, stream: u64);
    #[pointers] fn cuMemcpy3DAsync_v2(copy: &BoxCopy, stream: u64);
    #[pointers] fn cuMemHostRegister_v2(at: *mut u8, len: usize, flags: u32);
    #[pointers] fn cuMemHostUnregister(at: *mut u8);
    #[pointers] fn cuMemHostGetDevicePointer_v2(device: &mut u64, at: *mut u8, flags: u32);
    fn cuMemAllocManaged(at: &mut u64, len: usize, flags: u32);
    fn cuMemFree_v2(at: u64);
    fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    fn cuMemGetAddressRange_v2(start: &mut u64, len: &mut usize, at: u64);
    #[pointers] fn cuPointerGetAttribute(value: *mut u32, attribute: u32, at: u64);
    #[pointers] fn cuModuleLoadDataEx(module: &mut u64, image: *const u8, count: u32, options: *const u32, values: *mut u64);
    fn cuModuleUnload(module: u64);
    #[pointers] fn cuModuleGetGlobal_v2(at: &mut u64, len: &mut usize, module: u64, name: *const c_char);
    fn cuModuleGetFunctionCount(count: &mut u32, module: u64);
    #[pointers] fn cuModuleEnumerateFunctions(functions: *mut u64, count: u32, module: u64);
    fn cuFuncGetName(name: &mut *const c_char, function: u64);
    fn cuFuncGetParamInfo(function: u64, index: usize, offset: &mut usize, size: &mut usize);
    #[pointers] fn cuLibraryLoadData(library: &mut u64, image: *const u8, options: *const u32, values: *mut u64, count: u32, more: *const u32, more_values: *const u64, more_count: u32);
    fn cuLibraryUnload(library: u64);
    fn cuLibraryGetModule(module: &mut u64, library: u64);
    #[pointers] fn cuLibraryGetGlobal(at: &mut u64, len: &mut usize, library: u64, name: *const c_char);
    #[pointers] fn cuLibraryGetManaged(at: &mut u64, len: &mut usize, library: u64, name: *const c_char);
    fn cuLibraryGetKernelCount(count: &mut u32, library: u64);
    #[pointers] fn cuLibraryEnumerateKernels(kernels: *mut u64, count: u32, library: u64);
    fn cuKernelGetFunction(function: &mut u64, kernel: u64);
    fn cuKernelGetName(name: &mut *const c_char, kernel: u64);
    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: &mut usize, size: &mut usize);
    #[pointers] fn cuLaunchKernel(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, params: *mut *const u8, extra: *mut *const u8);
    #[pointers] fn cuLaunchKernelEx(config: &LaunchConfig, function: u64, params: *mut *const u8, extra: *mut *const u8);
    #[pointers] fn cuLaunchHostFunc(stream: u64, function: HostFn, data: *mut c_void);
    #[pointers] fn cuStreamAddCallback(stream: u64, function: StreamFn, data: *mut c_void, flags: u32);
    #[pointers] fn cuGraphAddKernelNode_v2(node: &mut u64, graph: u64, after: *const u64, count: usize, params: &KernelNode);
    #[pointers] fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: &KernelNode);
    #[pointers] fn cuGraphAddMemcpyNode(node: &mut u64, graph: u64, after: *const u64, count: usize, copy: &BoxCopy, context: u64);
    #[pointers] fn cuGraphAddHostNode(node: &mut u64, graph: u64, after: *const u64, count: usize, params: &HostNode);
}

/// A driver that was told to start.
pub struct Driver {
    calls: Calls,
    /// Of each row of the table that crosses the wire.
    rows: Vec<Option<usize>>,
    /// What computes.
    pub device: Device,
    /// `cuDriverGetVersion`.
    pub version: u32,
    /// What `cuInit` answered: that is for the client, whose choice of devices may be why it failed.
    pub init: Code,
    /// Devices that a program may use.
    pub count: i32,
    _source: Source,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({:?}, {})", self.device, self.version)
    }
}

impl Driver {
    /// Opens and starts the driver of `device`; by default NVIDIA's where it has a device, else the
    /// CPU device.
    ///
    /// # Errors
    /// [`DriverError`] where the driver asked for is not there or too old. That `cuInit` fails is none.
    pub fn open(device: Option<Device>) -> Result<Self, DriverError> {
        match device {
            Some(Device::Cpu) => Self::start(Source::Cpu, Device::Cpu),
            Some(Device::Nvidia) => Self::start(Self::nvidia()?, Device::Nvidia),
            None => match Self::nvidia() {
                Err(_) => Self::start(Source::Cpu, Device::Cpu),
                Ok(source) => match Self::start(source, Device::Nvidia) {
                    Ok(driver) if driver.count > 0 || hidden() => Ok(driver),
                    Err(error @ DriverError::Old(_)) => Err(error),
                    _ => Self::start(Source::Cpu, Device::Cpu),
                },
            },
        }
    }

    fn nvidia() -> Result<Source, DriverError> {
        let mut last = None;
        for name in NAMES {
            // SAFETY: the driver's library; its constructors are meant to be run.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => return Ok(Source::Nvidia(library)),
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Err(DriverError::Lacks("libcuda.so.1")), |error| {
            Err(DriverError::Missing(error))
        })
    }

    fn start(source: Source, device: Device) -> Result<Self, DriverError> {
        let calls = Calls::find(&source);
        let rows = ENTRIES.iter().map(|entry| {
            let crosses = entry.class.crosses().then_some(entry.symbol)?;
            source.find(crosses).map(|at| at as usize)
        });
        let mut driver = Self {
            rows: rows.collect(),
            calls,
            device,
            version: 0,
            init: SUCCESS,
            count: 0,
            _source: source,
        };
        let mut version = 0;
        let told = driver.cuDriverGetVersion(&mut version);
        told.map_err(|code| DriverError::Start("cuDriverGetVersion", code))?;
        if version < OLDEST {
            return Err(DriverError::Old(version));
        }
        driver.version = version.cast_unsigned();
        if let Err(code) = driver.cuInit(0) {
            driver.init = code;
            return Ok(driver);
        }
        let mut count = 0;
        let told = driver.cuDeviceGetCount(&mut count);
        told.map_err(|code| DriverError::Start("cuDeviceGetCount", code))?;
        driver.count = count;
        Ok(driver)
    }

    /// Copies a box; one of two dimensions as such, which each driver has.
    ///
    /// # Safety
    /// An end that is the host's stays until the copy is done.
    pub(crate) unsafe fn copy_box(&self, copy: &BoxCopy, stream: u64) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        unsafe {
            match copy.plane() {
                Some(plane) => self.cuMemcpy2DAsync_v2(&plane, stream),
                None => self.cuMemcpy3DAsync_v2(copy, stream),
            }
        }
    }

    /// The function of a row of the table.
    #[inline]
    pub(crate) fn row(&self, op: Op) -> Option<usize> {
        self.rows.get(usize::from(op.0)).copied().flatten()
    }
}

/// Whether the program asked for devices by name: then none is what it asked for.
fn hidden() -> bool {
    std::env::var_os("CUDA_VISIBLE_DEVICES").is_some()
}
