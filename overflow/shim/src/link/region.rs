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
        let slice = self.width.saturating_mul(self.rows);
        slice.saturating_mul(self.slices)
    }

    /// Whether the packed bytes lie in memory as they are.
    pub(crate) fn is_flat(&self) -> bool {
        (self.rows <= 1 || self.pitch == self.width)
            && (self.slices <= 1 || self.slice == self.width * self.rows)
    }

    /// Whether it may have a byte in `len` bytes at `at`.
    pub(crate) fn overlaps(&self, at: u64, len: usize) -> bool {
        let start = self.base as u64;
        self.len() > 0
            && len > 0
            && start < at.saturating_add(len as u64)
            && at < start.saturating_add(self.span() as u64)
    }

    /// Bytes from its first to its last.
    pub(crate) fn span(&self) -> usize {
        let rows = self.pitch.saturating_mul(self.rows.saturating_sub(1));
        let slices = self.slice.saturating_mul(self.slices.saturating_sub(1));
        slices.saturating_add(rows).saturating_add(self.width)
    }

    /// The runs of memory that hold the packed bytes from `at` on, `len` of them: where each is,
    /// and how long.
    fn runs(&self, at: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let end = at.saturating_add(len).min(self.len());
        let mut at = at;
        let region = *self;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            if region.is_flat() {
                let run = (region.base.wrapping_add(at), end - at);
                at = end;
                return Some(run);
            }
            let (row, column) = (at / region.width, at % region.width);
            let (slice, row) = (row / region.rows, row % region.rows);
            let offset = slice * region.slice + row * region.pitch + column;
            let run = (region.width - column).min(end - at);
            at += run;
            Some((region.base.wrapping_add(offset), run))
        })
    }

    /// Appends the packed bytes from `at` on, `len` of them, to `to`.
    ///
    /// # Safety
    /// The region can be read.
    pub(crate) unsafe fn gather(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        for (from, len) in self.runs(at, len) {
            // SAFETY: inside of the region, which the caller says can be read.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
        }
    }

    /// Writes packed bytes where they belong, from `at` on; what is beyond the region is dropped.
    ///
    /// # Safety
    /// The region can be written.
    pub(crate) unsafe fn scatter(&self, at: usize, mut bytes: &[u8]) {
        for (to, len) in self.runs(at, bytes.len()) {
            let Some((run, rest)) = bytes.split_at_checked(len) else {
                return;
            };
            // SAFETY: inside of the region, which the caller says can be written; the bytes are the
            // link's own.
            unsafe { to.copy_from_nonoverlapping(run.as_ptr(), len) };
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_box_is_packed_and_unpacked(
            width in 1usize..9, rows in 1usize..4, slices in 1usize..4,
            gap in 0usize..3, rest in 0usize..5, cut in 1usize..20,
        ) {
            let pitch = width + gap;
            let slice = pitch * rows + rest;
            let memory: Vec<u8> = (0..slice * slices).map(|at| at as u8).collect();
            let region = Region { base: memory.as_ptr().cast_mut(), width, rows, slices, pitch, slice };
            let mut expected = vec![];
            for z in 0..slices {
                for y in 0..rows {
                    let at = z * slice + y * pitch;
                    expected.extend_from_slice(&memory[at..at + width]);
                }
            }
            prop_assert_eq!(region.len(), expected.len());
            let mut packed = vec![];
            for at in (0..region.len()).step_by(cut) {
                // SAFETY: the region is `memory`.
                unsafe { region.gather(at, cut, &mut packed) };
            }
            prop_assert_eq!(&packed, &expected);

            let mut other = vec![0xff; memory.len()];
            let there = Region { base: other.as_mut_ptr(), ..region };
            for (n, part) in packed.chunks(cut).enumerate() {
                // SAFETY: the region is `other`.
                unsafe { there.scatter(n * cut, part) };
            }
            for (at, byte) in other.iter().enumerate() {
                let (z, y, x) = (at / slice, at % slice / pitch, at % slice % pitch);
                let inside = z < slices && y < rows && x < width;
                prop_assert_eq!(*byte, if inside { at as u8 } else { 0xff });
            }
        }
    }

    #[test]
    fn overlap_counts_from_the_first_byte_to_the_last() {
        let region = Region {
            base: 0x1000 as *mut u8,
            width: 4,
            rows: 2,
            slices: 1,
            pitch: 16,
            slice: 32,
        };
        assert!(region.overlaps(0x0fff, 2) && region.overlaps(0x1013, 1));
        assert!(!region.overlaps(0x0fff, 1) && !region.overlaps(0x1014, 8));
        assert!(!region.overlaps(0x1000, 0));
        assert!(!Region::flat(std::ptr::null(), 0).overlaps(0, 8));
    }
}
