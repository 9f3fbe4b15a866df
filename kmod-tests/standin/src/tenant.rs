//! What a CUDA program is to the driver: the files and objects of its contexts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use ghost_backend::sim::wire::{Request, Response};
use ghost_rm::abi::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, DeviceParams, SubdeviceParams,
};
use ghost_rm::{AllocForm, Client, Control, Object, RmError};

use crate::{CLASS_CHANNEL, CLASS_COMPUTE, CLASS_COPY};

/// Handles between one context and the next.
const CONTEXT_HANDLES: u32 = 0x100;
/// Compute channels, and copy channels in each of as many groups.
const COMPUTE_CHANNELS: u32 = 8;
const COPY_GROUPS: u32 = 3;
const COPY_CHANNELS: u32 = 4;
/// The timeslice that the driver gives copy engines, us.
const COPY_SLICE: u64 = 1024;

/// Why a tenant could not do something.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The stand-in's files.
    #[error("{0}: is a stand-in mounted there?")]
    Io(String, #[source] io::Error),
    /// Its driver.
    #[error(transparent)]
    Rm(#[from] RmError),
    /// The line that says what is launched.
    #[error("the stand-in refused: {0}")]
    Refused(String),
}

/// A program with open files and a client.
#[derive(Debug)]
pub struct Tenant {
    control: File,
    // Never used: open for the driver to see.
    _node: File,
    client: Client,
    device: Object,
    groups: Vec<Object>,
}

impl Tenant {
    /// Opens the files in `dir` and allocates a client, a device and its subdevice on the GPU
    /// with this index.
    ///
    /// # Errors
    /// [`TenantError`].
    pub fn open(dir: &Path, gpu: u32) -> Result<Self, TenantError> {
        let open = |name: &str| {
            let path = dir.join(name);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            file.map_err(|e| TenantError::Io(path.display().to_string(), e))
        };
        let control = open("nvidiactl")?;
        let node = open(&format!("nvidia{gpu}"))?;
        let rm = Control::new(control.as_fd());
        let form = AllocForm::WithRights;
        let none = None::<&mut DeviceParams>;
        let root = rm.alloc(form, Client(0), Object(0), Object(0), CLASS_CLIENT, none)?;
        let client = Client(root.0);
        let mut params = DeviceParams {
            device_id: gpu,
            ..DeviceParams::default()
        };
        let wanted = Object(0x5C00_0002);
        let device = rm.alloc(form, client, root, wanted, CLASS_DEVICE, Some(&mut params))?;
        let mut params = SubdeviceParams::default();
        let wanted = Object(0x5C00_0003);
        rm.alloc(
            form,
            client,
            device,
            wanted,
            CLASS_SUBDEVICE,
            Some(&mut params),
        )?;
        Ok(Tenant {
            control,
            _node: node,
            client,
            device,
            groups: Vec::new(),
        })
    }

    /// Its client.
    pub fn client(&self) -> Client {
        self.client
    }

    /// The subdevice.
    pub fn subdevice(&self) -> Object {
        Object(0x5C00_0003)
    }

    /// The compute channel groups of its contexts.
    pub fn groups(&self) -> &[Object] {
        &self.groups
    }

    /// The control file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Its calls.
    pub fn rm(&self) -> Control<'_> {
        Control::new(self.fd())
    }

    /// Makes a context as CUDA does: a compute group with eight channels, and three groups of
    /// copy engines with four each. Gives the compute group.
    ///
    /// # Errors
    /// [`TenantError::Rm`].
    pub fn context(&mut self) -> Result<Object, TenantError> {
        let base = 0x5C00_0015 + CONTEXT_HANDLES * self.groups.len() as u32;
        let compute = self.group(base, COMPUTE_CHANNELS, &[CLASS_COMPUTE, CLASS_COPY])?;
        for n in 1..=COPY_GROUPS {
            let copy = self.group(base + 0x30 * n, COPY_CHANNELS, &[CLASS_COPY])?;
            self.rm().set_timeslice(self.client, copy, COPY_SLICE)?;
        }
        self.groups.push(compute);
        Ok(compute)
    }

    fn group(&self, handle: u32, channels: u32, engines: &[u32]) -> Result<Object, RmError> {
        let alloc = |parent: Object, handle: u32, class: u32| {
            let none = None::<&mut DeviceParams>;
            let form = AllocForm::Short;
            self.rm()
                .alloc(form, self.client, parent, Object(handle), class, none)
        };
        let group = alloc(self.device, handle, CLASS_CHANNEL_GROUP)?;
        for n in 0..channels {
            let handle = handle + 1 + 4 * n;
            let channel = alloc(group, handle, CLASS_CHANNEL)?;
            for (&class, engine) in engines.iter().zip(1..) {
                alloc(channel, handle + engine, class)?;
            }
        }
        Ok(group)
    }

    /// The channels of a compute group that [`Tenant::context`] made.
    pub fn channels(&self, group: Object) -> Vec<Object> {
        let handles = (0..COMPUTE_CHANNELS).map(|n| group.0 + 1 + 4 * n);
        handles.map(Object).collect()
    }

    /// Says what its groups launch, or asks how far they are.
    ///
    /// # Errors
    /// [`TenantError::Io`], [`TenantError::Refused`].
    pub fn ask(&mut self, request: &Request) -> Result<Response, TenantError> {
        let failed = |e| TenantError::Io("nvidiactl".into(), e);
        let line = serde_json::to_vec(request).map_err(|e| failed(e.into()))?;
        let mut control = &self.control;
        control.write_all(&line).map_err(failed)?;
        let mut answer = vec![0; 1 << 17];
        let n = control.read(&mut answer).map_err(failed)?;
        answer.truncate(n);
        match serde_json::from_slice(&answer).map_err(|e| failed(e.into()))? {
            Response::Error(why) => Err(TenantError::Refused(why)),
            response => Ok(response),
        }
    }
}
