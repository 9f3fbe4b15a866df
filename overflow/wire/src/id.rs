//! Handles on the wire.
//!
//! A handle that the client's program sees is an [`Id`]: made by the client, so that a call that
//! creates something need not be waited for, or by the executor for what it found (a graph's
//! nodes). Neither side ever takes an address of the other for a handle. The values are no
//! canonical addresses, so a program that follows one faults at once.

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Object {
    Context = 1,
    Stream,
    Event,
    Module,
    Library,
    Kernel,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    Array,
    Mipmap,
    Pool,
    Memory,
}

impl Object {
    const ALL: [Self; 14] = [
        Self::Context,
        Self::Stream,
        Self::Event,
        Self::Module,
        Self::Library,
        Self::Kernel,
        Self::Function,
        Self::Graph,
        Self::GraphExec,
        Self::GraphNode,
        Self::Array,
        Self::Mipmap,
        Self::Pool,
        Self::Memory,
    ];
}

/// Which side made a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Maker {
    /// The shim.
    Client,
    /// The executor.
    Executor,
}

/// A handle: `0x68` (the client's) or `0x69` (the executor's), the kind, a serial number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

const SERIAL: u64 = (1 << 44) - 1;

impl Id {
    /// The handle number `serial` (its low 44 bits) of this kind.
    #[must_use]
    pub const fn new(maker: Maker, object: Object, serial: u64) -> Self {
        let tag: u64 = match maker {
            Maker::Client => 0x68,
            Maker::Executor => 0x69,
        };
        Self(tag << 56 | (object as u64) << 48 | (serial & SERIAL) << 4)
    }

    /// As the program holds it and the wire carries it.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The handle that `raw` is, if it is one.
    #[must_use]
    pub fn from_raw(raw: u64) -> Option<Self> {
        let id = Self(raw);
        (id.maker().is_some() && id.object().is_some() && raw & 0xf == 0).then_some(id)
    }

    /// What it stands for.
    #[must_use]
    pub fn object(self) -> Option<Object> {
        let kind = (self.0 >> 48 & 0xff) as usize;
        Object::ALL.get(kind.checked_sub(1)?).copied()
    }

    /// Who made it.
    #[must_use]
    pub fn maker(self) -> Option<Maker> {
        match self.0 >> 56 {
            0x68 => Some(Maker::Client),
            0x69 => Some(Maker::Executor),
            _ => None,
        }
    }
}

/// The default stream of old, as a program names it; 0 means the same.
pub const STREAM_LEGACY: u64 = 1;
/// The calling thread's default stream, as a program names it. It never crosses the wire: the
/// shim gives each thread a stream of its own.
pub const STREAM_PER_THREAD: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_is() {
        for object in Object::ALL {
            for maker in [Maker::Client, Maker::Executor] {
                let id = Id::new(maker, object, 0x123);
                assert_eq!(id.object(), Some(object));
                assert_eq!(id.maker(), Some(maker));
                assert_eq!(Id::from_raw(id.raw()), Some(id));
                assert_ne!(id, Id::new(maker, object, 0x124));
            }
        }
        for raw in [
            0,
            1,
            2,
            0x7f12_3456_7890,
            0x6801_0000_0000_0001,
            0x68ff << 48,
            0x6800 << 48,
        ] {
            assert_eq!(Id::from_raw(raw), None, "{raw:#x}");
        }
    }
}
