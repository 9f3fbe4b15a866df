//! What each kind of argument means on this side: how it is read and checked, what the driver is
//! given, and what of the answer belongs to it.

use crate::driver::LaunchConfig;
use crate::handles::Handles;
use ghost_wire::kind::{
    Bytes, Config, Count, Dptr, Found, FoundList, Gone, H, Handle, Handles as HandleList, In,
    LIST_MAX, MaybeIn, MaybeOut, New, Out, Records, Resource, Room, Text,
};
use ghost_wire::message::{self, ATTRIBUTE, Field};
use ghost_wire::result::{Code, INVALID_VALUE, NOT_SUPPORTED};
use ghost_wire::{Decoder, Encoder, Malformed, Object};
use std::ffi::CString;
use std::ptr::{null, null_mut};

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The call fails with this code.
    #[error("the driver answered {0}")]
    Code(Code),
    /// No such command: the session ends.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The session ends, and why.
    #[error("{0}")]
    End(String),
}

impl From<Code> for Fault {
    fn from(code: Code) -> Self {
        Self::Code(code)
    }
}

/// What the arguments of one call have to tell each other.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The session's handles.
    pub(crate) handles: &'a mut Handles,
    /// The context that is current.
    pub(crate) context: u64,
    list: List,
}

#[derive(Debug, Default)]
struct List {
    /// Of a list of handles.
    object: Option<Object>,
    /// Of a list of records: the size of each.
    record: usize,
    /// Handles, or the bytes of records, or room for handles.
    words: Vec<u64>,
}

impl<'a> Call<'a> {
    /// Of a session with these handles.
    pub(crate) fn new(handles: &'a mut Handles, context: u64) -> Self {
        let list = List::default();
        Self {
            handles,
            context,
            list,
        }
    }
}

/// One kind of argument.
pub(crate) trait Kind {
    /// In C.
    type C: Copy;
    /// Read and checked; pointers that the driver gets lead into it.
    type Held;

    /// Reads it from the command.
    ///
    /// # Errors
    /// [`Fault`], also for a handle that stands for nothing.
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<Self::Held, Fault>;

