//! How long an image of kernels is: the program gives only its address. Each format says its own
//! length; what it says is followed, and nothing beyond.

use std::ffi::CStr;

/// `CUfatbinary` of nvcc: a wrapper that leads to the image.
const WRAPPER: u32 = 0x4662_43b1;
/// A fat binary.
const FAT: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Longest image: a broken header is not to lead through all memory.
const LONGEST: usize = 4 << 30;

/// The image that starts at `image`, past a wrapper; `None` where its header makes no sense.
///
/// # Safety
/// `image` is not null and leads to an image that is whole and stays for `'a`.
pub(super) unsafe fn image<'a>(image: *const u8) -> Option<&'a [u8]> {
    // SAFETY: an image has a header, and a text at least its NUL; each byte is looked at only when
    // those before it say that there is more.
    let start = unsafe { start(image) };
    let (image, len) = match start {
        Some(WRAPPER) => {
            // SAFETY: a wrapper: two words, the image's address.
            let inner = unsafe { image.add(8).cast::<*const u8>().read_unaligned() };
            // SAFETY: it leads to an image, by the contract.
            if inner.is_null() || unsafe { self::start(inner) } != Some(FAT) {
                return None;
            }
            // SAFETY: as above.
            (inner, unsafe { fat(inner) }?)
        }
        // SAFETY: as the first bytes say, by the contract.
        Some(FAT) => (image, unsafe { fat(image) }?),
        // SAFETY: as above.
        Some(ELF) => (image, unsafe { elf(image) }?),
        // SAFETY: a text that ends, by the contract. Its NUL belongs to it.
        _ => (
            image,
            unsafe { CStr::from_ptr(image.cast()) }.count_bytes() + 1,
        ),
    };
    // SAFETY: as long as it says, by the contract.
    (len <= LONGEST).then(|| unsafe { std::slice::from_raw_parts(image, len) })
}

/// Whether this, from a file, is a text, which has no NUL at its end there.
pub(super) fn is_text(file: &[u8]) -> bool {
    let start = file.first_chunk().map(|start| u32::from_le_bytes(*start));
    !matches!(start, Some(FAT | ELF))
}

/// The first four bytes, unless one of them is NUL before the fourth.
unsafe fn start(image: *const u8) -> Option<u32> {
    let mut bytes = [0; 4];
    for (at, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the byte before was no NUL, so a text goes on; other formats are longer.
        *byte = unsafe { image.add(at).read() };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(bytes))
}

/// # Safety
/// There are as many bytes at `image`.
unsafe fn number<const N: usize>(image: *const u8, at: usize) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the caller's promise.
    let read = unsafe { image.add(at).cast::<[u8; N]>().read_unaligned() };
    for (to, from) in bytes.iter_mut().zip(read) {
        *to = from;
    }
    u64::from_le_bytes(bytes)
}

/// The length of a fat binary: magic, version, bytes of the header, bytes after it.
unsafe fn fat(image: *const u8) -> Option<usize> {
    // SAFETY: a header of at least 16 bytes.
    let (header, body) = unsafe { (number::<2>(image, 6), number::<8>(image, 8)) };
    if header < 16 {
        return None;
    }
    usize::try_from(header.checked_add(body)?).ok()
}

/// The length of an ELF file of 64 bits: the last byte of its tables and of what they tell of.
unsafe fn elf(image: *const u8) -> Option<usize> {
    const HEADER: u64 = 64;
    // SAFETY: a header of 64 bytes, as the class (2) says.
    unsafe {
        if number::<1>(image, 4) != 2 {
            return None;
        }
        let (programs, sections) = (number::<8>(image, 32), number::<8>(image, 40));
        let (program, program_count) = (number::<2>(image, 54), number::<2>(image, 56));
        let (section, section_count) = (number::<2>(image, 58), number::<2>(image, 60));
        if (program_count > 0 && program < 56) || (section_count > 0 && section < 64) {
            return None;
        }
        let table = |at: u64, size: u64, count: u64| at.checked_add(size * count);
        let mut end = HEADER
            .max(table(programs, program, program_count)?)
            .max(table(sections, section, section_count)?);
        if end > LONGEST as u64 {
            return None;
        }
        for at in 0..program_count {
            let at = (programs + at * program) as usize;
            end = end.max(number::<8>(image, at + 8).checked_add(number::<8>(image, at + 32))?);
        }
        for at in 0..section_count {
            let at = (sections + at * section) as usize;
            const NOBITS: u64 = 8;
            if number::<4>(image, at + 4) != NOBITS {
                let (offset, size) = (number::<8>(image, at + 24), number::<8>(image, at + 32));
                end = end.max(offset.checked_add(size)?);
            }
        }
        usize::try_from(end).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(bytes: &[u8]) -> Option<usize> {
        // SAFETY: the tests' images are whole, or say so themselves.
        unsafe { image(bytes.as_ptr()) }.map(<[u8]>::len)
    }

    fn fat(header: u16, body: u64) -> Vec<u8> {
        let mut fat = FAT.to_le_bytes().to_vec();
        fat.extend(1_u16.to_le_bytes());
        fat.extend(header.to_le_bytes());
        fat.extend(body.to_le_bytes());
        fat.resize(200, 0xee);
        fat
    }

    #[test]
    fn a_text_ends_with_its_nul() {
        assert_eq!(len(b".version 8.0\n\0rest"), Some(14));
        assert_eq!(len(b"\0"), Some(1));
        assert_eq!(len(b"ab\0"), Some(3));
    }

    #[test]
    fn a_file_is_a_text_unless_it_says_otherwise() {
        assert!(is_text(b".version 8.0") && is_text(b"\n"));
        assert!(!is_text(b"\x7fELF rest") && !is_text(&fat(16, 0)));
    }

    #[test]
    fn a_fat_binary_says_its_length_also_in_a_wrapper() {
        assert_eq!(len(&fat(16, 40)), Some(56));
        assert_eq!(len(&fat(8, 40)), None);
        assert_eq!(len(&fat(16, u64::MAX)), None);
        assert_eq!(len(&fat(16, 1 << 40)), None);
        let inner = fat(16, 8);
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(1_u32.to_le_bytes());
        wrapper.extend((inner.as_ptr() as u64).to_le_bytes());
        wrapper.extend([0; 8]);
        // SAFETY: a wrapper of a whole image.
        let image = unsafe { image(wrapper.as_ptr()) };
        assert_eq!(image, inner.get(..24));
        wrapper[8..16].fill(0);
        assert_eq!(len(&wrapper), None);
    }

    #[test]
    fn an_elf_ends_with_its_last_section() {
        let mut elf = vec![0_u8; 400];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[4] = 2;
        let mut put = |at: usize, value: u64, size: usize| {
            elf[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        put(40, 64, 8);
        put(58, 64, 2);
        put(60, 3, 2);
        // Of the three, one is bytes in the file, one takes none.
        put(128 + 4, 1, 4);
        put(128 + 24, 300, 8);
        put(128 + 32, 77, 8);
        put(192 + 4, 8, 4);
        put(192 + 24, 300, 8);
        put(192 + 32, 1 << 20, 8);
        assert_eq!(len(&elf), Some(377));
        elf[58] = 8;
        assert_eq!(len(&elf), None);
        elf[58] = 64;
        elf[4] = 1;
        assert_eq!(len(&elf), None);
    }
}
