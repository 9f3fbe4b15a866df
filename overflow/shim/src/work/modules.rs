//! What is loaded: modules and libraries, and the functions and kernels in them. Names are answered
//! from the layout that came with the load; a handle is announced when it is first asked for.

use crate::link::Link;
use crate::memory::done;
use crate::{ids, limits, thread};
use ghost_wire::hello::Function;
use ghost_wire::message::{Field, Message, Name, Resolve};
use ghost_wire::result::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use ghost_wire::{Id, Object};
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A module or a library.
#[derive(Debug)]
struct Image {
    layouts: Arc<Vec<Layout>>,
    by_name: HashMap<String, usize>,
    /// Its functions or kernels that have handles.
    handles: HashMap<usize, u64>,
    /// Of a library, its modules by context.
    modules: HashMap<u64, u64>,
}

/// A function of an image, as a launch needs it.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) function: Function,
    /// The name, as a program wants it.
    name: CString,
}

/// A function or a kernel.
#[derive(Debug)]
pub(super) struct Callable {
    layouts: Arc<Vec<Layout>>,
    index: usize,
    /// The module or library.
    pub(super) of: u64,
    /// The context and the era in which it was launched last.
    launched: AtomicU64,
}

impl Callable {
    /// Takes note of a launch, which the driver may have to make stacks larger for.
    #[inline]
    pub(super) fn launched(&self) {
        let now = limits::era().wrapping_add(thread::wire());
        if self.launched.load(Ordering::Relaxed) != now {
            self.launched.store(now, Ordering::Relaxed);
            limits::stacks_may_grow();
        }
    }

    pub(super) fn layout(&self) -> &Function {
        // `name` has looked the index up.
        &self.layouts[self.index].function
    }

    /// Its name, for as long as it is loaded.
    pub(super) fn name(&self) -> *const c_char {
        self.layouts[self.index].name.as_ptr()
    }
}

#[derive(Debug, Default)]
struct Loaded {
    images: HashMap<u64, Image>,
    callables: HashMap<u64, Arc<Callable>>,
    /// Functions of kernels, by kernel and context.
    functions: HashMap<(u64, u64), u64>,
}

/// Guards what is loaded. Commands that announce a handle are appended under it, so that none is
/// used before it is announced.
static LOADED: RwLock<Option<Loaded>> = RwLock::new(None);

fn read<R>(with: impl FnOnce(&Loaded) -> R) -> Option<R> {
    let loaded = LOADED.read().unwrap_or_else(PoisonError::into_inner);
    loaded.as_ref().map(with)
}

fn write<R>(with: impl FnOnce(&mut Loaded) -> R) -> R {
    let mut loaded = LOADED.write().unwrap_or_else(PoisonError::into_inner);
    with(loaded.get_or_insert_default())
}

fn image(layouts: Arc<Vec<Layout>>) -> Image {
    let names = layouts.iter().map(|layout| layout.function.name.clone());
    Image {
        by_name: names.enumerate().map(|(at, name)| (name, at)).collect(),
        layouts,
        handles: HashMap::new(),
        modules: HashMap::new(),
    }
}

/// A module or library was loaded, with these in it.
pub(super) fn enter(id: u64, functions: Vec<Function>) {
    let layouts = functions.into_iter().map(|function| Layout {
        name: CString::new(function.name.as_bytes()).unwrap_or_default(),
        function,
    });
    let layouts = Arc::new(layouts.collect());
    write(|loaded| loaded.images.insert(id, image(layouts)));
}

/// It was unloaded; whether it was there.
pub(super) fn leave(id: u64) -> bool {
    write(|loaded| {
        let Some(image) = loaded.images.remove(&id) else {
            return false;
        };
        for module in image.modules.values() {
            loaded.images.remove(module);
            loaded
                .callables
                .retain(|_, callable| callable.of != *module);
        }
        for handle in image.handles.values() {
            loaded.callables.remove(handle);
            loaded.functions.retain(|(kernel, _), function| {
                let stays = kernel != handle;
                if !stays {
                    loaded.callables.remove(function);
                }
                stays
            });
        }
        true
    })
}

/// The function or kernel of this handle.
#[inline]
pub(super) fn callable(handle: u64) -> Result<Arc<Callable>, Code> {
    let found = read(|loaded| loaded.callables.get(&handle).cloned());
    found.flatten().ok_or(INVALID_HANDLE)
}

