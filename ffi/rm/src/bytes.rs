//! Numbers inside bytes that come from elsewhere: nothing is there past the end.

/// The `u32` at `offset`.
pub(crate) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(array(bytes, offset)?))
}

/// The `u64` at `offset`.
pub(crate) fn long(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(array(bytes, offset)?))
}

/// Sets the `u32` at `offset`; whether there is one.
pub(crate) fn put_word(bytes: &mut [u8], offset: usize, value: u32) -> bool {
    put(bytes, offset, &value.to_ne_bytes())
}

/// Sets the `u64` at `offset`; whether there is one.
pub(crate) fn put_long(bytes: &mut [u8], offset: usize, value: u64) -> bool {
    put(bytes, offset, &value.to_ne_bytes())
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) -> bool {
    let at = bytes
        .get_mut(offset..)
        .and_then(|rest| rest.get_mut(..value.len()));
    at.map(|at| at.copy_from_slice(value)).is_some()
}
