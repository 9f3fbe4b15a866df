//! take: takes GPU memory in each way that the driver API has, one step at a time, so that
//! another process can compare what was charged with what the driver says.
//!
//! It reads a line for each step and answers with one: `take KIND BYTES` and `free` (what was
//! taken last), `info`, `time BYTES N`, `copy BYTES N`, `share BYTES` (another process opens it) and `unshare`,
//! `slice US` (it sets the timeslice of its own channel groups, as a tenant that wants more would,
//! and tells how many there are and the longest that is in force), `quit`. An answer is
//! `CODE [NUMBER...]`, the code being CUDA's result. With the argument `kinds` it prints the kinds
//! and ends; with `least` it does its steps under the filter of a container, whose questions are
//! all answered yes by a process that looks at nothing. Driver API only.

use anyhow::{Context, Result, bail};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use ghost_notify::{Listener, Received, filter};
use ghost_rm::abi::CLASS_CHANNEL_GROUP;
use ghost_rm::tenant::NUMBERS;
use ghost_rm::{Client, Control, DriverVersion, Object, Session};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, fork};
use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{null, null_mut};
use std::time::Instant;

/// What [`take`] knows.
const KINDS: [&str; 11] = [
    "malloc",
    "pitch",
    "pool",
    "vmm",
    "array",
    "mipmapped",
    "managed",
    "host",
    "graph",
    "module",
    "stack",
];

/// What was taken, as the call that gives it back.
type Taken = Box<dyn FnOnce() -> CUresult>;

/// A result that is not success ends what is being done.
fn ok(result: CUresult) -> Result<(), CUresult> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(other),
    }
}

