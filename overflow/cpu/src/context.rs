//! Devices, contexts, and the tables of all that a program has handles of.

use crate::engine::{Order, engine};
use crate::memory::Memory;
use crate::ptx::{Kernel, Module as Program};
use crate::result::{
    CONTEXT_IS_DESTROYED, CuResult, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE,
    NO_BINARY_FOR_GPU, NO_DEVICE, NOT_INITIALIZED, NOT_PERMITTED,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

pub(crate) type Res<T> = Result<T, CuResult>;

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the environment says, read once.
pub(crate) struct World {
    pub(crate) devices: usize,
    /// All allocations.
    pub(crate) memory: Mutex<Memory>,
    /// Instructions that one launch may run.
    pub(crate) instructions: u64,
    /// What a launch takes at least.
    pub(crate) launch: Duration,
    /// Handle of each device's primary context, and how often it is retained.
    pub(crate) primary: Mutex<Vec<Primary>>,
}

#[derive(Clone, Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
}

static WORLD: OnceLock<Option<World>> = OnceLock::new();

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|t| t.trim().parse().ok()).unwrap_or(default)
}

/// How many of the devices `CUDA_VISIBLE_DEVICES` lets a program see: those before the first that is
/// none. They are all alike, so their order is of no matter. One that is named twice is an error.
fn visible(devices: usize) -> Res<usize> {
    let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") else {
        return Ok(devices);
    };
    let numbers = list
        .split(',')
        .map_while(|n| n.trim().parse::<usize>().ok().filter(|n| *n < devices));
    let mut seen = HashSet::new();
    for number in numbers {
        if !seen.insert(number) {
            return Err(INVALID_DEVICE);
        }
    }
    Ok(seen.len())
}

/// Makes the devices, the first time.
pub(crate) fn start() -> Res<&'static World> {
    let devices = visible(setting("GHOST_CPU_DEVICES", 1).min(8) as usize)?;
    if devices == 0 {
        return Err(NO_DEVICE);
    }
    let world = WORLD.get_or_init(|| {
        let bytes = setting("GHOST_CPU_MEMORY", 1 << 30);
        Some(World {
            devices,
            memory: Mutex::new(Memory::new(devices, bytes)?),
            instructions: setting("GHOST_CPU_INSTRUCTIONS", 1 << 34),
            launch: Duration::from_micros(setting("GHOST_CPU_LAUNCH_US", 0)),
            primary: Mutex::new(vec![Primary::default(); devices]),
        })
    });
    world.as_ref().ok_or(crate::result::OUT_OF_MEMORY)
}

/// The devices, once `cuInit` was called.
pub(crate) fn world() -> Res<&'static World> {
    if crate::engine::in_callback() {
        return Err(NOT_PERMITTED);
    }
    let world = WORLD.get().and_then(Option::as_ref);
    world.ok_or(NOT_INITIALIZED)
}

/// Objects by handle. A handle is a number, and never followed.
pub(crate) struct Table<T>(Mutex<Option<HashMap<usize, Arc<T>>>>);

static NEXT: AtomicUsize = AtomicUsize::new(0x6700_0000_0000);

/// A handle that no other object has.
pub(crate) fn new_handle() -> usize {
    NEXT.fetch_add(16, Relaxed)
}

impl<T> Table<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn put(&self, handle: usize, object: Arc<T>) {
        lock(&self.0).get_or_insert_default().insert(handle, object);
    }

    pub(crate) fn get(&self, handle: usize) -> Res<Arc<T>> {
        let found = lock(&self.0).as_ref().and_then(|t| t.get(&handle).cloned());
        found.ok_or(INVALID_HANDLE)
    }

    pub(crate) fn take(&self, handle: usize) -> Res<Arc<T>> {
        let found = lock(&self.0).as_mut().and_then(|t| t.remove(&handle));
        found.ok_or(INVALID_HANDLE)
    }

    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = lock(&self.0);
        let table = table.get_or_insert_default();
        let all = table.extract_if(|_, object| !keep(object));
        all.map(|(_, object)| object).collect()
    }
}

