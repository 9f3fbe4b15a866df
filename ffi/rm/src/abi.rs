//! Numbers and memory layouts of the RM ioctls, and nothing that acts.
//!
//! A layout here is a promise to the kernel, so each has its size and offsets
//! asserted at compile time. Adding a control takes three lines: a struct, its
//! `Plain`, and a [`Command`] constant.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{offset_of, size_of};

/// Handle of an RM client: the root of one tree of objects, bound to the open
/// file that it was allocated on. CUDA's are `0xc1d00000 + n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(pub u32);

/// Handle of an object (device, subdevice, channel group, channel) inside one
/// client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(pub u32);

/// A channel of any client on this host, named as the disable control names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The client that owns the channel.
    pub client: Client,
    /// The channel in that client.
    pub object: Object,
}

/// A GPU by the two numbers that a client of its own needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpu {
    /// The driver's device instance, counted in the order of start.
    pub instance: u32,
    /// N of the node `nvidiaN`, counted in the order of discovery. Often the
    /// same number, not always.
    pub minor: u32,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu {} (nvidia{})", self.instance, self.minor)
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.client, self.object)
    }
}

impl Client {
    /// The client as an object of itself: parent of devices, target of the
    /// controls of the root.
    #[must_use]
    pub fn as_object(self) -> Object {
        Object(self.0)
    }
}

/// ioctl type of every RM call: `'F'`.
pub const IOCTL_TYPE: u8 = b'F';
/// Frees an object and what hangs below it; argument [`Free`].
pub const ESC_RM_FREE: u8 = 0x29;
/// Tells the driver, on a GPU's node, which control node goes with it; argument
/// the descriptor of that.
pub const ESC_REGISTER_FD: u8 = 201;
/// Sends a [`Command`] to an object; argument [`ControlArgs`].
pub const ESC_RM_CONTROL: u8 = 0x2A;
/// Allocates an object; argument [`Alloc`] or [`AllocShort`].
pub const ESC_RM_ALLOC: u8 = 0x2B;

/// Class of a client.
pub const CLASS_CLIENT: u32 = 0x41;
/// Class of a GPU as a client sees it.
pub const CLASS_DEVICE: u32 = 0x80;
/// Class of a part of a device; every GPU today has exactly one, number 0.
pub const CLASS_SUBDEVICE: u32 = 0x2080;
/// Class of a subdevice's diagnostics, allocated below the subdevice.
pub const CLASS_SUBDEVICE_DIAG: u32 = 0x208F;
/// Class of a channel group (TSG): what the hardware gives timeslices to.
pub const CLASS_CHANNEL_GROUP: u32 = 0xA06C;

/// The most channels that one disable or enable call takes.
pub const CHANNELS_PER_CALL: usize = 64;

/// `_IOWR('F', number, size)` as the kernel's `ioctl` wants it.
#[must_use]
pub const fn iowr(number: u8, size: usize) -> u64 {
    (3 << 30) | ((size as u64 & 0x3fff) << 16) | ((IOCTL_TYPE as u64) << 8) | number as u64
}

mod sealed {
    pub trait Sealed {}
}

/// A parameter block of an RM control: plain memory that the driver reads and
/// overwrites.
///
/// # Safety
///
/// The type is `repr(C)`, every bit pattern of it is valid, it owns nothing,
/// and each field that the driver takes for an address can only hold 0 or the
/// address of memory that stays valid and exclusive for the call.
pub unsafe trait Plain: sealed::Sealed {}

macro_rules! plain {
    ($($ty:ty),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        // SAFETY: `repr(C)` integers and arrays of them only; no field of
        // these holds an address that safe code could set.
        unsafe impl Plain for $ty {}
    )*};
}

/// The number of an RM control together with the parameters that it takes, so
/// that one cannot be sent with the other's.
pub struct Command<T> {
    number: u32,
    name: &'static str,
    params: PhantomData<fn(&mut T)>,
}

impl<T> Clone for Command<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Command<T> {}

impl<T: Plain> Command<T> {
    /// # Safety
    ///
    /// The driver, for `number`, reads and writes no more than one `T` at the
    /// parameter address.
    const unsafe fn new(number: u32, name: &'static str) -> Self {
        Self {
            number,
            name,
            params: PhantomData,
        }
    }

