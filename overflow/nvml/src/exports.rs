//! The functions, with the names and arguments of `nvml.h`.

use crate::abi::*;
use crate::far::{self, Far};
use crate::text::{Bus, uuid};
use ghost_wire::hello::{Device, Readings};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

/// `nvmlDevice_t`: the device's number and one, so that none is null.
type Handle = *mut c_void;

/// Attributes of `cuDeviceGetAttribute`.
const COMPUTE_MODE: usize = 20;
const MAJOR: usize = 75;
const MINOR: usize = 76;

fn index(device: Handle) -> Result<usize, Status> {
    (device as usize).checked_sub(1).ok_or(INVALID_ARGUMENT)
}

/// # Safety
/// `to` is null or has room for one.
unsafe fn tell<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `to` is null or has room for `len` bytes.
unsafe fn tell_text(to: *mut c_char, len: u32, text: &str) -> Result<(), Status> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let text = text.split('\0').next().unwrap_or_default();
    if text.len() >= len as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: there is room for the text and its end.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// # Safety
/// `text` is null or ends.
unsafe fn given<'a>(text: *const c_char) -> Result<&'a str, Status> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// Something of a device that does not change.
fn fixed<T>(
    device: Handle,
    see: impl FnOnce(&Device, &Readings) -> Result<T, Status>,
) -> Result<T, Status> {
    far::with(|far| {
        let (device, readings) = far.device(index(device)?)?;
        see(device, readings)
    })
}

/// Something of a device as it is now.
fn now<T>(device: Handle, see: impl FnOnce(Readings) -> Option<T>) -> Result<T, Status> {
    far::with(|far| see(far.now(index(device)?)?).ok_or(NOT_SUPPORTED))
}

fn attribute(device: &Device, number: usize) -> Result<i32, Status> {
    let value = device.attributes.get(number).copied().flatten();
    value.ok_or(NOT_SUPPORTED)
}

fn find(is: impl Fn(&Device) -> bool) -> Result<Handle, Status> {
    far::with(|far| {
        let at = far.devices().iter().position(|(device, _)| is(device));
        at.map(handle).ok_or(NOT_FOUND)
    })
}

fn handle(index: usize) -> Handle {
    (index + 1) as Handle
}

fn pci(device: Handle) -> Result<PciV3, Status> {
    fixed(device, |device, readings| {
        let bus = Bus::parse(&device.bus).ok_or(NOT_SUPPORTED)?;
        let [id, subsystem] = readings.pci.unwrap_or_default();
        let first = PciV1 {
            text: bus.text(4),
            domain: bus.domain,
            bus: bus.bus,
            device: bus.device,
            id,
        };
        Ok(PciV3 {
            second: PciV2 { first, subsystem },
            text: bus.text(8),
        })
    })
}

/// # Safety
/// `count` is null or a number; `to` is null or has room for as many as it says.
unsafe fn processes<T>(
    device: Handle,
    count: *mut u32,
    to: *mut T,
    each: impl Fn(ProcessV1) -> T,
) -> Result<(), Status> {
    let pids = far::with(|far| far.device(index(device)?).and_then(|_| far.processes()))?;
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { count.read() } as usize;
    // SAFETY: as above.
    unsafe { count.write(pids.len() as u32) };
    if pids.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    if to.is_null() && !pids.is_empty() {
        return Err(INVALID_ARGUMENT);
    }
    for (n, pid) in pids.into_iter().enumerate() {
        let memory = NOT_AVAILABLE;
        // SAFETY: there is room for as many.
        unsafe { to.add(n).write(each(ProcessV1 { pid, memory })) };
    }
    Ok(())
}

fn second(first: ProcessV1) -> ProcessV2 {
    ProcessV2 {
        first,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    }
}

fn status(done: Result<(), Status>) -> Status {
    done.err().unwrap_or(SUCCESS)
}

macro_rules! exports {
    ($($($name:ident),+ ($($arg:ident: $ty:ty),*) $body:block)*) => {
        $(exports!(@each [$($name)+] ($($arg: $ty),*) $body);)*
    };
    (@each [$($name:ident)+] $args:tt $body:block) => {
        $(exports!(@one $name $args $body);)+
    };
    (@one $name:ident ($($arg:ident: $ty:ty),*) $body:block) => {
        /// # Safety
        /// Pointers are null or lead to what the call reads or writes.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> Status {
            let body = || -> Result<(), Status> { $body };
            status(body())
        }
    };
}

