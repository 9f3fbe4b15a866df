//! Streams, and captures.

use super::{ask, wait_for};
use crate::memory::{done, publish, tell, tell_maybe};
use crate::session::link;
use crate::{answer, sent, thread};
use ghost_wire::id::{STREAM_LEGACY, STREAM_PER_THREAD};
use ghost_wire::message::{CaptureInfo, Field, Message, wait};
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    flags: u32,
    priority: i32,
    context: u64,
    device: i32,
}

/// The program's streams. Guards them.
static STREAMS: RwLock<Option<HashMap<u64, Stream>>> = RwLock::new(None);
/// How many of them don't wait for the default stream.
static UNORDERED: AtomicUsize = AtomicUsize::new(0);

/// Whether there are streams that don't wait for the default one.
pub(crate) fn has_unordered() -> bool {
    UNORDERED.load(Ordering::Acquire) > 0
}

fn write<R>(with: impl FnOnce(&mut HashMap<u64, Stream>) -> R) -> R {
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    with(streams.get_or_insert_default())
}

/// The stream of this handle; a default one is of the current context.
fn find(handle: u64) -> Result<Stream, Code> {
    link()?;
    if matches!(handle, 0 | STREAM_LEGACY | STREAM_PER_THREAD) {
        let current = thread::context().ok_or(INVALID_CONTEXT)?;
        return Ok(Stream {
            context: current.handle,
            device: current.device,
            ..Stream::default()
        });
    }
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    let stream = streams.as_ref().and_then(|streams| streams.get(&handle));
    stream.copied().ok_or(INVALID_HANDLE)
}

fn enter(to: *mut u64, flags: u32, priority: i32) {
    let current = thread::context().unwrap_or_default();
    let stream = Stream {
        flags,
        priority,
        context: current.handle,
        device: current.device,
    };
    if flags & NON_BLOCKING != 0 {
        UNORDERED.fetch_add(1, Ordering::AcqRel);
    }
    // SAFETY: the call that made the stream has written its handle there.
    let handle = unsafe { to.read_unaligned() };
    write(|streams| streams.insert(handle, stream));
}

pub(crate) unsafe extern "C" fn cuStreamCreate(to: *mut u64, flags: u32) -> Code {
    // SAFETY: handed on.
    unsafe { cuStreamCreateWithPriority(to, flags, 0) }
}

pub(crate) unsafe extern "C" fn cuStreamCreateWithPriority(
    to: *mut u64,
    flags: u32,
    priority: i32,
) -> Code {
    let created = || {
        link()?;
        thread::context().ok_or(INVALID_CONTEXT)?;
        if flags & !NON_BLOCKING != 0 {
            return Err(INVALID_VALUE);
        }
        let (mut least, mut greatest) = (0, 0);
        if priority != 0 {
            // SAFETY: room for both.
            done(unsafe { sent::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) })?;
        }
        // The greatest priority is the lowest number.
        let priority = priority.max(greatest).min(least);
        // SAFETY: handed on.
        done(unsafe {
            match priority {
                0 => sent::cuStreamCreate(to, flags),
                _ => sent::cuStreamCreateWithPriority(to, flags, priority),
            }
        })?;
        enter(to, flags, priority);
        Ok(())
    };
    answer(created())
}

pub(crate) unsafe extern "C" fn cuStreamDestroy_v2(stream: u64) -> Code {
    let destroyed = || {
        link()?;
        let gone = write(|streams| streams.remove(&stream)).ok_or(INVALID_HANDLE)?;
        if gone.flags & NON_BLOCKING != 0 {
            UNORDERED.fetch_sub(1, Ordering::AcqRel);
        }
        captures(|captures| captures.remove(&stream));
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuStreamDestroy_v2(stream) })
    };
    answer(destroyed())
}