    /// The number that the driver knows it by.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// What it does, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

macro_rules! command {
    ($(#[$doc:meta])* $name:ident: $params:ty = $number:literal, $text:literal) => {
        $(#[$doc])*
        // SAFETY: number and layout agree in the published headers of every
        // branch in `branch::BRANCHES`, and the driver compares the size.
        pub const $name: Command<$params> = unsafe { Command::new($number, $text) };
    };
}

pub mod discover;
pub mod memory;
pub mod meter;

command!(
    /// Sets a channel group's timeslice; in force at once, not privileged.
    SET_TIMESLICE: Timeslice = 0xA06C_0103, "set timeslice"
);
command!(
    /// Reads a channel group's timeslice.
    GET_TIMESLICE: Timeslice = 0xA06C_0104, "get timeslice"
);
command!(
    /// Takes a channel group off the hardware once; it is scheduled again later.
    PREEMPT: Preempt = 0xA06C_0105, "preempt"
);
command!(
    /// Reads a channel group's hardware id.
    TSG_INFO: TsgInfo = 0xA06C_0106, "get channel group id"
);
command!(
    /// Disables or enables channels of any client; privileged; nests.
    DISABLE_CHANNELS: DisableChannels = 0x2080_110B, "disable or enable channels"
);
command!(
    /// Reads whether a channel of any client is enabled; asked of a
    /// [`CLASS_SUBDEVICE_DIAG`].
    CHANNEL_STATE: ChannelState = 0x208F_0403, "get channel state"
);

/// Argument of [`ESC_RM_CONTROL`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlArgs {
    /// Client that the object belongs to.
    pub client: u32,
    /// Object that is asked.
    pub object: u32,
    /// Number of the command.
    pub cmd: u32,
    /// Always 0 from user space.
    pub flags: u32,
    /// Address of the parameters.
    pub params: u64,
    /// Size of the parameters in bytes.
    pub params_size: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
}

/// Argument of [`ESC_RM_ALLOC`], the form with access rights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Alloc {
    /// Client to allocate in; 0 for a new client.
    pub root: u32,
    /// Parent of the new object.
    pub parent: u32,
    /// Handle wanted, or 0 to be given one; holds the handle afterwards.
    pub new: u32,
    /// Class of the new object.
    pub class: u32,
    /// Address of the class's parameters, or 0.
    pub params: u64,
    /// Address of a mask of rights, or 0.
    pub rights: u64,
    /// Size of the parameters in bytes.
    pub params_size: u32,
    /// 0.
    pub flags: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
    /// Unused.
    pub pad: u32,
}

/// Argument of [`ESC_RM_ALLOC`], the form without access rights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocShort {
    /// As in [`Alloc`].
    pub root: u32,
    /// As in [`Alloc`].
    pub parent: u32,
    /// As in [`Alloc`].
    pub new: u32,
    /// As in [`Alloc`].
    pub class: u32,
    /// As in [`Alloc`].
    pub params: u64,
    /// As in [`Alloc`].
    pub params_size: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
}

/// Argument of [`ESC_RM_FREE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Free {
    /// Client that the object belongs to.
    pub root: u32,
    /// Its parent.
    pub parent: u32,
    /// The object; the client's own handle frees the client.
    pub old: u32,
    /// Answer: see [`crate::Status`].
    pub status: u32,
}

/// Parameters of [`SET_TIMESLICE`] and [`GET_TIMESLICE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeslice {
    /// Microseconds.
    pub micros: u64,
}

/// Parameters of [`PREEMPT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Preempt {
    /// 1: answer only when the group is off the hardware.
    pub wait: u8,
    /// 1: `timeout_us` counts.
    pub manual_timeout: u8,
    /// Unused.
    pub pad: [u8; 2],
    /// Microseconds, at most 1,000,000.
    pub timeout_us: u32,
}

/// Parameters of [`TSG_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TsgInfo {
    /// Hardware id of the channel group.
    pub id: u32,
}

/// Parameters of [`DISABLE_CHANNELS`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DisableChannels {
    disable: u8,
    pad0: [u8; 3],
    count: u32,
    only_disable_scheduling: u8,
    rewind_gp_put: u8,
    pad1: [u8; 6],
    // A kernel event, refused from user space: stays 0.
    event: u64,
    clients: [u32; CHANNELS_PER_CALL],
    channels: [u32; CHANNELS_PER_CALL],
}

impl DisableChannels {
    /// One call's worth: takes the first [`CHANNELS_PER_CALL`] of `channels`
    /// and says how many it took. `disable` also takes them off the hardware.
    #[must_use]
    pub fn new(channels: &[Channel], disable: bool) -> (Self, usize) {
        let mut params = Self {
            disable: disable.into(),
            pad0: [0; 3],
            count: 0,
            only_disable_scheduling: 0,
            rewind_gp_put: 0,
            pad1: [0; 6],
            event: 0,
            clients: [0; CHANNELS_PER_CALL],
            channels: [0; CHANNELS_PER_CALL],
        };
        let slots = params.clients.iter_mut().zip(params.channels.iter_mut());
        for ((client, object), channel) in slots.zip(channels) {
            *client = channel.client.0;
            *object = channel.object.0;
            params.count += 1;
        }
        (params, channels.len().min(CHANNELS_PER_CALL))
    }

    /// Whether these parameters disable (or else enable).
    #[must_use]
    pub fn is_disable(&self) -> bool {
        self.disable != 0
    }

    /// The channels named, as a driver (or a stand-in for one) reads them; a
    /// count past the arrays is cut to them.
    pub fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        let pairs = self.clients.iter().zip(&self.channels);
        pairs
            .take(self.count as usize)
            .map(|(&client, &object)| Channel {
                client: Client(client),
                object: Object(object),
            })
    }
}

