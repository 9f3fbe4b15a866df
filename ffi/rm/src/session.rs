//! An RM client of one's own, for the controls that a stranger's descriptor is
//! not needed for.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use crate::abi::{
    self, CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, CLASS_SUBDEVICE_DIAG, Channel, ChannelState,
    Client, DeviceParams, Gpu, Object, SubdeviceParams,
};
use crate::branch::AllocForm;
use crate::control::{Control, PartlyDone, RmError};

/// Where the handles of our own objects start; any number that is not 0 does,
/// they share no space with other clients'.
const FIRST_HANDLE: u32 = 0x5C00_0002;

const DIAG_HANDLE: u32 = FIRST_HANDLE + 2 * MAX_DEVICES;

/// GPUs that one driver can hold.
const MAX_DEVICES: u32 = 32;

/// Why a session could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The control node cannot be opened.
    #[error("{path}: cannot open the nvidia node; is the driver loaded?")]
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
    #[error("cannot allocate {gpu}; is it started, and its node there?")]
    Device {
        /// The GPU asked for.
        gpu: Gpu,
        /// The refusal.
        #[source]
        source: RmError,
    },
    /// There can be no such instance.
    #[error("{gpu}: the driver's last instance is {last}")]
    NoSuchDevice {
        /// The GPU asked for.
        gpu: Gpu,
        /// The last possible instance.
        last: u32,
    },
    /// The state of a channel could not be read.
    #[error("cannot read the state of channel {channel}")]
    Ask {
        /// The channel asked about.
        channel: Channel,
        /// The refusal.
        #[source]
        source: RmError,
    },
}

/// A client on an open control node, with a subdevice for each GPU asked for.
///
/// The driver gives a device only to a process that has the GPU's own node
/// open, so the session keeps that open too: it holds the GPU started.
/// Dropping a session frees its client; what it disabled stays disabled.
#[derive(Debug)]
pub struct Session {
    dev_root: PathBuf,
    ctl: File,
    form: AllocForm,
    client: Client,
    gpus: BTreeMap<Gpu, Opened>,
}

#[derive(Debug)]
struct Opened {
    // Never read: open for the driver to see.
    _node: Option<File>,
    subdevice: Object,
    diag: Option<Object>,
}

impl Session {
    /// Opens `nvidiactl` below `dev_root` (`/dev`, or a stand-in's directory)
    /// and allocates a client.
    ///
    /// # Errors
    ///
    /// [`SessionError::Open`], [`SessionError::Client`].
    pub fn open(dev_root: &Path, form: AllocForm) -> Result<Self, SessionError> {
        let ctl = open_node(dev_root.join("nvidiactl"))?;
        let root = Control::new(ctl.as_fd())
            .alloc::<DeviceParams>(form, Client(0), Object(0), Object(0), CLASS_CLIENT, None)
            .map_err(SessionError::Client)?;
        Ok(Self {
            dev_root: dev_root.to_owned(),
            ctl,
            form,
            client: Client(root.0),
            gpus: BTreeMap::new(),
        })
    }

