//! Device memory: its allocation, its duplicates, and the queries that tell its sizes.
//!
//! Layouts that hold addresses of a caller's are never given to the driver as such; they are
//! here for their sizes and offsets. [`crate::tenant`] reads and makes such calls as bytes.

use std::mem::{offset_of, size_of};

use super::{Command, Plain, sealed};

/// Allocates memory, the oldest form; argument [`OldAlloc`].
pub const ESC_RM_ALLOC_MEMORY: u8 = 0x27;
/// Gives an object one more handle, mostly in another client; argument [`Dup`].
pub const ESC_RM_DUP_OBJECT: u8 = 0x34;
/// The older heap control: allocates, frees, tells; argument [`Heap`].
pub const ESC_RM_VID_HEAP_CONTROL: u8 = 0x4A;
/// Any other call with its argument elsewhere; argument [`Wrapper`].
pub const ESC_IOCTL_XFER_CMD: u8 = 0xD3;

/// Class of device memory.
pub const CLASS_DEVICE_MEMORY: u32 = 0x40;
/// Entries of [`PidInfos`].
pub const MAX_PID_INFOS: usize = 200;
/// Entries of [`MemoryInfo`] in the branches that take the most.
pub const MAX_MEMORY_INFOS: usize = 128;

command!(
    /// Finds a subdevice that the client has below a device; asked of the device.
    FIND_SUBDEVICE: FindSubdevice = 0x80_0293, "find subdevice"
);
command!(
    /// Reads what each of some processes holds on the GPU; asked of a subdevice.
    PID_INFO: PidInfos = 0x2080_018E, "get process info"
);
command!(
    /// Reads sizes of the GPU's memory; asked of a subdevice. Before 580 the driver refuses it:
    /// its parameters were shorter.
    READ_MEMORY_INFO: MemoryInfo = 0x2080_1303, "read memory info"
);
/// Number of [`READ_MEMORY_INFO`] on every branch.
pub const MEMORY_INFO: u32 = 0x2080_1303;
/// Number of its older form: the parameters ([`MemoryInfoList`]) hold the list's address.
pub const MEMORY_INFO_LIST: u32 = 0x2080_1301;

/// Argument of [`ESC_RM_DUP_OBJECT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dup {
    /// Client to have the new handle.
    pub client: u32,
    /// Parent of the new object in it.
    pub parent: u32,
    /// Handle wanted, or 0 to be given one; holds the handle afterwards.
    pub object: u32,
    /// Client that has the object.
    pub from_client: u32,
    /// The object in it.
    pub from_object: u32,
    /// Flags.
    pub flags: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
}

/// Argument of [`ESC_RM_ALLOC_MEMORY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldAlloc {
    /// Client to allocate in.
    pub root: u32,
    /// Parent of the new object.
    pub parent: u32,
    /// Handle wanted.
    pub new: u32,
    /// Class of the new object.
    pub class: u32,
    /// Flags.
    pub flags: u32,
    /// Unused.
    pub pad0: u32,
    /// Address of the memory, in or out by class.
    pub memory: u64,
    /// The last byte of it, in or out by class. Of [`CLASS_DEVICE_MEMORY`] nothing is
    /// allocated: the answer is the last byte of the card.
    pub limit: u64,
    /// Answer: see [`crate::Status`].
    pub status: u32,
    /// Unused.
    pub pad1: u32,
    /// A descriptor that the memory is mapped through.
    pub fd: i32,
    /// Unused.
    pub pad2: u32,
}

/// Argument of [`ESC_IOCTL_XFER_CMD`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrapper {
    /// Number of the call.
    pub cmd: u32,
    /// Size of its argument in bytes.
    pub size: u32,
    /// Address of its argument.
    pub argument: u64,
}

/// Argument of [`ESC_RM_VID_HEAP_CONTROL`]: a head, and a body by function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// Client.
    pub root: u32,
    /// Device.
    pub parent: u32,
    /// What to do: one of `HEAP_*`.
    pub function: u32,
    /// Virtual address space.
    pub vaspace: u32,
    /// 0.
    pub ivc_heap: i16,
    /// Unused.
    pub pad: u16,
    /// Answer: see [`crate::Status`].
    pub status: u32,
    /// Answer of [`HEAP_INFO`]: bytes of the heap.
    pub total: u64,
    /// Answer of [`HEAP_INFO`]: bytes that are free.
    pub free: u64,
    /// By function.
    pub body: [u64; 18],
}

/// Where the parts of an allocation lie in a [`Heap`], in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapLayout {
    /// u32: attributes, as in [`MemoryParams`].
    pub attr: usize,
    /// u64: bytes wanted, and given.
    pub size: usize,
    /// u64: an address that is answered.
    pub address: usize,
    /// u32: more attributes.
    pub attr2: usize,
}

