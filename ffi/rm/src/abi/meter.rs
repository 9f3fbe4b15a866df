//! Controls and classes that tell who used a GPU: the trace of context
//! switches, the clock that it is stamped with, and samples of utilization.

use std::mem::{offset_of, size_of};

use super::{Command, Plain, sealed};

/// Makes the driver know an event by one of our descriptors; argument
/// [`OsEvent`].
pub const ESC_ALLOC_OS_EVENT: u8 = 206;
/// Maps memory of an object; argument [`MapMemory`].
pub const ESC_RM_MAP_MEMORY: u8 = 0x4E;

/// Class of a buffer that the driver writes events to.
pub const CLASS_EVENT_BUFFER: u32 = 0x90CD;
/// Class of system memory that belongs to no device, for event buffers.
pub const CLASS_EVENT_MEMORY: u32 = 0x90CE;

/// Samples that [`UTILIZATION`] answers at most.
pub const MAX_SAMPLES: usize = 72;
/// Bytes of a record of context switches.
pub const RECORD_SIZE: usize = 32;

command!(
    /// Sends the context switches of a GPU to an event buffer; asked of a
    /// subdevice; privileged for other users' processes.
    BIND_SWITCHES: BindSwitches = 0x2080_1238, "bind context switches"
);
command!(
    /// Lets an event buffer be written.
    ENABLE_EVENTS: EnableEvents = 0x90CD_0101, "enable event buffer"
);
command!(
    /// Tells how far an event buffer was read.
    CONSUMED: Consumed = 0x90CD_0102, "move get of event buffer"
);
command!(
    /// Writes what is known to the event buffer now.
    FLUSH_EVENTS: NoParams = 0x90CD_0104, "flush event buffer"
);
command!(
    /// Reads a GPU's clock, which stamps the records; asked of a subdevice.
    GPU_TIME: GpuTime = 0x2080_0403, "get gpu time"
);
command!(
    /// Reads the last samples of the engines' utilization; asked of a
    /// subdevice; 1.5 ms.
    UTILIZATION: Utilization = 0x2080_2096, "get utilization samples"
);

/// Parameters of a control that takes none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NoParams;

/// Argument of [`ESC_ALLOC_OS_EVENT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEvent {
    /// The client.
    pub client: u32,
    /// The client again, where there is no device.
    pub device: u32,
    /// The descriptor.
    pub fd: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
}

/// Argument of [`ESC_RM_MAP_MEMORY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MapMemory {
    /// The client.
    pub client: u32,
    /// The client again, where there is no device.
    pub device: u32,
    /// The memory.
    pub memory: u32,
    /// Unused.
    pub pad: u32,
    /// Offset in the memory.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Answer: what to give to `mmap` as offset.
    pub address: u64,
    /// Answer: see [`crate::Status`].
    pub status: u32,
    /// 1: read only.
    pub flags: u32,
    /// A descriptor of the control node of its own, to `mmap` on.
    pub fd: i32,
    /// Unused.
    pub pad1: u32,
}

/// Allocation parameters of [`CLASS_EVENT_MEMORY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EventMemory {
    owner: u32,
    kind: u32,
    flags: u32,
    width: u32,
    height: u32,
    pitch: u32,
    attr: u32,
    attr2: u32,
    format: u32,
    coverage: u32,
    z_cull: u32,
    pad0: u32,
    low: u64,
    high: u64,
    size: u64,
    alignment: u64,
    offset: u64,
    limit: u64,
    address: u64,
    tag: u32,
    hva: u32,
    internal_flags: u32,
    tag2: u32,
    numa: i32,
    pad1: u32,
}

impl EventMemory {
    /// `size` bytes of system memory, read only for us.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            // In system memory, and read only for its user: the driver takes
            // no other for events.
            attr: 1 << 29,
            attr2: 1 << 22,
            size,
            ..Self::default()
        }
    }
}

/// Allocation parameters of [`CLASS_EVENT_BUFFER`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EventBuffer {
    header_address: u64,
    records_address: u64,
    record_size: u32,
    record_count: u32,
    variable_address: u64,
    variable_size: u32,
    free_threshold: u32,
    event_fd: u64,
    variable_threshold: u32,
    subdevice: u32,
    flags: u32,
    header: u32,
    records: u32,
    variable: u32,
}

