//! What each kind of argument means on this side: its type in C, how it is checked and encoded, and
//! what of the reply belongs to it.

use crate::{ids, thread};
use ghost_wire::kind::{
    Bytes, Config, Count, Dptr, Found, FoundList, Gone, H, Handle, Handles, In, LIST_MAX, MaybeIn,
    MaybeOut, New, Out, Records, Resource, Room, Text,
};
use ghost_wire::message::{self, Field};
use ghost_wire::result::{Code, INVALID_HANDLE, INVALID_VALUE};
use ghost_wire::{Decoder, Encoder, Id, Malformed, Object};
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

/// What the arguments of one call have to tell each other.
pub(crate) struct Call {
    /// Whether it is the per-thread form.
    pub(crate) per_thread: bool,
    list: List,
}

impl Call {
    pub(crate) fn new(per_thread: bool) -> Self {
        let list = List::None;
        Self { per_thread, list }
    }
}

/// A list whose length comes later in the call.
#[derive(Clone, Copy)]
enum List {
    None,
    Handles(*const u64),
    Records(*const u8, usize),
    Found(*mut u64),
}

/// One kind of argument.
pub(crate) trait Kind {
    /// In C.
    type C: Copy;
    /// Checked, and ready to be encoded.
    type Ready;

    /// Checks it.
    ///
    /// # Safety
    /// It is what `cuda.h` says of the argument: pointers are null or lead to as much as they
    /// should.
    unsafe fn ready(c: Self::C, call: &mut Call) -> Result<Self::Ready, Code>;

    /// Appends it to the message.
    fn put(ready: &Self::Ready, to: &mut Encoder<'_>);

    /// Takes from the reply what belongs to it.
    fn take(_: &Self::Ready, _: &mut Decoder<'_>) -> Result<(), Malformed> {
        Ok(())
    }

    /// After the call has succeeded.
    fn done(_: &Self::Ready) {}
}

macro_rules! numbers {
    ($($ty:ty: $value:ident => $word:expr;)*) => {$(
        impl Kind for $ty {
            type C = $ty;
            type Ready = $ty;
            unsafe fn ready(c: $ty, _: &mut Call) -> Result<$ty, Code> {
                Ok(c)
            }
            #[inline]
            fn put($value: &$ty, to: &mut Encoder<'_>) {
                to.word($word);
            }
        }
    )*};
}
numbers! {
    u8: v => (*v).into();
    u16: v => (*v).into();
    u32: v => (*v).into();
    u64: v => *v;
    usize: v => *v as u64;
    i32: v => v.cast_unsigned().into();
    f32: v => v.to_bits().into();
}

impl Kind for Dptr {
    type C = u64;
    type Ready = u64;
    unsafe fn ready(c: u64, _: &mut Call) -> Result<u64, Code> {
        Ok(c)
    }
    #[inline]
    fn put(ready: &u64, to: &mut Encoder<'_>) {
        to.word(*ready);
    }
}

/// The handle as the wire carries it: one that can be none is refused here.
pub(crate) fn handle<T: Handle>(raw: u64, per_thread: bool) -> Result<u64, Code> {
    match T::OBJECT {
        Object::Stream => thread::stream(raw, per_thread),
        Object::Context => crate::context::wire(raw),
        _ if raw == 0 => Ok(0),
        object => match Id::from_raw(raw).and_then(Id::object) {
            Some(is) if is == object => Ok(raw),
            Some(Object::Kernel) if object == Object::Function => Ok(raw),
            _ => Err(INVALID_HANDLE),
        },
    }
}

impl<T: Handle> Kind for H<T> {
    type C = u64;
    type Ready = u64;
    unsafe fn ready(c: u64, call: &mut Call) -> Result<u64, Code> {
        handle::<T>(c, call.per_thread)
    }
    #[inline]
    fn put(ready: &u64, to: &mut Encoder<'_>) {
        to.word(*ready);
    }
}

impl<T: Handle> Kind for Gone<T> {
    type C = u64;
    type Ready = u64;
    unsafe fn ready(c: u64, _: &mut Call) -> Result<u64, Code> {
        match Id::from_raw(c).and_then(Id::object) {
            Some(object) if object == T::OBJECT => Ok(c),
            _ => Err(INVALID_HANDLE),
        }
    }
    #[inline]
    fn put(ready: &u64, to: &mut Encoder<'_>) {
        to.word(*ready);
    }
}

/// Room for one value of the program's, not null.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    fn at(pointer: *mut T) -> Result<Self, Code> {
        if pointer.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(Self(pointer))
    }

    fn write(&self, value: T) {
        // SAFETY: not null, and the program's own room for it, by the contract of `Kind::ready`.
        unsafe { self.0.write_unaligned(value) };
    }

    fn take(&self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let bytes = from.bytes()?;
        if bytes.len() != size_of::<T>() {
            return Err(Malformed::Range {
                what: "the size of a result",
                value: bytes.len() as u64,
            });
        }
        // SAFETY: as in `write`; there are as many bytes as the value has.
        unsafe {
            self.0
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }
}

