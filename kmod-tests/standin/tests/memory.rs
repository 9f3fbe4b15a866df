//! Device memory as the driver gives, counts and tells it (H200, driver 580.159.04), asked for by
//! real processes.

mod common;

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ghost_notify::{PidFd, as_tenant};
use ghost_rm::abi::memory::{CLASS_DEVICE_MEMORY, MemoryInfoEntry, MemoryParams, Wrapper};
use ghost_rm::abi::{self, Alloc, ControlArgs, iowr};
use ghost_rm::card::{self, Card, Lookup, Pid, Query};
use ghost_rm::tenant::{self as calls, Call, HeapFunction};
use ghost_rm::{AllocForm, Client, Object, Session, Status};
use ghost_standin::tenant::{CONTEXT_BYTES, Tenant, TenantError};

use common::{Mounted, mount, telemetry, until};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TOTAL: u64 = 80 * GIB;
/// What a context takes of the card beyond what is counted to its process.
const OVERHEAD: u64 = 89 << 16;

/// `ghost-load mem` that is told what to do, killed when dropped.
struct Mem {
    child: Child,
    steps: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Mem {
    fn start(on: &Mounted) -> Self {
        let mut child = Self::command(on)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Mem {
            steps: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn command(on: &Mounted) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghost-load"));
        command.arg("mem").arg("--dev").arg(on.standin.dir());
        command
    }

    /// The answer to a step, after its first word.
    fn ask(&mut self, step: &str) -> String {
        writeln!(self.steps, "{step}").unwrap();
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let (_, answer) = line
            .trim_end_matches('\n')
            .split_once(' ')
            .expect("an answer");
        answer.to_owned()
    }

    /// Its client and device.
    fn client(&mut self) -> (Client, Object) {
        let answer = self.ask("client");
        let words: Vec<_> = answer.split(' ').collect();
        (Client(handle(words[0])), Object(handle(words[2])))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn handle(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn open(on: &Mounted) -> Tenant {
    Tenant::open(on.standin.dir(), 0).unwrap()
}

fn status<T>(done: Result<T, impl Into<TenantError>>) -> Result<T, Status> {
    done.map_err(|e| e.into().status().unwrap())
}

#[test]
fn memory_comes_in_whole_pages_and_goes_with_its_object_its_parents_and_its_file() {
    let Some(on) = mount(2) else { return };
    let used = || on.standin.memory_used(0);
    let mut tenant = open(&on);
    for (bytes, given) in [(1, 2), (2 << 20, 2), ((2 << 20) + 1, 4), (0x420000, 6)] {
        for form in [AllocForm::WithRights, AllocForm::Short] {
            let mut params = tenant.memory_params(bytes);
            let memory = tenant.alloc_with(form, &mut params).unwrap();
            assert_eq!((params.size, params.limit), (given * MIB, given * MIB - 1));
            assert_eq!(
                params.attr & MemoryParams::PAGE_SIZE,
                MemoryParams::PAGE_HUGE
            );
            assert_eq!(used(), given * MIB);
            tenant.free(memory).unwrap();
            assert_eq!(status(tenant.free(memory)), Err(Status::INVALID_OBJECT_OLD));
            assert_eq!(used(), 0);
        }
        let memory = tenant.heap_alloc(bytes).unwrap();
        assert_eq!(used(), given * MIB);
        tenant.free(memory).unwrap();
    }
    let params = MemoryParams {
        attr: MemoryParams::PAGE_BIG,
        ..tenant.memory_params(1)
    };
    tenant
        .alloc_with(AllocForm::Short, &mut { params })
        .unwrap();
    assert_eq!(used(), 64 << 10);

    tenant.context().unwrap();
    let pid = std::process::id();
    assert_eq!(on.standin.memory_of(pid, 0), CONTEXT_BYTES + (64 << 10));
    assert_eq!(used(), CONTEXT_BYTES + (64 << 10) + OVERHEAD);
    assert_eq!(on.standin.memory_used(1), 0);
    // With the device above them.
    tenant
        .rm()
        .free(tenant.client(), Object(0), tenant.device())
        .unwrap();
    assert_eq!(used(), 0);

    let second = open(&on);
    second.alloc(GIB).unwrap();
    let root = second.client();
    second.rm().free(root, Object(0), root.as_object()).unwrap();
    assert_eq!(used(), 0, "with the client");
    let third = open(&on);
    third.alloc(GIB).unwrap();
    drop(third);
    until("the last close", || used() == 0);
}

#[test]
fn what_the_card_has_not_is_refused_and_what_it_has_is_given_after() {
    let Some(on) = mount(1) else { return };
    let mut mem = Mem::start(&on);
    assert_eq!(mem.ask("context"), "ok");
    let left = TOTAL - CONTEXT_BYTES - OVERHEAD;
    let told = format!("total={TOTAL} free={left} ram={TOTAL}");
    assert_eq!(mem.ask("info"), told);
    assert_eq!(
        mem.ask("old-info"),
        format!("{told} heap-total={TOTAL} heap-free={left}")
    );
    let made = mem.ask("alloc=30Gx3");
    let handles: Vec<_> = made.split(' ').collect();
    assert_eq!(handles[2..], ["out", "of", "memory"]);
    assert_eq!(mem.ask("heap=30G"), "out of memory");
    assert_eq!(mem.ask("alloc=18446744073709551615"), "out of memory");
    assert_eq!(mem.ask(&format!("free={}", handles[0])), "ok");
    assert!(mem.ask("heap=30G").starts_with("0x"));
    assert_eq!(mem.ask("free=all"), "ok");
    assert_eq!(mem.ask("info"), told);
}

#[test]
fn a_duplicate_is_the_same_memory_until_the_last_of_its_names_is_gone() {
    let Some(on) = mount(2) else { return };
    let (mut owner, mut other) = (Mem::start(&on), Mem::start(&on));
    let held = |of: &Mem| on.standin.memory_of(of.pid(), 0) / MIB;
    let (client, _) = owner.client();
    let memory = owner.ask("alloc=256M");
    let name = format!("import={client}:{memory}");
    let copy = other.ask(&name);
    assert_eq!((held(&owner), held(&other)), (256, 0));
    assert_eq!(on.standin.memory_used(0), 256 * MIB, "counted once");
    let second = other.ask(&name);
    assert_ne!(copy, second);

    assert_eq!(owner.ask(&format!("free={memory}")), "ok");
    assert_eq!(
        (held(&owner), held(&other)),
        (0, 256),
        "it is the importer's now"
    );
    assert!(other.ask(&name).starts_with("refused: 0x57"));
    assert_eq!(other.ask(&format!("free={copy}")), "ok");
    assert_eq!(held(&other), 256);
    assert_eq!(other.ask(&format!("free={second}")), "ok");
    assert_eq!(on.standin.memory_used(0), 0);

    let memory = owner.ask("alloc=64M");
    other.ask(&format!("import={client}:{memory}"));
    owner.kill();
    until("the owner's end", || held(&other) == 64);
    assert!(other.ask(&name).starts_with("refused: 0x23"));
    other.kill();
    until("the importer's end", || on.standin.memory_used(0) == 0);
}

#[test]
fn processes_are_told_with_what_each_holds_as_telemetry_has_it() {
    let Some(on) = mount(2) else { return };
    let (mut a, mut b, mut other) = (Mem::start(&on), Mem::start(&on), Mem::start(&on));
    assert_eq!(a.ask("processes"), "");
    assert_eq!(
        (a.ask("context"), b.ask("context")),
        ("ok".into(), "ok".into())
    );
    a.ask("alloc=1G");
    // Without a context it computes nothing.
    other.ask("alloc=2G");
    let mut wanted = [(a.pid(), CONTEXT_BYTES + GIB), (b.pid(), CONTEXT_BYTES)];
    wanted.sort_unstable();
    let told = wanted
        .map(|(pid, bytes)| format!("{pid}:{bytes}"))
        .join(" ");
    assert_eq!(b.ask("processes"), told);
    let all = telemetry(&on);
    for ((pid, bytes), process) in wanted.iter().zip(all["processes"].as_array().unwrap()) {
        assert_eq!(
            (&process["pid"], &process["memory"]),
            (&(*pid).into(), &(*bytes).into())
        );
    }
    let used = 2 * (CONTEXT_BYTES + OVERHEAD) + 3 * GIB;
    assert_eq!(all["gpus"][0]["memory_used"], used);
    assert_eq!(all["gpus"][0]["memory_total"], TOTAL);
}

/// A supervisor's view of `ghost-load mem`: the descriptor of its control file for a moment.
fn with_control<R>(of: &Mem, f: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", of.pid())).unwrap();
    let mut fds = fds.flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("nvidiactl"))
    });
    let fd = fds.next().unwrap().file_name();
    let held = PidFd::open_pid(of.pid().cast_signed()).unwrap();
    held.with_fd(fd.to_str().unwrap().parse().unwrap(), f)
        .unwrap()
}

fn bytes<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: the arguments have no gaps between their fields, so each byte is written.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }.to_vec()
}