fn code(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

fn take(kind: &str, bytes: usize, stream: CUstream) -> Result<Taken, CUresult> {
    let mut at: CUdeviceptr = 0;
    match kind {
        "malloc" => {
            // SAFETY: a context is current; the pointer is to a local.
            ok(unsafe { sys::cuMemAlloc_v2(&mut at, bytes) })?;
            Ok(freeing(at))
        }
        "pitch" => {
            let (mut pitch, row) = (0, 1 << 20);
            let rows = bytes.div_ceil(row).max(1);
            // SAFETY: as above.
            ok(unsafe { sys::cuMemAllocPitch_v2(&mut at, &mut pitch, row, rows, 16) })?;
            Ok(freeing(at))
        }
        "pool" => pool(bytes, stream),
        "vmm" => vmm(bytes),
        "array" => array(bytes),
        "mipmapped" => mipmapped(bytes),
        "managed" => {
            // SAFETY: as above; 1 attaches it to all streams. The range was just allocated, and
            // setting it makes its pages resident on the GPU.
            unsafe {
                ok(sys::cuMemAllocManaged(&mut at, bytes, 1))?;
                ok(sys::cuMemsetD8_v2(at, 1, bytes))?;
                ok(sys::cuCtxSynchronize())?;
            }
            Ok(freeing(at))
        }
        "host" => {
            let mut host = null_mut();
            // SAFETY: as above.
            ok(unsafe { sys::cuMemHostAlloc(&mut host, bytes, 0) })?;
            // SAFETY: freed once.
            Ok(Box::new(move || unsafe { sys::cuMemFreeHost(host) }))
        }
        "graph" => graph(bytes, stream),
        "module" => module(bytes),
        "stack" => stack(bytes),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn freeing(at: CUdeviceptr) -> Taken {
    // SAFETY: `at` was allocated and is freed once, for the closure is.
    Box::new(move || unsafe { sys::cuMemFree_v2(at) })
}

/// From the device's default pool, which is trimmed after.
fn pool(bytes: usize, stream: CUstream) -> Result<Taken, CUresult> {
    let mut at = 0;
    // SAFETY: a context is current, and the stream is one of it.
    unsafe {
        ok(sys::cuMemAllocAsync(&mut at, bytes, stream))?;
        ok(sys::cuStreamSynchronize(stream))?;
    }
    // SAFETY: freed once; every device has a default pool.
    let free = move || unsafe {
        let mut pool = null_mut();
        ok(sys::cuMemFreeAsync(at, stream))?;
        ok(sys::cuStreamSynchronize(stream))?;
        ok(sys::cuDeviceGetDefaultMemPool(&mut pool, 0))?;
        ok(sys::cuMemPoolTrimTo(pool, 0))
    };
    Ok(Box::new(move || code(free())))
}

/// Memory created and mapped, its handle released while it is mapped.
fn vmm(bytes: usize) -> Result<Taken, CUresult> {
    let size = bytes.next_multiple_of(2 << 20);
    // SAFETY: integers, enums and pointers, for all of which zero is a value.
    let mut wanted: sys::CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let access = sys::CUmemAccessDesc {
        location: wanted.location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let (mut handle, mut at) = (0, 0);
    // SAFETY: a context is current; pointers are to locals; handles come from the calls before.
    unsafe {
        ok(sys::cuMemCreate(&mut handle, size, &wanted, 0))?;
        ok(sys::cuMemAddressReserve(&mut at, size, 0, 0, 0))?;
        ok(sys::cuMemMap(at, size, 0, handle, 0))?;
        ok(sys::cuMemSetAccess(at, size, &access, 1))?;
        ok(sys::cuMemRelease(handle))?;
    }
    // SAFETY: unmapped and given back once.
    let free = move || unsafe {
        ok(sys::cuMemUnmap(at, size))?;
        ok(sys::cuMemAddressFree(at, size))
    };
    Ok(Box::new(move || code(free())))
}

/// Rows of 4096 pixels of 16 bytes.
fn pixels(bytes: usize) -> sys::CUDA_ARRAY3D_DESCRIPTOR {
    sys::CUDA_ARRAY3D_DESCRIPTOR {
        Width: 4096,
        Height: bytes.div_ceil(4096 * 16).max(1),
        Depth: 0,
        Format: sys::CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 4,
        Flags: 0,
    }
}

fn array(bytes: usize) -> Result<Taken, CUresult> {
    let mut made = null_mut();
    // SAFETY: a context is current; pointers are to locals.
    ok(unsafe { sys::cuArray3DCreate_v2(&mut made, &pixels(bytes)) })?;
    // SAFETY: destroyed once.
    Ok(Box::new(move || unsafe { sys::cuArrayDestroy(made) }))
}

fn mipmapped(bytes: usize) -> Result<Taken, CUresult> {
    let mut made = null_mut();
    // Three levels take a little less than 4/3 of the first.
    let pixels = pixels(bytes / 4 * 3);
    // SAFETY: a context is current; pointers are to locals.
    ok(unsafe { sys::cuMipmappedArrayCreate(&mut made, &pixels, 3) })?;
    // SAFETY: destroyed once.
    let free = move || unsafe { sys::cuMipmappedArrayDestroy(made) };
    Ok(Box::new(free))
}

/// A graph that allocates as it runs.
fn graph(bytes: usize, stream: CUstream) -> Result<Taken, CUresult> {
    // SAFETY: integers, enums and pointers, for all of which zero is a value.
    let mut wanted: sys::CUDA_MEM_ALLOC_NODE_PARAMS =
        unsafe { MaybeUninit::zeroed().assume_init() };
    wanted.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = bytes;
    let (mut graph, mut node, mut ready) = (null_mut(), null_mut(), null_mut());
    // SAFETY: a context is current; pointers are to locals; handles come from the calls before.
    unsafe {
        ok(sys::cuGraphCreate(&mut graph, 0))?;
        ok(sys::cuGraphAddMemAllocNode(
            &mut node,
            graph,
            null(),
            0,
            &mut wanted,
        ))?;
        ok(sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0))?;
    }
    // SAFETY: as above; a launch that is refused leaves the pieces that it got in the graphs' pool.
    let launched = unsafe {
        ok(sys::cuGraphLaunch(ready, stream)).and_then(|()| ok(sys::cuStreamSynchronize(stream)))
    };
    if launched.is_err() {
        // SAFETY: nothing of the graph runs; it is destroyed once.
        unsafe {
            ok(sys::cuGraphExecDestroy(ready))?;
            ok(sys::cuGraphDestroy(graph))?;
            ok(sys::cuDeviceGraphMemTrim(0))?;
        }
    }
    launched?;
    let at = wanted.dptr;
    // SAFETY: freed and destroyed once; the graphs' own pool is given back after.
    let free = move || unsafe {
        ok(sys::cuMemFreeAsync(at, stream))?;
        ok(sys::cuStreamSynchronize(stream))?;
        ok(sys::cuGraphExecDestroy(ready))?;
        ok(sys::cuGraphDestroy(graph))?;
        ok(sys::cuDeviceGraphMemTrim(0))
    };
    Ok(Box::new(move || code(free())))
}

/// Code with a variable of that size.
fn module(bytes: usize) -> Result<Taken, CUresult> {
    let ptx = format!(
        ".version 6.4\n.target sm_60\n.address_size 64\n\
         .visible .global .align 16 .b8 big[{bytes}];\n\
         .visible .entry nothing()\n{{\nret;\n}}\n\0"
    );
    let mut made = null_mut();
    // SAFETY: the text ends with a zero byte.
    ok(unsafe { sys::cuModuleLoadData(&mut made, ptx.as_ptr().cast::<c_void>()) })?;
    // SAFETY: unloaded once.
    Ok(Box::new(move || unsafe { sys::cuModuleUnload(made) }))
}

/// So much stack for each thread that can be resident.
fn stack(bytes: usize) -> Result<Taken, CUresult> {
    let limit = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    // SAFETY: a context is current.
    ok(unsafe { sys::cuCtxSetLimit(limit, bytes) })?;
    // SAFETY: as above; 1 KiB is the default.
    Ok(Box::new(move || unsafe { sys::cuCtxSetLimit(limit, 1024) }))
}

/// Another process, which opens memory of this one.
struct Importer {
    child: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Importer {
    fn start() -> Result<Importer> {
        let mut child = Command::new(std::env::current_exe()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let ask = child.stdin.take().context("no pipe")?;
        let answer = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut importer = Importer { child, ask, answer };
        importer.line()?;
        Ok(importer)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.ask, "{line}")?;
        self.line()
    }

    fn end(mut self) -> Result<()> {
        writeln!(self.ask, "quit")?;
        self.child.wait()?;
        Ok(())
    }
}

/// Sets the timeslice of this process's channel groups: how many there are, and the longest
/// timeslice that is in force then, in microseconds.
fn slice(us: u64) -> Result<String> {
    /// CUDA's first handle, and how many a context needs.
    const HANDLES: std::ops::Range<u32> = 0x5C00_0000..0x5C00_0400;
    /// As many clients as are looked at below the newest: a process that just started is there.
    const CLIENTS: u32 = 256;
    let version = std::fs::read_to_string("/proc/driver/nvidia/version")?;
    let form = version.parse::<DriverVersion>()?.branch()?.alloc;
    let newest = Session::open(Path::new("/dev"), form)?.newest_client()?.0;
    let (mut groups, mut longest) = (0, 0);
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let path = entry?.path();
        if !std::fs::read_link(&path).is_ok_and(|to| to.ends_with("nvidiactl")) {
            continue;
        }
        let number: i32 = path
            .file_name()
            .context("no name")?
            .to_string_lossy()
            .parse()?;
        // SAFETY: libcuda's own descriptor, which it keeps open for the life of the process.
        let control = Control::new(unsafe { BorrowedFd::borrow_raw(number) });
        let own = |client: &Client| control.class_of(*client, client.as_object()).is_ok();
        for client in (newest.saturating_sub(CLIENTS)..newest)
            .map(Client)
            .filter(own)
        {
            let is_group =
                |group: &Object| control.class_of(client, *group).ok() == Some(CLASS_CHANNEL_GROUP);
            for group in HANDLES.map(Object).filter(is_group) {
                groups += 1;
                // A refusal is an answer too: what is in force tells.
                let _ = control.set_timeslice(client, group, us);
                longest = longest.max(control.get_timeslice(client, group)?);
            }
        }
    }
    Ok(format!("0 {groups} {longest}"))
}

struct Program {
    stream: CUstream,
    taken: Vec<Taken>,
    importer: Option<Importer>,
}

/// The median of copies from the host's memory to the device's, in microseconds.
fn copy(bytes: usize, n: usize) -> Result<String> {
    let (from, mut to) = (vec![1_u8; bytes], 0);
    let mut times = Vec::new();
    // SAFETY: a context is current; the pointer is to a local, and the copies are of as many bytes
    // as both have.
    let copied = unsafe {
        ok(sys::cuMemAlloc_v2(&mut to, bytes)).and_then(|()| {
            for _ in 0..n {
                let start = Instant::now();
                ok(sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), bytes))?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            ok(sys::cuMemFree_v2(to))
        })
    };
    Ok(format!("{} {}", said(copied), median(times)))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Program {
    /// A context on the first GPU, for the life of the program.
    fn start() -> Result<Program, CUresult> {
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: pointers are to locals; a stream with flag 1 does not wait for the default one.
        unsafe {
            ok(sys::cuInit(0))?;
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0))?;
            ok(sys::cuCtxSetCurrent(context))?;
            ok(sys::cuStreamCreate(&mut stream, 1))?;
        }
        Ok(Program {
            stream,
            taken: Vec::new(),
            importer: None,
        })
    }

    fn step(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            ["take", kind, bytes] => {
                let taken = take(kind, bytes.parse()?, self.stream);
                Ok(said(taken.map(|taken| self.taken.push(taken))))
            }
            ["free"] => {
                let free = self.taken.pop().context("nothing is taken")?;
                Ok(said(ok(free())))
            }
            ["info"] => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: a context is current; pointers are to locals.
                let asked = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
                Ok(format!("{} {free} {total}", said(ok(asked))))
            }
            ["time", bytes, n] => self.time(bytes.parse()?, n.parse()?),
            ["copy", bytes, n] => copy(bytes.parse()?, n.parse()?),
            ["share", bytes] => self.share(bytes.parse()?),
            ["unshare"] => {
                self.importer.take().context("nothing is shared")?.end()?;
                Ok("0".into())
            }
            ["slice", us] => slice(us.parse()?),
            ["open", hex] => open(hex),
            _ => bail!("{line:?} is no step"),
        }
    }

    /// The medians of cuMemAlloc and of cuMemFree, in microseconds.
    fn time(&self, bytes: usize, n: usize) -> Result<String> {
        let (mut takes, mut frees) = (Vec::new(), Vec::new());
        for _ in 0..n {
            let start = Instant::now();
            let taken = take("malloc", bytes, self.stream);
            takes.push(start.elapsed().as_secs_f64() * 1e6);
            let start = Instant::now();
            match taken.map(|free| ok(free())) {
                Ok(Ok(())) => frees.push(start.elapsed().as_secs_f64() * 1e6),
                Ok(Err(code)) | Err(code) => return Ok(said(Err(code))),
            }
        }
        Ok(format!("0 {} {}", median(takes), median(frees)))
    }

    /// Takes memory and has another process open it.
    fn share(&mut self, bytes: usize) -> Result<String> {
        let (mut at, mut handle) = (0, sys::CUipcMemHandle { reserved: [0; 64] });
        // SAFETY: a context is current; pointers are to locals.
        let made = unsafe {
            ok(sys::cuMemAlloc_v2(&mut at, bytes))
                .and_then(|()| ok(sys::cuIpcGetMemHandle(&mut handle, at)))
        };
        if made.is_err() {
            return Ok(said(made));
        }
        self.taken.push(freeing(at));
        let bytes = handle.reserved.iter().map(|b| b.cast_unsigned());
        let hex: String = bytes.map(|b| format!("{b:02x}")).collect();
        let mut importer = Importer::start()?;
        let answer = importer.ask(&format!("open {hex}"))?;
        self.importer = Some(importer);
        Ok(answer)
    }
}

