//! Modules and libraries: loading them, and what is in them.

use super::commands::{DONE, Done, Now, Session, range, words};
use crate::driver::Driver;
use crate::handles::Params;
use crate::images::{Hash, LARGEST};
use crate::kinds::Fault;
use ghost_wire::hello::{self, Function, Loaded};
use ghost_wire::message::{Load, Name, Resolve, Unload, Variable};
use ghost_wire::result::{Code, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, OUT_OF_MEMORY};
use ghost_wire::{Decoder, Id, Object};
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;
use std::sync::Arc;

/// Most bytes of a compiler's log.
const LOG: u32 = 64 << 10;
/// Most options of a load.
const OPTIONS: usize = 64;
/// Most parameters of a kernel: each has a byte at least, of some 32 KiB.
const PARAMS: usize = 32 << 10;
/// `CU_JIT_*` that are numbers; all others are pointers or the logs.
const NUMBERS: &[u32] = &[
    0, 1, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20, 21, 22, 23, 24, 29, 30, 31, 32, 33,
];
/// `CU_JIT_INFO_LOG_BUFFER` and `_SIZE`, `CU_JIT_ERROR_LOG_BUFFER` and `_SIZE`.
const LOGS: [u32; 4] = [3, 4, 5, 6];

/// A module or library that is loaded.
#[derive(Debug)]
pub(super) struct Image {
    raw: u64,
    /// What is in it, in the order of the layout.
    functions: Vec<(u64, Params)>,
    /// Ids that stand for something in it.
    named: Vec<u64>,
}

/// The compiler's options and its logs.
struct Options {
    ids: Vec<u32>,
    values: Vec<u64>,
    info: Vec<u8>,
    error: Vec<u8>,
}

impl Options {
    fn new(message: &Load<'_>) -> Result<Self, Fault> {
        let mut from = Decoder::new(message.options);
        let count = message.options.len() / 16;
        if count > OPTIONS {
            return Err(range("the number of options", count as u64));
        }
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let id: u32 = from.narrow("an option")?;
            let value = from.word()?;
            if !NUMBERS.contains(&id) {
                return Err(INVALID_VALUE.into());
            }
            ids.push(id);
            values.push(value);
        }
        from.end()?;
        let log = message.log.min(LOG) as usize;
        let (mut info, mut error) = (vec![0; log], vec![0; log]);
        if log > 0 {
            ids.extend(LOGS);
            let addresses = [info.as_mut_ptr() as u64, error.as_mut_ptr() as u64];
            for address in addresses {
                values.extend([address, log as u64]);
            }
        }
        Ok(Self {
            ids,
            values,
            info,
            error,
        })
    }
}

fn log(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0);
    let text = bytes.get(..len.unwrap_or(bytes.len())).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn name(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the driver's text, which stands for as long as what it names.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_string_lossy().into_owned()
}

/// What is in a module or library: the driver's handles and the layout.
fn layout(driver: &Driver, library: bool, raw: u64) -> Result<Vec<(u64, Function)>, Code> {
    let mut count = 0;
    if library {
        driver.cuLibraryGetKernelCount(&mut count, raw)?;
    } else {
        driver.cuModuleGetFunctionCount(&mut count, raw)?;
    }
    let mut all = vec![0; count as usize];
    if count > 0 {
        // SAFETY: room for as many.
        unsafe {
            if library {
                driver.cuLibraryEnumerateKernels(all.as_mut_ptr(), count, raw)?;
            } else {
                driver.cuModuleEnumerateFunctions(all.as_mut_ptr(), count, raw)?;
            }
        }
    }
    let each = all.into_iter().map(|raw| {
        let mut called = null();
        if library {
            driver.cuKernelGetName(&mut called, raw)?;
        } else {
            driver.cuFuncGetName(&mut called, raw)?;
        }
        let mut params = Vec::new();
        for index in 0..PARAMS {
            let (mut offset, mut size) = (0, 0);
            let told = if library {
                driver.cuKernelGetParamInfo(raw, index, &mut offset, &mut size)
            } else {
                driver.cuFuncGetParamInfo(raw, index, &mut offset, &mut size)
            };
            match told {
                Ok(()) => params.push((offset as u32, size as u32)),
                Err(INVALID_VALUE) => break,
                Err(code) => return Err(code),
            }
        }
        let name = name(called);
        Ok((raw, Function { name, params }))
    });
    each.collect()
}

