//! Loading of modules and libraries: an image goes over once, and is known by its hash from then on.

use super::image;
use super::modules;
use crate::link::Region;
use crate::memory::{done, forget_globals, tell};
use crate::session::link;
use crate::{answer, ids};
use ghost_wire::Object;
use ghost_wire::hello::{self, Loaded};
use ghost_wire::message::{Field, Load, Message, Unload};
use ghost_wire::result::{
    Code, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS,
    UNKNOWN,
};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

/// `CUjit_option`.
mod jit {
    pub(super) const WALL_TIME: u32 = 2;
    pub(super) const INFO_LOG: u32 = 3;
    pub(super) const INFO_LOG_SIZE: u32 = 4;
    pub(super) const ERROR_LOG: u32 = 5;
    pub(super) const ERROR_LOG_SIZE: u32 = 6;
    /// Symbols of the program's, by name and address, and how many.
    pub(super) const SYMBOL_NAMES: u32 = 17;
    pub(super) const SYMBOL_ADDRESSES: u32 = 18;
    pub(super) const SYMBOL_COUNT: u32 = 19;
    /// Names for the linker, and how many.
    pub(super) const KERNEL_NAMES: u32 = 25;
    pub(super) const VARIABLE_COUNT: u32 = 28;
}

/// Most options of a load.
const OPTIONS_MAX: u32 = 64;
/// Most bytes of a log.
const LOG_MAX: usize = 1 << 20;

/// Where a log is wanted.
#[derive(Debug, Clone, Copy)]
struct Log {
    to: *mut u8,
    len: usize,
    /// The value of the option that says how much room there is, and in the end how much was used.
    used: *mut usize,
}

impl Log {
    const NONE: Self = Self {
        to: std::ptr::null_mut(),
        len: 0,
        used: std::ptr::null_mut(),
    };

    /// Writes the log and its NUL.
    fn write(&self, log: &str) {
        let log = log.as_bytes();
        let mut used = 0;
        if !self.to.is_null() && self.len > 0 {
            let log = log.get(..self.len - 1).unwrap_or(log);
            used = log.len();
            // SAFETY: the program's room, as long as it says.
            unsafe {
                self.to.copy_from_nonoverlapping(log.as_ptr(), used);
                self.to.add(used).write(0);
            }
        }
        if !self.used.is_null() {
            // SAFETY: the program's list of values.
            unsafe { self.used.write_unaligned(used) };
        }
    }
}

/// Options for the compiler: those that are numbers as they are sent, and where logs go.
#[derive(Debug)]
struct Options {
    numbers: Vec<u8>,
    info: Log,
    error: Log,
}

/// # Safety
/// Both lists are null or have `count` items.
unsafe fn options(count: u32, names: *const u32, values: *mut usize) -> Result<Options, Code> {
    let mut options = Options {
        numbers: Vec::new(),
        info: Log::NONE,
        error: Log::NONE,
    };
    if count == 0 {
        return Ok(options);
    }
    if count > OPTIONS_MAX || names.is_null() || values.is_null() {
        return Err(INVALID_VALUE);
    }
    for at in 0..count as usize {
        // SAFETY: not null, and `count` items each.
        let (name, place) = unsafe { (names.add(at).read_unaligned(), values.add(at)) };
        // SAFETY: as above.
        let value = unsafe { place.read_unaligned() };
        match name {
            // SAFETY: as above. Nobody measures the far side's compiler: no time.
            jit::WALL_TIME => unsafe { place.write_unaligned(0) },
            jit::INFO_LOG => options.info.to = value as *mut u8,
            jit::ERROR_LOG => options.error.to = value as *mut u8,
            jit::INFO_LOG_SIZE => {
                options.info.len = value & 0xffff_ffff;
                options.info.used = place;
            }
            jit::ERROR_LOG_SIZE => {
                options.error.len = value & 0xffff_ffff;
                options.error.used = place;
            }
            jit::SYMBOL_COUNT if value & 0xffff_ffff != 0 => return Err(NOT_SUPPORTED),
            jit::SYMBOL_NAMES | jit::SYMBOL_ADDRESSES | jit::SYMBOL_COUNT => {}
            // Deprecated, and only ever a hint.
            jit::KERNEL_NAMES..=jit::VARIABLE_COUNT => {}
            _ => {
                options.numbers.extend(u64::from(name).to_le_bytes());
                options.numbers.extend((value as u64).to_le_bytes());
            }
        }
    }
    Ok(options)
}

/// Loads an image as a module or a library; its handle.
fn load(object: Object, image: &[u8], options: &Options) -> Result<u64, Code> {
    let link = link()?;
    let hash = blake3::hash(image);
    let id = ids::new(object);
    let log = options.info.len.max(options.error.len).min(LOG_MAX);
    let message = Load {
        hash: hash.as_bytes(),
        len: image.len() as u64,
        id,
        bulk: false,
        options: &options.numbers,
        log: log as u32,
    };
    for data in [&[], image] {
        let region = Region::flat(data.as_ptr(), data.len());
        // SAFETY: an image that stays for the call.
        let (code, loaded) = unsafe {
            link.wait_whole(
                Load::OP,
                region,
                |to, bulk| Load { bulk, ..message }.put(to),
                |code, body| {
                    let loaded = match body {
                        [] => None,
                        body => Some(hello::from_bytes::<Loaded>(body)?),
                    };
                    Ok(Ok((code, loaded)))
                },
            )
        }?;
        match loaded {
            Some(Loaded::Needed) => {}
            Some(Loaded::Done { functions, log }) if code == SUCCESS => {
                options.info.write(&log);
                options.error.write("");
                modules::enter(id, functions);
                return Ok(id);
            }
            Some(Loaded::Failed { log }) => {
                options.error.write(&log);
                options.info.write("");
                return Err(if code == SUCCESS { UNKNOWN } else { code });
            }
            _ => return Err(if code == SUCCESS { UNKNOWN } else { code }),
        }
    }
    Err(INVALID_IMAGE)
}

