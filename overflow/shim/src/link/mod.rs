//! The link to the executor: four connections, one order of commands.

mod region;

pub(crate) use region::Region;

use ghost_wire::result::{Code, NOT_SUPPORTED};
use ghost_wire::{Decoder, Encoder, Malformed, Op};

/// What the link calls when something comes unasked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handlers {
    /// A function of the program's is due: token and code. Called on the thread for callbacks; the
    /// link says `CallbackDone` when it returns.
    pub(crate) callback: fn(token: u64, code: Code),
    /// The device changed shared memory: address, and the bytes that are there now. Called on the
    /// thread that reads `down`, before any reply that counts it is acted on.
    pub(crate) changed: fn(at: u64, data: &[u8]),
}

/// The link.
#[derive(Debug)]
pub(crate) struct Link {}

impl Link {
    /// Sends a command that is not waited for. A late error that is pending is returned instead,
    /// once, and nothing sent. `encode` must append the command's body and do nothing else: a
    /// lock is held.
    pub(crate) fn post(&self, _op: Op, _encode: impl FnOnce(&mut Encoder<'_>)) -> Code {
        NOT_SUPPORTED
    }

    /// Sends a command and waits for its answer, which `decode` reads.
    ///
    /// # Errors
    /// The answer's code, or that of a broken link.
    pub(crate) fn wait<T>(
        &self,
        _op: Op,
        _encode: impl FnOnce(&mut Encoder<'_>),
        _decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Code> {
        Err(NOT_SUPPORTED)
    }

    /// As [`Link::wait`], for calls of class `syncs`: where it succeeds, a late error that is
    /// pending is returned in its place.
    ///
    /// # Errors
    /// As in `wait`, and the late error.
    pub(crate) fn wait_sync<T>(
        &self,
        op: Op,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Code> {
        self.wait(op, encode, decode)
    }

    /// Takes the late error that is pending, for calls of class `syncs` that are answered here.
    ///
    /// # Errors
    /// The late error.
    pub(crate) fn take_late(&self) -> Result<(), Code> {
        Ok(())
    }

    /// Sends a command with data of the program's, not waited for; the source is free when it
    /// returns. `encode` is given whether the data goes by `up` (`bulk`) and otherwise the data.
    ///
    /// # Safety
    /// The region can be read.
    pub(crate) unsafe fn post_data(
        &self,
        _op: Op,
        _source: Region,
        _encode: impl FnOnce(&mut Encoder<'_>, bool, &[u8]),
    ) -> Code {
        NOT_SUPPORTED
    }

    /// As [`Link::post_data`], waited for.
    ///
    /// # Safety
    /// The region can be read.
    ///
    /// # Errors
    /// As in [`Link::wait`].
    pub(crate) unsafe fn wait_data<T>(
        &self,
        _op: Op,
        _source: Region,
        _encode: impl FnOnce(&mut Encoder<'_>, bool, &[u8]),
        _decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Code> {
        Err(NOT_SUPPORTED)
    }

    /// Sends a command whose data comes back by `down`, later, into `to`; not waited for.
    ///
    /// # Safety
    /// The region can be written until [`Link::landed`] says that all has come.
    pub(crate) unsafe fn post_landing(
        &self,
        _op: Op,
        _to: Region,
        _encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Code {
        NOT_SUPPORTED
    }

    /// Sends a command whose data comes back by `down` into `to`, and waits for it.
    ///
    /// # Safety
    /// The region can be written until this returns.
    ///
    /// # Errors
    /// As in [`Link::wait_sync`].
    pub(crate) unsafe fn wait_landing(
        &self,
        _op: Op,
        _to: Region,
        _encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<(), Code> {
        Err(NOT_SUPPORTED)
    }

    /// Waits until no data is on its way into `len` bytes at `at`.
    ///
    /// # Errors
    /// That of a broken link.
    pub(crate) fn landed(&self, _at: u64, _len: usize) -> Result<(), Code> {
        Ok(())
    }

    /// Counts the functions of the program's that are due and have not returned: for a copy from
    /// memory that such a function may write.
    pub(crate) fn calls_back(&self) -> bool {
        false
    }
}
