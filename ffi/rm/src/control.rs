//! RM calls on a descriptor of `/dev/nvidiactl`, one's own or another
//! process's: the RM looks at the open file, not at who calls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::abi::memory::Dup;
use crate::abi::{
    self, Alloc, AllocShort, CHANNELS_PER_CALL, Channel, Client, Command, ControlArgs,
    DisableChannels, Free, Object, Plain, Preempt, Timeslice, TsgInfo,
};
use crate::branch::AllocForm;
use crate::status::Status;

/// Why an RM call did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// The ioctl itself failed: the descriptor is not an RM file, or a pointer
    /// was bad.
    #[error("{what} on object {object} of client {client}: ioctl failed")]
    Ioctl {
        /// The call.
        what: &'static str,
        /// Client it named.
        client: Client,
        /// Object it named.
        object: Object,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The ioctl was carried out and the RM refused.
    #[error("{what} on object {object} of client {client}: rm status {status}")]
    Refused {
        /// The call.
        what: &'static str,
        /// Client it named.
        client: Client,
        /// Object it named.
        object: Object,
        /// The answer.
        status: Status,
    },
}

impl RmError {
    /// The RM's answer, `None` when the call did not get that far.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Ioctl { .. } => None,
            Self::Refused { status, .. } => Some(*status),
        }
    }
}

/// A list of channels was worked through only in part.
#[derive(Debug, thiserror::Error)]
#[error("after {done} channels")]
pub struct PartlyDone {
    /// Channels from the front of the list that were switched for certain. Of
    /// the next [`CHANNELS_PER_CALL`] none is known; the rest was not tried.
    pub done: usize,
    /// Why it stopped.
    #[source]
    pub source: RmError,
}

/// The RM calls, on a descriptor that the caller keeps open.
///
/// Each method is one ioctl unless it says otherwise. A call interrupted by a
/// signal is made again: the RM answers `EINTR` only before it starts.
#[derive(Clone, Copy, Debug)]
pub struct Control<'fd> {
    fd: BorrowedFd<'fd>,
}

impl<'fd> Control<'fd> {
    /// Speaks on `fd`, an open `/dev/nvidiactl`.
    #[must_use]
    pub fn new(fd: BorrowedFd<'fd>) -> Self {
        Self { fd }
    }

