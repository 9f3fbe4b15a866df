//! What a tenant asks of the driver, read from copies of its bytes.
//!
//! A supervisor gets the number of a tenant's `ioctl` and an address. It copies
//! [`argument_size`] bytes, [`parse`]s the copy, and acts on that alone. Where it does the call
//! itself, [`perform`] does it with the copies; the tenant's own addresses are never given to
//! the driver. Everything here may be hostile: no length and no address is trusted, and any
//! bytes whatever are read without a panic.
//!
//! The driver looks at the low byte of an `ioctl`'s number and at the size in it, not at type
//! and direction, and so does this.

mod memory;
mod perform;

pub use memory::{DeviceMemory, device_memory};
pub use perform::perform;

use std::mem::{offset_of, size_of};

use crate::abi::memory::{
    Dup, ESC_IOCTL_XFER_CMD, ESC_RM_ALLOC_MEMORY, ESC_RM_DUP_OBJECT, ESC_RM_VID_HEAP_CONTROL,
    HEAP_FREE, HEAP_INFO, Heap, HeapLayout, MemoryParams, OldAlloc, Wrapper,
};
use crate::abi::{
    Alloc, AllocShort, ControlArgs, ESC_RM_ALLOC, ESC_RM_CONTROL, ESC_RM_FREE, Free, iowr,
};
use crate::bytes::{long, put_word, word};
use crate::{AllocForm, Client, Object, Status};

/// The calls that a supervisor of memory is to see, by the low byte of their number.
pub const NUMBERS: &[u8] = &[
    ESC_RM_ALLOC,
    ESC_RM_FREE,
    ESC_RM_DUP_OBJECT,
    ESC_RM_CONTROL,
    ESC_RM_ALLOC_MEMORY,
    ESC_RM_VID_HEAP_CONTROL,
    ESC_IOCTL_XFER_CMD,
];

/// Bytes of the parameters of a device memory allocation as [`perform`] takes them. A branch
/// whose own are shorter ([`crate::Branch::memory_params`]) leaves the rest alone.
pub const MEMORY_PARAMS: usize = size_of::<MemoryParams>();

/// Why bytes are no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The number, or the size in it, is none of [`NUMBERS`]'.
    #[error("ioctl {cmd:#x}: not a call that is supervised; let the driver answer it")]
    NotOurs {
        /// The `ioctl`'s number.
        cmd: u32,
    },
    /// There are not as many bytes as the call has.
    #[error("{what}: {got} bytes, expected {wanted}; copy as many as the call has")]
    Short {
        /// What was read.
        what: &'static str,
        /// Bytes that there were.
        got: usize,
        /// Bytes that it has.
        wanted: usize,
    },
}

/// One call of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocates an object.
    Alloc(AllocCall),
    /// Frees an object and what hangs below it.
    Free(FreeCall),
    /// Gives an object one more handle.
    Dup(DupCall),
    /// Sends a command to an object.
    Control(ControlCall),
    /// The older heap control.
    Heap(HeapCall),
    /// Allocates memory, the oldest form.
    OldAlloc(OldAllocCall),
    /// Any call, with its argument elsewhere.
    Wrapped(WrappedCall),
}

/// Allocates an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocCall {
    /// Client to allocate in; 0 for a new client.
    pub client: Client,
    /// Parent of the new object.
    pub parent: Object,
    /// Handle wanted; 0: the driver picks.
    pub object: Object,
    /// Its class.
    pub class: u32,
    /// Where the tenant has the class's parameters; 0: nowhere.
    pub params_at: u64,
    /// How many bytes it says they are; the driver takes what the class has instead.
    pub params_size: u32,
    /// Where it has a mask of rights; 0: nowhere.
    pub rights_at: u64,
    /// Flags: 0 but for a form of parameters that nobody uses.
    pub flags: u32,
    /// Which argument it sent.
    pub form: AllocForm,
}

/// Frees an object and what hangs below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeCall {
    /// Its client.
    pub client: Client,
    /// Its parent, as the tenant says; the driver does not look.
    pub parent: Object,
    /// The object; the client itself, if it is the client's handle.
    pub object: Object,
}

/// Gives an object one more handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DupCall {
    /// Client that gets the handle.
    pub client: Client,
    /// Parent of the new object.
    pub parent: Object,
    /// Handle wanted; 0: the driver picks.
    pub object: Object,
    /// Client that has the object.
    pub from_client: Client,
    /// The object in it.
    pub from_object: Object,
    /// Flags.
    pub flags: u32,
}

/// Sends a command to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlCall {
    /// Its client.
    pub client: Client,
    /// The object.
    pub object: Object,
    /// The command.
    pub cmd: u32,
    /// Flags: 0 but for a form of parameters that nobody uses.
    pub flags: u32,
    /// Where the tenant has the parameters.
    pub params_at: u64,
    /// How many bytes they are.
    pub params_size: u32,
}