fn failed(code: Code, log: String) -> Done {
    Done::Failed(code, hello::to_bytes(&Loaded::Failed { log }))
}

impl Session {
    pub(super) fn load(&mut self, now: Now, message: &Load<'_>) -> Result<Done, Fault> {
        let size = message.hash.len() as u64;
        let hash: Hash = message.hash.try_into().map_err(|_| range("a hash", size))?;
        if message.len == 0 || message.len > LARGEST {
            return Err(range("the size of an image", message.len));
        }
        let object = Id::from_raw(message.id).and_then(Id::object);
        let library = match object {
            Some(Object::Library) => true,
            Some(Object::Module) => false,
            _ => return Err(range("what is loaded", message.id)),
        };
        let image = if message.bulk {
            let mut bytes = Vec::new();
            let room = bytes.try_reserve_exact(message.len as usize + 1);
            let shared = &self.shared;
            self.parts(now, message.len, |_, part| {
                if room.is_ok() {
                    bytes.extend_from_slice(part.bytes());
                }
                shared.copies.pool.give(&shared.driver, part);
                Ok(())
            })?;
            if room.is_err() {
                return Ok(failed(OUT_OF_MEMORY, String::new()));
            }
            match self.images.put(&hash, bytes) {
                Some(image) => image,
                None => {
                    let log = "the image's bytes are not those that its hash names".to_owned();
                    return Ok(failed(INVALID_IMAGE, log));
                }
            }
        } else {
            match self.images.get(&hash) {
                Some(image) => image,
                None => return Ok(Done::Answer(hello::to_bytes(&Loaded::Needed))),
            }
        };
        let mut options = Options::new(message)?;
        let Options { ids, values, .. } = &mut options;
        let driver = &Arc::clone(&self.shared).driver;
        let (count, mut raw) = (ids.len() as u32, 0);
        // SAFETY: the image has a NUL behind it, and the options and logs stand until after the
        // call; the driver keeps a copy of the image.
        let loaded = unsafe {
            let (image, ids, values) = (image.as_ptr(), ids.as_ptr(), values.as_mut_ptr());
            if library {
                driver.cuLibraryLoadData(&mut raw, image, ids, values, count, null(), null(), 0)
            } else {
                driver.cuModuleLoadDataEx(&mut raw, image, count, ids, values)
            }
        };
        if let Err(code) = loaded {
            return Ok(failed(code, log(&options.error)));
        }
        let found = match layout(driver, library, raw) {
            Ok(found) => found,
            Err(code) => {
                self.end_image(library, raw)?;
                return Ok(failed(code, String::new()));
            }
        };
        let (functions, layout) = found
            .into_iter()
            .map(|(raw, function)| ((raw, Params::from(function.params.as_slice())), function))
            .unzip();
        // A library lives in no context.
        let owner = if library { 0 } else { self.context };
        let object = if library {
            Object::Library
        } else {
            Object::Module
        };
        self.handles.insert(object, message.id, raw, owner)?;
        let image = Image {
            raw,
            functions,
            named: Vec::new(),
        };
        self.loaded.insert(message.id, image);
        Ok(Done::Answer(hello::to_bytes(&Loaded::Done {
            functions: layout,
            log: log(&options.info),
        })))
    }

    fn end_image(&self, library: bool, raw: u64) -> Result<(), Code> {
        let driver = &self.shared.driver;
        if library {
            driver.cuLibraryUnload(raw)
        } else {
            driver.cuModuleUnload(raw)
        }
    }

    pub(super) fn unload(&mut self, message: Unload) -> Result<Done, Fault> {
        let image = self.loaded.remove(&message.id).ok_or(INVALID_HANDLE)?;
        let library = Id::from_raw(message.id).and_then(Id::object) == Some(Object::Library);
        let object = if library {
            Object::Library
        } else {
            Object::Module
        };
        let alive = self.handles.get(object, message.id);
        self.handles.remove(message.id);
        image.named.iter().for_each(|id| self.handles.remove(*id));
        // A module may have gone with its context.
        alive?;
        let shared = &self.shared;
        let end = || self.end_image(library, image.raw);
        shared.shares.ended_by(&shared.driver, end)?;
        DONE
    }