impl HeapLayout {
    /// u32: handle wanted if the flags say so, and given; also of what is to be freed.
    pub const MEMORY: usize = 44;
    /// u32: flags of an allocation, as in [`MemoryParams`].
    pub const FLAGS: usize = 52;
    /// u32: flags of [`HEAP_FREE`]; 1, or the driver refuses.
    pub const FREE_FLAGS: usize = 48;
    /// u32 and i32: the size of [`HEAP_ALLOC_PITCH`] is their product.
    pub const HEIGHT_AND_PITCH: (usize, usize) = (56, 60);
    /// u64 of [`HEAP_INFO`]: the largest free block.
    pub const LARGEST: usize = 56;

    /// The layout of an allocation by this function, `None` if it is none.
    #[must_use]
    pub const fn of(function: u32) -> Option<Self> {
        let (attr, size, address, attr2) = match function {
            HEAP_ALLOC_SIZE => (56, 88, 120, 144),
            HEAP_ALLOC_PITCH => (64, 88, 120, 144),
            HEAP_ALLOC_RANGE => (56, 80, 128, 136),
            _ => return None,
        };
        Some(Self {
            attr,
            size,
            address,
            attr2,
        })
    }
}

/// [`Heap`]: allocates a size.
pub const HEAP_ALLOC_SIZE: u32 = 2;
/// [`Heap`]: frees.
pub const HEAP_FREE: u32 = 3;
/// [`Heap`]: tells total, free and the largest free block.
pub const HEAP_INFO: u32 = 5;
/// [`Heap`]: allocates a height of lines.
pub const HEAP_ALLOC_PITCH: u32 = 6;
/// [`Heap`]: allocates a size inside a range.
pub const HEAP_ALLOC_RANGE: u32 = 14;

/// Allocation parameters of [`CLASS_DEVICE_MEMORY`] in 545 and later; 535 has no `numa`, and
/// 120 bytes. The driver reads and writes as many, whatever size the caller says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryParams {
    /// Who asks: neither 0 nor all ones.
    pub owner: u32,
    /// Kind of surface; 0: none.
    pub kind: u32,
    /// Flags: see [`MemoryParams::VIRTUAL`].
    pub flags: u32,
    /// Width, height and pitch of a surface.
    pub shape: [u32; 3],
    /// Attributes: see [`MemoryParams::LOCATION`].
    pub attr: u32,
    /// More attributes.
    pub attr2: u32,
    /// Format, and coverage.
    pub format: [u32; 3],
    /// Unused.
    pub pad: u32,
    /// Where it may lie.
    pub range: [u64; 2],
    /// Bytes, wanted and given.
    pub size: u64,
    /// Alignment, if the flags ask for it.
    pub alignment: u64,
    /// Where it lies.
    pub offset: u64,
    /// Answer: its last byte.
    pub limit: u64,
    /// Answer: 0.
    pub address: u64,
    /// Offset of tags.
    pub tags: u32,
    /// Address space, of virtual memory.
    pub vaspace: u32,
    /// 0 from user space.
    pub internal_flags: u32,
    /// For debugging.
    pub tag: u32,
    /// NUMA node of the CPU.
    pub numa: i32,
    /// Unused.
    pub pad1: u32,
}

impl MemoryParams {
    /// Flag: the handle is the caller's choice (heap control only).
    pub const HANDLE_PROVIDED: u32 = 0x4000;
    /// Flag: address space, not memory.
    pub const VIRTUAL: u32 = 0x8_0000;
    /// Bits of `attr` for where memory lies: 0 on the device.
    pub const LOCATION: u32 = 3 << 25;
    /// Bits of `attr` for the size of pages.
    pub const PAGE_SIZE: u32 = 3 << 23;
    /// [`MemoryParams::PAGE_SIZE`]: 4 KiB.
    pub const PAGE_4K: u32 = 1 << 23;
    /// [`MemoryParams::PAGE_SIZE`]: 64 KiB.
    pub const PAGE_BIG: u32 = 2 << 23;
    /// [`MemoryParams::PAGE_SIZE`]: by [`MemoryParams::HUGE`].
    pub const PAGE_HUGE: u32 = 3 << 23;
    /// Bits of `attr2` for the size of huge pages: 2 MiB, or one of these.
    pub const HUGE: u32 = 3 << 20;
    /// [`MemoryParams::HUGE`]: 512 MiB.
    pub const HUGE_512M: u32 = 2 << 20;
    /// [`MemoryParams::HUGE`]: 256 GiB.
    pub const HUGE_256G: u32 = 3 << 20;
    /// Bit of `attr2`: pages that failed before are given too; not for user space.
    pub const PAGE_OFFLINING_OFF: u32 = 1 << 19;
    /// Bit of `attr2`: memory of the host that the GPU may use.
    pub const EXTENDED: u32 = 1 << 24;
}