macro_rules! answers {
    ($($symbol:ident ($result:ty) $stream:ident $handle:ident => $value:expr;)*) => {$(
        pub(crate) unsafe extern "C" fn $symbol<const PT: bool>(
            $handle: u64,
            to: *mut $result,
        ) -> Code {
            let told = || {
                let $stream = find($handle)?;
                let value: $result = $value;
                // SAFETY: null, or the program's own room.
                unsafe { tell(to, value) }
            };
            answer(told())
        }
    )*};
}

answers! {
    cuStreamGetPriority(i32) stream handle => stream.priority;
    cuStreamGetFlags(u32) stream handle => stream.flags;
    cuStreamGetCtx(u64) stream handle => stream.context;
    cuStreamGetDevice(i32) stream handle => stream.device;
    cuStreamGetId(u64) _stream handle => match handle {
        0 if PT => STREAM_PER_THREAD,
        0 => STREAM_LEGACY,
        handle => handle,
    };
}

pub(crate) unsafe extern "C" fn cuStreamGetCtx_v2<const PT: bool>(
    stream: u64,
    to: *mut u64,
    green: *mut u64,
) -> Code {
    // SAFETY: null, or the program's own room.
    unsafe { tell_maybe(green, 0) };
    // SAFETY: handed on.
    unsafe { cuStreamGetCtx::<PT>(stream, to) }
}

pub(crate) unsafe extern "C" fn cuStreamSynchronize<const PT: bool>(stream: u64) -> Code {
    let waited = || {
        let link = link()?;
        wait_for(link, wait::STREAM, thread::stream(stream, PT)?)
    };
    answer(waited())
}

pub(crate) unsafe extern "C" fn cuStreamQuery<const PT: bool>(stream: u64) -> Code {
    let asked = || {
        let link = link()?;
        ask(link, wait::STREAM, thread::stream(stream, PT)?, true)
    };
    answer(asked())
}

pub(crate) unsafe extern "C" fn cuGraphLaunch<const PT: bool>(graph: u64, stream: u64) -> Code {
    match answer(link().and_then(publish)) {
        0 => {
            // SAFETY: no pointer in it.
            let code = unsafe { sent::cuGraphLaunch::<PT>(graph, stream) };
            // After it: who asks for the limit meanwhile asks again.
            crate::limits::stacks_may_grow();
            code
        }
        code => code,
    }
}

/// Streams on which a capture was begun. Guards them.
static CAPTURES: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
/// How many they are, for a look without the lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn captures<R>(with: impl FnOnce(&mut HashSet<u64>) -> R) -> R {
    let mut captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    let captures = captures.get_or_insert_default();
    let result = with(captures);
    OPEN.store(captures.len(), Ordering::Release);
    result
}

/// Whether a capture is open anywhere in the process.
pub(super) fn is_capturing() -> bool {
    OPEN.load(Ordering::Acquire) > 0
}

/// Whether work on this stream is captured.
pub(crate) fn is_captured(stream: u64, per_thread: bool) -> Result<bool, Code> {
    Ok(is_capturing() && info(stream, per_thread)?.status == ACTIVE)
}

pub(crate) unsafe extern "C" fn cuStreamBeginCapture_v2<const PT: bool>(
    stream: u64,
    mode: u32,
) -> Code {
    let begun = || {
        link()?;
        let named = thread::stream(stream, PT)?;
        // SAFETY: no pointer in it.
        done(unsafe { sent::cuStreamBeginCapture_v2::<PT>(stream, mode) })?;
        captures(|captures| captures.insert(named));
        Ok(())
    };
    answer(begun())
}

pub(crate) unsafe extern "C" fn cuStreamEndCapture<const PT: bool>(
    stream: u64,
    graph: *mut u64,
) -> Code {
    let ended = || {
        link()?;
        let named = thread::stream(stream, PT)?;
        // SAFETY: handed on.
        let code = unsafe { sent::cuStreamEndCapture::<PT>(stream, graph) };
        captures(|captures| captures.remove(&named));
        done(code)
    };
    answer(ended())
}