/// Functions that tell one value: of the device, by an expression.
macro_rules! values {
    ($($name:ident ($device:ident $(, $arg:ident: $arg_ty:ty)*) -> $ty:ty = $value:expr;)*) => {
        exports! { $($name($device: Handle $(, $arg: $arg_ty)*, to: *mut $ty) {
            let value: $ty = $value?;
            // SAFETY: the caller's promise.
            unsafe { tell(to, value) }
        })* }
    };
}

exports! {
    nvmlInit, nvmlInit_v2() { far::init() }
    nvmlInitWithFlags(_flags: u32) { far::init() }
    nvmlShutdown() { far::shutdown() }
    nvmlSystemGetDriverVersion(to: *mut c_char, len: u32) {
        let text = far::with(|far| system(far, |readings| readings.driver.clone()))?;
        // SAFETY: the caller's promise.
        unsafe { tell_text(to, len, &text) }
    }
    nvmlSystemGetNVMLVersion(to: *mut c_char, len: u32) {
        let text = far::with(|far| system(far, |readings| readings.nvml.clone()))?;
        // SAFETY: the caller's promise.
        unsafe { tell_text(to, len, &text) }
    }
    nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2(to: *mut i32) {
        let version = far::with(|far| i32::try_from(far.version).map_err(|_| NOT_SUPPORTED))?;
        // SAFETY: the caller's promise.
        unsafe { tell(to, version) }
    }
    nvmlDeviceGetCount, nvmlDeviceGetCount_v2(to: *mut u32) {
        let count = far::with(|far| Ok(far.devices().len() as u32))?;
        // SAFETY: the caller's promise.
        unsafe { tell(to, count) }
    }
    nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2(number: u32, to: *mut Handle) {
        let number = number as usize;
        far::with(|far| far.device(number).map(|_| ()))?;
        // SAFETY: the caller's promise.
        unsafe { tell(to, handle(number)) }
    }
    nvmlDeviceGetHandleByUUID(text: *const c_char, to: *mut Handle) {
        // SAFETY: the caller's promise.
        let text = unsafe { given(text) }?;
        let found = find(|device| uuid(&device.uuid) == text)?;
        // SAFETY: the caller's promise.
        unsafe { tell(to, found) }
    }
    nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2(text: *const c_char, to: *mut Handle) {
        // SAFETY: the caller's promise.
        let bus = Bus::parse(unsafe { given(text) }?).ok_or(INVALID_ARGUMENT)?;
        let found = find(|device| Bus::parse(&device.bus) == Some(bus))?;
        // SAFETY: the caller's promise.
        unsafe { tell(to, found) }
    }
    nvmlDeviceGetName(device: Handle, to: *mut c_char, len: u32) {
        let name = fixed(device, |device, _| Ok(device.name.clone()))?;
        // SAFETY: the caller's promise.
        unsafe { tell_text(to, len, &name) }
    }
    nvmlDeviceGetUUID(device: Handle, to: *mut c_char, len: u32) {
        let text = fixed(device, |device, _| Ok(uuid(&device.uuid)))?;
        // SAFETY: the caller's promise.
        unsafe { tell_text(to, len, &text) }
    }
    nvmlDeviceGetMemoryInfo_v2(device: Handle, to: *mut MemoryV2) {
        if to.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's promise.
        if unsafe { (*to).version } != MemoryV2::VERSION {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let [total, free, used] = now(device, |now| now.memory)?;
        let (version, reserved) = (MemoryV2::VERSION, total.saturating_sub(free).saturating_sub(used));
        // SAFETY: the caller's promise.
        unsafe { tell(to, MemoryV2 { version, total, reserved, free, used }) }
    }
    nvmlDeviceGetCudaComputeCapability(device: Handle, major: *mut i32, minor: *mut i32) {
        let [first, second] = fixed(device, |device, _| {
            Ok([attribute(device, MAJOR)?, attribute(device, MINOR)?])
        })?;
        // SAFETY: the caller's promise.
        unsafe { tell(major, first).and_then(|()| tell(minor, second)) }
    }
    nvmlDeviceGetComputeRunningProcesses(device: Handle, count: *mut u32, to: *mut ProcessV1) {
        // SAFETY: the caller's promise.
        unsafe { processes(device, count, to, |first| first) }
    }
    nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut u32, to: *mut ProcessV2) {
        // SAFETY: the caller's promise.
        unsafe { processes(device, count, to, second) }
    }
    nvmlDeviceGetMigMode(device: Handle, _now: *mut u32, _pending: *mut u32) {
        fixed(device, |_, _| Err(NOT_SUPPORTED))
    }
    nvmlDeviceGetTopologyCommonAncestor(one: Handle, other: Handle, _level: *mut u32) {
        fixed(one, |_, _| Ok(()))?;
        fixed(other, |_, _| Err(NOT_SUPPORTED))
    }
    nvmlDeviceGetNvLinkState, nvmlDeviceGetNvLinkVersion(device: Handle, _link: u32, _to: *mut u32) {
        fixed(device, |_, _| Err(NOT_SUPPORTED))
    }
    nvmlDeviceGetNvLinkCapability(device: Handle, _link: u32, _what: u32, _to: *mut u32) {
        fixed(device, |_, _| Err(NOT_SUPPORTED))
    }
}

