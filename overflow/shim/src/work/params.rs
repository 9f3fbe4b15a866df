//! A kernel's arguments, from where the program has them to one run of bytes.

use crate::memory::{host_bounds, show};
use ghost_wire::Encoder;
use ghost_wire::hello::Function;
use ghost_wire::result::{Code, INVALID_VALUE};
use std::ffi::c_void;

/// Most bytes of a kernel's arguments; devices of today take 32764.
const LONGEST: usize = 64 << 10;

/// Keys of `extra`.
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// Where the arguments are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Params<'a> {
    /// One pointer for each parameter, laid out like this.
    Each(*const *const u8, &'a Function, usize),
    /// As they are.
    Packed(&'a [u8]),
}

/// Finds the arguments of a launch.
///
/// # Safety
/// `each` is null or has a pointer for each parameter of `layout`; `extra` is null or a list that
/// ends; what it names is there.
pub(super) unsafe fn params<'a>(
    layout: &'a Function,
    each: *const *const u8,
    extra: *const *const c_void,
) -> Result<Params<'a>, Code> {
    if layout.params.is_empty() && (extra.is_null() || !each.is_null()) {
        return Ok(Params::Packed(&[]));
    }
    if each.is_null() {
        // SAFETY: handed on.
        return unsafe { packed(extra) }.map(Params::Packed);
    }
    let size = layout.size();
    if size > LONGEST || !extra.is_null() {
        return Err(INVALID_VALUE);
    }
    for at in 0..layout.params.len() {
        // SAFETY: a pointer for each parameter, by the contract.
        if unsafe { each.add(at).read_unaligned() }.is_null() {
            return Err(INVALID_VALUE);
        }
    }
    Ok(Params::Each(each, layout, size))
}

