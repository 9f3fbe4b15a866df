//! Contexts: primary ones, those that a program makes, and the stack of each thread.
//!
//! A primary context has two names: the handle that the program holds, which is the genuine local
//! driver's where there is one (the runtime knows it before it asks), and the id on the wire.

use crate::memory::forget_context;
use crate::session::link;
use crate::thread::{self, Current};
use crate::{answer, ids};
use ghost_wire::Object;
use ghost_wire::hello::Welcome;
use ghost_wire::message::{
    CreateContext, DestroyContext, Field, Message, Primary, Wait, primary, wait,
};
use ghost_wire::result::{
    Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A context that exists, or a primary one that may.
#[derive(Debug, Clone, Copy)]
struct Context {
    current: Current,
    flags: u32,
    /// Uses of a primary context; of one that was made, always 1.
    uses: u32,
    primary: bool,
    /// How often it has ended: what belonged to an earlier life is gone.
    lives: u64,
}

impl Context {
    fn end(&mut self) {
        self.lives += 1;
        ENDED.fetch_add(1, Ordering::Release);
        crate::limits::new_era();
    }
}

/// All contexts, the primary ones first, by device.
static CONTEXTS: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// How many contexts have ended, primary ones each time.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// How many contexts have ended so far.
pub(crate) fn ended() -> u64 {
    ENDED.load(Ordering::Acquire)
}

fn lock() -> MutexGuard<'static, Vec<Context>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Knows the primary contexts of the far devices; `handles` are the genuine driver's for as many as
/// this host has.
pub(crate) fn open(welcome: &Welcome, handles: &[u64]) {
    let devices = 0..welcome.devices.len();
    *lock() = devices
        .map(|device| {
            let wire = ids::new(Object::Context);
            let handle = handles.get(device).copied().unwrap_or(wire);
            Context {
                current: Current {
                    handle,
                    wire,
                    device: i32::try_from(device).unwrap_or(i32::MAX),
                },
                flags: 0,
                uses: 0,
                primary: true,
                lives: 0,
            }
        })
        .collect();
}

/// The context of this handle.
fn find(handle: u64) -> Result<Context, Code> {
    let contexts = lock();
    let found = contexts.iter().find(|c| c.current.handle == handle);
    found.copied().ok_or(INVALID_CONTEXT)
}

/// The context of this handle; 0 is the current one.
fn find_or_current(handle: u64) -> Result<Context, Code> {
    match handle {
        0 => find(thread::current()),
        _ => find(handle),
    }
}

/// The context as the wire has it: its id for the handle that the program holds. 0 is none.
pub(crate) fn wire(handle: u64) -> Result<u64, Code> {
    if handle == 0 {
        return Ok(0);
    }
    Ok(find(handle)?.current.wire)
}

/// How often the context of this id has ended; `u64::MAX` where it is gone.
pub(crate) fn life(wire: u64) -> u64 {
    let contexts = lock();
    let found = contexts.iter().find(|c| c.current.wire == wire);
    found.map_or(u64::MAX, |context| context.lives)
}

/// Writes a result of the program's.
///
/// # Safety
/// `to` is null or room for it.
unsafe fn tell<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the program's own room.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Works on the primary context of a device.
fn with_primary<R>(
    device: i32,
    with: impl FnOnce(&mut Context) -> Result<R, Code>,
) -> Result<R, Code> {
    let at = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    let mut contexts = lock();
    let context = contexts.get_mut(at).filter(|context| context.primary);
    with(context.ok_or(INVALID_DEVICE)?)
}

fn primary_message(what: u32, context: &Context) -> Primary {
    Primary {
        what,
        device: context.current.device.cast_unsigned(),
        context: context.current.wire,
        flags: context.flags,
    }
}

/// Asks the executor for something of a primary context.
fn ask_primary(what: u32, context: &Context) -> Result<(), Code> {
    let message = primary_message(what, context);
    link()?.wait(Primary::OP, |to| message.put(to), |_| Ok(()))
}

/// Names a primary context to the executor, which retains it when a command needs it.
fn name_primary(context: &Context) -> Result<(), Code> {
    let message = primary_message(primary::NAME, context);
    match link()?.post(Primary::OP, |to| message.put(to)) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// The context of this handle, which is to be current.
fn find_to_use(handle: u64) -> Result<Current, Code> {
    let context = find(handle)?;
    if context.primary && context.uses == 0 {
        name_primary(&context)?;
    }
    Ok(context.current)
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut u64, device: i32) -> Code {
    let retained = || {
        link()?;
        let handle = with_primary(device, |context| {
            if to.is_null() {
                return Err(INVALID_VALUE);
            }
            if context.uses == 0 {
                ask_primary(primary::RETAIN, context)?;
            }
            context.uses += 1;
            Ok(context.current.handle)
        })?;
        // SAFETY: the program's room.
        unsafe { tell(to, handle) }
    };
    answer(retained())
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRelease(device: i32) -> Code {
    let released = || {
        link()?;
        with_primary(device, |context| {
            context.uses = context.uses.checked_sub(1).ok_or(INVALID_CONTEXT)?;
            if context.uses == 0 {
                context.end();
                ask_primary(primary::RELEASE, context)?;
                forget_context(context.current.handle);
            }
            Ok(())
        })
    };
    answer(released())
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code {
    // SAFETY: no pointer in it.
    unsafe { cuDevicePrimaryCtxRelease(device) }
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxReset(device: i32) -> Code {
    let reset = || {
        link()?;
        with_primary(device, |context| {
            // A command may have retained it there.
            context.uses = 0;
            context.end();
            ask_primary(primary::RESET, context)?;
            forget_context(context.current.handle);
            Ok(())
        })
    };
    answer(reset())
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: i32) -> Code {
    // SAFETY: no pointer in it.
    unsafe { cuDevicePrimaryCtxReset(device) }
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) -> Code {
    let set = || {
        link()?;
        with_primary(device, |context| {
            context.flags = flags;
            name_primary(context)
        })
    };
    answer(set())
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) -> Code {
    // SAFETY: no pointer in it.
    unsafe { cuDevicePrimaryCtxSetFlags(device, flags) }
}

pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: i32,
    flags: *mut u32,
    active: *mut i32,
) -> Code {
    let told = || {
        link()?;
        let context = with_primary(device, |context| Ok(*context))?;
        // SAFETY: the program's room for both.
        unsafe {
            tell(flags, context.flags)?;
            tell(active, (context.uses > 0).into())
        }
    };
    answer(told())
}

/// Makes a context and makes it current.
///
/// # Safety
/// `to` is null or room for a handle.
unsafe fn create(to: *mut u64, flags: u32, device: i32) -> Result<(), Code> {
    let link = link()?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    with_primary(device, |_| Ok(()))?;
    let id = ids::new(Object::Context);
    let message = CreateContext {
        context: id,
        device: device.cast_unsigned(),
        flags,
    };
    link.wait(CreateContext::OP, |to| message.put(to), |_| Ok(()))?;
    let current = Current {
        handle: id,
        wire: id,
        device,
    };
    lock().push(Context {
        current,
        flags,
        uses: 1,
        primary: false,
        lives: 0,
    });
    thread::push(current);
    // SAFETY: the program's room.
    unsafe { tell(to, id) }
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v2(to: *mut u64, flags: u32, device: i32) -> Code {
    // SAFETY: the program's room.
    answer(unsafe { create(to, flags, device) })
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v3(
    to: *mut u64,
    _affinities: *const u8,
    count: i32,
    flags: u32,
    device: i32,
) -> Code {
    if count != 0 {
        return NOT_SUPPORTED;
    }
    // SAFETY: the program's room.
    answer(unsafe { create(to, flags, device) })
}

/// `CUctxCreateParams`.
#[repr(C)]
pub(crate) struct CreateParams {
    affinities: *const u8,
    count: i32,
    graphics: *const u8,
}

pub(crate) unsafe extern "C" fn cuCtxCreate_v4(
    to: *mut u64,
    params: *const CreateParams,
    flags: u32,
    device: i32,
) -> Code {
    // SAFETY: null, or the program's own.
    let params = unsafe { params.as_ref() };
    if params.is_some_and(|p| p.count != 0 || !p.affinities.is_null() || !p.graphics.is_null()) {
        return NOT_SUPPORTED;
    }
    // SAFETY: the program's room.
    answer(unsafe { create(to, flags, device) })
}

pub(crate) unsafe extern "C" fn cuCtxDestroy(handle: u64) -> Code {
    let destroyed = || {
        let link = link()?;
        let context = {
            let mut contexts = lock();
            let made = |c: &Context| c.current.handle == handle && !c.primary;
            let at = contexts.iter().position(made).ok_or(INVALID_CONTEXT)?;
            ENDED.fetch_add(1, Ordering::Release);
            contexts.remove(at).current
        };
        if thread::current() == handle {
            thread::pop();
        }
        let message = DestroyContext {
            context: context.wire,
        };
        let posted = link.post(DestroyContext::OP, |to| message.put(to));
        forget_context(handle);
        match posted {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    };
    answer(destroyed())
}

pub(crate) unsafe extern "C" fn cuCtxDestroy_v2(handle: u64) -> Code {
    // SAFETY: no pointer in it.
    unsafe { cuCtxDestroy(handle) }
}

pub(crate) unsafe extern "C" fn cuCtxPushCurrent(handle: u64) -> Code {
    let pushed = || {
        link()?;
        thread::push(find_to_use(handle)?);
        Ok(())
    };
    answer(pushed())
}

pub(crate) unsafe extern "C" fn cuCtxPushCurrent_v2(handle: u64) -> Code {
    // SAFETY: no pointer in it.
    unsafe { cuCtxPushCurrent(handle) }
}

pub(crate) unsafe extern "C" fn cuCtxPopCurrent(to: *mut u64) -> Code {
    let popped = || {
        link()?;
        let context = thread::pop().ok_or(INVALID_CONTEXT)?;
        if !to.is_null() {
            // SAFETY: the program's room.
            unsafe { tell(to, context.handle) }?;
        }
        Ok(())
    };
    answer(popped())
}

pub(crate) unsafe extern "C" fn cuCtxPopCurrent_v2(to: *mut u64) -> Code {
    // SAFETY: handed on.
    unsafe { cuCtxPopCurrent(to) }
}

pub(crate) unsafe extern "C" fn cuCtxSetCurrent(handle: u64) -> Code {
    let set = || {
        link()?;
        let context = match handle {
            0 => None,
            _ => Some(find_to_use(handle)?),
        };
        thread::set(context);
        Ok(())
    };
    answer(set())
}

pub(crate) unsafe extern "C" fn cuCtxGetCurrent(to: *mut u64) -> Code {
    let told = || {
        link()?;
        // SAFETY: the program's room.
        unsafe { tell(to, thread::current()) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuCtxGetDevice(to: *mut i32) -> Code {
    let told = || {
        link()?;
        let context = thread::context().ok_or(INVALID_CONTEXT)?;
        // SAFETY: the program's room.
        unsafe { tell(to, context.device) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuCtxGetDevice_v2(to: *mut i32, handle: u64) -> Code {
    let told = || {
        link()?;
        // SAFETY: the program's room.
        unsafe { tell(to, find_or_current(handle)?.current.device) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuCtxGetFlags(to: *mut u32) -> Code {
    let told = || {
        link()?;
        // SAFETY: the program's room.
        unsafe { tell(to, find_or_current(0)?.flags) }
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuCtxSetFlags(flags: u32) -> Code {
    let set = || {
        link()?;
        let current = thread::current();
        let mut contexts = lock();
        let context = contexts.iter_mut().find(|c| c.current.handle == current);
        context.ok_or(INVALID_CONTEXT)?.flags = flags;
        Ok(())
    };
    answer(set())
}

pub(crate) unsafe extern "C" fn cuCtxGetId(handle: u64, to: *mut u64) -> Code {
    let told = || {
        link()?;
        // SAFETY: the program's room.
        unsafe { tell(to, find_or_current(handle)?.current.wire) }
    };
    answer(told())
}

/// What `cuCtxGetApiVersion` says of every context of today.
const API_VERSION: u32 = 3020;

pub(crate) unsafe extern "C" fn cuCtxGetApiVersion(handle: u64, to: *mut u32) -> Code {
    let told = || {
        link()?;
        find_or_current(handle)?;
        // SAFETY: the program's room.
        unsafe { tell(to, API_VERSION) }
    };
    answer(told())
}

/// No preference was ever more than a hint: `CU_FUNC_CACHE_PREFER_NONE`.
pub(crate) unsafe extern "C" fn cuCtxGetCacheConfig(to: *mut u32) -> Code {
    let told = || {
        link()?;
        find_or_current(0)?;
        // SAFETY: the program's room.
        unsafe { tell(to, 0) }
    };
    answer(told())
}

/// `CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE`: devices of today have no other.
pub(crate) unsafe extern "C" fn cuCtxGetSharedMemConfig(to: *mut u32) -> Code {
    let told = || {
        link()?;
        find_or_current(0)?;
        // SAFETY: the program's room.
        unsafe { tell(to, 1) }
    };
    answer(told())
}

/// Waits for all work of a context; 0 is the current one.
pub(crate) fn synchronize(handle: u64) -> Result<(), Code> {
    let link = link()?;
    let message = Wait {
        what: wait::CONTEXT,
        handle: find_or_current(handle)?.current.wire,
        query: false,
    };
    link.wait_sync(Wait::OP, |to| message.put(to), |_| Ok(()))
}

pub(crate) unsafe extern "C" fn cuCtxSynchronize() -> Code {
    answer(synchronize(0))
}

pub(crate) unsafe extern "C" fn cuCtxSynchronize_v2(handle: u64) -> Code {
    answer(synchronize(handle))
}

/// The profiler's switches do nothing: no profiler is attached here.
pub(crate) unsafe extern "C" fn cuProfilerStart() -> Code {
    answer(link().map(drop))
}

pub(crate) unsafe extern "C" fn cuProfilerStop() -> Code {
    answer(link().map(drop))
}

pub(crate) unsafe extern "C" fn cuProfilerInitialize(
    _configuration: *const u8,
    _output: *const u8,
    _mode: u32,
) -> Code {
    answer(link().map(drop))
}