    /// The descriptor spoken on.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'fd> {
        self.fd
    }

    /// Sends `command` to `object`; the driver's answer is in `params`.
    ///
    /// # Errors
    ///
    /// [`RmError::Refused`] with [`Status::INVALID_CLIENT`] if `client` is not
    /// on this file, [`Status::NOT_SUPPORTED`] or
    /// [`Status::OBJECT_NOT_FOUND`] if it has no such object.
    pub fn control<T: Plain>(
        &self,
        client: Client,
        object: Object,
        command: Command<T>,
        params: &mut T,
    ) -> Result<(), RmError> {
        let mut args = ControlArgs {
            client: client.0,
            object: object.0,
            cmd: command.number(),
            params: address_of(params),
            params_size: size_of_u32::<T>(),
            ..ControlArgs::default()
        };
        // SAFETY: `args` is the 32-byte argument of this ioctl; its pointer is
        // to `params`, exclusive and alive for the call, and `Command<T>` and
        // `Plain` say that the driver touches no more than one T there.
        let called = unsafe { self.ioctl(abi::ESC_RM_CONTROL, &mut args) };
        check(command.name(), client, object, called, args.status)
    }

    /// Sets the timeslice of channel group `tsg`, in microseconds. 0 stops it
    /// and yet costs its neighbours switches: pause instead.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn set_timeslice(&self, client: Client, tsg: Object, micros: u64) -> Result<(), RmError> {
        self.control(client, tsg, abi::SET_TIMESLICE, &mut Timeslice { micros })
    }

    /// The timeslice of channel group `tsg`, in microseconds.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn get_timeslice(&self, client: Client, tsg: Object) -> Result<u64, RmError> {
        let mut params = Timeslice::default();
        self.control(client, tsg, abi::GET_TIMESLICE, &mut params)?;
        Ok(params.micros)
    }

    /// Takes channel group `tsg` off the hardware once and waits for that,
    /// `timeout_us` at most where given (the RM takes up to 1,000,000).
    ///
    /// # Errors
    ///
    /// As [`Control::control`]; [`Status::TIMEOUT`] if it would not leave.
    pub fn preempt(
        &self,
        client: Client,
        tsg: Object,
        timeout_us: Option<u32>,
    ) -> Result<(), RmError> {
        let mut params = Preempt {
            wait: 1,
            manual_timeout: timeout_us.is_some().into(),
            timeout_us: timeout_us.unwrap_or(0),
            ..Preempt::default()
        };
        self.control(client, tsg, abi::PREEMPT, &mut params)
    }

    /// The hardware id of channel group `tsg`.
    ///
    /// # Errors
    ///
    /// As [`Control::control`].
    pub fn tsg_id(&self, client: Client, tsg: Object) -> Result<u32, RmError> {
        let mut params = TsgInfo::default();
        self.control(client, tsg, abi::TSG_INFO, &mut params)?;
        Ok(params.id)
    }

    /// Disables (or enables) `channels` of any clients through `subdevice` of
    /// one's own `client`, 64 to a call.
    ///
    /// Disables nest: two need two enables. An enable of a channel that is
    /// enabled does nothing (driver 580, H200). A call goes through its list in
    /// order and stops at the first channel that is not there
    /// ([`Status::INVALID_CHANNEL`]); those before it are switched.
    ///
    /// # Errors
    ///
    /// [`PartlyDone`] at the first call that fails.
    pub fn disable_channels(
        &self,
        client: Client,
        subdevice: Object,
        channels: &[Channel],
        disable: bool,
    ) -> Result<(), PartlyDone> {
        let mut done = 0;
        for some in channels.chunks(CHANNELS_PER_CALL) {
            let (mut params, taken) = DisableChannels::new(some, disable);
            self.control(client, subdevice, abi::DISABLE_CHANNELS, &mut params)
                .map_err(|source| PartlyDone { done, source })?;
            done += taken;
        }
        Ok(())
    }

    /// Allocates an object of `class` below `parent`; `new` 0 lets the RM pick
    /// the handle. `client` and `parent` 0 with [`abi::CLASS_CLIENT`] allocates
    /// a client.
    ///
    /// # Errors
    ///
    /// [`RmError::Refused`] with [`Status::INVALID_CLASS`] if the driver knows
    /// no such class, [`Status::INVALID_OBJECT_PARENT`] for a wrong parent.
    pub fn alloc<T: Plain>(
        &self,
        form: AllocForm,
        client: Client,
        parent: Object,
        new: Object,
        class: u32,
        params: Option<&mut T>,
    ) -> Result<Object, RmError> {
        let (params, params_size) = match params {
            Some(params) => (std::ptr::from_mut(params) as u64, size_of_u32::<T>()),
            None => (0, 0),
        };
        let (called, status, handle) = match form {
            AllocForm::WithRights => {
                let mut args = Alloc {
                    root: client.0,
                    parent: parent.0,
                    new: new.0,
                    class,
                    params,
                    params_size,
                    ..Alloc::default()
                };
                // SAFETY: `args` is the 48-byte argument of this ioctl; its
                // only non-zero pointer is to `params`, exclusive and alive.
                let called = unsafe { self.ioctl(abi::ESC_RM_ALLOC, &mut args) };
                (called, args.status, args.new)
            }
            AllocForm::Short => {
                let mut args = AllocShort {
                    root: client.0,
                    parent: parent.0,
                    new: new.0,
                    class,
                    params,
                    params_size,
                    ..AllocShort::default()
                };
                // SAFETY: as above, with the 32-byte argument.
                let called = unsafe { self.ioctl(abi::ESC_RM_ALLOC, &mut args) };
                (called, args.status, args.new)
            }
        };
        check("alloc", client, parent, called, status)?;
        Ok(Object(handle))
    }

    /// Frees `object` and all below it; the client's own handle frees the
    /// client.
    ///
    /// # Errors
    ///
    /// [`RmError::Refused`] with [`Status::INVALID_OBJECT_OLD`] if it is not there.
    pub fn free(&self, client: Client, parent: Object, object: Object) -> Result<(), RmError> {
        let mut args = Free {
            root: client.0,
            parent: parent.0,
            old: object.0,
            status: 0,
        };
        // SAFETY: `args` is the 16-byte argument of this ioctl and holds no
        // pointer.
        let called = unsafe { self.ioctl(abi::ESC_RM_FREE, &mut args) };
        check("free", client, object, called, args.status)
    }

    /// Gives `object` of `from` another handle, in `client` below `parent`; `new` 0 lets the RM
    /// pick it. The object lives until its last handle is gone.
    ///
    /// # Errors
    ///
    /// [`RmError::Refused`] with [`Status::INSUFFICIENT_PERMISSIONS`] if `from` does not share it,
    /// [`Status::OBJECT_NOT_FOUND`] if it is not there.
    pub fn dup(
        &self,
        client: Client,
        parent: Object,
        new: Object,
        from: Client,
        object: Object,
    ) -> Result<Object, RmError> {
        let mut args = Dup {
            client: client.0,
            parent: parent.0,
            object: new.0,
            from_client: from.0,
            from_object: object.0,
            ..Dup::default()
        };
        // SAFETY: `args` is the 28-byte argument of this ioctl and holds no pointer.
        let called = unsafe { self.ioctl(abi::memory::ESC_RM_DUP_OBJECT, &mut args) };
        check("duplicate", from, object, called, args.status)?;
        Ok(Object(args.object))
    }

    /// # Safety
    ///
    /// `args` is the argument that ioctl `number` takes, and each address in it
    /// is 0 or valid for what the driver does there.
    pub(crate) unsafe fn ioctl<A>(&self, number: u8, args: &mut A) -> io::Result<()> {
        let request = abi::iowr(number, size_of::<A>());
        loop {
            // SAFETY: the descriptor is open (borrowed); the size in `request`
            // is that of `args`; the rest is this function's own contract.
            let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, &raw mut *args) };
            if rc >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// The RM refuses an address of nothing.
