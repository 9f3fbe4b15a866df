//! NVIDIA's management library, where this host has it: what a device says of itself while others
//! compute on it.

use ghost_wire::hello::Readings;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_void};

type Handle = *mut c_void;
type Status = u32;

/// Names under which it is installed.
const NAMES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "libnvidia-ml.so.1",
];
/// `NVML_TEMPERATURE_GPU`.
const GPU: u32 = 0;
/// Room for a version.
const TEXT: u32 = 96;

/// As `nvmlPciInfo_t` has it.
#[repr(C)]
#[derive(Default)]
struct Pci {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    text: [u8; 32],
}

/// The library, initialised.
#[derive(Debug)]
pub(crate) struct Nvml(Library);

macro_rules! ask {
    ($nvml:expr, $name:expr, ($($arg:expr => $ty:ty),*)) => {{
        // SAFETY: the function of this name has this type by NVML's documentation.
        let found = unsafe { $nvml.0.get::<unsafe extern "C" fn($($ty),*) -> Status>($name) };
        // SAFETY: handles are the library's own; pointers lead to what it fills.
        found.is_ok_and(|function| unsafe { function($($arg),*) } == 0)
    }};
}

impl Nvml {
    /// Loads it; none where it is not installed or does not start.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: the vendor's library, whose initialisers may run at any time.
        let library = NAMES
            .iter()
            .find_map(|name| unsafe { Library::new(name) }.ok());
        let nvml = Self(library?);
        ask!(nvml, b"nvmlInit_v2\0", ()).then_some(nvml)
    }

    /// What it says of the device at PCI address `bus`.
    pub(crate) fn readings(&self, bus: &str) -> Option<Readings> {
        let bus = CString::new(bus).ok()?;
        let mut at: Handle = std::ptr::null_mut();
        let found = ask!(self, b"nvmlDeviceGetHandleByPciBusId_v2\0",
            (bus.as_ptr() => *const c_char, &mut at => &mut Handle));
        if !found {
            return None;
        }
        let mut memory = [0_u64; 3];
        let mut utilization = [0_u32; 2];
        let mut pci = Pci::default();
        Some(Readings {
            driver: self.text(b"nvmlSystemGetDriverVersion\0"),
            nvml: self.text(b"nvmlSystemGetNVMLVersion\0"),
            memory: ask!(self, b"nvmlDeviceGetMemoryInfo\0",
                (at => Handle, &mut memory => &mut [u64; 3]))
            .then_some(memory),
            utilization: ask!(self, b"nvmlDeviceGetUtilizationRates\0",
                (at => Handle, &mut utilization => &mut [u32; 2]))
            .then_some(utilization),
            temperature: self.of(at, b"nvmlDeviceGetTemperature\0", GPU),
            power: self.number(at, b"nvmlDeviceGetPowerUsage\0"),
            power_limits: [
                self.number(at, b"nvmlDeviceGetEnforcedPowerLimit\0"),
                self.number(at, b"nvmlDeviceGetPowerManagementLimit\0"),
            ],
            clocks: [0, 1, 2, 3].map(|kind| self.of(at, b"nvmlDeviceGetClockInfo\0", kind)),
            most_clocks: [0, 1, 2, 3].map(|kind| self.of(at, b"nvmlDeviceGetMaxClockInfo\0", kind)),
            brand: self.number(at, b"nvmlDeviceGetBrand\0"),
            architecture: self.number(at, b"nvmlDeviceGetArchitecture\0"),
            minor: self.number(at, b"nvmlDeviceGetMinorNumber\0"),
            persistence: self.number(at, b"nvmlDeviceGetPersistenceMode\0"),
            pci: ask!(self, b"nvmlDeviceGetPciInfo_v3\0",
                (at => Handle, &mut pci => &mut Pci))
            .then_some([pci.id, pci.subsystem]),
        })
    }

    /// A number of a device.
    fn number(&self, at: Handle, name: &[u8]) -> Option<u32> {
        let mut value = 0;
        ask!(self, name, (at => Handle, &mut value => &mut u32)).then_some(value)
    }

    /// A number of a part of a device.
    fn of(&self, at: Handle, name: &[u8], part: u32) -> Option<u32> {
        let mut value = 0;
        ask!(self, name, (at => Handle, part => u32, &mut value => &mut u32)).then_some(value)
    }

    /// A text of the system.
    fn text(&self, name: &[u8]) -> Option<String> {
        let mut room = [0_u8; TEXT as usize];
        let told = ask!(self, name, (room.as_mut_ptr() => *mut u8, TEXT => u32));
        let text = CStr::from_bytes_until_nul(&room).ok().filter(|_| told)?;
        Some(text.to_string_lossy().into_owned())
    }
}