    pub(super) fn name(&mut self, message: Name) -> Result<Done, Fault> {
        let image = self.loaded.get_mut(&message.of).ok_or(INVALID_HANDLE)?;
        let at = message.index as usize;
        let (raw, params) = image.functions.get(at).ok_or(INVALID_VALUE)?.clone();
        let library = Id::from_raw(message.of).and_then(Id::object) == Some(Object::Library);
        let (object, owner) = if library {
            (Object::Kernel, 0)
        } else {
            (
                Object::Function,
                self.handles.owner(message.of, self.context),
            )
        };
        image.named.push(message.id);
        self.handles
            .insert_function(object, message.id, raw, owner, Some(params))?;
        DONE
    }

    pub(super) fn variable(&mut self, message: &Variable<'_>) -> Result<Done, Fault> {
        let shared = &self.shared;
        let driver = &shared.driver;
        // What is in a variable that the client knows already.
        shared.catch_up();
        let name = CString::new(message.name).map_err(|_| INVALID_VALUE)?;
        let name = name.as_ptr();
        let object = Id::from_raw(message.of).and_then(Id::object);
        let object = object.ok_or(INVALID_HANDLE)?;
        let of = self.handles.get(object, message.of)?;
        let (mut at, mut len) = (0, 0);
        // SAFETY: a text that ends, for the call.
        unsafe {
            match (object, message.managed) {
                (Object::Module, false) => {
                    driver.cuModuleGetGlobal_v2(&mut at, &mut len, of, name)?;
                }
                (Object::Library, false) => {
                    driver.cuLibraryGetGlobal(&mut at, &mut len, of, name)?;
                }
                (Object::Library, true) => {
                    driver.cuLibraryGetManaged(&mut at, &mut len, of, name)?;
                }
                _ => return Err(INVALID_HANDLE.into()),
            }
        }
        let (start, whole) = shared.shares.add_variable(driver, at)?.unwrap_or((0, 0));
        Ok(Done::Answer(words(&[at, len as u64, start, whole as u64])))
    }

    pub(super) fn resolve(&mut self, message: Resolve) -> Result<Done, Fault> {
        let driver = &Arc::clone(&self.shared).driver;
        let of = Id::from_raw(message.of).and_then(Id::object);
        let context = self.context;
        let mut raw = 0;
        match of {
            Some(Object::Library) => {
                let library = self.handles.get(Object::Library, message.of)?;
                driver.cuLibraryGetModule(&mut raw, library)?;
                self.handles
                    .insert(Object::Module, message.id, raw, context)?;
            }
            Some(Object::Kernel) => {
                let (kernel, params) = self.handles.function(message.of)?;
                let params = params.cloned();
                driver.cuKernelGetFunction(&mut raw, kernel)?;
                let object = Object::Function;
                self.handles
                    .insert_function(object, message.id, raw, context, params)?;
            }
            _ => return Err(INVALID_HANDLE.into()),
        }
        for image in self.loaded.values_mut() {
            if image.named.contains(&message.of) {
                image.named.push(message.id);
            }
        }
        DONE
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::words;
    use super::*;
    use ghost_wire::Malformed;

    #[test]
    fn options_are_numbers_only() {
        let load = |options: &'static [u8]| Load {
            hash: &[],
            len: 0,
            id: 0,
            bulk: false,
            options,
            log: 100,
        };
        let opt: &'static [u8] = words(&[7, 4, 12, 1]).leak();
        let options = Options::new(&load(opt)).ok();
        let ids = options.as_ref().map(|options| options.ids.clone());
        assert_eq!(ids, Some(vec![7, 12, 3, 4, 5, 6]));
        assert_eq!(
            options.map(|options| options.values[..2].to_vec()),
            Some(vec![4, 1])
        );
        let pointer: &'static [u8] = words(&[3, 0x1000]).leak();
        let refused = Options::new(&load(pointer)).err();
        assert_eq!(refused, Some(Fault::Code(INVALID_VALUE)));
        let cut = Options::new(&load(&opt[..24])).err();
        assert_eq!(cut, Some(Malformed::Left(8).into()));
    }
}