/// How many functions a module or library has.
pub(super) fn count(of: u64) -> Result<usize, Code> {
    let count = read(|loaded| loaded.images.get(&of).map(|image| image.layouts.len()));
    count.flatten().ok_or(INVALID_HANDLE)
}

/// The handle of function number `index`.
pub(super) fn by_index(link: &Link, of: u64, index: usize) -> Result<u64, Code> {
    write(|loaded| {
        let image = loaded.images.get_mut(&of).ok_or(INVALID_HANDLE)?;
        name(link, image, &mut loaded.callables, of, index)
    })
}

/// The handle of the function of this name.
pub(super) fn by_name(link: &Link, of: u64, wanted: &str) -> Result<u64, Code> {
    let known = read(|loaded| {
        let image = loaded.images.get(&of)?;
        let index = image.by_name.get(wanted)?;
        image.handles.get(index).copied()
    });
    if let Some(handle) = known.flatten() {
        return Ok(handle);
    }
    write(|loaded| {
        let image = loaded.images.get_mut(&of).ok_or(INVALID_HANDLE)?;
        let index = *image.by_name.get(wanted).ok_or(NOT_FOUND)?;
        name(link, image, &mut loaded.callables, of, index)
    })
}

fn name(
    link: &Link,
    image: &mut Image,
    callables: &mut HashMap<u64, Arc<Callable>>,
    of: u64,
    index: usize,
) -> Result<u64, Code> {
    if let Some(handle) = image.handles.get(&index) {
        return Ok(*handle);
    }
    if index >= image.layouts.len() {
        return Err(INVALID_VALUE);
    }
    let kind = match Id::from_raw(of).and_then(Id::object) {
        Some(Object::Library) => Object::Kernel,
        _ => Object::Function,
    };
    let id = ids::new(kind);
    let message = Name {
        id,
        of,
        index: u32::try_from(index).map_err(|_| INVALID_VALUE)?,
    };
    done(link.post(Name::OP, |to| message.put(to)))?;
    image.handles.insert(index, id);
    let callable = Callable {
        layouts: Arc::clone(&image.layouts),
        index,
        of,
        launched: AtomicU64::new(0),
    };
    callables.insert(id, Arc::new(callable));
    Ok(id)
}

fn resolve(link: &Link, object: Object, of: u64) -> Result<u64, Code> {
    let id = ids::new(object);
    let message = Resolve { id, of };
    done(link.post(Resolve::OP, |to| message.put(to)))?;
    Ok(id)
}

/// The module of a library in the current context.
pub(super) fn module(link: &Link, library: u64) -> Result<u64, Code> {
    let context = thread::wire();
    write(|loaded| {
        let image = loaded.images.get_mut(&library).ok_or(INVALID_HANDLE)?;
        if let Some(module) = image.modules.get(&context) {
            return Ok(*module);
        }
        let module = resolve(link, Object::Module, library)?;
        image.modules.insert(context, module);
        let resolved = self::image(Arc::clone(&image.layouts));
        loaded.images.insert(module, resolved);
        Ok(module)
    })
}

/// The function of a kernel in the current context.
pub(super) fn function(link: &Link, kernel: u64) -> Result<u64, Code> {
    let key = (kernel, thread::wire());
    let known = read(|loaded| loaded.functions.get(&key).copied());
    if let Some(function) = known.flatten() {
        return Ok(function);
    }
    write(|loaded| {
        if let Some(function) = loaded.functions.get(&key) {
            return Ok(*function);
        }
        let of = loaded.callables.get(&kernel).ok_or(INVALID_HANDLE)?;
        let callable = Callable {
            layouts: Arc::clone(&of.layouts),
            index: of.index,
            of: of.of,
            launched: AtomicU64::new(0),
        };
        let function = resolve(link, Object::Function, kernel)?;
        loaded.functions.insert(key, function);
        loaded.callables.insert(function, Arc::new(callable));
        Ok(function)
    })
}

/// The module in which a function is, in the current context.
pub(super) fn module_of(link: &Link, function: u64) -> Result<u64, Code> {
    let of = callable(function)?.of;
    match Id::from_raw(of).and_then(Id::object) {
        Some(Object::Library) => module(link, of),
        _ => Ok(of),
    }
}

/// The library in which a kernel is.
pub(super) fn library_of(kernel: u64) -> Result<u64, Code> {
    let of = callable(kernel)?.of;
    match Id::from_raw(of).and_then(Id::object) {
        Some(Object::Library) => Ok(of),
        _ => Err(INVALID_HANDLE),
    }
}