fn cmd<T>(number: u8) -> u32 {
    iowr(number, size_of::<T>()) as u32
}

/// Where the tenant of these tests has its parameters: nowhere that this process has anything.
const THEIRS: u64 = 0x7000_0000_1000;

fn memory_call(client: Client, device: Object, new: u32, size: u64) -> (Vec<u8>, Vec<u8>) {
    let call = Alloc {
        root: client.0,
        parent: device.0,
        new,
        class: CLASS_DEVICE_MEMORY,
        params: THEIRS,
        ..Alloc::default()
    };
    let params = MemoryParams {
        owner: client.0,
        attr: 0x1800_0000,
        size,
        ..MemoryParams::default()
    };
    (bytes(&call), bytes(&params))
}

#[test]
fn a_supervisor_does_a_tenants_calls_on_its_descriptor() {
    let Some(on) = mount(1) else { return };
    let mut tenant = Mem::start(&on);
    let (client, device) = tenant.client();
    let held = || on.standin.memory_of(tenant.child.id(), 0) / MIB;
    let alloc = cmd::<Alloc>(abi::ESC_RM_ALLOC);
    let (mut call, mut params) = memory_call(client, device, 0, 3 * MIB);
    let sent = call.clone();
    with_control(&tenant, |fd| {
        let done = calls::perform(fd, alloc, &mut call, Some(&mut params)).unwrap();
        assert_eq!(done, Status::OK);
        assert_eq!(calls::status_of(alloc, &call), Some(Status::OK));
    });
    assert_eq!(held(), 4, "it is the tenant's");
    assert_eq!(calls::device_memory(&params).unwrap().held(), 4 * MIB);
    let object = calls::object_of(alloc, &call).unwrap();
    assert_ne!(object, Object(0), "the driver picked one");
    let Call::Alloc(answered) = calls::parse(alloc, &call).unwrap() else {
        unreachable!()
    };
    assert_eq!(answered.params_at, THEIRS);
    let mut same = call.clone();
    same[8..12].copy_from_slice(&sent[8..12]);
    assert_eq!(same, sent, "nothing else is changed");

    // A supervisor asks with a session of its own what is there, and on which GPU.
    let own = Session::open(on.standin.dir(), AllocForm::WithRights).unwrap();
    let exists = |object| own.exists(client, object).unwrap();
    assert!(exists(object) && exists(client.as_object()));
    assert!(!exists(Object(0x1234)));
    assert!(!own.exists(Client(0xC1D0_9999), object).unwrap());
    let gpu = own.attached().unwrap()[0].id;
    with_control(&tenant, |fd| {
        let control = ghost_rm::Control::new(fd);
        assert_eq!(
            control.class_of(client, object).unwrap(),
            CLASS_DEVICE_MEMORY
        );
        assert_eq!(control.parent_of(client, object).unwrap(), device);
        let subdevice = Object(device.0 + 1);
        for parent in [device, subdevice] {
            assert_eq!(control.gpu_of_parent(client, parent).unwrap(), Some(gpu));
        }
        control.free(client, device, subdevice).unwrap();
        assert_eq!(control.gpu_of_parent(client, device).unwrap(), None);
        assert!(control.gpu_of_parent(client, Object(0x1234)).is_err());

        let free = abi::Free {
            root: client.0,
            parent: device.0,
            old: object.0,
            status: 0,
        };
        let mut call = bytes(&free);
        let number = cmd::<abi::Free>(abi::ESC_RM_FREE);
        assert_eq!(
            calls::perform(fd, number, &mut call, None).unwrap(),
            Status::OK
        );
        let again = calls::perform(fd, number, &mut call, None).unwrap();
        assert_eq!(again, Status::INVALID_OBJECT_OLD);

        // What is refused comes back as it was sent.
        let (mut call, mut params) = memory_call(client, device, 0x5E00_0000, 81 * GIB);
        let before = params.clone();
        let done = calls::perform(fd, alloc, &mut call, Some(&mut params)).unwrap();
        assert_eq!((done, params), (Status::NO_MEMORY, before));
    });
    assert_eq!(held(), 0);
    assert!(!exists(object));
    // The descriptor is the tenant's own: on another's its client is not there.
    let mut other = Mem::start(&on);
    assert_ne!(other.client().0, client);
    with_control(&other, |fd| {
        let (mut call, mut params) = memory_call(client, device, 0, MIB);
        let done = calls::perform(fd, alloc, &mut call, Some(&mut params)).unwrap();
        assert_eq!(done, Status::INVALID_CLIENT);
    });
}

