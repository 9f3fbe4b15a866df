//! The kinds of arguments in the table. A kind is one argument of the C function; the shim and the
//! executor each give it a meaning there (traits of their own), the wire's is written here.

use crate::id::Object;
use std::marker::PhantomData;

/// Types of handles.
pub trait Handle {
    /// What it is on the wire.
    const OBJECT: Object;
    /// For messages: `stream`, `event`.
    const NAME: &'static str;
}

macro_rules! handles {
    ($($name:ident = $text:literal),*) => {$(
        #[doc = concat!("A handle of a ", $text, ".")]
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}
        impl Handle for $name {
            const OBJECT: Object = Object::$name;
            const NAME: &'static str = $text;
        }
    )*};
}
handles!(
    Context = "context",
    Stream = "stream",
    Event = "event",
    Module = "module",
    Library = "library",
    Kernel = "kernel",
    Function = "function",
    Graph = "graph",
    GraphExec = "executable graph",
    GraphNode = "graph node",
    Array = "array",
    Mipmap = "mipmapped array",
    Pool = "memory pool",
    Memory = "memory handle"
);

// Plain numbers (u8 to u64, i32, f32, usize) stand for themselves: a word each. i32 is sent as its
// bits in u32, f32 likewise.

/// A device address, by value: a word. It is the executor's own.
#[derive(Debug)]
pub enum Dptr {}
/// A handle by value: a word. 0, and the two streams with names, pass as they are. A kernel may
/// stand where a function is asked for.
#[derive(Debug)]
pub struct H<T>(PhantomData<T>);
/// Pointer to a handle that the call makes; the client makes its id: a word.
#[derive(Debug)]
pub struct New<T>(PhantomData<T>);
/// A handle that the call ends, by value: a word.
#[derive(Debug)]
pub struct Gone<T>(PhantomData<T>);
/// Pointer to a handle of something that exists already; in the reply, a word: the id under which
/// the executor has it, made there if need be, or 0.
#[derive(Debug)]
pub struct Found<T>(PhantomData<T>);
/// Pointer to a result of the size of `T`; in the reply, a byte string. Null is refused.
#[derive(Debug)]
pub struct Out<T>(PhantomData<T>);
/// As [`Out`], but null where the caller does not care; a word that says whether it is wanted, and
/// a byte string in the reply only then.
#[derive(Debug)]
pub struct MaybeOut<T>(PhantomData<T>);
/// Pointer to `N` bytes that are read: a byte string. No pointer and no handle in it.
#[derive(Debug)]
pub enum In<const N: usize> {}
/// As [`In`], or null: a byte string of no or `N` bytes.
#[derive(Debug)]
pub enum MaybeIn<const N: usize> {}
/// `N` bytes by value, a struct of its own in `cuda.h` (`CUipcMemHandle`): a byte string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Bytes<const N: usize>(pub [u8; N]);
/// A text that ends with NUL: a byte string without it.
#[derive(Debug)]
pub enum Text {}
/// Pointer to handles, as many as the [`Count`] later in the call says; they travel with that.
#[derive(Debug)]
pub struct Handles<T>(PhantomData<T>);
/// Pointer to records of `N` bytes, as many as the [`Count`] later in the call says.
#[derive(Debug)]
pub enum Records<const N: usize> {}
/// How many the list before it has (`size_t`): a word, and then the list's items: a word a
/// handle, a byte string for all records. At most [`LIST_MAX`].
#[derive(Debug)]
pub enum Count {}
/// Pointer to room for handles, null to ask only how many there are; see [`Room`].
#[derive(Debug)]
pub struct FoundList<T>(PhantomData<T>);
/// Pointer to how much room the [`FoundList`] has, and in the end to how many there are: a word (0
/// for a null list); in the reply, the number and then a word for each handle given.
#[derive(Debug)]
pub enum Room {}
/// Pointer to a `CUDA_RESOURCE_DESC`, 144 bytes, in which the handle of an array or a mipmapped
/// array is an id: a byte string.
#[derive(Debug)]
pub enum Resource {}
/// Pointer to a `CUlaunchConfig`: a [`crate::message::Config`].
#[derive(Debug)]
pub enum Config {}

/// Most items of a list in a call.
pub const LIST_MAX: usize = 1 << 16;