/// Opens the memory of another process for the life of this one.
fn open(hex: &str) -> Result<String> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    for (byte, at) in handle.reserved.iter_mut().zip((0..).step_by(2)) {
        let digits = hex.get(at..at + 2).context("a short handle")?;
        *byte = u8::from_str_radix(digits, 16)?.cast_signed();
    }
    let mut at = 0;
    // SAFETY: a context is current; the pointer is to a local; 1 is the one flag there is.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut at, handle, 1) };
    Ok(said(ok(opened)))
}

fn said(result: Result<(), CUresult>) -> String {
    (code(result) as u32).to_string()
}

/// The least that a filter adds to a call: it is asked about, and nobody looks at it.
fn ask_in_vain() -> Result<()> {
    let listener = Listener::new(filter::install(NUMBERS)?)?;
    // SAFETY: this process has one thread.
    if let ForkResult::Parent { .. } = unsafe { fork() }? {
        return Ok(());
    }
    // It is under the filter itself, whose end it would wait for.
    set_pdeathsig(Signal::SIGKILL)?;
    let never = EventFd::new()?;
    while let Received::Call(call) = listener.receive(never.as_fd())? {
        listener.allow(call.id)?;
    }
    std::process::exit(0)
}

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("kinds") => {
            println!("{}", KINDS.join("\n"));
            return Ok(());
        }
        Some("least") => ask_in_vain()?,
        _ => {}
    }
    let mut out = std::io::stdout();
    let mut program = match Program::start() {
        Ok(program) => program,
        Err(code) => {
            writeln!(out, "{}", said(Err(code)))?;
            return Ok(());
        }
    };
    writeln!(out, "0 {}", std::process::id())?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        writeln!(out, "{}", program.step(&line)?)?;
    }
    Ok(())
}