/// The older heap control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapCall {
    /// The client.
    pub client: Client,
    /// The device.
    pub device: Object,
    /// What it is to do.
    pub function: HeapFunction,
}

/// What the older heap control is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapFunction {
    /// Allocates memory, on the device or elsewhere.
    Alloc {
        /// Handle wanted; 0: the driver picks.
        object: Object,
        /// What is wanted.
        memory: DeviceMemory,
    },
    /// Frees an object.
    Free {
        /// The object.
        object: Object,
    },
    /// Tells total and free.
    Info,
    /// Something else.
    Other(u32),
}

/// Allocates memory, the oldest form. It takes no device memory: for class 0x40 it tells the
/// last byte of the card and allocates nothing, unless the tenant is an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldAllocCall {
    /// Client to allocate in.
    pub client: Client,
    /// Parent of the new object.
    pub parent: Object,
    /// Handle wanted.
    pub object: Object,
    /// Its class.
    pub class: u32,
}

/// Any call, with its argument elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrappedCall {
    /// The call as an `ioctl`'s number, for [`parse`]; `None` for one that the driver refuses,
    /// a second wrapper among them, or that is none of [`NUMBERS`]'.
    pub cmd: Option<u32>,
    /// Where the tenant has the argument.
    pub at: u64,
}

/// Bytes at the argument's address that the driver would read for `ioctl` `cmd`; `None` if it
/// is not one of [`NUMBERS`] with the size that the driver wants, and so is not acted on.
#[must_use]
pub fn argument_size(cmd: u32) -> Option<usize> {
    let size = (cmd >> 16 & 0x3fff) as usize;
    let fits = match number_of(cmd) {
        ESC_RM_ALLOC => size == size_of::<Alloc>() || size == size_of::<AllocShort>(),
        ESC_RM_FREE => size == size_of::<Free>(),
        ESC_RM_DUP_OBJECT => size == size_of::<Dup>(),
        ESC_RM_CONTROL => size == size_of::<ControlArgs>(),
        ESC_RM_ALLOC_MEMORY => size == size_of::<OldAlloc>(),
        ESC_RM_VID_HEAP_CONTROL => size == size_of::<Heap>(),
        ESC_IOCTL_XFER_CMD => size == size_of::<Wrapper>(),
        _ => false,
    };
    fits.then_some(size)
}

/// Reads a call from a copy of its argument.
///
/// # Errors
///
/// [`Malformed`]: `cmd` is not a call of [`NUMBERS`], or `argument` is not
/// [`argument_size`] bytes.
pub fn parse(cmd: u32, argument: &[u8]) -> Result<Call, Malformed> {
    let wanted = argument_size(cmd).ok_or(Malformed::NotOurs { cmd })?;
    let short = Malformed::Short {
        what: "argument",
        got: argument.len(),
        wanted,
    };
    if argument.len() != wanted {
        return Err(short);
    }
    read(cmd, argument).ok_or(short)
}

fn read(cmd: u32, a: &[u8]) -> Option<Call> {
    let client = |offset| word(a, offset).map(Client);
    let object = |offset| word(a, offset).map(Object);
    Some(match number_of(cmd) {
        ESC_RM_ALLOC => {
            let with_rights = a.len() == size_of::<Alloc>();
            let size = if with_rights {
                offset_of!(Alloc, params_size)
            } else {
                offset_of!(AllocShort, params_size)
            };
            // Both forms begin alike.
            Call::Alloc(AllocCall {
                client: client(offset_of!(Alloc, root))?,
                parent: object(offset_of!(Alloc, parent))?,
                object: object(offset_of!(Alloc, new))?,
                class: word(a, offset_of!(Alloc, class))?,
                params_at: long(a, offset_of!(Alloc, params))?,
                params_size: word(a, size)?,
                rights_at: match with_rights {
                    true => long(a, offset_of!(Alloc, rights))?,
                    false => 0,
                },
                flags: match with_rights {
                    true => word(a, offset_of!(Alloc, flags))?,
                    false => 0,
                },
                form: match with_rights {
                    true => AllocForm::WithRights,
                    false => AllocForm::Short,
                },
            })
        }
        ESC_RM_FREE => Call::Free(FreeCall {
            client: client(offset_of!(Free, root))?,
            parent: object(offset_of!(Free, parent))?,
            object: object(offset_of!(Free, old))?,
        }),
        ESC_RM_DUP_OBJECT => Call::Dup(DupCall {
            client: client(offset_of!(Dup, client))?,
            parent: object(offset_of!(Dup, parent))?,
            object: object(offset_of!(Dup, object))?,
            from_client: client(offset_of!(Dup, from_client))?,
            from_object: object(offset_of!(Dup, from_object))?,
            flags: word(a, offset_of!(Dup, flags))?,
        }),
        ESC_RM_CONTROL => Call::Control(ControlCall {
            client: client(offset_of!(ControlArgs, client))?,
            object: object(offset_of!(ControlArgs, object))?,
            cmd: word(a, offset_of!(ControlArgs, cmd))?,
            flags: word(a, offset_of!(ControlArgs, flags))?,
            params_at: long(a, offset_of!(ControlArgs, params))?,
            params_size: word(a, offset_of!(ControlArgs, params_size))?,
        }),
        ESC_RM_ALLOC_MEMORY => Call::OldAlloc(OldAllocCall {
            client: client(offset_of!(OldAlloc, root))?,
            parent: object(offset_of!(OldAlloc, parent))?,
            object: object(offset_of!(OldAlloc, new))?,
            class: word(a, offset_of!(OldAlloc, class))?,
        }),
        ESC_RM_VID_HEAP_CONTROL => Call::Heap(HeapCall {
            client: client(offset_of!(Heap, root))?,
            device: object(offset_of!(Heap, parent))?,
            function: heap_function(a)?,
        }),
        _ => Call::Wrapped(WrappedCall {
            cmd: inner(
                word(a, offset_of!(Wrapper, cmd))?,
                word(a, offset_of!(Wrapper, size))?,
            ),
            at: long(a, offset_of!(Wrapper, argument))?,
        }),
    })
}