    /// What the driver is given.
    fn c(held: &mut Self::Held, call: &mut Call<'_>) -> Self::C;

    /// Once the call has succeeded.
    fn done(_: &Self::Held, _: &mut Call<'_>) {}

    /// Appends what of the answer belongs to it.
    fn put(_: &Self::Held, _: &mut Encoder<'_>, _: &mut Call<'_>) {}
}

macro_rules! numbers {
    ($($ty:ty = $wire:ty: $value:ident => $from:expr;)*) => {$(
        impl Kind for $ty {
            type C = $ty;
            type Held = $ty;
            fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<$ty, Fault> {
                let $value: $wire = from.narrow(stringify!($ty))?;
                Ok($from)
            }
            fn c(held: &mut $ty, _: &mut Call<'_>) -> $ty {
                *held
            }
        }
    )*};
}
numbers! {
    u8 = u8: v => v;
    u16 = u16: v => v;
    u32 = u32: v => v;
    u64 = u64: v => v;
    usize = usize: v => v;
    i32 = u32: v => v.cast_signed();
}

impl Kind for Dptr {
    type C = u64;
    type Held = u64;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<u64, Fault> {
        Ok(from.word()?)
    }
    fn c(held: &mut u64, _: &mut Call<'_>) -> u64 {
        *held
    }
}

impl<T: Handle> Kind for H<T> {
    type C = u64;
    type Held = u64;
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<u64, Fault> {
        Ok(call.handles.get(T::OBJECT, from.word()?)?)
    }
    fn c(held: &mut u64, _: &mut Call<'_>) -> u64 {
        *held
    }
}

impl<T: Handle> Kind for Gone<T> {
    type C = u64;
    type Held = (u64, u64);
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<(u64, u64), Fault> {
        let id = from.word()?;
        Ok((id, call.handles.get(T::OBJECT, id)?))
    }
    fn c(held: &mut (u64, u64), call: &mut Call<'_>) -> u64 {
        call.handles.remove(held.0);
        held.1
    }
}

impl<T: Handle> Kind for New<T> {
    type C = *mut u64;
    type Held = (u64, Box<u64>);
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self::Held, Fault> {
        Ok((from.word()?, Box::new(0)))
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *mut u64 {
        &raw mut *held.1
    }
    fn done((id, raw): &Self::Held, call: &mut Call<'_>) {
        let context = call.context;
        // An id of another kind stays unknown, and later calls say so.
        let _ = call.handles.insert(T::OBJECT, *id, **raw, context);
    }
}

impl<T: Handle> Kind for Found<T> {
    type C = *mut u64;
    type Held = Box<u64>;
    fn take(_: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Box<u64>, Fault> {
        Ok(Box::new(0))
    }
    fn c(held: &mut Box<u64>, _: &mut Call<'_>) -> *mut u64 {
        &raw mut **held
    }
    fn put(held: &Box<u64>, to: &mut Encoder<'_>, call: &mut Call<'_>) {
        to.word(call.handles.found(T::OBJECT, **held, call.context));
    }
}

/// Words: room for the largest result or record that a call has, aligned as the driver needs it.
type Words = [u64; 18];

fn bytes_of(words: &[u64], len: usize) -> Vec<u8> {
    let all = words.iter().flat_map(|word| word.to_le_bytes());
    all.take(len).collect()
}

fn fill(words: &mut [u64], bytes: &[u8]) {
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(whole);
    }
}

impl<T> Kind for Out<T> {
    type C = *mut T;
    type Held = Box<Words>;
    fn take(_: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self::Held, Fault> {
        Ok(Box::default())
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *mut T {
        const { assert!(size_of::<T>() <= size_of::<Words>()) };
        held.as_mut_ptr().cast()
    }
    fn put(held: &Self::Held, to: &mut Encoder<'_>, _: &mut Call<'_>) {
        to.bytes(&bytes_of(&held[..], size_of::<T>()));
    }
}

impl<T> Kind for MaybeOut<T> {
    type C = *mut T;
    type Held = Option<Box<Words>>;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self::Held, Fault> {
        Ok(bool::take(from)?.then(Box::default))
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *mut T {
        const { assert!(size_of::<T>() <= size_of::<Words>()) };
        held.as_mut()
            .map_or(null_mut(), |held| held.as_mut_ptr().cast())
    }
    fn put(held: &Self::Held, to: &mut Encoder<'_>, _: &mut Call<'_>) {
        if let Some(held) = held {
            to.bytes(&bytes_of(&held[..], size_of::<T>()));
        }
    }
}

fn record(from: &mut Decoder<'_>, len: usize) -> Result<Option<Box<Words>>, Fault> {
    let bytes = from.bytes()?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() != len {
        let value = bytes.len() as u64;
        let what = "the size of a record";
        return Err(Malformed::Range { what, value }.into());
    }
    let mut words = Box::<Words>::default();
    fill(&mut words[..], bytes);
    Ok(Some(words))
}

impl<const N: usize> Kind for In<N> {
    type C = *const u8;
    type Held = Box<Words>;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self::Held, Fault> {
        const { assert!(N <= size_of::<Words>()) };
        Ok(record(from, N)?.ok_or(Malformed::Short)?)
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *const u8 {
        held.as_ptr().cast()
    }
}

impl<const N: usize> Kind for MaybeIn<N> {
    type C = *const u8;
    type Held = Option<Box<Words>>;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self::Held, Fault> {
        const { assert!(N <= size_of::<Words>()) };
        record(from, N)
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *const u8 {
        held.as_ref().map_or(null(), |held| held.as_ptr().cast())
    }
}

impl<const N: usize> Kind for Bytes<N> {
    type C = Self;
    type Held = Self;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<Self, Fault> {
        let bytes = from.bytes()?;
        Ok(Self(bytes.try_into().map_err(|_| Malformed::Range {
            what: "the size of a record",
            value: bytes.len() as u64,
        })?))
    }
    fn c(held: &mut Self, _: &mut Call<'_>) -> Self {
        *held
    }
}

impl Kind for Resource {
    type C = *const u8;
    type Held = Box<Words>;
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<Self::Held, Fault> {
        let mut words = record(from, 144)?.ok_or(Malformed::Short)?;
        // CU_RESOURCE_TYPE_ARRAY and _MIPMAPPED_ARRAY: the handle is the union's first word.
        let object = match words[0] & 0xffff_ffff {
            0 => Some(Object::Array),
            1 => Some(Object::Mipmap),
            _ => None,
        };
        if let Some(object) = object {
            words[1] = call.handles.get(object, words[1])?;
        }
        Ok(words)
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *const u8 {
        held.as_ptr().cast()
    }
}

impl Kind for Text {
    type C = *const u8;
    type Held = CString;
    fn take(from: &mut Decoder<'_>, _: &mut Call<'_>) -> Result<CString, Fault> {
        Ok(CString::new(from.bytes()?).map_err(|_| Malformed::Text)?)
    }
    fn c(held: &mut CString, _: &mut Call<'_>) -> *const u8 {
        held.as_ptr().cast()
    }
}

impl<T: Handle> Kind for HandleList<T> {
    type C = *const u64;
    type Held = ();
    fn take(_: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<(), Fault> {
        call.list.object = Some(T::OBJECT);
        Ok(())
    }
    fn c(_: &mut (), call: &mut Call<'_>) -> *const u64 {
        call.list.words.as_ptr()
    }
}

impl<const N: usize> Kind for Records<N> {
    type C = *const u8;
    type Held = ();
    fn take(_: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<(), Fault> {
        call.list.record = N;
        Ok(())
    }
    fn c(_: &mut (), call: &mut Call<'_>) -> *const u8 {
        call.list.words.as_ptr().cast()
    }
}

fn length(from: &mut Decoder<'_>) -> Result<usize, Malformed> {
    let value = from.word()?;
    let what = "the length of a list";
    let len = usize::try_from(value).ok().filter(|len| *len <= LIST_MAX);
    len.ok_or(Malformed::Range { what, value })
}

impl Kind for Count {
    type C = usize;
    type Held = usize;
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<usize, Fault> {
        let count = length(from)?;
        if let Some(object) = call.list.object {
            // A word each: no more than the message has.
            let ids: Result<Vec<u64>, _> = (0..count).map(|_| from.word()).collect();
            let raws: Result<_, Code> = ids?
                .into_iter()
                .map(|id| call.handles.get(object, id))
                .collect();
            call.list.words = raws?;
        } else {
            let bytes = from.bytes()?;
            if bytes.len() != count * call.list.record {
                let value = bytes.len() as u64;
                let what = "the size of a list";
                return Err(Malformed::Range { what, value }.into());
            }
            call.list.words = vec![0; bytes.len().div_ceil(8)];
            fill(&mut call.list.words, bytes);
        }
        Ok(count)
    }
    fn c(held: &mut usize, _: &mut Call<'_>) -> usize {
        *held
    }
}

impl<T: Handle> Kind for FoundList<T> {
    type C = *mut u64;
    type Held = ();
    fn take(_: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<(), Fault> {
        call.list.object = Some(T::OBJECT);
        Ok(())
    }
    fn c(_: &mut (), call: &mut Call<'_>) -> *mut u64 {
        match call.list.words.as_mut_slice() {
            [] => null_mut(),
            room => room.as_mut_ptr(),
        }
    }
}

impl Kind for Room {
    type C = *mut usize;
    type Held = Box<usize>;
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<Self::Held, Fault> {
        let room = length(from)?;
        call.list.words = vec![0; room];
        Ok(Box::new(room))
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *mut usize {
        &raw mut **held
    }
    fn put(held: &Self::Held, to: &mut Encoder<'_>, call: &mut Call<'_>) {
        to.word(**held as u64);
        let words = std::mem::take(&mut call.list.words);
        if let Some(object) = call.list.object {
            for raw in words.into_iter().take(**held) {
                to.word(call.handles.found(object, raw, call.context));
            }
        }
    }
}

/// Launch attributes whose value begins with an event: `PROGRAMMATIC_EVENT`,
/// `LAUNCH_COMPLETION_EVENT`.
const OF_EVENTS: [u32; 2] = [7, 12];
/// `DEVICE_UPDATABLE_KERNEL_NODE`: gives out a pointer of the driver's.
const UPDATABLE: u32 = 13;
/// Words of one attribute.
const ATTRIBUTE_WORDS: usize = ATTRIBUTE / 8;

/// A `CUlaunchConfig` and the attributes that it leads to.
#[derive(Debug)]
pub(crate) struct HeldConfig {
    pub(crate) config: LaunchConfig,
    attributes: Vec<u64>,
}

impl HeldConfig {
    /// The configuration of `config`, its handles the driver's.
    ///
    /// # Errors
    /// [`Fault`], also for an attribute that can't cross.
    pub(crate) fn new(config: &message::Config<'_>, handles: &Handles) -> Result<Self, Fault> {
        let bytes = config.attributes;
        let count = bytes.len() / ATTRIBUTE;
        if !bytes.len().is_multiple_of(ATTRIBUTE) || count > LIST_MAX {
            let value = bytes.len() as u64;
            let what = "the size of launch attributes";
            return Err(Malformed::Range { what, value }.into());
        }
        let mut attributes = vec![0; count * ATTRIBUTE_WORDS];
        fill(&mut attributes, bytes);
        for attribute in attributes.as_chunks_mut::<ATTRIBUTE_WORDS>().0 {
            match (attribute[0] & 0xffff_ffff) as u32 {
                UPDATABLE => return Err(NOT_SUPPORTED.into()),
                id if OF_EVENTS.contains(&id) => {
                    attribute[1] = handles.get(Object::Event, attribute[1])?;
                }
                _ => {}
            }
        }
        Ok(Self {
            config: LaunchConfig {
                grid: config.grid,
                block: config.block,
                shared: config.shared,
                stream: handles.get(Object::Stream, config.stream)?,
                attributes: null(),
                count: u32::try_from(count).map_err(|_| INVALID_VALUE)?,
            },
            attributes,
        })
    }

    /// As the driver takes it, for as long as this stands.
    pub(crate) fn raw(&mut self) -> &LaunchConfig {
        self.config.attributes = match self.attributes.as_slice() {
            [] => null(),
            some => some.as_ptr(),
        };
        &self.config
    }
}

impl Kind for Config {
    type C = *const LaunchConfig;
    type Held = Box<HeldConfig>;
    fn take(from: &mut Decoder<'_>, call: &mut Call<'_>) -> Result<Self::Held, Fault> {
        let config = message::Config::take(from)?;
        Ok(Box::new(HeldConfig::new(&config, call.handles)?))
    }
    fn c(held: &mut Self::Held, _: &mut Call<'_>) -> *const LaunchConfig {
        held.raw()
    }
}
