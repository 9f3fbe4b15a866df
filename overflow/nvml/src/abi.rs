//! Numbers and structures as `nvml.h` has them.

/// `nvmlReturn_t`.
pub(crate) type Status = u32;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const UNINITIALIZED: Status = 1;
pub(crate) const INVALID_ARGUMENT: Status = 2;
pub(crate) const NOT_SUPPORTED: Status = 3;
pub(crate) const NOT_FOUND: Status = 6;
pub(crate) const INSUFFICIENT_SIZE: Status = 7;
pub(crate) const DRIVER_NOT_LOADED: Status = 9;
pub(crate) const GPU_IS_LOST: Status = 15;
pub(crate) const ARGUMENT_VERSION_MISMATCH: Status = 25;

/// A number that is not known: `NVML_VALUE_NOT_AVAILABLE`.
pub(crate) const NOT_AVAILABLE: u64 = u64::MAX;

/// `nvmlMemory_t`, bytes.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`, bytes.
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

impl MemoryV2 {
    /// What the caller has to put into `version`: the size, and 2 in the highest byte.
    pub(crate) const VERSION: u32 = size_of::<Self>() as u32 | 2 << 24;
}

/// `nvmlUtilization_t`, percent.
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
}

/// `nvmlPciInfo_t` as of its first version.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciV1 {
    pub(crate) text: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) id: u32,
}

/// As of its second version; reserved words follow, which stay as they are.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciV2 {
    pub(crate) first: PciV1,
    pub(crate) subsystem: u32,
}

/// As of its third version.
#[repr(C)]
pub(crate) struct PciV3 {
    pub(crate) second: PciV2,
    pub(crate) text: [u8; 32],
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(crate) struct ProcessV1 {
    pub(crate) pid: u32,
    pub(crate) memory: u64,
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
pub(crate) struct ProcessV2 {
    pub(crate) first: ProcessV1,
    /// All ones: no part of a GPU.
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_that_programs_give_them() {
        assert_eq!(size_of::<Memory>(), 24);
        assert_eq!(MemoryV2::VERSION, 0x0200_0028);
        assert_eq!(size_of::<PciV1>(), 32);
        assert_eq!(size_of::<PciV3>(), 68);
        assert_eq!((size_of::<ProcessV1>(), size_of::<ProcessV2>()), (16, 24));
    }
}
