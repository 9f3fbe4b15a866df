//! The process's session: from `cuInit` to its exit, and what becomes of it in a forked child.

use crate::link::{Handlers, Link};
use crate::{context, genuine, memory, stats, tables, thread, work};
use ghost_wire::api::KNOWN;
use ghost_wire::hello::Welcome;
use ghost_wire::result::{
    Code, DEINITIALIZED, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, SUCCESS,
    SYSTEM_NOT_READY, meaning,
};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A session that is open.
pub(crate) struct Session {
    link: Arc<Link>,
    /// What the far side told of itself.
    pub(crate) welcome: Welcome,
    /// What `cuDriverGetVersion` says.
    pub(crate) version: u32,
}

/// Nothing has been asked yet.
const FRESH: u32 = 0;
/// A thread opens the session.
const OPENING: u32 = 1;
/// Open, and `cuInit` was not called yet.
const OPEN: u32 = 2;
/// As after `cuInit`.
const READY: u32 = 3;
/// It could not be opened.
const FAILED: u32 = 4;
/// A child of a process that had a session.
const FORKED: u32 = 5;
/// The process ends.
const EXITED: u32 = 6;

static STATE: AtomicU32 = AtomicU32::new(FRESH);
/// The session, never freed: threads may be in it.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(null_mut());
/// The session's link while calls may use it.
static LINK: AtomicPtr<Link> = AtomicPtr::new(null_mut());
/// The ticket's file, as the environment had it when the library was loaded.
static TICKET: OnceLock<OsString> = OnceLock::new();

/// Whether the process computes elsewhere; asked for once, when the library is loaded.
pub(crate) fn is_elsewhere() -> bool {
    ghost_link::path().is_some_and(|path| TICKET.set(path).is_ok())
}

/// The link to the executor, once `cuInit` has opened it.
///
/// # Errors
/// What the call is to answer: not initialised (also in a forked child of a process that was), or at
/// an end.
#[inline]
pub(crate) fn link() -> Result<&'static Link, Code> {
    // SAFETY: null, or a link that is never freed.
    unsafe { LINK.load(Ordering::Acquire).as_ref() }.ok_or_else(without)
}

#[cold]
fn without() -> Code {
    match STATE.load(Ordering::Acquire) {
        EXITED => DEINITIALIZED,
        _ => NOT_INITIALIZED,
    }
}

/// `cuInit`.
pub(crate) fn init(flags: u32) -> Result<(), Code> {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let session = open()?;
    if session.welcome.init != SUCCESS {
        return Err(session.welcome.init);
    }
    let ready = STATE.compare_exchange(OPEN, READY, Ordering::AcqRel, Ordering::Acquire);
    if ready.is_ok() {
        LINK.store(Arc::as_ptr(&session.link).cast_mut(), Ordering::Release);
    }
    Ok(())
}

/// The version of CUDA whose entry points may be used: what `cuDriverGetVersion` says, or all that
/// are known where nothing computes elsewhere or the session can't be opened.
pub(crate) fn version() -> u32 {
    let session = TICKET.get().and_then(|_| open().ok());
    session.map_or(KNOWN, |session| session.version)
}

/// The session as `cuInit` left it.
///
/// # Errors
/// As in [`link`].
pub(crate) fn session() -> Result<&'static Session, Code> {
    link()?;
    // SAFETY: null, or a session that is never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }.ok_or(NOT_INITIALIZED)
}

/// The session, opened if need be.
///
/// # Errors
/// `SYSTEM_NOT_READY` where it can't be opened (said once on stderr), and as in [`link`].
pub(crate) fn open() -> Result<&'static Session, Code> {
    loop {
        match STATE.compare_exchange(FRESH, OPENING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let state = match connect() {
                    Ok(session) => {
                        SESSION.store(Box::into_raw(Box::new(session)), Ordering::Release);
                        OPEN
                    }
                    Err(why) => {
                        say(format_args!(
                            "this program's work can't go elsewhere: {why}"
                        ));
                        FAILED
                    }
                };
                STATE.store(state, Ordering::Release);
            }
            Err(OPENING) => std::thread::sleep(Duration::from_millis(1)),
            Err(FAILED) => return Err(SYSTEM_NOT_READY),
            Err(FORKED) => return Err(NOT_INITIALIZED),
            Err(EXITED) => return Err(DEINITIALIZED),
            Err(_) => {
                // SAFETY: null, or a session that is never freed.
                let session = unsafe { SESSION.load(Ordering::Acquire).as_ref() };
                return session.ok_or(NOT_INITIALIZED);
            }
        }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Ticket(#[from] ghost_link::TicketError),
    #[error(transparent)]
    Connect(#[from] ghost_link::ConnectError),
    #[error("threads can't be started: {0}")]
    Threads(std::io::Error),
}

fn connect() -> Result<Session, OpenError> {
    let path = TICKET.get().cloned().unwrap_or_default();
    let ticket = ghost_link::read(&path)?;
    if let Some(directory) = &ticket.stats
        && let Err(error) = stats::keep_in(Path::new(directory))
    {
        say(format_args!("no counters in {directory:?}: {error}"));
    }
    let opened = ghost_link::open(&ticket, ghost_link::drivers_variables())?;
    let welcome = opened.welcome.clone();
    // What the program's own choice of devices leads to needs no word.
    if !matches!(welcome.init, SUCCESS | NO_DEVICE | INVALID_DEVICE) {
        let name = meaning(welcome.init).map_or(c"unknown", |meaning| meaning.name);
        say(format_args!(
            "the driver at {} does not start, its cuInit answers {} ({}): see what nvidia-smi says \
             on that host",
            ticket.address,
            welcome.init,
            name.to_string_lossy()
        ));
    }
    let handlers = Handlers {
        context: thread::wire,
        callback: work::callback,
        changed: memory::changed,
    };
    let link = Link::start(opened, &ticket.address, ticket.wait_always, handlers);
    let link = link.map_err(OpenError::Threads)?;
    let local = genuine::version();
    context::open(&welcome, tables::primary_contexts());
    // SAFETY: two functions of our own that may run in a child and at the end.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
    let version = welcome.driver.min(KNOWN).min(local.unwrap_or(KNOWN));
    Ok(Session {
        link,
        welcome,
        version,
    })
}

/// A child has neither the threads nor a right to the connections.
unsafe extern "C" fn in_child() {
    let state = match STATE.load(Ordering::Acquire) {
        OPENING | READY | FORKED => FORKED,
        EXITED => EXITED,
        _ => FRESH,
    };
    STATE.store(state, Ordering::Release);
    LINK.store(null_mut(), Ordering::Release);
    stats::leave();
    // SAFETY: null, or a session that is never freed.
    if let Some(session) = unsafe { SESSION.swap(null_mut(), Ordering::AcqRel).as_ref() } {
        session.link.abandon();
    }
}

extern "C" fn at_exit() {
    let state = STATE.swap(EXITED, Ordering::AcqRel);
    LINK.store(null_mut(), Ordering::Release);
    // SAFETY: null, or a session that is never freed.
    let session = unsafe { SESSION.load(Ordering::Acquire).as_ref() };
    if let (OPEN | READY, Some(session)) = (state, session) {
        session.link.finish();
    }
}

/// A line for people, on stderr.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let line = format!("ghost: {line}\n");
    // SAFETY: as many bytes as the line has.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