/// # Safety
/// As of `extra` in [`params`].
unsafe fn packed<'a>(extra: *const *const c_void) -> Result<&'a [u8], Code> {
    if extra.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    for pair in 0..2 {
        // SAFETY: pairs of key and value, up to a key of 0.
        let key = unsafe { extra.add(pair * 2).read_unaligned() };
        if key.is_null() {
            break;
        }
        // SAFETY: a key that is not 0 has a value.
        let value = unsafe { extra.add(pair * 2 + 1).read_unaligned() };
        match key as usize {
            BUFFER => buffer = value.cast(),
            // SAFETY: the value leads to a `size_t`.
            SIZE if !value.is_null() => size = unsafe { value.cast::<usize>().read_unaligned() },
            _ => return Err(INVALID_VALUE),
        }
    }
    if size == 0 {
        return Ok(&[]);
    }
    if buffer.is_null() || size > LONGEST {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as many bytes as the program says.
    Ok(unsafe { std::slice::from_raw_parts(buffer, size) })
}

impl Params<'_> {
    /// The words of 64 bits among them, each aligned as an address is.
    #[inline]
    pub(super) fn words(&self, mut each_word: impl FnMut(u64)) {
        match *self {
            Self::Packed(bytes) => {
                let words = bytes.as_chunks().0;
                words
                    .iter()
                    .for_each(|word| each_word(u64::from_le_bytes(*word)));
            }
            Self::Each(each, layout, _) => {
                let params = layout.params.iter().enumerate();
                for (at, &(_, len)) in params.filter(|(_, (offset, _))| offset % 8 == 0) {
                    for word in 0..len as usize / 8 {
                        // SAFETY: as in `put`.
                        each_word(unsafe {
                            let from = each.add(at).read_unaligned();
                            from.cast::<u64>().add(word).read_unaligned()
                        });
                    }
                }
            }
        }
    }

    /// Shows the device the host memory that they lead to.
    #[inline]
    pub(super) fn show(&self) {
        if let Some(bounds) = host_bounds() {
            self.words(|word| {
                if bounds.contains(&word) {
                    show(word);
                }
            });
        }
    }

    /// Appends them as a byte string.
    #[inline]
    pub(super) fn put(&self, to: &mut Encoder<'_>) {
        match *self {
            Self::Packed(bytes) => to.bytes(bytes),
            Self::Each(each, layout, size) => to.bytes_with(size, |to| {
                for (at, &(offset, len)) in layout.params.iter().enumerate() {
                    let (offset, len) = (offset as usize, len as usize);
                    if let Some(to) = to.get_mut(offset..offset + len) {
                        // SAFETY: `params` has found a pointer for each parameter, and it leads to
                        // as many bytes as that has.
                        unsafe {
                            let from = each.add(at).read_unaligned();
                            to.as_mut_ptr().copy_from_nonoverlapping(from, len);
                        }
                    }
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_wire::Decoder;
    use proptest::prelude::*;
    use std::ptr::null;

    fn encoded(params: Params<'_>) -> Vec<u8> {
        let mut message = vec![];
        params.put(&mut Encoder::new(&mut message));
        Decoder::new(&message).bytes().unwrap().to_vec()
    }

    proptest! {
        #[test]
        fn each_parameter_is_where_the_layout_has_it(
            sizes in prop::collection::vec((0u32..9, 1usize..70), 0..12), fill: u8,
        ) {
            let mut layout = Function::default();
            let (mut end, mut expected, mut values) = (0, vec![], vec![]);
            for (n, (gap, len)) in sizes.iter().enumerate() {
                let offset = end + gap;
                let value: Vec<u8> = (0..*len).map(|at| fill ^ (at * 7 + n) as u8).collect();
                expected.resize(offset as usize, 0);
                expected.extend(&value);
                layout.params.push((offset, *len as u32));
                values.push(value);
                end = offset + *len as u32;
            }
            let pointers: Vec<_> = values.iter().map(|value| value.as_ptr()).collect();
            // SAFETY: a pointer for each parameter.
            let params = unsafe { params(&layout, pointers.as_ptr(), null()) }.unwrap();
            prop_assert_eq!(encoded(params), expected);
        }
    }

    #[test]
    fn the_words_among_them_are_found() {
        let layout = Function {
            params: vec![(0, 4), (8, 20), (28, 8), (40, 8)],
            ..Function::default()
        };
        let all: Vec<[u64; 3]> = (0..4).map(|n| [n, n + 10, n + 20]).collect();
        let pointers: Vec<_> = all.iter().map(|words| words.as_ptr().cast()).collect();
        // SAFETY: a pointer for each parameter.
        let params = unsafe { params(&layout, pointers.as_ptr(), null()) }.unwrap();
        let mut words = vec![];
        params.words(|word| words.push(word));
        assert_eq!(words, [1, 11, 3]);
        let mut bytes = 7_u64.to_le_bytes().to_vec();
        bytes.extend([1; 4]);
        words.clear();
        Params::Packed(&bytes).words(|word| words.push(word));
        assert_eq!(words, [7]);
    }

    #[test]
    fn a_packed_buffer_is_taken_as_it_is() {
        let layout = Function {
            params: vec![(0, 8)],
            ..Function::default()
        };
        let (bytes, size) = ([1_u8, 2, 3, 4, 5, 6, 7, 8], 8_usize);
        let extra: [*const c_void; 5] = [
            SIZE as *const _,
            (&raw const size).cast(),
            BUFFER as *const _,
            bytes.as_ptr().cast(),
            null(),
        ];
        // SAFETY: a list that ends.
        let params = unsafe { params(&layout, null(), extra.as_ptr()) }.unwrap();
        assert_eq!(encoded(params), bytes);
    }

    #[test]
    fn missing_arguments_are_refused() {
        let layout = Function {
            params: vec![(0, 8)],
            ..Function::default()
        };
        let of = |layout: &Function, each: *const *const u8, extra: *const *const c_void| {
            // SAFETY: null, or lists that end.
            unsafe { params(layout, each, extra) }.map(encoded)
        };
        assert_eq!(of(&layout, null(), null()), Err(INVALID_VALUE));
        let pointers = [null()];
        assert_eq!(of(&layout, pointers.as_ptr(), null()), Err(INVALID_VALUE));
        let unknown: [*const c_void; 3] = [9 as *const _, null(), null()];
        assert_eq!(of(&layout, null(), unknown.as_ptr()), Err(INVALID_VALUE));
        assert_eq!(of(&Function::default(), null(), null()), Ok(vec![]));
    }
}
