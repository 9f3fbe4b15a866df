//! Who used a GPU and when: the driver's trace of context switches.
//!
//! The trace says who was *resident*. A context stays resident until another
//! one wants the GPU, work or none; [`ContextSwitches::busy`] tells how long
//! the GPU as a whole was busy.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::abi::meter::{
    self as abi, BindSwitches, CLASS_EVENT_BUFFER, CLASS_EVENT_MEMORY, Consumed, EnableEvents,
    EventBuffer, EventMemory, GpuTime, MAX_SAMPLES, MapMemory, NoParams, OsEvent, RECORD_SIZE,
    Utilization, UtilizationSample,
};
use crate::branch::AllocForm;
use crate::control::{RmError, check};
use crate::session::{Session, SessionError};
use crate::{Gpu, Object};

/// Records that the buffer holds: 0.8 s of the fastest switching seen.
const RECORDS: u32 = 16384;
const HEADER_SIZE: usize = 4096;
/// Where in the header the index of the next record to be written is.
const PUT_AT: usize = 4;

const HEADER: Object = Object(0x21);
const RECORD_MEMORY: Object = Object(0x22);
const BUFFER: Object = Object(0x23);

/// Why the trace could not be had, or read.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// The client for it.
    #[error("cannot open a client for the trace of context switches")]
    Session(#[from] SessionError),
    /// The driver refused.
    #[error("the driver gives no trace of context switches")]
    Refused(#[from] RmError),
    /// The memory cannot be mapped.
    #[error("{path}: cannot map the trace of context switches")]
    Map {
        /// The node.
        path: PathBuf,
        /// errno.
        #[source]
        source: io::Error,
    },
    /// The driver wrote nonsense.
    #[error("the trace's header says {put} of {RECORDS} records")]
    Header {
        /// Index of the next record to be written.
        put: u32,
    },
}

/// Whether a context came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It is resident from now on.
    Start,
    /// It left.
    End,
}

/// One context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Came or went.
    pub edge: Edge,
    /// The context, one of [`crate::GroupIds::contexts`].
    pub context: u32,
    /// The process, as the host counts them.
    pub pid: u32,
    /// When, in nanoseconds of the GPU's clock.
    pub at_ns: u64,
}

/// What a reading of the trace was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many records were read.
    pub records: usize,
    /// Whether some before or among them are missing.
    pub lost: bool,
}

/// How long the GPU was busy, up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The moment, in nanoseconds of the host's real-time clock.
    pub at_ns: u64,
    /// The part of the time since the sample before, in 1/10000.
    pub busy: u32,
}

/// The trace of context switches of one GPU, on a client of its own: it ends
/// when this is dropped.
#[derive(Debug)]
pub struct ContextSwitches {
    session: Session,
    subdevice: Object,
    header: Mapping,
    records: Mapping,
    get: u32,
    sequence: Option<u16>,
}

impl ContextSwitches {
    /// Begins the trace. Takes the rights of an administrator.
    ///
    /// # Errors
    ///
    /// Any [`MeterError`] but [`MeterError::Header`].
    pub fn open(dev_root: &Path, form: AllocForm, gpu: Gpu) -> Result<Self, MeterError> {
        let mut session = Session::open(dev_root, form)?;
        let subdevice = session.subdevice(gpu)?;
        let (client, root) = (session.client(), session.client().as_object());
        let control = session.control();

        let records_size = RECORDS as usize * RECORD_SIZE;
        for (handle, size) in [(HEADER, HEADER_SIZE), (RECORD_MEMORY, records_size)] {
            let mut memory = EventMemory::new(size as u64);
            control.alloc(
                form,
                client,
                root,
                handle,
                CLASS_EVENT_MEMORY,
                Some(&mut memory),
            )?;
        }
        let own_fd = u32::try_from(control.fd().as_raw_fd()).unwrap_or(0);
        let mut event = OsEvent {
            client: client.0,
            device: client.0,
            fd: own_fd,
            status: 0,
        };
        // SAFETY: `event` is the 16-byte argument of this ioctl and holds no
        // address.
        let called = unsafe { control.ioctl(abi::ESC_ALLOC_OS_EVENT, &mut event) };
        check("alloc os event", client, root, called, event.status)?;
        let mut buffer = EventBuffer::new(RECORDS, HEADER, RECORD_MEMORY, own_fd, subdevice);
        control.alloc(
            form,
            client,
            root,
            BUFFER,
            CLASS_EVENT_BUFFER,
            Some(&mut buffer),
        )?;
        let header = Mapping::new(dev_root, &session, HEADER, HEADER_SIZE)?;
        let records = Mapping::new(dev_root, &session, RECORD_MEMORY, records_size)?;
        let mut bind = BindSwitches {
            buffer: BUFFER.0,
            record_size: RECORD_SIZE as u32,
            detail: 1,
            all_users: 1,
            ..BindSwitches::default()
        };
        control.control(client, subdevice, abi::BIND_SWITCHES, &mut bind)?;
        let mut enable = EnableEvents {
            enable: 1,
            pad: [0; 3],
            flags: 2,
        };
        control.control(client, BUFFER, abi::ENABLE_EVENTS, &mut enable)?;
        let get = header.load_u32(PUT_AT);
        Ok(Self {
            session,
            subdevice,
            header,
            records,
            get: if get < RECORDS { get } else { 0 },
            sequence: None,
        })
    }

