//! Modules, libraries, and what is asked of their kernels.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::{In, Out, Text, entries};
use crate::context::{
    FUNCTIONS, Function, KERNELS, LIBRARIES, Library, LibraryKernel, MODULES, Module, Res, current,
    load, lock, new_handle, unload, world,
};
use crate::ptx::{
    self, Kernel, Module as Program,
    code::{Param, Var},
};
use crate::result::{
    FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU,
    NOT_FOUND, NOT_SUPPORTED,
};
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const JIT_ERROR_LOG: u32 = 5;
const JIT_ERROR_LOG_SIZE: u32 = 6;
const ELF: &[u8] = b"\x7fELF";
const WRAPPER: &[u8] = &0x4662_43b1_u32.to_le_bytes();
const FATBIN: &[u8] = &0xba55_ed50_u32.to_le_bytes();
const MAX_TEXT: usize = 64 << 20;

/// The PTX of an image, as the program's bytes up to a zero.
fn text(image: In<u8>) -> Res<Vec<u8>> {
    let starts = |magic: &[u8]| {
        let mut at = magic.iter().enumerate();
        at.all(|(i, c)| image.at(i) == Ok(*c))
    };
    if !image.given() {
        return Err(INVALID_VALUE);
    }
    if starts(ELF) {
        return Err(NO_BINARY_FOR_GPU);
    }
    if starts(WRAPPER) {
        let at = u64::from_le_bytes(image.bytes(16)?.try_into().map_or([0; 8], |b: [u8; 16]| {
            let [.., a, b, c, d, e, f, g, h] = b;
            [a, b, c, d, e, f, g, h]
        }));
        let inner = In(at as *const u8);
        return fatbin(&inner.bytes(16)?, inner);
    }
    if starts(FATBIN) {
        return fatbin(&image.bytes(16)?, image);
    }
    let mut bytes = Vec::new();
    while bytes.len() < MAX_TEXT {
        match image.at(bytes.len())? {
            0 => return Ok(bytes),
            c => bytes.push(c),
        }
    }
    Err(INVALID_IMAGE)
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut out = [0; 8];
    out.get_mut(..len)?
        .copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(out))
}

