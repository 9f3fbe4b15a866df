//! An RM client of one's own, for the controls that a stranger's descriptor is
//! not needed for.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::abi::{
    CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, Channel, Client, DeviceParams, Object,
    SubdeviceParams,
};
use crate::branch::AllocForm;
use crate::control::{Control, PartlyDone, RmError};

/// Where the handles of our own objects start; any number that is not 0 does,
/// they share no space with other clients'.
const FIRST_HANDLE: u32 = 0x5C00_0002;

/// GPUs that one driver can hold.
const MAX_DEVICES: u32 = 32;

/// Why a session could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The control node cannot be opened.
    #[error("{path}: cannot open the nvidia control node; is the driver loaded?")]
    Open {
        /// The node.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The driver did not give a client.
    #[error("cannot allocate a client")]
    Client(#[source] RmError),
    /// The driver did not give the device or its subdevice.
    #[error("cannot allocate gpu instance {instance}; is a gpu of that number started?")]
    Device {
        /// The instance asked for.
        instance: u32,
        /// The refusal.
        #[source]
        source: RmError,
    },
    /// There can be no such instance.
    #[error("gpu instance {instance} is past the driver's last, {last}")]
    NoSuchDevice {
        /// The instance asked for.
        instance: u32,
        /// The last possible.
        last: u32,
    },
}

/// A client on an open control node, with a subdevice for each GPU asked for.
/// Dropping it frees the client; what it disabled stays disabled.
#[derive(Debug)]
pub struct Session {
    ctl: File,
    form: AllocForm,
    client: Client,
    subdevices: BTreeMap<u32, Object>,
}

impl Session {
    /// Opens `nvidiactl` below `dev_root` (`/dev`, or a stand-in's directory)
    /// and allocates a client.
    ///
    /// # Errors
    ///
    /// [`SessionError::Open`], [`SessionError::Client`].
    pub fn open(dev_root: &Path, form: AllocForm) -> Result<Self, SessionError> {
        let path = dev_root.join("nvidiactl");
        let ctl = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| SessionError::Open { path, source })?;
        let root = Control::new(ctl.as_fd())
            .alloc::<DeviceParams>(form, Client(0), Object(0), Object(0), CLASS_CLIENT, None)
            .map_err(SessionError::Client)?;
        Ok(Self {
            ctl,
            form,
            client: Client(root.0),
            subdevices: BTreeMap::new(),
        })
    }

    /// The session's own client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    /// The calls, on this session's descriptor.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        Control::new(self.ctl.as_fd())
    }

    /// The subdevice of GPU `instance` (the driver's device instance number),
    /// allocated at the first call.
    ///
    /// # Errors
    ///
    /// [`SessionError::Device`], [`SessionError::NoSuchDevice`].
    pub fn subdevice(&mut self, instance: u32) -> Result<Object, SessionError> {
        if instance >= MAX_DEVICES {
            let last = MAX_DEVICES - 1;
            return Err(SessionError::NoSuchDevice { instance, last });
        }
        if let Some(&subdevice) = self.subdevices.get(&instance) {
            return Ok(subdevice);
        }
        let subdevice = self
            .alloc_subdevice(instance)
            .map_err(|source| SessionError::Device { instance, source })?;
        self.subdevices.insert(instance, subdevice);
        Ok(subdevice)
    }

    /// Disables (or enables) `channels` on GPU `instance`; see
    /// [`Control::disable_channels`]. `subdevice` is what
    /// [`Session::subdevice`] gave for it.
    ///
    /// # Errors
    ///
    /// [`PartlyDone`] at the first call that fails.
    pub fn disable_channels(
        &self,
        subdevice: Object,
        channels: &[Channel],
        disable: bool,
    ) -> Result<(), PartlyDone> {
        self.control()
            .disable_channels(self.client, subdevice, channels, disable)
    }

    fn alloc_subdevice(&self, instance: u32) -> Result<Object, RmError> {
        let control = self.control();
        let device = Object(FIRST_HANDLE + 2 * instance);
        let subdevice = Object(device.0 + 1);
        let mut params = DeviceParams {
            device_id: instance,
            ..DeviceParams::default()
        };
        let device = control.alloc(
            self.form,
            self.client,
            self.client.as_object(),
            device,
            CLASS_DEVICE,
            Some(&mut params),
        )?;
        let allocated = control.alloc(
            self.form,
            self.client,
            device,
            subdevice,
            CLASS_SUBDEVICE,
            Some(&mut SubdeviceParams::default()),
        );
        if allocated.is_err() {
            // Else the handle would be taken when it is asked for again; that
            // this fails too changes nothing.
            let _ = control.free(self.client, self.client.as_object(), device);
        }
        allocated
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The last close would free the client as well; nobody can act on a
        // refusal here.
        let root = self.client.as_object();
        let _ = self.control().free(self.client, root, root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_driver_is_named_with_its_path() {
        let empty = std::env::temp_dir().join("ghost-rm-no-such-directory");
        let error = Session::open(&empty, AllocForm::WithRights).unwrap_err();
        assert!(error.to_string().contains("nvidiactl"));
        assert!(matches!(error, SessionError::Open { .. }));
    }
}