    /// Has the driver write down what happened up to now, for the next
    /// [`ContextSwitches::drain`]. It does so by itself each 36 ms; for each
    /// switch it looks through all channels, some 4 us where there are 2,000.
    ///
    /// # Errors
    ///
    /// [`MeterError::Refused`].
    pub fn flush(&self) -> Result<(), MeterError> {
        let control = self.session.control();
        let client = self.session.client();
        control.control(client, BUFFER, abi::FLUSH_EVENTS, &mut NoParams)?;
        Ok(())
    }

    /// Appends to `switches` what the driver has written down.
    ///
    /// # Errors
    ///
    /// [`MeterError::Refused`], [`MeterError::Header`].
    pub fn drain(&mut self, switches: &mut Vec<Switch>) -> Result<Drained, MeterError> {
        let client = self.session.client();
        let control = self.session.control();
        let put = self.header.load_u32(PUT_AT);
        if put >= RECORDS {
            return Err(MeterError::Header { put });
        }
        let mut drained = Drained::default();
        while self.get != put {
            let at = self.get as usize * RECORD_SIZE;
            self.get = (self.get + 1) % RECORDS;
            drained.records += 1;
            let record: [u64; 4] = std::array::from_fn(|i| self.records.load_u64(at + 8 * i));
            let (sequence, switch) = parse(record);
            if self
                .sequence
                .is_some_and(|last| last.wrapping_add(1) != sequence)
            {
                drained.lost = true;
            }
            self.sequence = Some(sequence);
            switches.extend(switch);
        }
        if drained.records > 0 {
            let mut consumed = Consumed {
                get: self.get,
                variable_get: 0,
            };
            control.control(client, BUFFER, abi::CONSUMED, &mut consumed)?;
        }
        Ok(drained)
    }

    /// The GPU's clock in nanoseconds.
    ///
    /// # Errors
    ///
    /// [`MeterError::Refused`].
    pub fn gpu_time_ns(&self) -> Result<u64, MeterError> {
        let mut time = GpuTime::default();
        self.session.control().control(
            self.session.client(),
            self.subdevice,
            abi::GPU_TIME,
            &mut time,
        )?;
        Ok(time.ns)
    }

    /// The driver's last samples of how long the GPU computed, oldest first;
    /// it takes one each 200 ms and keeps 72. 1.5 ms.
    ///
    /// # Errors
    ///
    /// [`MeterError::Refused`].
    pub fn busy(&self) -> Result<Vec<Busy>, MeterError> {
        let mut params = Box::new(Utilization::default());
        self.session.control().control(
            self.session.client(),
            self.subdevice,
            abi::UTILIZATION,
            &mut *params,
        )?;
        let mut samples = Vec::with_capacity(MAX_SAMPLES);
        samples.extend(params.samples.iter().filter(|s| s.at_ns != 0).map(|s| {
            let [_, graphics, ..] = s.engines;
            const { assert!(UtilizationSample::GRAPHICS == 1) };
            Busy {
                at_ns: s.at_ns,
                busy: graphics.busy.min(10_000),
            }
        }));
        samples.sort_unstable_by_key(|sample| sample.at_ns);
        Ok(samples)
    }
}