#[test]
fn a_supervisor_makes_answers_of_the_drivers() {
    let Some(on) = mount(1) else { return };
    let (mut tenant, mut other) = (Mem::start(&on), Mem::start(&on));
    assert_eq!(
        (tenant.ask("context"), other.ask("context")),
        ("ok".into(), "ok".into())
    );
    let (client, device) = tenant.client();
    let version: ghost_rm::DriverVersion =
        std::fs::read_to_string(on.standin.dir().join("proc/driver/nvidia/version"))
            .unwrap()
            .parse()
            .unwrap();
    let branch = version.branch().unwrap();
    let own = Card {
        total: 24 * GIB,
        free: 10 * GIB,
        pids: vec![Pid {
            host: tenant.pid(),
            seen: 7,
        }],
    };
    let ask = |number: u32, size: usize, params: Vec<u8>| {
        let call = ControlArgs {
            client: client.0,
            object: device.0 + 1,
            cmd: number,
            params: THEIRS,
            params_size: size as u32,
            ..ControlArgs::default()
        };
        let Lookup::Ours(query) = card::query(branch, number, size as u32) else {
            panic!("{number:#x}")
        };
        let (asked, mut params, mut argument) = (params.clone(), params, bytes(&call));
        card::prepare(query, &mut params, &own);
        let control = cmd::<ControlArgs>(abi::ESC_RM_CONTROL);
        let done = with_control(&tenant, |fd| {
            calls::perform(fd, control, &mut argument, Some(&mut params)).unwrap()
        });
        assert_eq!(done, Status::OK);
        assert_eq!(argument, bytes(&call), "the tenant's address is back");
        card::rewrite(query, &asked, &mut params, &own);
        params
    };
    let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());

    let entries = [MemoryInfoEntry::HEAP_SIZE, MemoryInfoEntry::HEAP_FREE]
        .map(|index| [index.to_ne_bytes(), [0; 4]].concat());
    let mut params = [2u32.to_ne_bytes().to_vec(), entries.concat()].concat();
    params.resize(branch.memory_info, 0);
    let told = ask(0x2080_1303, branch.memory_info, params);
    assert_eq!((word(&told, 8), word(&told, 16)), (24 << 20, 10 << 20));

    let head = [
        2u32.to_ne_bytes().to_vec(),
        vec![0; 4],
        THEIRS.to_ne_bytes().to_vec(),
    ]
    .concat();
    let list = Query::MemoryInfoList.list(&head).unwrap();
    assert_eq!((list.at, list.size), (THEIRS, 16));
    let told = ask(0x2080_1301, 16, [head.clone(), entries.concat()].concat());
    assert_eq!((word(&told, 20), word(&told, 28)), (24 << 20, 10 << 20));
    assert_eq!(told[..16], head, "and the one inside");

    let mut params = vec![0; 3812];
    params[4..8].copy_from_slice(&ghost_standin::CLASS_COMPUTE.to_ne_bytes());
    let told = ask(0x2080_018D, 3812, params);
    assert_eq!(
        (word(&told, 8), word(&told, 12), word(&told, 16)),
        (1, 7, 0)
    );

    let mut params = vec![0; 14408];
    params[0] = 2;
    params[8] = 7;
    params[80..84].copy_from_slice(&other.pid().to_ne_bytes());
    let told = ask(0x2080_018E, 14408, params);
    let held = |at: usize| u64::from_ne_bytes(told[at + 24..at + 32].try_into().unwrap());
    assert_eq!((word(&told, 8), held(8)), (7, CONTEXT_BYTES));
    assert_eq!(
        (word(&told, 80), held(80)),
        (other.pid(), 0),
        "another's is not told"
    );
}

