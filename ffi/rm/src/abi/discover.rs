//! Controls that tell what there is: GPUs, clients, objects, processes.

use std::mem::{offset_of, size_of};

use super::{Command, Plain, sealed};

/// GPUs that one driver can hold, and entries of [`AttachedIds`].
pub const MAX_GPUS: usize = 32;
/// Entries of [`Pids`].
pub const MAX_PIDS: usize = 950;
/// Entries of [`ChannelGroupIds`].
pub const MAX_GROUP_CHANNELS: usize = 128;
/// What the handle of a client begins with.
pub const CLIENT_BASE: u32 = 0xC1D0_0000;
/// How many handles of clients there are before they begin again.
pub const CLIENT_SPACE: u32 = 0x10_0000;
/// Class that the client of an MPS server's client has objects of.
pub const CLASS_MPS: u32 = 0x900E;

command!(
    /// Lists the ids of the GPUs that are started; asked of a client.
    ATTACHED_IDS: AttachedIds = 0x201, "list attached gpus"
);
command!(
    /// Reads the instance of a GPU; asked of a client.
    ID_INFO: IdInfo = 0x205, "get gpu id info"
);
command!(
    /// Reads the UUID of a GPU; asked of a client.
    UUID_OF_ID: GpuUuid = 0x275, "get gpu uuid"
);
command!(
    /// Counts clients and objects of all processes; asked of a client. Takes
    /// no lock of a GPU: 3 us.
    CLIENT_DATABASE: ClientDatabase = 0x13D, "count clients"
);
command!(
    /// Lists the processes that have an object of a class; asked of a
    /// subdevice.
    PIDS: Pids = 0x2080_018D, "list processes"
);
command!(
    /// Reads a handle's class or parent; asked of the client.
    HANDLE_INFO: HandleInfo = 0xD02, "get handle info"
);
command!(
    /// Reads the rights that one has to an object of any client; asked of
    /// one's own. That it answers tells that the object exists, and it leaves
    /// no line in the kernel log where it does not.
    ACCESS_RIGHTS: AccessRights = 0xD03, "get access rights"
);
command!(
    /// Reads what the hardware calls a channel group of any client, and its
    /// channels; asked of one's own subdevice.
    CHANNEL_GROUP_IDS: ChannelGroupIds = 0x2080_1123, "get channel group ids"
);
command!(
    /// Reads the id of the GPU that a subdevice is on.
    GPU_ID: GpuId = 0x2080_0142, "get gpu id"
);

/// Parameters of [`ATTACHED_IDS`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttachedIds {
    /// Ids of GPUs, ended by all ones.
    pub ids: [u32; MAX_GPUS],
}

/// Parameters of [`ID_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct IdInfo {
    /// The GPU asked about.
    pub gpu_id: u32,
    /// Flags.
    pub flags: u32,
    /// Instance of the device.
    pub device_instance: u32,
    /// Instance of the subdevice below it.
    pub subdevice_instance: u32,
    /// State of SLI.
    pub sli: u32,
    /// The board.
    pub board: u32,
    /// The driver's instance number.
    pub gpu_instance: u32,
    /// NUMA node, or -1.
    pub numa: i32,
}

/// Parameters of [`UUID_OF_ID`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GpuUuid {
    /// The GPU asked about.
    pub gpu_id: u32,
    /// 0: as text.
    pub flags: u32,
    /// `GPU-…`, ended by 0.
    pub uuid: [u8; 256],
    /// Length of the text with its 0.
    pub len: u32,
}

/// Parameters of [`CLIENT_DATABASE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientDatabase {
    /// How many clients there are.
    pub clients: u32,
    /// Unused.
    pub pad: u32,
    /// How many objects they have; moves at each allocation of memory too.
    pub resources: u64,
}

/// Parameters of [`PIDS`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pids {
    /// 0: `class` holds a class.
    pub id_type: u32,
    /// Class of the objects.
    pub class: u32,
    /// Number of entries.
    pub count: u32,
    /// The pids, as the host counts them.
    pub pids: [u32; MAX_PIDS],
}

/// Parameters of [`HANDLE_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HandleInfo {
    /// The handle asked about.
    pub object: u32,
    /// [`HandleInfo::PARENT`] or [`HandleInfo::CLASS`].
    pub index: u32,
    /// The answer.
    pub value: u64,
}

impl HandleInfo {
    /// Asks for the parent.
    pub const PARENT: u32 = 1;
    /// Asks for the class.
    pub const CLASS: u32 = 2;
}

/// Parameters of [`ACCESS_RIGHTS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessRights {
    /// The object asked about.
    pub object: u32,
    /// Its client.
    pub client: u32,
    /// The rights, one bit each.
    pub mask: u32,
}

/// Parameters of [`CHANNEL_GROUP_IDS`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChannelGroupIds {
    /// Client of the channel group.
    pub client: u32,
    /// The channel group.
    pub group: u32,
    /// A number that no other channel group of this boot has; MPS gives one
    /// channel group to several clients.
    pub uid: u32,
    /// Number of channels.
    pub count: u32,
    /// Context id of each channel, as the context-switch trace has it.
    pub context_ids: [u32; MAX_GROUP_CHANNELS],
    /// Address space of each channel.
    pub address_spaces: [u32; MAX_GROUP_CHANNELS],
    /// Virtual engine of each channel.
    pub engines: [u32; MAX_GROUP_CHANNELS],
}

/// Parameters of [`GPU_ID`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuId {
    /// The id.
    pub gpu_id: u32,
}

plain!(
    AttachedIds,
    IdInfo,
    GpuUuid,
    ClientDatabase,
    Pids,
    HandleInfo,
    AccessRights,
    ChannelGroupIds,
    GpuId,
);

const _: () = {
    assert!(size_of::<AttachedIds>() == 128);
    assert!(size_of::<IdInfo>() == 32);
    assert!(offset_of!(IdInfo, device_instance) == 8);
    assert!(offset_of!(IdInfo, gpu_instance) == 24);
    assert!(size_of::<GpuUuid>() == 268);
    assert!(offset_of!(GpuUuid, len) == 264);
    assert!(size_of::<ClientDatabase>() == 16);
    assert!(offset_of!(ClientDatabase, resources) == 8);
    assert!(size_of::<Pids>() == 3812);
    assert!(offset_of!(Pids, pids) == 12);
    assert!(size_of::<HandleInfo>() == 16);
    assert!(offset_of!(HandleInfo, value) == 8);
    assert!(size_of::<AccessRights>() == 12);
    assert!(size_of::<ChannelGroupIds>() == 1552);
    assert!(offset_of!(ChannelGroupIds, context_ids) == 16);
    assert!(size_of::<GpuId>() == 4);
};
