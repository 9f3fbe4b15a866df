//! The program's memory at one end of a copy: rows and slices of it. On the wire the data is
//! packed: rows follow each other.

/// A box of the program's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    /// The first byte.
    pub(crate) base: *mut u8,
    /// Bytes of a row.
    pub(crate) width: usize,
    /// Rows of a slice.
    pub(crate) rows: usize,
    /// Slices.
    pub(crate) slices: usize,
    /// Bytes from row to row.
    pub(crate) pitch: usize,
    /// Bytes from slice to slice.
    pub(crate) slice: usize,
}

// SAFETY: it only says where memory is; who reads or writes there answers for that.
unsafe impl Send for Region {}

impl Region {
    /// `len` bytes in a row.
    pub(crate) fn flat(base: *const u8, len: usize) -> Self {
        Self {
            base: base.cast_mut(),
            width: len,
            rows: 1,
            slices: 1,
            pitch: len,
            slice: len,
        }
    }

    /// Bytes of it, packed.
    pub(crate) fn len(&self) -> usize {
        self.width
            .saturating_mul(self.rows)
            .saturating_mul(self.slices)
    }
}