    /// The session's own client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    pub(crate) fn form(&self) -> AllocForm {
        self.form
    }

    /// The calls, on this session's descriptor.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        Control::new(self.ctl.as_fd())
    }

    /// The subdevice of `gpu`, allocated at the first call.
    ///
    /// # Errors
    ///
    /// [`SessionError::Open`] for the GPU's node, [`SessionError::Device`],
    /// [`SessionError::NoSuchDevice`].
    pub fn subdevice(&mut self, gpu: Gpu) -> Result<Object, SessionError> {
        Ok(self.gpu(gpu)?.subdevice)
    }

    /// Disables (or enables) `channels` through `subdevice`, which
    /// [`Session::subdevice`] gave for their GPU; see
    /// [`Control::disable_channels`].
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

    /// Whether `channel`, of any client, is enabled: no disable of it is
    /// outstanding, whoever asked for it.
    ///
    /// # Errors
    ///
    /// As [`Session::subdevice`]; [`SessionError::Ask`] with a status that
    /// [`crate::Status::is_gone`] if there is no such channel, and
    /// [`crate::Status::INVALID_CLASS`] or [`crate::Status::NOT_SUPPORTED`] if
    /// this driver cannot tell.
    pub fn channel_enabled(&mut self, gpu: Gpu, channel: Channel) -> Result<bool, SessionError> {
        let (form, client) = (self.form, self.client);
        let opened = self.gpu(gpu)?;
        let (subdevice, known) = (opened.subdevice, opened.diag);
        let ask = |source| SessionError::Ask { channel, source };
        let diag = match known {
            Some(diag) => diag,
            None => {
                let handle = Object(DIAG_HANDLE + gpu.instance);
                let diag = self
                    .control()
                    .alloc::<DeviceParams>(
                        form,
                        client,
                        subdevice,
                        handle,
                        CLASS_SUBDEVICE_DIAG,
                        None,
                    )
                    .map_err(ask)?;
                self.gpu(gpu)?.diag = Some(diag);
                diag
            }
        };
        let mut params = ChannelState {
            channel: channel.object.0,
            client: channel.client.0,
            ..ChannelState::default()
        };
        self.control()
            .control(client, diag, abi::CHANNEL_STATE, &mut params)
            .map_err(ask)?;
        Ok(params.enabled != 0)
    }

    fn gpu(&mut self, gpu: Gpu) -> Result<&mut Opened, SessionError> {
        if gpu.instance >= MAX_DEVICES {
            let last = MAX_DEVICES - 1;
            return Err(SessionError::NoSuchDevice { gpu, last });
        }
        let opened = match self.gpus.remove(&gpu) {
            Some(opened) => opened,
            None => self.open_gpu(gpu)?,
        };
        Ok(self.gpus.entry(gpu).or_insert(opened))
    }

    fn open_gpu(&self, gpu: Gpu) -> Result<Opened, SessionError> {
        // Where there is no node, the driver is the one to refuse: a stand-in
        // may do without.
        let node = match open_node(self.dev_root.join(format!("nvidia{}", gpu.minor))) {
            Ok(node) => Some(node),
            Err(SessionError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                None
            }
            Err(error) => return Err(error),
        };
        if let Some(node) = &node {
            self.register(node);
        }
        let subdevice = self
            .alloc_subdevice(gpu.instance)
            .map_err(|source| SessionError::Device { gpu, source })?;
        Ok(Opened {
            _node: node,
            subdevice,
            diag: None,
        })
    }

    /// Lets the driver see that who holds `node` also holds this client's file.
    /// If it refuses, it will refuse the device too, and say why.
    fn register(&self, node: &File) {
        let mut ctl = self.ctl.as_raw_fd();
        // SAFETY: the argument of this ioctl is one descriptor's number.
        let _ = unsafe { Control::new(node.as_fd()).ioctl(abi::ESC_REGISTER_FD, &mut ctl) };
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

fn open_node(path: PathBuf) -> Result<File, SessionError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|source| SessionError::Open { path, source })
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
    fn an_instance_past_the_last_is_refused_before_any_call() {
        // A file stands for the node: a call on it would be another error.
        let mut session = Session {
            dev_root: PathBuf::from("/nonexistent"),
            ctl: File::open("/dev/null").unwrap(),
            form: AllocForm::WithRights,
            client: Client(1),
            gpus: BTreeMap::new(),
        };
        let gpu = |instance| Gpu { instance, minor: 0 };
        assert!(matches!(
            session.subdevice(gpu(MAX_DEVICES)),
            Err(SessionError::NoSuchDevice { .. })
        ));
        assert!(matches!(
            session.subdevice(gpu(u32::MAX)),
            Err(SessionError::NoSuchDevice { .. })
        ));
        assert!(matches!(
            session.subdevice(gpu(0)),
            Err(SessionError::Device { .. })
        ));
    }

    #[test]
    fn no_driver_is_named_with_its_path() {
        let empty = std::env::temp_dir().join("ghost-rm-no-such-directory");
        let error = Session::open(&empty, AllocForm::WithRights).unwrap_err();
        assert!(error.to_string().contains("nvidiactl"));
        assert!(matches!(error, SessionError::Open { .. }));
    }
}