pub(crate) static CONTEXTS: Table<Context> = Table::new();
pub(crate) static STREAMS: Table<Stream> = Table::new();
pub(crate) static EVENTS: Table<Event> = Table::new();
pub(crate) static MODULES: Table<Module> = Table::new();
pub(crate) static FUNCTIONS: Table<Function> = Table::new();
pub(crate) static LIBRARIES: Table<Library> = Table::new();
pub(crate) static KERNELS: Table<LibraryKernel> = Table::new();

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    /// The first failure; 0 for none. It stays.
    failed: AtomicU32,
    pub(crate) limits: Mutex<HashMap<u32, usize>>,
    /// The default streams: the legacy one, and those of threads.
    defaults: Mutex<(Option<u64>, HashMap<ThreadId, u64>)>,
}

pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) timed: bool,
    pub(crate) last: Mutex<Option<Arc<crate::engine::Marker>>>,
    /// In place of that, of one that processes share.
    pub(crate) shared: Option<Arc<crate::ipc::Point>>,
}

pub(crate) struct Module {
    pub(crate) handle: usize,
    pub(crate) context: usize,
    pub(crate) program: Arc<Program>,
    /// Addresses of its variables.
    pub(crate) globals: Arc<[u64]>,
    /// Handles of its kernels, in the program's order.
    pub(crate) functions: Vec<usize>,
}

pub(crate) struct Function {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) globals: Arc<[u64]>,
    pub(crate) context: usize,
    pub(crate) module: usize,
    pub(crate) max_dynamic: AtomicU32,
}

pub(crate) struct Library {
    pub(crate) program: Arc<Program>,
    pub(crate) kernels: Vec<usize>,
    /// The module that it is in each context.
    pub(crate) modules: Mutex<HashMap<usize, usize>>,
}

pub(crate) struct LibraryKernel {
    pub(crate) library: usize,
    pub(crate) index: usize,
    pub(crate) kernel: Arc<Kernel>,
}

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The contexts of this thread, the current one last.
pub(crate) fn stack<T>(f: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    CURRENT.with_borrow_mut(f)
}

/// The context that is current, whatever its state.
pub(crate) fn current_or_failed() -> Res<Arc<Context>> {
    world()?;
    let handle = stack(|s| s.last().copied()).filter(|h| *h != 0);
    let handle = handle.ok_or(INVALID_CONTEXT)?;
    CONTEXTS.get(handle).map_err(|_| CONTEXT_IS_DESTROYED)
}

/// The context that is current.
///
/// # Errors
/// There is none, or it has failed: its first failure.
pub(crate) fn current() -> Res<Arc<Context>> {
    let context = current_or_failed()?;
    context.error()?;
    Ok(context)
}

impl Context {
    pub(crate) fn new(device: usize, flags: u32) -> Arc<Self> {
        let context = Arc::new(Self {
            handle: new_handle(),
            device,
            flags,
            failed: AtomicU32::new(0),
            limits: Mutex::default(),
            defaults: Mutex::default(),
        });
        CONTEXTS.put(context.handle, context.clone());
        context
    }