#[test]
fn a_flag_for_administrators_goes_by_the_capabilities_of_the_thread_that_calls() {
    let Some(on) = mount(1) else { return };
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let tenant = open(&on);
    let privileged = || {
        let mut params = tenant.memory_params(MIB);
        params.attr2 |= MemoryParams::PAGE_OFFLINING_OFF;
        status(tenant.alloc_with(AllocForm::WithRights, &mut params)).map(drop)
    };
    assert_eq!(privileged(), Ok(()));
    let root = ghost_notify::Credentials { uid: 0, gid: 0 };
    for who in [
        root,
        ghost_notify::Credentials {
            uid: 1000,
            gid: 1000,
        },
    ] {
        let refused = as_tenant(who, privileged).unwrap();
        assert_eq!(refused, Err(Status::INSUFFICIENT_PERMISSIONS));
        let plain = as_tenant(who, || status(tenant.alloc(MIB)).map(drop)).unwrap();
        assert_eq!(plain, Ok(()));
    }
    assert_eq!(privileged(), Ok(()), "they are back");
    // Others are refused to anybody.
    let refused = |change: fn(&mut MemoryParams)| {
        let mut params = tenant.memory_params(MIB);
        change(&mut params);
        status(tenant.alloc_with(AllocForm::Short, &mut params)).unwrap_err()
    };
    assert_eq!(refused(|p| p.internal_flags = 1), Status::INVALID_ARGUMENT);
    assert_eq!(refused(|p| p.size = 0), Status::INVALID_ARGUMENT);
    assert_eq!(refused(|p| p.attr |= 1 << 25), Status::INVALID_ARGUMENT);
    assert_eq!(
        refused(|p| p.flags |= MemoryParams::VIRTUAL),
        Status::INVALID_ARGUMENT
    );
    assert_eq!(refused(|p| p.owner = 0), Status::INVALID_OWNER);
}