/// Parameters of [`CHANNEL_STATE`]; the flags are answers, 0 or 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelState {
    /// The channel asked about.
    pub channel: u32,
    /// Its client.
    pub client: u32,
    /// Bound to channel memory.
    pub bound: u8,
    /// Able to run: no disable is outstanding.
    pub enabled: u8,
    /// On a runlist.
    pub scheduled: u8,
    /// Mapped by the CPU.
    pub cpu_map: u8,
    /// Under contention.
    pub contention: u8,
    /// A runlist was chosen.
    pub runlist_set: u8,
    /// An error is to be dealt with at its end.
    pub defer_rc: u8,
    /// Unused.
    pub pad: u8,
}

/// Allocation parameters of [`CLASS_DEVICE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceParams {
    /// The driver's instance number of the GPU.
    pub device_id: u32,
    /// 0 throughout: share no address space, default sizes.
    pub client_share: u32,
    /// 0.
    pub target_client: u32,
    /// 0.
    pub target_device: u32,
    /// 0.
    pub flags: u32,
    /// Unused.
    pub pad0: u32,
    /// 0.
    pub va_space_size: u64,
    /// 0.
    pub va_start: u64,
    /// 0.
    pub va_limit: u64,
    /// 0.
    pub va_mode: u32,
    /// Unused.
    pub pad1: u32,
}

/// Allocation parameters of [`CLASS_SUBDEVICE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SubdeviceParams {
    /// 0: the first.
    pub subdevice_id: u32,
}

plain!(
    Timeslice,
    Preempt,
    TsgInfo,
    DisableChannels,
    ChannelState,
    DeviceParams,
    SubdeviceParams,
);

const _: () = {
    assert!(size_of::<ControlArgs>() == 32);
    assert!(offset_of!(ControlArgs, params) == 16);
    assert!(offset_of!(ControlArgs, status) == 28);
    assert!(size_of::<Alloc>() == 48);
    assert!(offset_of!(Alloc, params) == 16);
    assert!(offset_of!(Alloc, rights) == 24);
    assert!(offset_of!(Alloc, params_size) == 32);
    assert!(offset_of!(Alloc, status) == 40);
    assert!(size_of::<AllocShort>() == 32);
    assert!(offset_of!(AllocShort, params_size) == 24);
    assert!(offset_of!(AllocShort, status) == 28);
    assert!(size_of::<Free>() == 16);
    assert!(offset_of!(Free, status) == 12);
    assert!(size_of::<Timeslice>() == 8);
    assert!(size_of::<Preempt>() == 8);
    assert!(offset_of!(Preempt, timeout_us) == 4);
    assert!(size_of::<TsgInfo>() == 4);
    assert!(size_of::<DisableChannels>() == 536);
    assert!(offset_of!(DisableChannels, count) == 4);
    assert!(offset_of!(DisableChannels, only_disable_scheduling) == 8);
    assert!(offset_of!(DisableChannels, rewind_gp_put) == 9);
    assert!(offset_of!(DisableChannels, event) == 16);
    assert!(offset_of!(DisableChannels, clients) == 24);
    assert!(offset_of!(DisableChannels, channels) == 280);
    assert!(size_of::<ChannelState>() == 16);
    assert!(offset_of!(ChannelState, enabled) == 9);
    assert!(size_of::<DeviceParams>() == 56);
    assert!(offset_of!(DeviceParams, va_space_size) == 24);
    assert!(offset_of!(DeviceParams, va_mode) == 48);
    assert!(size_of::<SubdeviceParams>() == 4);
    assert!(iowr(ESC_RM_CONTROL, 32) == 0xC020_462A);
    assert!(iowr(ESC_RM_ALLOC, 48) == 0xC030_462B);
    assert!(iowr(ESC_RM_ALLOC, 32) == 0xC020_462B);
    assert!(iowr(ESC_RM_FREE, 16) == 0xC010_4629);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn disable_parameters_read_back_as_written(
            pairs in proptest::collection::vec(any::<(u32, u32)>(), 0..150),
            disable: bool,
        ) {
            let channels: Vec<Channel> = pairs
                .iter()
                .map(|&(c, o)| Channel { client: Client(c), object: Object(o) })
                .collect();
            let (params, taken) = DisableChannels::new(&channels, disable);
            prop_assert_eq!(params.is_disable(), disable);
            prop_assert_eq!(taken, channels.len().min(CHANNELS_PER_CALL));
            prop_assert_eq!(params.channels().collect::<Vec<_>>(), &channels[..taken]);
        }
    }

    #[test]
    fn a_count_past_the_arrays_is_cut() {
        let (mut params, _) = DisableChannels::new(&[], true);
        params.count = u32::MAX;
        assert_eq!(params.channels().count(), CHANNELS_PER_CALL);
    }
}