fn address_of<T>(params: &mut T) -> u64 {
    if size_of::<T>() == 0 {
        0
    } else {
        std::ptr::from_mut(params) as u64
    }
}

pub(crate) fn check(
    what: &'static str,
    client: Client,
    object: Object,
    called: io::Result<()>,
    status: u32,
) -> Result<(), RmError> {
    called.map_err(|source| RmError::Ioctl {
        what,
        client,
        object,
        source,
    })?;
    match Status(status) {
        Status::OK => Ok(()),
        status => Err(RmError::Refused {
            what,
            client,
            object,
            status,
        }),
    }
}

fn size_of_u32<T>() -> u32 {
    const { assert!(size_of::<T>() <= 1 << 16) };
    size_of::<T>() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_that_is_no_rm_answers_errno_with_names() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = Control::new(null.as_fd())
            .get_timeslice(Client(0xc1d0_0000), Object(0x5c00_0015))
            .unwrap_err();
        assert!(error.status().is_none());
        assert_eq!(
            error.to_string(),
            "get timeslice on object 0x5c000015 of client 0xc1d00000: ioctl failed"
        );
    }

    #[test]
    fn a_failed_first_call_reports_nothing_done() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let channel = Channel {
            client: Client(1),
            object: Object(2),
        };
        let control = Control::new(null.as_fd());
        let error = control
            .disable_channels(Client(3), Object(4), &[channel; 130], true)
            .unwrap_err();
        assert_eq!(error.done, 0);
        assert!(
            control
                .disable_channels(Client(3), Object(4), &[], true)
                .is_ok()
        );
    }
}