    pub(crate) fn error(&self) -> Res<()> {
        match self.failed.load(Relaxed) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    pub(crate) fn fail(&self, code: CuResult) {
        // The first failure is the one that is told.
        let _ = self.failed.compare_exchange(0, code, Relaxed, Relaxed);
    }

    /// The queue that a stream's handle stands for: 0 and 1 the legacy default stream, 2 the
    /// thread's.
    pub(crate) fn queue(self: &Arc<Self>, stream: usize) -> Res<u64> {
        let open = |order| engine().open(self.clone(), order);
        match stream {
            0 | 1 => Ok(*lock(&self.defaults)
                .0
                .get_or_insert_with(|| open(Order::Legacy))),
            2 => {
                let me = std::thread::current().id();
                let mut defaults = lock(&self.defaults);
                Ok(*defaults
                    .1
                    .entry(me)
                    .or_insert_with(|| open(Order::Blocking)))
            }
            handle => {
                let stream = STREAMS.get(handle)?;
                stream.context.error()?;
                Ok(stream.id)
            }
        }
    }

    /// Waits for its work, and gives back all that is its.
    pub(crate) fn destroy(&self) -> Res<()> {
        CONTEXTS.take(self.handle).map_err(|_| INVALID_CONTEXT)?;
        engine().settle_context(self.handle);
        for stream in STREAMS.retain(|s| s.context.handle != self.handle) {
            engine().close(stream.id);
        }
        let (legacy, threads) = std::mem::take(&mut *lock(&self.defaults));
        for id in legacy.into_iter().chain(threads.into_values()) {
            engine().close(id);
        }
        EVENTS.retain(|e| e.context != self.handle);
        MODULES.retain(|m| m.context != self.handle);
        FUNCTIONS.retain(|f| f.context != self.handle);
        let world = world()?;
        engine().still(|| {
            let mut memory = lock(&world.memory);
            for start in memory.of_context(self.handle) {
                memory.remove(start);
            }
        });
        Ok(())
    }
}

/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: u32 = 1;

/// Loads a program into a context: its variables get addresses and their first values.
pub(crate) fn load(context: &Context, program: Arc<Program>) -> Res<Arc<Module>> {
    let handle = new_handle();
    let mut memory = lock(&world()?.memory);
    let mut globals = Vec::new();
    for var in &program.vars {
        let size = var.size.max(1);
        let placed = if var.managed {
            memory
                .alloc_host(context.device, context.handle, size, true, ATTACH_GLOBAL)
                .map(|at| at as u64)
        } else {
            memory.alloc(context.device, context.handle, size as u64)
        };
        match placed {
            Ok(at) => globals.push(at),
            Err(code) => {
                for at in globals {
                    memory.remove(at);
                }
                return Err(code);
            }
        }
    }
    for (var, at) in program.vars.iter().zip(&globals) {
        let mut bytes = var.init.clone();
        for (offset, other, add) in &var.relocations {
            let other = globals.get(*other as usize).copied().unwrap_or(0);
            let value = other.wrapping_add_signed(*add).to_le_bytes();
            if let Some(place) = bytes.get_mut(*offset..*offset + 8) {
                place.copy_from_slice(&value);
            }
        }
        let host = memory.resolve(*at, var.size as u64);
        let host = host.ok_or(NO_BINARY_FOR_GPU)? as *mut u8;
        // SAFETY: `resolve` found room for all of it, and the parser saw to it that what it begins
        // with is no longer; nobody knows the address yet.
        unsafe {
            host.write_bytes(0, var.size);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), host, bytes.len());
        }
    }
    drop(memory);
    let globals: Arc<[u64]> = globals.into();
    let functions = program.kernels.iter().map(|kernel| {
        let function = new_handle();
        let object = Function {
            kernel: kernel.clone(),
            globals: globals.clone(),
            context: context.handle,
            module: handle,
            max_dynamic: AtomicU32::new(48 * 1024),
        };
        FUNCTIONS.put(function, Arc::new(object));
        function
    });
    let module = Arc::new(Module {
        handle,
        context: context.handle,
        functions: functions.collect(),
        globals: globals.clone(),
        program: program.clone(),
    });
    MODULES.put(handle, module.clone());
    Ok(module)
}

/// Unloads a module, after the work that may use it.
pub(crate) fn unload(module: usize) -> Res<()> {
    let module = MODULES.take(module)?;
    engine().settle_context(module.context);
    for function in &module.functions {
        // Its context may be gone, and it with it.
        let _ = FUNCTIONS.take(*function);
    }
    let world = world()?;
    engine().still(|| {
        let mut memory = lock(&world.memory);
        for at in module.globals.iter() {
            memory.remove(*at);
        }
    });
    Ok(())
}