fn heap_function(a: &[u8]) -> Option<HeapFunction> {
    let function = word(a, offset_of!(Heap, function))?;
    let object = Object(word(a, HeapLayout::MEMORY)?);
    Some(match function {
        HEAP_FREE => HeapFunction::Free { object },
        HEAP_INFO => HeapFunction::Info,
        other => match HeapLayout::of(other) {
            None => HeapFunction::Other(other),
            Some(layout) => {
                let memory = DeviceMemory::of_heap(a, function, layout)?;
                let provided = memory.flags & MemoryParams::HANDLE_PROVIDED != 0;
                HeapFunction::Alloc {
                    object: if provided { object } else { Object(0) },
                    memory,
                }
            }
        },
    })
}

/// A wrapped call as if it were none. The wrapper has room for numbers that an `ioctl`'s has
/// not; the driver knows no such call.
fn inner(number: u32, size: u32) -> Option<u32> {
    let number = u8::try_from(number).ok()?;
    let cmd = u32::try_from(iowr(number, size as usize)).ok()?;
    let fits = argument_size(cmd) == Some(size as usize) && number != ESC_IOCTL_XFER_CMD;
    fits.then_some(cmd)
}

fn number_of(cmd: u32) -> u8 {
    cmd as u8
}

fn status_offset(cmd: u32) -> Option<usize> {
    let size = argument_size(cmd)?;
    Some(match number_of(cmd) {
        ESC_RM_ALLOC if size == size_of::<Alloc>() => offset_of!(Alloc, status),
        ESC_RM_ALLOC => offset_of!(AllocShort, status),
        ESC_RM_FREE => offset_of!(Free, status),
        ESC_RM_DUP_OBJECT => offset_of!(Dup, status),
        ESC_RM_CONTROL => offset_of!(ControlArgs, status),
        ESC_RM_ALLOC_MEMORY => offset_of!(OldAlloc, status),
        ESC_RM_VID_HEAP_CONTROL => offset_of!(Heap, status),
        _ => return None,
    })
}

/// The driver's answer in an argument, `None` if the call has none (a wrapper) or the bytes
/// are too few.
#[must_use]
pub fn status_of(cmd: u32, argument: &[u8]) -> Option<Status> {
    word(argument, status_offset(cmd)?).map(Status)
}

/// Puts an answer into an argument; whether there is room for one, as in [`status_of`].
pub fn set_status(cmd: u32, argument: &mut [u8], status: Status) -> bool {
    status_offset(cmd).is_some_and(|offset| put_word(argument, offset, status.0))
}

/// The handle in an argument that was carried out: the driver may have picked it. `None` if
/// the call makes no object.
#[must_use]
pub fn object_of(cmd: u32, argument: &[u8]) -> Option<Object> {
    argument_size(cmd)?;
    let offset = match number_of(cmd) {
        ESC_RM_ALLOC => offset_of!(Alloc, new),
        ESC_RM_DUP_OBJECT => offset_of!(Dup, object),
        ESC_RM_ALLOC_MEMORY => offset_of!(OldAlloc, new),
        ESC_RM_VID_HEAP_CONTROL => {
            HeapLayout::of(word(argument, offset_of!(Heap, function))?)?;
            HeapLayout::MEMORY
        }
        _ => return None,
    };
    word(argument, offset).map(Object)
}

#[cfg(test)]
mod tests;
