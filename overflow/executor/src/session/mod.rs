//! One client's session: its threads, and its end.
//!
//! Commands are read by one thread, which also takes care of what must not wait, and carried out in
//! order by another ([`commands`]). Waiters wait for the device; the keeper sends what copies
//! brought and has the program's functions called.

mod boxes;
mod commands;
mod contexts;
mod graphs;
mod incoming;
mod loads;
mod monitor;
mod work;

use crate::calls::calls;
use crate::copies::Copies;
use crate::driver::{Device, Driver};
use crate::images::Images;
use crate::link::{Link, Socket, Stats};
use crate::output::Output;
use crate::shared::Shares;
use crate::waits::Waiters;
use ghost_wire::hello::{self, Inject, Welcome};
use ghost_wire::result::{Code, SUCCESS};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often copies that are underway are looked at.
const LOOK: Duration = Duration::from_micros(100);
/// How often the counters are written.
const COUNT: Duration = Duration::from_secs(1);
/// An end takes no longer.
const END: Duration = Duration::from_secs(4);
/// More attributes than any driver has.
const ATTRIBUTES: i32 = 192;

/// How a session is served.
#[derive(Debug, Default)]
pub struct Options {
    /// What computes; none: a GPU if there is one.
    pub device: Option<Device>,
    /// Where images are kept.
    pub cache: Option<PathBuf>,
    /// Where counters are written.
    pub stats: Option<File>,
    /// Delays.
    pub inject: Inject,
}

/// What the threads of a session share.
#[derive(Debug)]
struct Shared {
    driver: Driver,
    link: Arc<Link>,
    copies: Copies,
    shares: Shares,
    output: Output,
    waiters: Waiters,
}

impl Shared {
    /// Answers a wait: before that goes all that was finished.
    fn finish(&self, seq: u64, code: Code) {
        self.catch_up();
        self.output.drain(|text| self.link.print(text));
        self.link.answer(seq, code, &[]);
    }

    fn catch_up(&self) {
        if !self.copies.is_empty() {
            self.copies.flush(&self.driver, &self.link);
        }
        self.shares.send(&self.link);
    }

    /// Looks after copies and calls, for ever.
    fn keep(&self) {
        let mut written = Instant::now();
        loop {
            let due = calls().wait(|| self.copies.is_empty(), COUNT);
            self.copies.flush(&self.driver, &self.link);
            if !due.is_empty() {
                self.shares.send(&self.link);
            }
            for (token, code) in due {
                self.link.callback(token, code);
            }
            if written.elapsed() >= COUNT {
                self.link.stats.write();
                written = Instant::now();
            }
            if !self.copies.is_empty() {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Ends the process: the driver frees all that the session had.
fn end(link: &Link, why: Option<&str>) -> ! {
    if let Some(why) = why {
        eprintln!("ghost-executor: the session ends: {why}");
        let _ = Builder::new().spawn(|| {
            std::thread::sleep(END);
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) };
        });
        link.bye(why);
    }
    link.stats.write();
    // SAFETY: ends the process. Exit handlers of the driver could wait for the device.
    unsafe { libc::_exit(i32::from(why.is_some())) }
}

/// Serves the session on these connections, in the order of [`hello::Role::ALL`], to its end, which
/// is the process's.
///
/// # Errors
/// If it could not begin.
pub fn serve(connections: [OwnedFd; 4], options: Options) -> io::Result<()> {
    let [commands, replies, up, down] = connections.map(Socket::new);
    let stats = Stats::new(options.stats);
    let link = Link::new(replies, down, options.inject, stats)?;
    let link = Arc::new(link);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        report(what);
        // SAFETY: ends the process.
        unsafe { libc::_exit(2) };
    }));
    let output = Output::take_over()?;
    let driver = match Driver::open(options.device) {
        Ok(driver) => driver,
        Err(error) => end(&link, Some(&error.to_string())),
    };
    link.welcome(&hello::to_bytes(&welcome(&driver)));
    let shared = Arc::new(Shared {
        driver,
        link: Arc::clone(&link),
        copies: Copies::default(),
        shares: Shares::default(),
        output,
        waiters: Waiters::default(),
    });
    let keeper = Arc::clone(&shared);
    let named = |name: &str| Builder::new().name(name.to_owned());
    named("keeper").spawn(move || keeper.keep())?;
    let queue = Arc::new(incoming::Queue::default());
    let reader = (Arc::clone(&queue), Arc::clone(&link));
    named("commands").spawn(move || {
        let (queue, link) = reader;
        let why = incoming::read_commands(commands, &queue, &link);
        end(&link, why.as_deref());
    })?;
    let (parts, bulk) = std::sync::mpsc::sync_channel(incoming::AHEAD);
    let reader = Arc::clone(&shared);
    named("up").spawn(move || {
        let why = incoming::read_up(up, &reader, &parts);
        end(&reader.link, why.as_deref());
    })?;
    let images = Images::new(options.cache);
    let why = commands::Session::new(shared, images, bulk).run(&queue);
    end(&link, why.as_deref())
}

/// What the client is told first.
fn welcome(driver: &Driver) -> Welcome {
    let device = |number| {
        let mut device = hello::Device {
            name: text(|to, len| {
                // SAFETY: room for as many bytes.
                unsafe { driver.cuDeviceGetName(to, len, number) }
            }),
            bus: text(|to, len| {
                // SAFETY: room for as many bytes.
                unsafe { driver.cuDeviceGetPCIBusId(to, len, number) }
            }),
            ..hello::Device::default()
        };
        // What a driver does not tell stays empty.
        let _ = driver.cuDeviceGetUuid_v2(&mut device.uuid, number);
        let _ = driver.cuDeviceTotalMem_v2(&mut device.memory, number);
        let attributes = (0..ATTRIBUTES).map(|attribute| {
            let mut value = 0;
            let told = driver.cuDeviceGetAttribute(&mut value, attribute, number);
            told.is_ok().then_some(value)
        });
        device.attributes = attributes.collect();
        while device.attributes.last() == Some(&None) {
            device.attributes.pop();
        }
        device
    };
    Welcome {
        driver: driver.version,
        init: driver.init,
        emulated: driver.device == Device::Cpu,
        devices: (0..driver.count).map(device).collect(),
    }
}

/// What `ask` writes, with room for as many bytes as it is told; empty where it fails.
fn text(ask: impl FnOnce(*mut u8, i32) -> Result<(), Code>) -> String {
    let mut room = [0_u8; 256];
    let code = ask(room.as_mut_ptr(), 256).err().unwrap_or(SUCCESS);
    let len = room.iter().position(|byte| *byte == 0).unwrap_or(0);
    match code {
        SUCCESS => String::from_utf8_lossy(room.get(..len).unwrap_or_default()).into_owned(),
        _ => String::new(),
    }
}