/// # Safety
/// `to` is null or room for a handle; `from` is null or leads to a whole image; the lists are as in
/// [`options`].
unsafe fn load_data(
    object: Object,
    to: *mut u64,
    from: *const u8,
    count: u32,
    names: *const u32,
    values: *mut usize,
) -> Result<(), Code> {
    link()?;
    if to.is_null() || from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: handed on.
    unsafe {
        let options = options(count, names, values)?;
        let image = image::image(from).ok_or(INVALID_IMAGE)?;
        tell(to, load(object, image, &options)?)
    }
}

/// # Safety
/// As [`load_data`]; `path` is null or a text that ends.
unsafe fn load_file(
    object: Object,
    to: *mut u64,
    path: *const c_char,
    count: u32,
    names: *const u32,
    values: *mut usize,
) -> Result<(), Code> {
    link()?;
    if to.is_null() || path.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a text that ends.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let mut file = std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?;
    // SAFETY: handed on.
    let options = unsafe { options(count, names, values) }?;
    if image::is_text(&file) {
        file.push(0);
    }
    // SAFETY: null, or the program's own room.
    unsafe { tell(to, load(object, &file, &options)?) }
}

pub(crate) unsafe extern "C" fn cuModuleLoad(to: *mut u64, path: *const c_char) -> Code {
    let none = std::ptr::null_mut();
    // SAFETY: handed on.
    answer(unsafe { load_file(Object::Module, to, path, 0, none, none.cast()) })
}

pub(crate) unsafe extern "C" fn cuModuleLoadData(to: *mut u64, from: *const u8) -> Code {
    let none = std::ptr::null_mut();
    // SAFETY: handed on.
    answer(unsafe { load_data(Object::Module, to, from, 0, none, none.cast()) })
}

pub(crate) unsafe extern "C" fn cuModuleLoadDataEx(
    to: *mut u64,
    from: *const u8,
    count: u32,
    names: *const u32,
    values: *mut usize,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { load_data(Object::Module, to, from, count, names, values) })
}

pub(crate) unsafe extern "C" fn cuModuleLoadFatBinary(to: *mut u64, from: *const u8) -> Code {
    // SAFETY: handed on.
    unsafe { cuModuleLoadData(to, from) }
}

/// Options of libraries say how the driver may keep the image (it is copied here) and where a table
/// for addresses of one space is, which this side does not have: none needs to be sent.
pub(crate) unsafe extern "C" fn cuLibraryLoadData(
    to: *mut u64,
    from: *const u8,
    names: *const u32,
    values: *mut usize,
    count: u32,
    _library_names: *const u32,
    _library_values: *const usize,
    _library_count: u32,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { load_data(Object::Library, to, from, count, names, values) })
}

pub(crate) unsafe extern "C" fn cuLibraryLoadFromFile(
    to: *mut u64,
    path: *const c_char,
    names: *const u32,
    values: *mut usize,
    count: u32,
    _library_names: *const u32,
    _library_values: *const usize,
    _library_count: u32,
) -> Code {
    // SAFETY: handed on.
    answer(unsafe { load_file(Object::Library, to, path, count, names, values) })
}

fn unload(id: u64) -> Result<(), Code> {
    let link = link()?;
    if !modules::leave(id) {
        return Err(INVALID_HANDLE);
    }
    forget_globals(id);
    let message = Unload { id };
    done(link.post(Unload::OP, |to| message.put(to)))
}

pub(crate) unsafe extern "C" fn cuModuleUnload(module: u64) -> Code {
    answer(unload(module))
}

pub(crate) unsafe extern "C" fn cuLibraryUnload(library: u64) -> Code {
    answer(unload(library))
}

/// `CU_MODULE_LAZY_LOADING`, the driver's default.
pub(crate) unsafe extern "C" fn cuModuleGetLoadingMode(to: *mut u32) -> Code {
    const EAGER: u32 = 1;
    const LAZY: u32 = 2;
    let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER");
    // SAFETY: null, or the program's own room.
    answer(link().and_then(|_| unsafe { tell(to, if eager { EAGER } else { LAZY }) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_numbers_are_sent_and_logs_are_kept_here() {
        let mut log = [b'x'; 8];
        let names = [0, jit::ERROR_LOG, jit::ERROR_LOG_SIZE, 7];
        let mut values = [32, log.as_mut_ptr() as usize, 8, 4];
        // SAFETY: four items each.
        let options = unsafe { options(4, names.as_ptr(), values.as_mut_ptr()) }.unwrap();
        let words: Vec<_> = options.numbers.chunks(8).map(|word| word[0]).collect();
        assert_eq!(words, [0, 32, 7, 4]);
        options.error.write("a long message");
        assert_eq!(&log, b"a long \0");
        assert_eq!(values[2], 7);
    }

    #[test]
    fn symbols_of_the_programs_are_refused() {
        let (names, mut values) = ([jit::SYMBOL_COUNT], [1]);
        // SAFETY: one item each.
        let refused = unsafe { options(1, names.as_ptr(), values.as_mut_ptr()) };
        assert_eq!(refused.map(drop), Err(NOT_SUPPORTED));
    }
}