#[test]
fn a_wrapped_call_is_the_call() {
    let Some(on) = mount(1) else { return };
    let tenant = open(&on);
    let (mut call, mut params) = memory_call(tenant.client(), tenant.device(), 77, MIB);
    call[16..24].copy_from_slice(&(params.as_mut_ptr() as u64).to_ne_bytes());
    let wrapped = |cmd: u32, size: u32, at: u64| {
        let mut wrapper = Wrapper {
            cmd,
            size,
            argument: at,
        };
        let request = iowr(0xD3, size_of::<Wrapper>());
        // SAFETY: the stand-in reads and writes the arguments from outside; they are alive.
        let rc = unsafe { libc::ioctl(tenant.fd().as_raw_fd(), request as _, &mut wrapper) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().raw_os_error())
        }
    };
    let at = call.as_mut_ptr() as u64;
    assert_eq!(wrapped(0x2B, 48, at), Ok(()));
    let alloc = cmd::<Alloc>(abi::ESC_RM_ALLOC);
    assert_eq!(calls::status_of(alloc, &call), Some(Status::OK));
    assert_eq!(on.standin.memory_used(0), 2 * MIB);
    assert_eq!(wrapped(0x2B, 48, at), Ok(()));
    assert_eq!(
        calls::status_of(alloc, &call),
        Some(Status::INVALID_OBJECT_NEW)
    );
    assert_eq!(wrapped(0x2B, 47, at), Err(Some(libc::EINVAL)));
    assert_eq!(wrapped(0xD3, 16, at), Err(Some(libc::EINVAL)));
    assert_eq!(wrapped(0x2B, 48, 0x10), Err(Some(libc::EFAULT)));
}