/// Parameters of [`FIND_SUBDEVICE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FindSubdevice {
    /// Instance: 0.
    pub instance: u32,
    /// Answer: its handle.
    pub subdevice: u32,
}

/// One number of [`MemoryInfo`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfoEntry {
    /// Which: one of its constants, among others.
    pub index: u32,
    /// The answer; sizes are in KiB.
    pub data: u32,
}

impl MemoryInfoEntry {
    /// Memory of the card.
    pub const RAM_SIZE: u32 = 7;
    /// Memory of the card, and what of the host's is dedicated to it.
    pub const TOTAL_RAM_SIZE: u32 = 8;
    /// What can be allocated.
    pub const HEAP_SIZE: u32 = 9;
    /// What of that the CPU can map.
    pub const MAPPABLE_HEAP_SIZE: u32 = 0x0A;
    /// The largest free block.
    pub const LARGEST_FREE: u32 = 0x12;
    /// What is free.
    pub const HEAP_FREE: u32 = 0x16;
    /// What of the card is usable.
    pub const USABLE_RAM_SIZE: u32 = 0x20;
    /// Protected memory.
    pub const PROTECTED_TOTAL: u32 = 0x33;
    /// What is free of it.
    pub const PROTECTED_FREE: u32 = 0x34;
}

/// Parameters of [`MEMORY_INFO`] in 580 and later; before there are fewer entries.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryInfo {
    /// Number of entries that are asked for.
    pub count: u32,
    /// The entries.
    pub entries: [MemoryInfoEntry; MAX_MEMORY_INFOS],
}

/// Parameters of [`MEMORY_INFO_LIST`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryInfoList {
    /// Number of entries.
    pub count: u32,
    /// Unused.
    pub pad: u32,
    /// Address of the entries.
    pub entries: u64,
}

/// What a process holds on a GPU, in [`PidInfos`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidInfo {
    /// The process asked about, as the caller counts.
    pub pid: u32,
    /// 0: memory.
    pub index: u32,
    /// Answer: see [`crate::Status`].
    pub result: u32,
    /// Unused.
    pub pad: u32,
    /// Answer, bytes: its alone, shared and allocated by it, shared and by another; and the
    /// same of protected memory.
    pub memory: [u64; 6],
    /// Answer: MIG instances.
    pub mig: [u32; 2],
}

/// Parameters of [`PID_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PidInfos {
    /// Number of entries, at least 1.
    pub count: u32,
    /// Unused.
    pub pad: u32,
    /// The entries.
    pub entries: [PidInfo; MAX_PID_INFOS],
}

plain!(FindSubdevice, MemoryParams, MemoryInfo, PidInfos);

const _: () = {
    assert!(size_of::<Dup>() == 28);
    assert!(offset_of!(Dup, from_client) == 12);
    assert!(offset_of!(Dup, status) == 24);
    assert!(size_of::<OldAlloc>() == 56);
    assert!(offset_of!(OldAlloc, memory) == 24);
    assert!(offset_of!(OldAlloc, limit) == 32);
    assert!(offset_of!(OldAlloc, status) == 40);
    assert!(offset_of!(OldAlloc, fd) == 48);
    assert!(size_of::<Wrapper>() == 16);
    assert!(offset_of!(Wrapper, argument) == 8);
    assert!(size_of::<Heap>() == 184);
    assert!(offset_of!(Heap, function) == 8);
    assert!(offset_of!(Heap, status) == 20);
    assert!(offset_of!(Heap, total) == 24);
    assert!(offset_of!(Heap, free) == 32);
    assert!(offset_of!(Heap, body) == 40);
    assert!(size_of::<MemoryParams>() == 128);
    assert!(offset_of!(MemoryParams, attr) == 24);
    assert!(offset_of!(MemoryParams, range) == 48);
    assert!(offset_of!(MemoryParams, size) == 64);
    assert!(offset_of!(MemoryParams, address) == 96);
    assert!(offset_of!(MemoryParams, internal_flags) == 112);
    assert!(offset_of!(MemoryParams, numa) == 120);
    assert!(size_of::<FindSubdevice>() == 8);
    assert!(size_of::<MemoryInfo>() == 1028);
    assert!(offset_of!(MemoryInfo, entries) == 4);
    assert!(size_of::<MemoryInfoList>() == 16);
    assert!(offset_of!(MemoryInfoList, entries) == 8);
    assert!(size_of::<PidInfo>() == 72);
    assert!(offset_of!(PidInfo, memory) == 16);
    assert!(offset_of!(PidInfo, mig) == 64);
    assert!(size_of::<PidInfos>() == 14408);
    assert!(offset_of!(PidInfos, entries) == 8);
};
