//! Finding out, without a stranger's descriptor where that is possible: GPUs,
//! clients, processes, channel groups.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::abi::discover::{
    self as abi, AccessRights, AttachedIds, ChannelGroupIds, ClientDatabase, GpuId, GpuUuid,
    HandleInfo, IdInfo, Pids,
};
use crate::abi::memory::{FIND_SUBDEVICE, FindSubdevice};
use crate::abi::{CLASS_CLIENT, CLASS_SUBDEVICE, DeviceParams};
use crate::control::{Control, RmError};
use crate::session::Session;
use crate::{Client, Object, Status};

/// A GPU that the driver has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedGpu {
    /// The driver's id of it.
    pub id: u32,
    /// The driver's instance number of it.
    pub instance: u32,
    /// `GPU-…`
    pub uuid: String,
}

/// What the hardware calls a channel group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupIds {
    /// A number that no other channel group of this boot has.
    pub uid: u32,
    /// Context id of each of its channels.
    pub contexts: Vec<u32>,
}

impl Session {
    /// The GPUs that are started.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn attached(&self) -> Result<Vec<AttachedGpu>, RmError> {
        let mut list = AttachedIds {
            ids: [u32::MAX; abi::MAX_GPUS],
        };
        self.ask(abi::ATTACHED_IDS, &mut list)?;
        let ids = list.ids.into_iter().take_while(|&id| id != u32::MAX);
        ids.map(|id| {
            let mut info = IdInfo {
                gpu_id: id,
                ..IdInfo::default()
            };
            self.ask(abi::ID_INFO, &mut info)?;
            let mut uuid = GpuUuid {
                gpu_id: id,
                flags: 0,
                uuid: [0; 256],
                len: 0,
            };
            self.ask(abi::UUID_OF_ID, &mut uuid)?;
            let text = uuid.uuid.split(|&byte| byte == 0).next().unwrap_or(&[]);
            Ok(AttachedGpu {
                id,
                instance: info.device_instance,
                uuid: String::from_utf8_lossy(text).into_owned(),
            })
        })
        .collect()
    }

    /// How many clients and objects there are, of all processes: where it is
    /// as before, nothing was allocated but for what was freed.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn clients(&self) -> Result<ClientDatabase, RmError> {
        let mut params = ClientDatabase::default();
        self.ask(abi::CLIENT_DATABASE, &mut params)?;
        Ok(params)
    }

    /// The processes that have an object of `class` on the GPU of `subdevice`,
    /// by the pids that they had when they made their client.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn pids(&self, subdevice: Object, class: u32) -> Result<Vec<u32>, RmError> {
        let mut params = Pids {
            id_type: 0,
            class,
            count: 0,
            pids: [0; abi::MAX_PIDS],
        };
        self.control()
            .control(self.client(), subdevice, abi::PIDS, &mut params)?;
        let count = params.count as usize;
        Ok(params.pids.into_iter().take(count).collect())
    }

    /// Whether there is such a client, on whichever file.
    #[must_use]
    pub fn client_exists(&self, client: Client) -> bool {
        self.exists(client, client.as_object()).unwrap_or(false)
    }

    /// Whether `client`, on whichever file, has `object`.
    ///
    /// # Errors
    ///
    /// As [`Control::control`], if the driver does not say: then nothing is known.
    pub fn exists(&self, client: Client, object: Object) -> Result<bool, RmError> {
        let mut params = AccessRights {
            object: object.0,
            client: client.0,
            mask: 0,
        };
        match self.ask(abi::ACCESS_RIGHTS, &mut params) {
            Ok(()) => Ok(true),
            Err(error) if error.status().is_some_and(Status::is_gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The handle of a client made now: those made before are below, until
    /// the handles begin again.
    ///
    /// # Errors
    ///
    /// As [`Control::alloc`].
    pub fn newest_client(&self) -> Result<Client, RmError> {
        let (none, control) = (Object(0), self.control());
        let made = control.alloc::<DeviceParams>(
            self.form(),
            Client(0),
            none,
            none,
            CLASS_CLIENT,
            None,
        )?;
        control.free(Client(made.0), made, made)?;
        Ok(Client(made.0))
    }

    /// What the hardware calls channel group `group` of any client, on the GPU
    /// of `subdevice`.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn group_ids(
        &self,
        subdevice: Object,
        client: Client,
        group: Object,
    ) -> Result<GroupIds, RmError> {
        let mut params = ChannelGroupIds {
            client: client.0,
            group: group.0,
            uid: 0,
            count: 0,
            context_ids: [0; abi::MAX_GROUP_CHANNELS],
            address_spaces: [0; abi::MAX_GROUP_CHANNELS],
            engines: [0; abi::MAX_GROUP_CHANNELS],
        };
        self.control().control(
            self.client(),
            subdevice,
            abi::CHANNEL_GROUP_IDS,
            &mut params,
        )?;
        let count = params.count as usize;
        Ok(GroupIds {
            uid: params.uid,
            contexts: params.context_ids.into_iter().take(count).collect(),
        })
    }

    /// Whether `fd`, of any process, is open on the node that this session
    /// speaks on. Never waits: a name alone could be a trap, a file of a file
    /// system that its owner answers for.
    #[must_use]
    pub fn is_control_node(&self, fd: BorrowedFd<'_>) -> bool {
        match (node_of(self.control().fd()), node_of(fd)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => false,
        }
    }

    fn ask<T: crate::abi::Plain>(
        &self,
        command: crate::abi::Command<T>,
        params: &mut T,
    ) -> Result<(), RmError> {
        let client = self.client();
        self.control()
            .control(client, client.as_object(), command, params)
    }
}

impl Control<'_> {
    /// The class of an object.
    ///
    /// # Errors
    ///
    /// [`RmError::Refused`] with [`crate::Status::INVALID_CLIENT`] if `client`
    /// is not on this file, [`crate::Status::OBJECT_NOT_FOUND`] if it has no
    /// such object.
    pub fn class_of(&self, client: Client, object: Object) -> Result<u32, RmError> {
        self.handle_info(client, object, HandleInfo::CLASS)
    }

    /// The parent of an object.
    ///
    /// # Errors
    ///
    /// As [`Control::class_of`].
    pub fn parent_of(&self, client: Client, object: Object) -> Result<Object, RmError> {
        self.handle_info(client, object, HandleInfo::PARENT)
            .map(Object)
    }

    /// The driver's id of the GPU that a subdevice is on.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn gpu_of(&self, client: Client, subdevice: Object) -> Result<u32, RmError> {
        let mut params = GpuId::default();
        self.control(client, subdevice, abi::GPU_ID, &mut params)?;
        Ok(params.gpu_id)
    }

    /// The driver's id of the GPU that memory below `parent` is on: a device, or a subdevice of
    /// one. `None` if the client has no subdevice of that device, through which the driver is
    /// asked.
    ///
    /// # Errors
    ///
    /// As [`Control::class_of`].
    pub fn gpu_of_parent(&self, client: Client, parent: Object) -> Result<Option<u32>, RmError> {
        if self.class_of(client, parent)? == CLASS_SUBDEVICE {
            return self.gpu_of(client, parent).map(Some);
        }
        let mut params = FindSubdevice::default();
        match self.control(client, parent, FIND_SUBDEVICE, &mut params) {
            Ok(()) => self.gpu_of(client, Object(params.subdevice)).map(Some),
            Err(error) if error.status() == Some(Status::OBJECT_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn handle_info(&self, client: Client, object: Object, index: u32) -> Result<u32, RmError> {
        let mut params = HandleInfo {
            object: object.0,
            index,
            value: 0,
        };
        self.control(client, client.as_object(), abi::HANDLE_INFO, &mut params)?;
        // Classes and handles have 32 bits.
        Ok(params.value as u32)
    }
}

/// What tells one node from another: for a device its number, which has as
/// many files as there are `/dev`s, else the file.
fn node_of(fd: BorrowedFd<'_>) -> Option<(bool, u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
    // SAFETY: the path is an empty string, the descriptor is open, and the
    // kernel writes one `statx` to memory that holds one.
    let rc = unsafe {
        libc::statx(
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            libc::STATX_TYPE | libc::STATX_INO,
            stat.as_mut_ptr(),
        )
    };
    if rc != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it is written.
    let stat = unsafe { stat.assume_init() };
    let pair = |major: u32, minor: u32| u64::from(major) << 32 | u64::from(minor);
    Some(
        if u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFCHR {
            (true, pair(stat.stx_rdev_major, stat.stx_rdev_minor), 0)
        } else {
            let device = pair(stat.stx_dev_major, stat.stx_dev_minor);
            (false, device, stat.stx_ino)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_node_is_its_device_number_and_a_file_itself() {
        let open = |path: &str| File::open(path).unwrap();
        let (null, again, zero) = (open("/dev/null"), open("/dev/null"), open("/dev/zero"));
        assert_eq!(node_of(null.as_fd()), node_of(again.as_fd()));
        assert_ne!(node_of(null.as_fd()), node_of(zero.as_fd()));
        let (a, b) = (open("/proc/self/exe"), open("/proc/version"));
        assert!(node_of(a.as_fd()).is_some());
        assert_ne!(node_of(a.as_fd()), node_of(b.as_fd()));
    }
}