impl<T: Handle> Kind for New<T> {
    type C = *mut u64;
    type Ready = (Place<u64>, u64);
    unsafe fn ready(c: *mut u64, _: &mut Call) -> Result<Self::Ready, Code> {
        Ok((Place::at(c)?, ids::new(T::OBJECT)))
    }
    #[inline]
    fn put(ready: &Self::Ready, to: &mut Encoder<'_>) {
        to.word(ready.1);
    }
    fn done((place, id): &Self::Ready) {
        place.write(*id);
    }
}

impl<T: Handle> Kind for Found<T> {
    type C = *mut u64;
    type Ready = Place<u64>;
    unsafe fn ready(c: *mut u64, _: &mut Call) -> Result<Self::Ready, Code> {
        Place::at(c)
    }
    fn put(_: &Self::Ready, _: &mut Encoder<'_>) {}
    fn take(place: &Self::Ready, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        place.write(from.word()?);
        Ok(())
    }
}

impl<T> Kind for Out<T> {
    type C = *mut T;
    type Ready = Place<T>;
    unsafe fn ready(c: *mut T, _: &mut Call) -> Result<Self::Ready, Code> {
        Place::at(c)
    }
    fn put(_: &Self::Ready, _: &mut Encoder<'_>) {}
    fn take(place: &Self::Ready, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        place.take(from)
    }
}

impl<T> Kind for MaybeOut<T> {
    type C = *mut T;
    type Ready = Option<Place<T>>;
    unsafe fn ready(c: *mut T, _: &mut Call) -> Result<Self::Ready, Code> {
        Ok(Place::at(c).ok())
    }
    fn put(ready: &Self::Ready, to: &mut Encoder<'_>) {
        to.word(ready.is_some().into());
    }
    fn take(ready: &Self::Ready, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        ready.as_ref().map_or(Ok(()), |place| place.take(from))
    }
}

/// Bytes of the program's that are read.
pub(crate) struct Source(*const u8, usize);

impl Source {
    fn put(&self, to: &mut Encoder<'_>) {
        if self.1 == 0 {
            return to.bytes(&[]);
        }
        // SAFETY: not null, and the program's own bytes, by the contract of `Kind::ready`.
        to.bytes(unsafe { std::slice::from_raw_parts(self.0, self.1) });
    }
}

impl<const N: usize> Kind for In<N> {
    type C = *const u8;
    type Ready = Source;
    unsafe fn ready(c: *const u8, _: &mut Call) -> Result<Source, Code> {
        if c.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(Source(c, N))
    }
    fn put(ready: &Source, to: &mut Encoder<'_>) {
        ready.put(to);
    }
}

impl<const N: usize> Kind for MaybeIn<N> {
    type C = *const u8;
    type Ready = Source;
    unsafe fn ready(c: *const u8, _: &mut Call) -> Result<Source, Code> {
        Ok(Source(c, if c.is_null() { 0 } else { N }))
    }
    fn put(ready: &Source, to: &mut Encoder<'_>) {
        ready.put(to);
    }
}

impl<const N: usize> Kind for Bytes<N> {
    type C = Self;
    type Ready = Self;
    unsafe fn ready(c: Self, _: &mut Call) -> Result<Self, Code> {
        Ok(c)
    }
    fn put(ready: &Self, to: &mut Encoder<'_>) {
        to.bytes(&ready.0);
    }
}

impl Kind for Resource {
    type C = *const u8;
    type Ready = Source;
    unsafe fn ready(c: *const u8, call: &mut Call) -> Result<Source, Code> {
        // SAFETY: the same contract.
        unsafe { In::<144>::ready(c, call) }
    }
    fn put(ready: &Source, to: &mut Encoder<'_>) {
        ready.put(to);
    }
}

impl Kind for Text {
    type C = *const c_char;
    type Ready = Source;
    unsafe fn ready(c: *const c_char, _: &mut Call) -> Result<Source, Code> {
        if c.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and a text that ends, by the contract.
        let text = unsafe { CStr::from_ptr(c) };
        Ok(Source(c.cast(), text.count_bytes()))
    }
    fn put(ready: &Source, to: &mut Encoder<'_>) {
        ready.put(to);
    }
}

impl<T: Handle> Kind for Handles<T> {
    type C = *const u64;
    type Ready = PhantomData<T>;
    unsafe fn ready(c: *const u64, call: &mut Call) -> Result<Self::Ready, Code> {
        call.list = List::Handles(c);
        Ok(PhantomData)
    }
    fn put(_: &Self::Ready, _: &mut Encoder<'_>) {}
}

impl<const N: usize> Kind for Records<N> {
    type C = *const u8;
    type Ready = ();
    unsafe fn ready(c: *const u8, call: &mut Call) -> Result<(), Code> {
        call.list = List::Records(c, N);
        Ok(())
    }
    fn put(_: &(), _: &mut Encoder<'_>) {}
}

/// A list and how many it has.
pub(crate) struct Listed(List, usize);

impl Kind for Count {
    type C = usize;
    type Ready = Listed;
    unsafe fn ready(c: usize, call: &mut Call) -> Result<Listed, Code> {
        let null = match call.list {
            List::None => true,
            List::Handles(list) => list.is_null(),
            List::Records(list, _) => list.is_null(),
            List::Found(list) => list.is_null(),
        };
        if c > LIST_MAX || (c > 0 && null) {
            return Err(INVALID_VALUE);
        }
        Ok(Listed(call.list, c))
    }
    fn put(Listed(list, count): &Listed, to: &mut Encoder<'_>) {
        to.word(*count as u64);
        match *list {
            List::Handles(list) => {
                for at in 0..*count {
                    // SAFETY: the list is not null and has `count` items, by the contract.
                    to.word(unsafe { list.add(at).read_unaligned() });
                }
            }
            List::Records(list, size) => Source(list, *count * size).put(to),
            List::None | List::Found(_) => {}
        }
    }
}

impl<T: Handle> Kind for FoundList<T> {
    type C = *mut u64;
    type Ready = PhantomData<T>;
    unsafe fn ready(c: *mut u64, call: &mut Call) -> Result<Self::Ready, Code> {
        call.list = List::Found(c);
        Ok(PhantomData)
    }
    fn put(_: &Self::Ready, _: &mut Encoder<'_>) {}
}

/// Room for handles, and for how many there are.
pub(crate) struct Roomy {
    list: *mut u64,
    room: usize,
    count: Place<usize>,
}

impl Kind for Room {
    type C = *mut usize;
    type Ready = Roomy;
    unsafe fn ready(c: *mut usize, call: &mut Call) -> Result<Roomy, Code> {
        let count = Place::at(c)?;
        let List::Found(list) = call.list else {
            return Err(INVALID_VALUE);
        };
        let room = if list.is_null() {
            0
        } else {
            // SAFETY: not null, and the program's, by the contract.
            unsafe { c.read_unaligned() }.min(LIST_MAX)
        };
        Ok(Roomy { list, room, count })
    }
    fn put(ready: &Roomy, to: &mut Encoder<'_>) {
        to.word(ready.room as u64);
    }
    fn take(ready: &Roomy, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count: usize = from.narrow("a number of handles")?;
        for at in 0..count.min(ready.room) {
            let handle = from.word()?;
            // SAFETY: the list has room for as many, by the contract.
            unsafe { ready.list.add(at).write_unaligned(handle) };
        }
        ready.count.write(count);
        Ok(())
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: *const u8,
    pub(crate) count: u32,
}

/// Most attributes of a launch; `cuda.h` knows some twenty.
const ATTRIBUTES_MAX: u32 = 256;

/// The configuration that `config` leads to, with the stream as the wire has it.
///
/// # Safety
/// `config` is null or leads to a `CUlaunchConfig` whose attributes are as many as it says.
pub(crate) unsafe fn config<'a>(
    config: *const LaunchConfig,
    per_thread: bool,
) -> Result<message::Config<'a>, Code> {
    if config.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    let config = unsafe { config.read_unaligned() };
    let count = config.count;
    if count > ATTRIBUTES_MAX || (count > 0 && config.attributes.is_null()) {
        return Err(INVALID_VALUE);
    }
    let attributes = if count == 0 {
        &[]
    } else {
        // SAFETY: not null, and as many as the caller promises.
        unsafe {
            std::slice::from_raw_parts(config.attributes, count as usize * message::ATTRIBUTE)
        }
    };
    Ok(message::Config {
        grid: config.grid,
        block: config.block,
        shared: config.shared,
        stream: thread::stream(config.stream, per_thread)?,
        attributes,
    })
}

impl Kind for Config {
    type C = *const LaunchConfig;
    type Ready = message::Config<'static>;
    unsafe fn ready(c: Self::C, call: &mut Call) -> Result<Self::Ready, Code> {
        // SAFETY: the same contract; what is borrowed is used within the call.
        unsafe { config(c, call.per_thread) }
    }
    fn put(ready: &Self::Ready, to: &mut Encoder<'_>) {
        ready.put(to);
    }
}