#[test]
fn the_oldest_allocation_tells_the_card_and_takes_nothing() {
    let Some(on) = mount(1) else { return };
    let mut tenant = Mem::start(&on);
    let (client, device) = tenant.client();
    let old = abi::memory::OldAlloc {
        root: client.0,
        parent: device.0,
        new: 0x99,
        class: CLASS_DEVICE_MEMORY,
        memory: THEIRS,
        fd: 3,
        ..abi::memory::OldAlloc::default()
    };
    let number = cmd::<abi::memory::OldAlloc>(abi::memory::ESC_RM_ALLOC_MEMORY);
    let mut call = bytes(&old);
    let done = with_control(&tenant, |fd| {
        calls::perform(fd, number, &mut call, None).unwrap()
    });
    assert_eq!(done, Status::OK);
    let told = abi::memory::OldAlloc {
        limit: TOTAL - 1,
        ..old
    };
    assert_eq!(call, bytes(&told));
    assert_eq!(on.standin.memory_used(0), 0);
}

#[test]
fn the_older_heap_control_through_a_supervisor() {
    let Some(on) = mount(1) else { return };
    let mut tenant = Mem::start(&on);
    let (client, device) = tenant.client();
    let number = cmd::<abi::memory::Heap>(abi::memory::ESC_RM_VID_HEAP_CONTROL);
    let perform = |call: &mut Vec<u8>| {
        with_control(&tenant, |fd| {
            calls::perform(fd, number, call, None).unwrap()
        })
    };
    let mut call = vec![0; size_of::<abi::memory::Heap>()];
    let put = |call: &mut Vec<u8>, at: usize, value: u32| {
        call[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    };
    for (at, value) in [
        (0, client.0),
        (4, device.0),
        (8, 2),
        (40, client.0),
        (88, 5 << 20),
    ] {
        put(&mut call, at, value);
    }
    put(&mut call, 120, 0x1000);
    assert_eq!(perform(&mut call), Status::OK);
    let Call::Heap(heap) = calls::parse(number, &call).unwrap() else {
        unreachable!()
    };
    let HeapFunction::Alloc { memory, .. } = heap.function else {
        unreachable!()
    };
    assert_eq!(memory.held(), 6 * MIB);
    assert_eq!(on.standin.memory_used(0), 6 * MIB);
    let object = calls::object_of(number, &call).unwrap();
    put(&mut call, 8, 3);
    put(&mut call, 44, object.0);
    put(&mut call, 48, 0);
    assert_eq!(perform(&mut call), Status::INVALID_ARGUMENT);
    put(&mut call, 48, 1);
    assert_eq!(perform(&mut call), Status::OK);
    assert_eq!(on.standin.memory_used(0), 0);
    put(&mut call, 8, 19);
    let refused = with_control(&tenant, |fd| calls::perform(fd, number, &mut call, None));
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn storms_that_are_killed_leave_nothing() {
    let Some(on) = mount(1) else { return };
    for _ in 0..3 {
        let storm = |_| {
            let mut command = Mem::command(&on);
            command.args(["context", "storm=600"]).process_group(0);
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let mut storms: Vec<Child> = (0..6).map(storm).collect();
        let pids: Vec<u32> = storms.iter().map(Child::id).collect();
        let all = || {
            pids.iter()
                .all(|&pid| on.standin.memory_of(pid, 0) > CONTEXT_BYTES)
        };
        until("storms", all);
        for storm in &mut storms {
            storm.kill().unwrap();
            storm.wait().unwrap();
        }
        until("the end", || on.standin.memory_used(0) == 0);
    }
    let out = Mem::command(&on)
        .args(["storm=0.2", "info"])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let (storm, info) = text.trim().split_once('\n').unwrap();
    assert!(storm.starts_with("storm allocated=") && !storm.contains("allocated=0 "));
    assert_eq!(info, format!("info total={TOTAL} free={TOTAL} ram={TOTAL}"));
}