/// The first PTX of a fat binary that is not packed.
fn fatbin(header: &[u8], image: In<u8>) -> Res<Vec<u8>> {
    if header.get(..4) != Some(FATBIN) {
        return Err(INVALID_IMAGE);
    }
    let head = number(header, 6, 2).unwrap_or(0) as usize;
    let size = number(header, 8, 8).unwrap_or(0) as usize;
    if size > MAX_TEXT {
        return Err(INVALID_IMAGE);
    }
    let bytes = image.bytes(head + size)?;
    let mut at = head;
    // kind: u16, version: u16, header: u32, size: u64, packed: u32, …
    while let (Some(kind), Some(own), Some(len), Some(packed)) = (
        number(&bytes, at, 2),
        number(&bytes, at + 4, 4),
        number(&bytes, at + 8, 8),
        number(&bytes, at + 16, 4),
    ) {
        let from = at.saturating_add(own as usize);
        let end = from.saturating_add(len as usize);
        if kind == 1 && packed == 0 {
            let text = bytes.get(from..end).ok_or(INVALID_IMAGE)?;
            let text = text.split(|c| *c == 0).next().unwrap_or_default();
            return Ok(text.to_owned());
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Err(NO_BINARY_FOR_GPU)
}

/// Parses an image; where that fails, says why on standard error and in the program's log.
fn parse(image: In<u8>, count: u32, options: In<u32>, values: In<usize>) -> Res<Arc<Program>> {
    let bytes = text(image)?;
    let why = match ptx::parse(&bytes) {
        Ok(program) => return Ok(Arc::new(program)),
        Err(why) => format!("ghost-cpu-device: {why}"),
    };
    eprintln!("{why}");
    let (mut log, mut room, mut size_at) = (0, 0, None);
    for i in 0..count.min(64) as usize {
        match options.at(i)? {
            JIT_ERROR_LOG => log = values.at(i)?,
            JIT_ERROR_LOG_SIZE => (room, size_at) = (values.at(i)? as u32 as usize, Some(i)),
            _ => {}
        }
    }
    if log != 0 && room > 0 {
        let out = Out(log as *mut u8);
        let len = why.len().min(room - 1);
        for (i, c) in why.bytes().take(len).chain([0]).enumerate() {
            out.put_at(i, c)?;
        }
        if let Some(i) = size_at {
            Out(values.0.cast_mut()).put_at(i, len + 1)?;
        }
    }
    Err(INVALID_PTX)
}

fn load_here(out: Out<usize>, program: Arc<Program>) -> Res<()> {
    let module = load(&*current()?, program)?;
    out.put(module.handle)
}

/// A function: of a module, or a library's kernel as it is in the current context.
pub(super) fn function(handle: usize) -> Res<Arc<Function>> {
    world()?;
    match KERNELS.get(handle) {
        Ok(kernel) => FUNCTIONS.get(function_of(&kernel)?),
        Err(_) => FUNCTIONS.get(handle),
    }
}

fn function_of(kernel: &LibraryKernel) -> Res<usize> {
    let module = module_of(kernel.library)?;
    module.functions.get(kernel.index).copied().ok_or(NOT_FOUND)
}

/// The module that a library is in the current context.
fn module_of(library: usize) -> Res<Arc<Module>> {
    let context = current()?;
    let library = LIBRARIES.get(library)?;
    let mut modules = lock(&library.modules);
    if let Some(module) = modules.get(&context.handle) {
        return MODULES.get(*module);
    }
    let module = load(&context, library.program.clone())?;
    modules.insert(context.handle, module.handle);
    Ok(module)
}

fn kernel(handle: usize) -> Res<Arc<Kernel>> {
    world()?;
    let of_library = KERNELS.get(handle).map(|k| k.kernel.clone());
    of_library.or_else(|_| Ok(FUNCTIONS.get(handle)?.kernel.clone()))
}

fn global(module: &Module, at: Out<u64>, size: Out<usize>, name: Text) -> Res<()> {
    let name = name.read()?;
    let mut vars = module.program.vars.iter().zip(module.globals.iter());
    let (var, address) = vars.find(|(v, _)| v.name == name).ok_or(NOT_FOUND)?;
    at.put_if_given(*address);
    size.put_if_given(var.size);
    Ok(())
}

fn position(program: &Program, name: Text) -> Res<usize> {
    let name = name.read()?;
    let found = program.kernels.iter().position(|k| k.name == name);
    found.ok_or(NOT_FOUND)
}

/// Names live as long as the process, as with the genuine driver they live as long as the module.
fn put_name(out: Out<*const c_char>, kernel: &Kernel) -> Res<()> {
    static NAMES: std::sync::Mutex<Vec<(String, &'static CStr)>> =
        std::sync::Mutex::new(Vec::new());
    let mut names = lock(&NAMES);
    if let Some((_, kept)) = names.iter().find(|(n, _)| *n == kernel.name) {
        return out.put(kept.as_ptr());
    }
    let name = std::ffi::CString::new(kernel.name.clone()).map_err(|_| INVALID_VALUE)?;
    let kept: &'static CStr = Box::leak(name.into_boxed_c_str());
    names.push((kernel.name.clone(), kept));
    out.put(kept.as_ptr())
}

fn param(kernel: &Kernel, index: usize, offset: Out<usize>, size: Out<usize>) -> Res<()> {
    let Param {
        offset: at,
        size: of,
    } = *kernel.params.get(index).ok_or(INVALID_VALUE)?;
    offset.put(at)?;
    size.put_if_given(of);
    Ok(())
}

fn attribute(out: Out<i32>, which: u32, kernel: &Kernel, max_dynamic: u32) -> Res<()> {
    out.put(match which {
        0 => kernel.max_threads.unwrap_or(1024) as i32,
        1 => kernel.shared as i32,
        3 => kernel.local as i32,
        4 => kernel.registers.min(255) as i32,
        5 | 6 => 80,
        8 => max_dynamic as i32,
        9 => -1,
        2 | 7 | 10..=15 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

fn set_attribute(function: &Function, which: u32, value: i32) -> Res<()> {
    match which {
        8 => {
            let value = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
            let all = u64::from(value) + function.kernel.shared as u64;
            if all > u64::from(super::device::SHARED_OPT_IN) {
                return Err(INVALID_VALUE);
            }
            function.max_dynamic.store(value, Relaxed);
            Ok(())
        }
        9 => Ok(()),
        10..=15 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

fn put_all(out: Out<usize>, room: u32, handles: &[usize]) -> Res<()> {
    for (i, handle) in handles.iter().take(room as usize).enumerate() {
        out.put_at(i, *handle)?;
    }
    Ok(())
}

entries! {
    fn cuModuleLoadData(out: Out<usize>, image: In<u8>) {
        current()?;
        load_here(out, parse(image, 0, In(std::ptr::null()), In(std::ptr::null()))?)
    }

    fn cuModuleLoadDataEx(
        out: Out<usize>, image: In<u8>, count: u32, options: In<u32>, values: In<usize>,
    ) {
        current()?;
        load_here(out, parse(image, count, options, values)?)
    }

    fn cuModuleLoadFatBinary(out: Out<usize>, image: In<u8>) {
        current()?;
        load_here(out, parse(image, 0, In(std::ptr::null()), In(std::ptr::null()))?)
    }

    fn cuModuleLoad(out: Out<usize>, path: Text) {
        current()?;
        let mut bytes = std::fs::read(path.read()?).map_err(|_| FILE_NOT_FOUND)?;
        // An image in memory has no length: 64 bytes more, so that no header runs over its end.
        bytes.extend([0; 64]);
        let none = In(std::ptr::null());
        load_here(out, parse(In(bytes.as_ptr()), 0, none, In(std::ptr::null()))?)
    }

    fn cuModuleUnload(module: usize) {
        current()?;
        unload(module)
    }

    fn cuModuleGetFunction(out: Out<usize>, module: usize, name: Text) {
        current()?;
        let module = MODULES.get(module)?;
        let index = position(&module.program, name)?;
        out.put(*module.functions.get(index).ok_or(NOT_FOUND)?)
    }

    fn cuModuleGetFunctionCount(out: Out<u32>, module: usize) {
        current()?;
        out.put(MODULES.get(module)?.functions.len() as u32)
    }

    fn cuModuleEnumerateFunctions(out: Out<usize>, room: u32, module: usize) {
        current()?;
        put_all(out, room, &MODULES.get(module)?.functions)
    }

    fn cuModuleGetGlobal_v2(at: Out<u64>, size: Out<usize>, module: usize, name: Text) {
        current()?;
        global(&*MODULES.get(module)?, at, size, name)
    }

    fn cuModuleGetLoadingMode(out: Out<u32>) {
        world()?;
        out.put(1)
    }

    fn cuLibraryLoadData(
        out: Out<usize>, image: In<u8>, jit: In<u32>, jit_values: In<usize>, jit_count: u32,
        _options: usize, _values: usize, _count: u32,
    ) {
        world()?;
        let program = parse(image, jit_count, jit, jit_values)?;
        let handle = new_handle();
        let kernels = program.kernels.iter().enumerate().map(|(index, kernel)| {
            let of = new_handle();
            let kernel = kernel.clone();
            KERNELS.put(of, Arc::new(LibraryKernel { library: handle, index, kernel }));
            of
        });
        let kernels = kernels.collect();
        LIBRARIES.put(handle, Arc::new(Library { program, kernels, modules: Default::default() }));
        out.put(handle)
    }

    fn cuLibraryUnload(library: usize) {
        world()?;
        let library = LIBRARIES.take(library)?;
        for kernel in &library.kernels {
            KERNELS.take(*kernel)?;
        }
        for module in std::mem::take(&mut *lock(&library.modules)).into_values() {
            // One whose context is gone went with it.
            let _ = unload(module);
        }
        Ok(())
    }

    fn cuLibraryGetKernel(out: Out<usize>, library: usize, name: Text) {
        world()?;
        let library = LIBRARIES.get(library)?;
        let index = position(&library.program, name)?;
        out.put(*library.kernels.get(index).ok_or(NOT_FOUND)?)
    }

    fn cuLibraryGetGlobal(at: Out<u64>, size: Out<usize>, library: usize, name: Text) {
        global(&*module_of(library)?, at, size, name)
    }

    fn cuLibraryGetManaged(at: Out<u64>, size: Out<usize>, library: usize, name: Text) {
        let module = module_of(library)?;
        let named = name.read()?;
        let managed = |v: &&Var| v.name == named && v.managed;
        module.program.vars.iter().find(managed).ok_or(NOT_FOUND)?;
        global(&module, at, size, name)
    }

    fn cuLibraryGetModule(out: Out<usize>, library: usize) {
        out.put(module_of(library)?.handle)
    }

    fn cuLibraryGetKernelCount(out: Out<u32>, library: usize) {
        world()?;
        out.put(LIBRARIES.get(library)?.kernels.len() as u32)
    }

    fn cuLibraryEnumerateKernels(out: Out<usize>, room: u32, library: usize) {
        world()?;
        put_all(out, room, &LIBRARIES.get(library)?.kernels)
    }

    fn cuKernelGetFunction(out: Out<usize>, of: usize) {
        world()?;
        out.put(function_of(&*KERNELS.get(of)?)?)
    }

    fn cuKernelGetLibrary(out: Out<usize>, of: usize) {
        world()?;
        out.put(KERNELS.get(of)?.library)
    }

    fn cuKernelGetName(out: Out<*const c_char>, of: usize) {
        put_name(out, &*kernel(of)?)
    }

    fn cuFuncGetName(out: Out<*const c_char>, of: usize) {
        put_name(out, &*kernel(of)?)
    }

    fn cuKernelGetParamInfo(of: usize, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(&*kernel(of)?, index, offset, size)
    }

    fn cuFuncGetParamInfo(of: usize, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(&*kernel(of)?, index, offset, size)
    }

    fn cuKernelGetAttribute(out: Out<i32>, which: u32, of: usize, dev: i32) {
        super::device::device(dev)?;
        attribute(out, which, &*kernel(of)?, 48 * 1024)
    }

    fn cuKernelSetAttribute(which: u32, value: i32, of: usize, dev: i32) {
        super::device::device(dev)?;
        set_attribute(&*function(of)?, which, value)
    }

    fn cuFuncGetAttribute(out: Out<i32>, which: u32, of: usize) {
        let function = function(of)?;
        attribute(out, which, &function.kernel, function.max_dynamic.load(Relaxed))
    }

    fn cuFuncSetAttribute(of: usize, which: u32, value: i32) {
        set_attribute(&*function(of)?, which, value)
    }

    fn cuFuncSetCacheConfig(of: usize, _config: u32) {
        function(of).map(|_| ())
    }

    fn cuFuncGetModule(out: Out<usize>, of: usize) {
        out.put(FUNCTIONS.get(of).map_err(|_| INVALID_HANDLE)?.module)
    }
}