values! {
    nvmlDeviceGetIndex(device) -> u32 = fixed(device, |_, _| Ok(index(device)? as u32));
    nvmlDeviceGetMinorNumber(device) -> u32 = reading(device, |readings| readings.minor);
    nvmlDeviceGetBrand(device) -> u32 = reading(device, |readings| readings.brand);
    nvmlDeviceGetArchitecture(device) -> u32 = reading(device, |readings| readings.architecture);
    nvmlDeviceGetComputeMode(device) -> u32 = fixed(device, |device, _| {
        u32::try_from(attribute(device, COMPUTE_MODE)?).map_err(|_| NOT_SUPPORTED)
    });
    nvmlDeviceGetPciInfo(device) -> PciV1 = pci(device).map(|pci| pci.second.first);
    nvmlDeviceGetPciInfo_v2(device) -> PciV2 = pci(device).map(|pci| pci.second);
    nvmlDeviceGetPciInfo_v3(device) -> PciV3 = pci(device);
    nvmlDeviceGetMemoryInfo(device) -> Memory = now(device, |now| now.memory)
        .map(|[total, free, used]| Memory { total, free, used });
    nvmlDeviceGetUtilizationRates(device) -> Utilization = now(device, |now| now.utilization)
        .map(|[gpu, memory]| Utilization { gpu, memory });
    nvmlDeviceGetPersistenceMode(device) -> u32 = now(device, |now| now.persistence);
    nvmlDeviceGetTemperature(device, sensor: u32) -> u32 = match sensor {
        0 => now(device, |now| now.temperature),
        _ => Err(INVALID_ARGUMENT),
    };
    nvmlDeviceGetPowerUsage(device) -> u32 = now(device, |now| now.power);
    nvmlDeviceGetEnforcedPowerLimit(device) -> u32 = now(device, |now| now.power_limits[0]);
    nvmlDeviceGetPowerManagementLimit(device) -> u32 = now(device, |now| now.power_limits[1]);
    nvmlDeviceGetClockInfo(device, kind: u32) -> u32 = clock(device, kind, |now| now.clocks);
    nvmlDeviceGetMaxClockInfo(device, kind: u32) -> u32 = clock(device, kind, |now| now.most_clocks);
}

fn reading<T>(device: Handle, see: impl FnOnce(&Readings) -> Option<T>) -> Result<T, Status> {
    fixed(device, |_, readings| see(readings).ok_or(NOT_SUPPORTED))
}

fn system<T>(far: &Far, see: impl Fn(&Readings) -> Option<T>) -> Result<T, Status> {
    let mut all = far.devices().iter();
    all.find_map(|(_, readings)| see(readings))
        .ok_or(NOT_SUPPORTED)
}

fn clock(
    device: Handle,
    kind: u32,
    see: impl FnOnce(Readings) -> [Option<u32>; 4],
) -> Result<u32, Status> {
    if kind > 3 {
        return Err(INVALID_ARGUMENT);
    }
    now(device, |now| see(now).get(kind as usize).copied().flatten())
}

/// The private tables by which `nvidia-smi` asks: none is here.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInternalGetExportTable(
    to: *mut *const c_void,
    _id: *const c_void,
) -> Status {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        far::tell("a private table of NVML is asked for, as nvidia-smi does: a far host has none");
    });
    // SAFETY: null, or a pointer to be written.
    status(unsafe { tell(to, std::ptr::null()) }.and(Err(NOT_SUPPORTED)))
}

/// A word for people, which stays.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    let text = match status {
        SUCCESS => c"The call succeeded",
        UNINITIALIZED => c"nvmlInit was not called",
        INVALID_ARGUMENT => c"An argument is not one that the call takes",
        NOT_SUPPORTED => c"Not known of a device on another host",
        NOT_FOUND => c"There is no such device",
        INSUFFICIENT_SIZE => c"The buffer is too small",
        DRIVER_NOT_LOADED => c"The host that computes can't be asked",
        GPU_IS_LOST => c"The host that computes does not answer any more",
        ARGUMENT_VERSION_MISMATCH => c"The structure has a version that is not known",
        _ => c"Not a status that this library answers",
    };
    text.as_ptr()
}