/// A record: type u16, at 8 tag u8, at 10 sequence u16, at 12 context, at 16
/// pid, at 24 time.
fn parse([head, tagged, process, at_ns]: [u64; 4]) -> (u16, Option<Switch>) {
    const SWITCH: u16 = 2;
    let edge = match tagged as u8 {
        6 => Some(Edge::Start),
        7 => Some(Edge::End),
        _ => None,
    };
    let edge = edge.filter(|_| head as u16 == SWITCH);
    let switch = edge.map(|edge| Switch {
        edge,
        context: (tagged >> 32) as u32,
        pid: process as u32,
        at_ns,
    });
    ((tagged >> 16) as u16, switch)
}

/// Memory that the driver writes and we read.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
    // The mapping belongs to this open file.
    _file: File,
}

// SAFETY: the memory is reached by atomic loads only, from any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(
        dev_root: &Path,
        session: &Session,
        memory: Object,
        len: usize,
    ) -> Result<Self, MeterError> {
        let path = dev_root.join("nvidiactl");
        let failed = |source| MeterError::Map {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        let client = session.client();
        let mut args = MapMemory {
            client: client.0,
            device: client.0,
            memory: memory.0,
            length: len as u64,
            flags: 1,
            fd: file.as_raw_fd(),
            ..MapMemory::default()
        };
        // SAFETY: `args` is the 56-byte argument of this ioctl; its address
        // fields are answers.
        let called = unsafe { session.control().ioctl(abi::ESC_RM_MAP_MEMORY, &mut args) };
        check("map memory", client, memory, called, args.status)?;
        let map = |offset: u64| {
            // SAFETY: a new mapping, at an address of the kernel's choice, on
            // a descriptor that is open.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    offset.cast_signed(),
                )
            };
            if at == libc::MAP_FAILED {
                return Err(failed(io::Error::last_os_error()));
            }
            Ok(at)
        };
        // What is mapped is what was prepared on `file`; which offset goes
        // with it depends on the kind of memory.
        let at = map(args.address & !0xFFF).or_else(|_| map(0))?;
        let at = NonNull::new(at.cast()).ok_or_else(|| failed(io::ErrorKind::AddrInUse.into()))?;
        Ok(Self {
            at,
            len,
            _file: file,
        })
    }

    fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: inside the mapping and aligned (pages are), as just checked;
        // it lives as long as `self`, and nobody here writes it.
        let word = unsafe { &*self.at.as_ptr().add(offset).cast::<AtomicU32>() };
        word.load(Ordering::Acquire)
    }

    fn load_u64(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: as in `load_u32`.
        let word = unsafe { &*self.at.as_ptr().add(offset).cast::<AtomicU64>() };
        word.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whole, and no reference to it
        // outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_seen_on_an_h200() {
        let record = |kind: u64, tag: u64, sequence: u64, context: u64| {
            [
                kind,
                tag | sequence << 16 | context << 32,
                526,
                1_764_659_640_123_456_789,
            ]
        };
        let (sequence, switch) = parse(record(2, 6, 41, 52));
        let switch = switch.unwrap();
        assert_eq!(sequence, 41);
        assert_eq!(
            (switch.edge, switch.context, switch.pid),
            (Edge::Start, 52, 526)
        );
        assert_eq!(switch.at_ns, 1_764_659_640_123_456_789);
        assert_eq!(parse(record(2, 7, 42, 52)).1.unwrap().edge, Edge::End);
        assert!(parse(record(2, 5, 43, 52)).1.is_none());
        assert!(parse(record(1, 6, 44, 52)).1.is_none());
    }

    #[test]
    fn no_driver_is_an_error() {
        let empty = std::env::temp_dir().join("ghost-rm-no-such-directory");
        let gpu = Gpu {
            instance: 0,
            minor: 0,
        };
        let error = ContextSwitches::open(&empty, AllocForm::WithRights, gpu).unwrap_err();
        assert!(matches!(error, MeterError::Session(_)));
    }
}
