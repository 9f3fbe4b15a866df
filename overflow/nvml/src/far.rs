//! The far side: its devices, and how they do.

use crate::abi::{
    DRIVER_NOT_LOADED, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, Status, UNINITIALIZED,
};
use ghost_link::{ConnectError, Opened, TicketError};
use ghost_wire::frame::{Command, Reply, ReplyKind};
use ghost_wire::hello::{self, Device, Readings, Ticket};
use ghost_wire::message::{Bye, Message, Monitor};
use ghost_wire::{Encoder, Malformed};
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// NVML counts devices in the order of the bus, and shows all of them.
const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// Why the far side is not known.
#[derive(Debug, thiserror::Error)]
enum FarError {
    #[error("no ticket: this library is for programs that `ghostctl run --on` starts")]
    None,
    #[error(transparent)]
    Ticket(#[from] TicketError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the answer is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("the executor ended: {0}")]
    Bye(String),
    #[error("the executor answered {0}")]
    Code(u32),
}

/// A session that only asks.
struct Session {
    opened: Opened,
    /// Commands that were sent.
    sent: u64,
    /// Whose it is: a forked child opens its own.
    pid: u32,
}

impl Session {
    fn open(ticket: &Ticket) -> Result<Self, FarError> {
        let order = (ORDER.0.to_owned(), ORDER.1.to_owned());
        let opened = ghost_link::open(ticket, vec![order])?;
        let replies = opened.replies.socket();
        replies.set_read_timeout(Some(ANSWER))?;
        let (sent, pid) = (0, std::process::id());
        Ok(Self { opened, sent, pid })
    }

    fn send<'a, M: Message<'a>>(&mut self, waited: bool, message: &M) -> io::Result<()> {
        let mut body = Vec::new();
        message.put(&mut Encoder::new(&mut body));
        let (op, len) = (M::OP, body.len() as u32);
        let header = Command { op, waited, len }.to_bytes();
        self.sent += 1;
        self.opened.commands.send(&header, &body)
    }

    fn ask(&mut self, device: u32) -> Result<Readings, FarError> {
        self.send(true, &Monitor { device })?;
        loop {
            let mut header = [0; Reply::SIZE];
            self.opened.replies.read_exact(&mut header)?;
            let reply = Reply::from_bytes(header)?;
            let mut body = vec![0; reply.len as usize];
            self.opened.replies.read_exact(&mut body)?;
            match (reply.kind, reply.code) {
                (ReplyKind::Bye, _) => {
                    return Err(FarError::Bye(String::from_utf8_lossy(&body).into_owned()));
                }
                (ReplyKind::Answer, 0) if reply.seq == self.sent => {
                    return Ok(hello::from_bytes(&body)?);
                }
                (ReplyKind::Answer, code) if reply.seq == self.sent => {
                    return Err(FarError::Code(code));
                }
                // Nobody else asks here.
                _ => {}
            }
        }
    }

    fn end(mut self) {
        // It ends also if this is lost.
        let _ = self.send(false, &Bye {});
    }
}

/// What is known of the far side between `nvmlInit` and the last `nvmlShutdown`.
pub(crate) struct Far {
    ticket: Ticket,
    /// What `cuDriverGetVersion` says there.
    pub(crate) version: u32,
    devices: Vec<(Device, Readings)>,
    /// Open from the first question on that the beginning did not answer.
    session: Option<Session>,
    uses: usize,
}

/// Guards all; held while the far side is asked.
static FAR: Mutex<Option<Far>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Far>> {
    FAR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `nvmlInit`: looks at the far side and lets go of it again. Why it can't is said on stderr.
pub(crate) fn init() -> Result<(), Status> {
    let mut far = lock();
    if let Some(far) = far.as_mut() {
        far.uses += 1;
        return Ok(());
    }
    let found = Far::find().inspect_err(say);
    *far = Some(found.map_err(|_| DRIVER_NOT_LOADED)?);
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn shutdown() -> Result<(), Status> {
    let mut far = lock();
    let uses = &mut far.as_mut().ok_or(UNINITIALIZED)?.uses;
    *uses -= 1;
    if *uses == 0
        && let Some(session) = far.take().and_then(|mut far| far.session())
    {
        session.end();
    }
    Ok(())
}

/// Calls `see` with the far side.
pub(crate) fn with<T>(see: impl FnOnce(&mut Far) -> Result<T, Status>) -> Result<T, Status> {
    see(lock().as_mut().ok_or(UNINITIALIZED)?)
}

impl Far {
    fn find() -> Result<Self, FarError> {
        let path = ghost_link::path().ok_or(FarError::None)?;
        let ticket = ghost_link::read(&path)?;
        let mut session = Session::open(&ticket)?;
        let welcome = session.opened.welcome.clone();
        let mut devices = Vec::new();
        for (number, device) in (0..).zip(welcome.devices) {
            devices.push((device, session.ask(number)?));
        }
        session.end();
        Ok(Self {
            ticket,
            version: welcome.driver,
            devices,
            session: None,
            uses: 1,
        })
    }

    /// The devices, and how they did at the beginning.
    pub(crate) fn devices(&self) -> &[(Device, Readings)] {
        &self.devices
    }

    /// A device, and how it did at the beginning.
    pub(crate) fn device(&self, index: usize) -> Result<&(Device, Readings), Status> {
        self.devices.get(index).ok_or(INVALID_ARGUMENT)
    }

    /// How a device does now.
    pub(crate) fn now(&mut self, index: usize) -> Result<Readings, Status> {
        self.device(index)?;
        let number = u32::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let mut session = match self.session() {
            Some(session) => session,
            None => Session::open(&self.ticket).map_err(|why| lost(&why))?,
        };
        let readings = session.ask(number).map_err(|why| lost(&why))?;
        self.session = Some(session);
        Ok(readings)
    }

    /// Takes the session, where it is this process's.
    fn session(&mut self) -> Option<Session> {
        let session = self.session.take()?;
        (session.pid == std::process::id()).then_some(session)
    }

    /// Processes of this container that compute there. Which device each uses is known only where
    /// there is one.
    pub(crate) fn processes(&self) -> Result<Vec<u32>, Status> {
        if self.devices.len() > 1 {
            return Ok(Vec::new());
        }
        let directory = self.ticket.stats.as_ref().ok_or(NOT_SUPPORTED)?;
        let files = std::fs::read_dir(directory).map_err(|_| NOT_SUPPORTED)?;
        let names = files.flatten().map(|file| file.file_name());
        let pids = names.filter_map(|name| name.to_str()?.parse().ok());
        let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        Ok(pids.filter(alive).collect())
    }
}

fn lost(why: &FarError) -> Status {
    say(why);
    GPU_IS_LOST
}

fn say(why: &FarError) {
    tell(&format!("the far host's devices can't be asked for: {why}"));
}

/// Says something on stderr.
pub(crate) fn tell(what: &str) {
    let line = format!("ghost: {what}\n");
    // SAFETY: as many bytes as the line has.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