pub(crate) unsafe extern "C" fn cuStreamIsCapturing<const PT: bool>(
    stream: u64,
    to: *mut u32,
) -> Code {
    if is_capturing() {
        // SAFETY: handed on.
        return unsafe { sent::cuStreamIsCapturing::<PT>(stream, to) };
    }
    // SAFETY: null, or the program's own room.
    answer(link().and_then(|_| unsafe { tell(to, 0) }))
}

thread_local! {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL` to begin with.
    static MODE: Cell<u32> = const { Cell::new(0) };
    /// The nodes that the last question for a capture was answered with.
    static NODES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

pub(crate) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Code {
    let exchanged = || {
        link()?;
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the program's own room.
        let wanted = unsafe { mode.read_unaligned() };
        if wanted > 2 {
            return Err(INVALID_VALUE);
        }
        let before = MODE.try_with(|own| own.replace(wanted)).unwrap_or(0);
        // SAFETY: as above.
        unsafe { tell(mode, before) }
    };
    answer(exchanged())
}

/// What is known of a stream's capture.
#[derive(Debug, Default)]
struct Info {
    status: u32,
    id: u64,
    graph: u64,
    nodes: Vec<u64>,
}

fn info(stream: u64, per_thread: bool) -> Result<Info, Code> {
    let link = link()?;
    if !is_capturing() {
        return Ok(Info::default());
    }
    let message = CaptureInfo {
        stream: thread::stream(stream, per_thread)?,
    };
    link.wait(
        CaptureInfo::OP,
        |to| message.put(to),
        |from| {
            let (status, id, graph) = (from.narrow("a status")?, from.word()?, from.word()?);
            let count = from.narrow::<u32>("a number of nodes")?;
            let nodes = (0..count).map(|_| from.word()).collect::<Result<_, _>>()?;
            Ok(Info {
                status,
                id,
                graph,
                nodes,
            })
        },
    )
}

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: u32 = 1;

/// # Safety
/// `status` is null or room for it, and so are the others.
unsafe fn tell_capture(
    info: Info,
    status: *mut u32,
    id: *mut u64,
    graph: *mut u64,
    nodes: *mut *const u64,
    count: *mut usize,
) -> Result<(), Code> {
    // SAFETY: handed on. The nodes are the thread's until it asks again, as the driver's are until
    // the next call on the stream.
    unsafe {
        tell(status, info.status)?;
        if info.status != ACTIVE {
            return Ok(());
        }
        tell_maybe(id, info.id);
        tell_maybe(graph, info.graph);
        tell_maybe(count, info.nodes.len());
        let _ = NODES.try_with(|own| {
            *own.borrow_mut() = info.nodes;
            tell_maybe(nodes, own.borrow().as_ptr());
        });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo<const PT: bool>(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
) -> Code {
    let none = std::ptr::null_mut;
    let told = info(stream, PT)
        // SAFETY: handed on.
        .and_then(|info| unsafe {
            tell_capture(info, status, id, none(), none().cast(), none().cast())
        });
    answer(told)
}

pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo_v2<const PT: bool>(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
    graph: *mut u64,
    nodes: *mut *const u64,
    count: *mut usize,
) -> Code {
    let told = info(stream, PT)
        // SAFETY: handed on.
        .and_then(|info| unsafe { tell_capture(info, status, id, graph, nodes, count) });
    answer(told)
}

/// Edges that carry data are not told of: none can be made here.
pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo_v3<const PT: bool>(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
    graph: *mut u64,
    nodes: *mut *const u64,
    edges: *mut *const u8,
    count: *mut usize,
) -> Code {
    // SAFETY: null, or the program's own room.
    unsafe { tell_maybe(edges, std::ptr::null()) };
    // SAFETY: handed on.
    unsafe { cuStreamGetCaptureInfo_v2::<PT>(stream, status, id, graph, nodes, count) }
}