impl EventBuffer {
    /// A buffer of `count` records in memory `records`, its header in memory
    /// `header`. `event_fd` is known as an event. `subdevice` must be one: the
    /// kernel does not check for 0.
    #[must_use]
    pub fn new(
        count: u32,
        header: super::Object,
        records: super::Object,
        event_fd: u32,
        subdevice: super::Object,
    ) -> Self {
        Self {
            record_size: RECORD_SIZE as u32,
            record_count: count,
            free_threshold: count / 2,
            event_fd: event_fd.into(),
            subdevice: subdevice.0,
            header: header.0,
            records: records.0,
            ..Self::default()
        }
    }
}

/// Parameters of [`BIND_SWITCHES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindSwitches {
    /// The event buffer.
    pub buffer: u32,
    /// [`RECORD_SIZE`].
    pub record_size: u32,
    /// 1: starts and ends of contexts.
    pub detail: u32,
    /// 0.
    pub filter: u32,
    /// 1: of all users.
    pub all_users: u8,
    /// Unused.
    pub pad: [u8; 3],
    /// Answer: why not.
    pub reason: u32,
}

/// Parameters of [`ENABLE_EVENTS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EnableEvents {
    /// 1: yes.
    pub enable: u8,
    /// Unused.
    pub pad: [u8; 3],
    /// 2: when full, keep the newest.
    pub flags: u32,
}

/// Parameters of [`CONSUMED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Consumed {
    /// Index of the next record to be read.
    pub get: u32,
    /// 0.
    pub variable_get: u32,
}

/// Parameters of [`GPU_TIME`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuTime {
    /// Nanoseconds.
    pub ns: u64,
}

/// One engine in a [`UtilizationSample`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EngineSample {
    /// How long it was busy, in 1/10000 of the sample's time.
    pub busy: u32,
    reserved: [u32; 31],
}

/// What one sample says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UtilizationSample {
    /// Its end, in nanoseconds of the host's real-time clock; 0 if empty.
    pub at_ns: u64,
    /// The engines; [`UtilizationSample::GRAPHICS`] is the one that computes.
    pub engines: [EngineSample; 6],
}

impl UtilizationSample {
    /// Place in `engines` of the engine for graphics and compute.
    pub const GRAPHICS: usize = 1;
}

/// Parameters of [`UTILIZATION`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilization {
    kind: u8,
    pad: [u8; 3],
    size: u32,
    count: u32,
    tracker: u32,
    /// A ring in no particular order.
    pub samples: [UtilizationSample; MAX_SAMPLES],
}

impl Default for Utilization {
    fn default() -> Self {
        let engine = EngineSample {
            busy: 0,
            reserved: [0; 31],
        };
        let empty = UtilizationSample {
            at_ns: 0,
            engines: [engine; 6],
        };
        Self {
            kind: 2,
            pad: [0; 3],
            size: size_of::<[UtilizationSample; MAX_SAMPLES]>() as u32,
            count: 0,
            tracker: 0,
            samples: [empty; MAX_SAMPLES],
        }
    }
}

plain!(
    NoParams,
    EventMemory,
    EventBuffer,
    BindSwitches,
    EnableEvents,
    Consumed,
    GpuTime,
    Utilization,
);

const _: () = {
    assert!(size_of::<OsEvent>() == 16);
    assert!(size_of::<MapMemory>() == 56);
    assert!(offset_of!(MapMemory, address) == 32);
    assert!(offset_of!(MapMemory, fd) == 48);
    assert!(size_of::<EventMemory>() == 128);
    assert!(offset_of!(EventMemory, attr) == 24);
    assert!(offset_of!(EventMemory, size) == 64);
    assert!(size_of::<EventBuffer>() == 72);
    assert!(offset_of!(EventBuffer, free_threshold) == 36);
    assert!(offset_of!(EventBuffer, event_fd) == 40);
    assert!(offset_of!(EventBuffer, subdevice) == 52);
    assert!(offset_of!(EventBuffer, header) == 60);
    assert!(size_of::<BindSwitches>() == 24);
    assert!(offset_of!(BindSwitches, reason) == 20);
    assert!(size_of::<EnableEvents>() == 8);
    assert!(size_of::<Consumed>() == 8);
    assert!(size_of::<GpuTime>() == 8);
    assert!(size_of::<UtilizationSample>() == 776);
    assert!(size_of::<Utilization>() == 55888);
    assert!(size_of::<NoParams>() == 0);
};
