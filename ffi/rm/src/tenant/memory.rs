//! How much of the device's memory an allocation takes.

use std::mem::offset_of;

use super::Malformed;
use crate::abi::memory::{HEAP_ALLOC_PITCH, HeapLayout, MemoryParams};
use crate::bytes::{long, word};

/// The least that the driver gives, bytes.
const LEAST_PAGE: u64 = 64 << 10;
const HUGE_PAGE: u64 = 2 << 20;

/// An allocation of memory: what is wanted, and after the driver's answer what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes wanted; means nothing in an answer.
    pub wanted: u64,
    /// Bytes given, in an answer; means nothing before.
    pub given: u64,
    /// Flags: see [`MemoryParams`].
    pub flags: u32,
    /// Attributes: see [`MemoryParams::LOCATION`].
    pub attr: u32,
    /// More attributes.
    pub attr2: u32,
    /// Whether it is memory of the device at all, and not of the host or an address space.
    pub on_device: bool,
}

/// Reads the parameters of an allocation of class 0x40, before or after the driver's answer.
///
/// # Errors
///
/// [`Malformed::Short`] if `params` ends before what every branch has.
pub fn device_memory(params: &[u8]) -> Result<DeviceMemory, Malformed> {
    let read = || {
        let flags = word(params, offset_of!(MemoryParams, flags))?;
        let attr = word(params, offset_of!(MemoryParams, attr))?;
        let size = long(params, offset_of!(MemoryParams, size))?;
        Some(DeviceMemory {
            wanted: size,
            given: size,
            flags,
            attr,
            attr2: word(params, offset_of!(MemoryParams, attr2))?,
            on_device: attr & MemoryParams::LOCATION == 0 && flags & MemoryParams::VIRTUAL == 0,
        })
    };
    let wanted = offset_of!(MemoryParams, numa);
    let short = Malformed::Short {
        what: "parameters of device memory",
        got: params.len(),
        wanted,
    };
    if params.len() < wanted {
        return Err(short);
    }
    read().ok_or(short)
}

impl DeviceMemory {
    /// Of a heap control's allocation.
    pub(super) fn of_heap(argument: &[u8], function: u32, layout: HeapLayout) -> Option<Self> {
        let flags = word(argument, HeapLayout::FLAGS)?;
        let attr = word(argument, layout.attr)?;
        let attr2 = word(argument, layout.attr2)?;
        let given = long(argument, layout.size)?;
        let wanted = if function == HEAP_ALLOC_PITCH {
            let (height, pitch) = HeapLayout::HEIGHT_AND_PITCH;
            let (height, pitch) = (word(argument, height)?, word(argument, pitch)?);
            // A negative pitch is a size that no card has.
            u64::from(height).saturating_mul(i64::from(pitch as i32) as u64)
        } else {
            given
        };
        let on_device = attr & MemoryParams::LOCATION == 0
            && flags & MemoryParams::VIRTUAL == 0
            && attr2 & MemoryParams::EXTENDED == 0;
        Some(Self {
            wanted,
            given,
            flags,
            attr,
            attr2,
            on_device,
        })
    }

    /// Bytes to charge before the driver is asked: the size in whole pages, of the size that the
    /// driver picks where the tenant leaves that to it (2 MiB, H200). 0 off the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if !self.on_device {
            return 0;
        }
        let page = match self.attr & MemoryParams::PAGE_SIZE {
            MemoryParams::PAGE_4K | MemoryParams::PAGE_BIG => LEAST_PAGE,
            MemoryParams::PAGE_HUGE => match self.attr2 & MemoryParams::HUGE {
                MemoryParams::HUGE_512M => 512 << 20,
                MemoryParams::HUGE_256G => 256 << 30,
                _ => HUGE_PAGE,
            },
            _ => HUGE_PAGE,
        };
        self.wanted
            .checked_next_multiple_of(page)
            .unwrap_or(u64::MAX)
    }

    /// Bytes that the driver's answer says were taken: equal to what NVML counts (H200). 0 off
    /// the device.
    #[must_use]
    pub fn held(&self) -> u64 {
        if self.on_device { self.given } else { 0 }
    }
}
