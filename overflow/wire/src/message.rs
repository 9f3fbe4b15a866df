//! Messages that are not simply a row of the table: launches, copies, waits, loads, callbacks.
//!
//! Each says what its reply's body is, if it is waited for. What fails without being waited for is
//! told by a late reply. Handles are ids ([`crate::Id`]); addresses are the executor's.

use crate::api::Op;
use crate::codec::{Decoder, Encoder, Malformed};

/// A value inside a message.
pub trait Field<'a>: Sized {
    /// Appends it.
    fn put(&self, to: &mut Encoder<'_>);
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`] where the bytes are no such value.
    fn take(from: &mut Decoder<'a>) -> Result<Self, Malformed>;
}

impl Field<'_> for u64 {
    #[inline]
    fn put(&self, to: &mut Encoder<'_>) {
        to.word(*self);
    }
    #[inline]
    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        from.word()
    }
}

impl Field<'_> for u32 {
    #[inline]
    fn put(&self, to: &mut Encoder<'_>) {
        to.word((*self).into());
    }
    #[inline]
    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        from.narrow("a number of 32 bits")
    }
}

impl Field<'_> for bool {
    #[inline]
    fn put(&self, to: &mut Encoder<'_>) {
        to.word((*self).into());
    }
    #[inline]
    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match from.word()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Range {
                what: "a flag",
                value,
            }),
        }
    }
}

impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn put(&self, to: &mut Encoder<'_>) {
        to.bytes(self);
    }
    #[inline]
    fn take(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
        from.bytes()
    }
}

impl<'a, T: Field<'a> + Copy + Default, const N: usize> Field<'a> for [T; N] {
    #[inline]
    fn put(&self, to: &mut Encoder<'_>) {
        for value in self {
            value.put(to);
        }
    }
    #[inline]
    fn take(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let mut values = [T::default(); N];
        for value in &mut values {
            *value = T::take(from)?;
        }
        Ok(values)
    }
}

/// A message of its own.
pub trait Message<'a>: Field<'a> {
    /// Its number.
    const OP: Op;
}

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident $(<$l:lifetime>)? { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name $(<$l>)? { $($(#[$fdoc])* pub $field: $ty),* }

        impl<'a> Field<'a> for $name $(<$l>)? {
            #[inline]
            fn put(&self, to: &mut Encoder<'_>) {
                let _ = &to;
                $(self.$field.put(to);)*
            }
            #[inline]
            fn take(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
                let _ = &from;
                Ok(Self { $($field: <$ty>::take(from)?),* })
            }
        }
    };
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident $(<$l:lifetime>)? = $op:literal { $($fields:tt)* })*) => {
        $(
            fields!($(#[$doc])* $name $(<$l>)? { $($fields)* });
            impl<'a> Message<'a> for $name $(<$l>)? {
                const OP: Op = Op($op);
            }
        )*

        /// The name of a message of this module, for people.
        #[must_use]
        pub fn name(op: Op) -> Option<&'static str> {
            match op.0 {
                $($op => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

/// Rows of the table have numbers below this, messages of this module from here on.
pub const FIRST: Op = Op(0xf000);

/// Bytes of one launch attribute as `CUlaunchAttribute` has it: its id in a word, 64 of value.
/// Handles of events in it are ids.
pub const ATTRIBUTE: usize = 72;

fields! {
    /// How a kernel is launched.
    Config<'a> {
        /// Blocks.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        shared: u32,
        /// The stream.
        stream: u64,
        /// Attributes, [`ATTRIBUTE`] bytes each. All are passed on or the launch is refused.
        attributes: &'a [u8],
    }
}

/// Where one end of a copy is.
pub mod place {
    /// The program's memory; the data travels with the copy.
    pub const HOST: u32 = 1;
    /// An address of the executor's.
    pub const DEVICE: u32 = 2;
    /// An array, by id.
    pub const ARRAY: u32 = 3;
}

fields! {
    /// One end of a copy of a box.
    End {
        /// One of [`place`].
        place: u32,
        /// Address or id; 0 for the host, whose data is packed: rows follow each other.
        at: u64,
        /// Bytes from row to row, of `DEVICE`.
        pitch: u64,
        /// Rows from slice to slice, of `DEVICE`.
        height: u64,
        /// Bytes into the row, row, slice.
        from: [u64; 3],
        /// Level of detail, of an array.
        level: u32,
    }
}

/// What to wait for.
pub mod wait {
    /// All work of a context.
    pub const CONTEXT: u32 = 1;
    /// A stream's work.
    pub const STREAM: u32 = 2;
    /// An event.
    pub const EVENT: u32 = 3;
}

/// What to do with a device's primary context.
pub mod primary {
    /// Retain it; the id stands for it from now on.
    pub const RETAIN: u32 = 1;
    /// Give up one use.
    pub const RELEASE: u32 = 2;
    /// Destroy what is in it.
    pub const RESET: u32 = 3;
    /// The id stands for it from now on; a command that is in it retains it.
    pub const NAME: u32 = 4;
}

messages! {
    /// The commands after this one are in this context (0: none).
    Use = 0xf000 {
        /// The context.
        context: u64,
    }
    /// A device's primary context. Waited for, but for [`primary::NAME`]: no body.
    Primary = 0xf001 {
        /// One of [`primary`].
        what: u32,
        /// The device's number.
        device: u32,
        /// The context's id.
        context: u64,
        /// `CU_CTX_*`.
        flags: u32,
    }
    /// Makes a context. Waited for: no body.
    CreateContext = 0xf002 {
        /// Its id.
        context: u64,
        /// The device's number.
        device: u32,
        /// `CU_CTX_*`.
        flags: u32,
    }
    /// Ends a context that was made.
    DestroyContext = 0xf003 {
        /// Its id.
        context: u64,
    }
    /// Launches a kernel.
    Launch<'a> = 0xf010 {
        /// A function or a kernel.
        function: u64,
        /// How.
        config: Config<'a>,
        /// The arguments, laid out as the function's layout says.
        params: &'a [u8],
    }
    /// Copies from the program's memory to the device's.
    CopyIn<'a> = 0xf011 {
        /// Where to.
        to: u64,
        /// Bytes.
        len: u64,
        /// On which stream.
        stream: u64,
        /// Whether the data comes by `up`, in parts, rather than here.
        bulk: bool,
        /// The data, or nothing.
        data: &'a [u8],
    }
    /// Copies from the device's memory to the program's. The data comes by `down`. Waited for (no
    /// body) when the program waits; else it comes when the stream has got there.
    CopyOut = 0xf012 {
        /// Where from.
        from: u64,
        /// Bytes.
        len: u64,
        /// On which stream.
        stream: u64,
    }
    /// Copies a box (two or three dimensions, arrays). One end may be the host; then as
    /// [`CopyIn`] or [`CopyOut`], the data packed.
    CopyBox<'a> = 0xf013 {
        /// Where from.
        from: End,
        /// Where to.
        to: End,
        /// Bytes of a row, rows, slices.
        extent: [u64; 3],
        /// On which stream.
        stream: u64,
        /// As in [`CopyIn`].
        bulk: bool,
        /// As in [`CopyIn`].
        data: &'a [u8],
    }
    /// Waits, or asks whether there is anything to wait for. Waited for: no body; the code is
    /// that of the call.
    Wait = 0xf020 {
        /// One of [`wait`].
        what: u32,
        /// The context, stream or event.
        handle: u64,
        /// Whether only to ask.
        query: bool,
    }
    /// Has a function of the program's called in the stream's order.
    HostCall = 0xf021 {
        /// Names it in [`crate::frame::ReplyKind::Callback`]; used again by each run of a graph.
        token: u64,
        /// On which stream.
        stream: u64,
        /// Whether it is one of `cuStreamAddCallback`, which wants to be told of errors too.
        with_status: bool,
    }
    /// The function of this token has returned. Handled at once, ahead of what is in order.
    CallbackDone = 0xf022 {
        /// The token.
        token: u64,
    }
    /// Loads a module or a library. Waited for: a [`crate::hello::Loaded`]. If the executor does
    /// not have the image it says so, and the client sends this again with `bulk`.
    Load<'a> = 0xf030 {
        /// BLAKE3 of the image, 32 bytes.
        hash: &'a [u8],
        /// Bytes of the image.
        len: u64,
        /// The id of the module or library.
        id: u64,
        /// Whether the image comes by `up`.
        bulk: bool,
        /// Options of the compiler that are numbers: pairs of a word of option and a word of value.
        options: &'a [u8],
        /// Bytes of the compiler's log that are wanted.
        log: u32,
    }
    /// Ends a module or a library, and what was found in it.
    Unload = 0xf031 {
        /// Its id.
        id: u64,
    }
    /// Names a function of a module or a kernel of a library.
    Name = 0xf032 {
        /// The id that it gets.
        id: u64,
        /// The module or library.
        of: u64,
        /// Its place in the layout that came with the load.
        index: u32,
    }
    /// Names the module of a library, or the function of a kernel, in the current context.
    Resolve = 0xf033 {
        /// The id that it gets.
        id: u64,
        /// The library or kernel.
        of: u64,
    }
    /// Memory that both sides see: the program's pinned memory that the device was shown, or
    /// managed memory. Waited for: a word, the address; for the program's own, the device's
    /// address of it.
    Share = 0xf040 {
        /// Where the program has it; 0 for managed memory, whose place the executor finds.
        at: u64,
        /// Bytes.
        len: u64,
        /// `CU_MEM_ATTACH_*` of managed memory, `CU_MEMHOSTREGISTER_*` of the program's.
        flags: u32,
    }
    /// Finds a variable. Waited for: words, its address and its bytes, then address and bytes of
    /// the managed memory that it is in, or zeroes. That both sides see from now on, until the
    /// module or library ends.
    Variable<'a> = 0xf043 {
        /// The module or library.
        of: u64,
        /// Its name.
        name: &'a [u8],
        /// Whether it is asked for as a managed one of a library.
        managed: bool,
    }
    /// Ends it.
    Unshare = 0xf041 {
        /// As it was given.
        at: u64,
    }
    /// What the program has written to shared memory, ahead of work that may read it.
    WriteShared<'a> = 0xf042 {
        /// Where.
        at: u64,
        /// What.
        data: &'a [u8],
    }
    /// Asks for a stream's capture. Waited for: words: status, id of the capture, graph, number of
    /// nodes that the next depends on, and those.
    CaptureInfo = 0xf050 {
        /// The stream.
        stream: u64,
    }
    /// Adds a kernel to a graph. Waited for: no body.
    AddKernelNode<'a> = 0xf051 {
        /// The graph.
        graph: u64,
        /// The node's id.
        node: u64,
        /// Nodes that it depends on, a word each.
        after: &'a [u8],
        /// The function or kernel.
        function: u64,
        /// How; no attributes, no stream.
        config: Config<'a>,
        /// Its arguments.
        params: &'a [u8],
    }
    /// Changes a kernel in an executable graph. Waited for: no body.
    SetExecKernel<'a> = 0xf052 {
        /// The executable graph.
        exec: u64,
        /// The node of its graph.
        node: u64,
        /// The function or kernel.
        function: u64,
        /// How.
        config: Config<'a>,
        /// Its arguments.
        params: &'a [u8],
    }
    /// Adds a copy to a graph; neither end is the host. Waited for: no body.
    AddCopyNode<'a> = 0xf053 {
        /// The graph.
        graph: u64,
        /// The node's id.
        node: u64,
        /// Nodes that it depends on, a word each.
        after: &'a [u8],
        /// Where from.
        from: End,
        /// Where to.
        to: End,
        /// Bytes of a row, rows, slices.
        extent: [u64; 3],
        /// The context.
        context: u64,
    }
    /// Adds a function of the program's to a graph. Waited for: no body.
    AddHostNode<'a> = 0xf054 {
        /// The graph.
        graph: u64,
        /// The node's id.
        node: u64,
        /// Nodes that it depends on, a word each.
        after: &'a [u8],
        /// As in [`HostCall`].
        token: u64,
    }
    /// Asks how a device does. Waited for: a [`crate::hello::Readings`].
    Monitor = 0xf060 {
        /// The device's number.
        device: u32,
    }
    /// The client has nothing more to say: an end in order.
    Bye = 0xf0ff {}
}

/// Reads a message that is the whole of `body`.
///
/// # Errors
/// [`Malformed`], also for what is left over.
pub fn read<'a, M: Message<'a>>(body: &'a [u8]) -> Result<M, Malformed> {
    let mut decoder = Decoder::new(body);
    let message = M::take(&mut decoder)?;
    decoder.end()?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back<'a, M: Message<'a>>(message: &M, buffer: &'a mut Vec<u8>) -> M {
        message.put(&mut Encoder::new(buffer));
        read(buffer).unwrap()
    }

    proptest! {
        #[test]
        fn a_launch_comes_back(
            function: u64, grid: [u32; 3], block: [u32; 3], shared: u32, stream: u64,
            attributes: Vec<u8>, params: Vec<u8>,
        ) {
            let config = Config { grid, block, shared, stream, attributes: &attributes };
            let message = Launch { function, config, params: &params };
            let mut buffer = vec![];
            prop_assert_eq!(back(&message, &mut buffer), message);
        }

        #[test]
        fn a_copy_comes_back(place: u32, words: [u64; 6], level: u32, bulk: bool, data: Vec<u8>) {
            let [at, pitch, height, x, y, z] = words;
            let end = End { place, at, pitch, height, from: [x, y, z], level };
            let message = CopyBox { from: end, to: end, extent: [x, y, z], stream: at, bulk, data: &data };
            let mut buffer = vec![];
            prop_assert_eq!(back(&message, &mut buffer), message);
        }

        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            let _ = read::<Launch>(&bytes);
            let _ = read::<CopyBox>(&bytes);
            let _ = read::<Load>(&bytes);
            let _ = read::<AddCopyNode>(&bytes);
            let _ = read::<Monitor>(&bytes);
        }
    }

    #[test]
    fn what_is_left_over_is_refused() {
        assert_eq!(read::<Use>(&[0; 16]), Err(Malformed::Left(8)));
        assert_eq!(read::<Bye>(&[]), Ok(Bye {}));
        assert_eq!(name(Launch::OP), Some("Launch"));
        assert_eq!(name(Op(0xf0fe)), None);
    }
}
