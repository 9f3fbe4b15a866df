/* From driver-patches/include/uapi/ghost.h, by `cargo run -p xtask -- gen`. */

pub const GHOST_ABI: u32 = 1;
pub const GHOST_NONE: u32 = 0;
pub const GHOST_SYSTEM: u32 = 1;
pub const GHOST_ALL_GPUS: u32 = 4294967295;
pub const GHOST_NAME_LEN: u32 = 65;
pub const GHOST_DEPTH_MAX: u32 = 8;
pub const GHOST_CONTAINERS_MAX: u32 = 4096;
pub const GHOST_GPUS_MAX: u32 = 32;
pub const GHOST_WEIGHT_MIN: u32 = 1;
pub const GHOST_WEIGHT_MAX: u32 = 10000;
pub const GHOST_WEIGHT_DEFAULT: u32 = 100;
pub const GHOST_PERIOD_MIN: u32 = 1000;
pub const GHOST_PERIOD_MAX: u32 = 1000000;
pub const GHOST_PERIOD_DEFAULT: u32 = 100000;
pub const GHOST_SLICE_MIN: u32 = 100;
pub const GHOST_SLICE_MAX: u32 = 200000;
pub const GHOST_HOOKS_MEMORY: u32 = 1;
pub const GHOST_HOOKS_UVM: u32 = 2;
pub const GHOST_HOOKS_TIME: u32 = 4;
pub const GHOST_FEATURE_TEST: u32 = 1;
pub const GHOST_SET_WEIGHT: u32 = 1;
pub const GHOST_SET_MAX: u32 = 2;
pub const GHOST_SET_MEMORY_MIN: u32 = 4;
pub const GHOST_SET_MEMORY_LOW: u32 = 8;
pub const GHOST_SET_MEMORY_HIGH: u32 = 16;
pub const GHOST_SET_MEMORY_MAX: u32 = 32;
pub const GHOST_PAUSED_ASKED: u32 = 1;
pub const GHOST_PAUSED_MAX: u32 = 2;
pub const GHOST_LIST_CONTAINERS: u32 = 0;
pub const GHOST_LIST_CLIENTS: u32 = 1;
pub const GHOST_LIST_GROUPS: u32 = 2;
pub const GHOST_LIST_GPUS: u32 = 3;
pub const GHOST_LIST_CGROUPS: u32 = 4;
pub const GHOST_PAUSE_RESUME: u32 = 1;
pub const GHOST_LEAD_RENEW: u32 = 1;
pub const GHOST_LEAD_RESIGN: u32 = 2;
pub const GHOST_EVENT_SIZE: u32 = 64;
pub const GHOST_EVENT_LOST: u32 = 0;
pub const GHOST_EVENT_CLIENT: u32 = 1;
pub const GHOST_EVENT_CLIENT_GONE: u32 = 2;
pub const GHOST_EVENT_GROUP: u32 = 3;
pub const GHOST_EVENT_GROUP_GONE: u32 = 4;
pub const GHOST_EVENT_GPU: u32 = 5;
pub const GHOST_EVENT_MEMORY_MAX: u32 = 6;
pub const GHOST_EVENT_MEMORY_HIGH: u32 = 7;
pub const GHOST_EVENT_CLAMPED: u32 = 8;
pub const GHOST_EVENT_REFUSED: u32 = 9;
pub const GHOST_EVENT_LAPSED: u32 = 10;
pub const GHOST_IOC_MAGIC: u32 = 182;
pub const GHOST_TEST_GPU: u32 = 0;
pub const GHOST_TEST_GROUP: u32 = 1;
pub const GHOST_TEST_GROUP_GONE: u32 = 2;
pub const GHOST_TEST_TIMESLICE: u32 = 3;
pub const GHOST_TEST_MEMORY: u32 = 4;
pub const GHOST_TEST_MEMORY_DUP: u32 = 5;
pub const GHOST_TEST_MEMORY_GONE: u32 = 6;
pub const GHOST_TEST_CHUNK: u32 = 7;
pub const GHOST_TEST_CHUNK_GONE: u32 = 8;
pub const GHOST_TEST_FAIL: u32 = 9;
pub type __u8 = core::ffi::c_uchar;
pub type __s32 = core::ffi::c_int;
pub type __u32 = core::ffi::c_uint;
pub type __u64 = core::ffi::c_ulonglong;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ghost_version {
    pub size: __u32,
    pub flags: __u32,
    pub abi: __u32,
    pub hooks: __u32,
    pub features: __u32,
    pub gpus: __u32,
    pub build: [core::ffi::c_char; 64usize],
    pub driver: [core::ffi::c_char; 64usize],
}
impl Default for ghost_version {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ghost_create {
    pub size: __u32,
    pub flags: __u32,
    pub parent: __u64,
    pub id: __u64,
    pub name: [core::ffi::c_char; 65usize],
    pub reserved: [__u8; 7usize],
}
impl Default for ghost_create {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_delete {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_limit {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
    pub gpu: __u32,
    pub set: __u32,
    pub wrong: __u32,
    pub weight: __u32,
    pub max_us: __u64,
    pub period_us: __u64,
    pub memory_min: __u64,
    pub memory_low: __u64,
    pub memory_high: __u64,
    pub memory_max: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_events {
    pub low: __u64,
    pub high: __u64,
    pub max: __u64,
    pub fail: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_stat {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
    pub gpu: __u32,
    pub weight: __u32,
    pub max_us: __u64,
    pub period_us: __u64,
    pub memory_min: __u64,
    pub memory_low: __u64,
    pub memory_high: __u64,
    pub memory_max: __u64,
    pub memory_current: __u64,
    pub memory_managed: __u64,
    pub memory_peak: __u64,
    pub events: ghost_events,
    pub events_local: ghost_events,
    pub nr_periods: __u64,
    pub nr_throttled: __u64,
    pub throttled_us: __u64,
    pub slice_us: __u64,
    pub clients: __u32,
    pub groups: __u32,
    pub paused: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_list {
    pub size: __u32,
    pub flags: __u32,
    pub what: __u32,
    pub item_size: __u32,
    pub after: __u64,
    pub items: __u64,
    pub count: __u32,
    pub written: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ghost_container {
    pub id: __u64,
    pub parent: __u64,
    pub name: [core::ffi::c_char; 65usize],
    pub reserved: [__u8; 7usize],
}
impl Default for ghost_container {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_client {
    pub id: __u64,
    pub container: __u64,
    pub handle: __u32,
    pub pid: __u32,
    pub memory: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_group {
    pub id: __u64,
    pub container: __u64,
    pub gpu: __u32,
    pub pid: __u32,
    pub client: __u32,
    pub handle: __u32,
    pub slice_us: __u64,
    pub paused: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_gpu {
    pub id: __u64,
    pub gpu: __u32,
    pub reserved: __u32,
    pub memory_total: __u64,
    pub memory_charged: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_cgroup {
    pub id: __u64,
    pub container: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_bind {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
    pub cgroup_fd: __s32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_attach {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
    pub pidfd: __s32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_pause {
    pub size: __u32,
    pub flags: __u32,
    pub id: __u64,
    pub gpu: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_lead {
    pub size: __u32,
    pub flags: __u32,
    pub lease_us: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_slice {
    pub size: __u32,
    pub flags: __u32,
    pub group: __u64,
    pub slice_us: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_event {
    pub seq: __u64,
    pub at_ns: __u64,
    pub type_: __u32,
    pub pid: __u32,
    pub gpu: __u32,
    pub reserved: __u32,
    pub container: __u64,
    pub object: __u64,
    pub value: __u64,
    pub reserved2: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ghost_test {
    pub size: __u32,
    pub flags: __u32,
    pub op: __u32,
    pub gpu: __u32,
    pub object: __u64,
    pub value: __u64,
    pub client: __u32,
    pub status: __u32,
}
