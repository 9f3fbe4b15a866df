//! Tenants that do what `ghost-load` does not: this program itself, started again under the filter.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ghost_rm::abi::memory::{MEMORY_INFO, MemoryParams, Wrapper};
use ghost_rm::abi::{Alloc, ControlArgs, iowr};
use ghost_rm::{AllocForm, Control, Object, Status};
use ghost_standin::tenant::Tenant as Program;

use super::host::{GIB, Host, MIB, until};

/// Where the stand-in is, for a tenant.
const DEV: &str = "GHOST_TEST_DEV";

/// Runs the ignored test `name` of this program in container `a`, and gives what it printed.
fn run(host: &Host, name: &str, change: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            &format!("tenants::{name}"),
            "--ignored",
            "--nocapture",
        ])
        .env(DEV, host.dev());
    change(&mut command);
    let socket = super::host::filtered(&mut command);
    command.stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    host.adopt("a", super::host::listener(&socket));
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{name}: {said}");
    said
}

fn open() -> Program {
    let dev = PathBuf::from(std::env::var_os(DEV).expect("run by another test"));
    Program::open(&dev, 0).unwrap()
}

fn status<T>(done: Result<T, ghost_rm::RmError>) -> Status {
    done.map_or_else(|error| error.status().unwrap(), |_| Status::OK)
}

#[test]
fn a_flag_for_administrators_is_refused_to_a_tenant_that_is_root() {
    let Some(host) = Host::start(1) else { return };
    run(&host, "asks_for_an_administrators_flag", |_| {});
}

#[test]
#[ignore = "a tenant of another test"]
fn asks_for_an_administrators_flag() {
    let tenant = open();
    let mut params = tenant.memory_params(2 * MIB);
    params.attr2 |= MemoryParams::PAGE_OFFLINING_OFF;
    let refused = status(tenant.alloc_with(AllocForm::WithRights, &mut params));
    assert_eq!(refused, Status::INSUFFICIENT_PERMISSIONS);
    assert_eq!(status(tenant.alloc(2 * MIB)), Status::OK);
}

#[test]
fn what_was_checked_is_what_is_done() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "rewrites_the_size_while_the_call_waits", |_| {});
    let seen = host.usage().seen;
    let peak = seen.containers[&super::host::name("a")][&host.gpu(0)]
        .peak
        .0;
    assert!((2 * MIB..=GIB).contains(&peak), "{peak}");
}

#[test]
#[ignore = "a tenant of another test"]
fn rewrites_the_size_while_the_call_waits() {
    let tenant = open();
    let mut params = tenant.memory_params(2 * MIB);
    let at = (&raw mut params.size) as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let size = at as *mut u64;
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the parameters outlive the scope; that others write them meanwhile is
                // what is tried.
                unsafe {
                    size.write_volatile(8 * GIB);
                    size.write_volatile(2 * MIB);
                }
            }
        });
        let mut done_for = (0, 0);
        for _ in 0..500 {
            let made = tenant.alloc_with(AllocForm::WithRights, &mut params);
            match made {
                Ok(memory) => {
                    done_for.0 += 1;
                    tenant.free(memory).unwrap();
                }
                Err(error) => {
                    assert_eq!(error.status(), Some(Status::NO_MEMORY));
                    done_for.1 += 1;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(done_for.0 > 0 && done_for.1 > 0, "{done_for:?}");
    });
}

#[test]
fn calls_that_are_not_the_drivers_or_are_wrapped_or_have_bad_addresses() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "makes_odd_calls", |_| {});
    let notes = host.usage().notes;
    for named in ["class 0x82", "control 0x20801303", "ioctl 0x2b"] {
        let told = notes.iter().filter(|note| note.contains(named)).count();
        assert_eq!(told, 1, "{named}: {notes:?}");
    }
}

#[test]
#[ignore = "a tenant of another test"]
fn makes_odd_calls() {
    let tenant = open();
    let mut params = tenant.memory_params(2 * GIB);
    let mut call = Alloc {
        root: tenant.client().0,
        parent: tenant.device().0,
        new: 0x77,
        class: 0x40,
        params: (&raw mut params) as u64,
        ..Alloc::default()
    };
    let ioctl = |fd: i32, request: u64, at: u64| {
        // SAFETY: what the address is of is alive, or is for the other side to notice.
        match unsafe { libc::ioctl(fd, request as _, at) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
        }
    };
    let control = tenant.fd().as_raw_fd();
    let alloc = iowr(0x2B, size_of::<Alloc>());
    // On another file the kernel answers.
    let null = File::open("/dev/null").unwrap();
    let at = (&raw mut call) as u64;
    assert_eq!(ioctl(null.as_raw_fd(), alloc, at), Err(libc::ENOTTY));
    assert_eq!(ioctl(null.as_raw_fd(), alloc, 8), Err(libc::ENOTTY));
    assert_eq!(ioctl(-1, alloc, at), Err(libc::EBADF));
    // Direction and type mean nothing to the driver.
    for request in [alloc, alloc & 0x3FFF_00FF, iowr(0xD3, 16)] {
        let mut wrapper = Wrapper {
            cmd: 0x2B,
            size: 48,
            argument: at,
        };
        let at = match request as u8 {
            0xD3 => (&raw mut wrapper) as u64,
            _ => at,
        };
        assert_eq!(ioctl(control, request, at), Ok(()), "{request:#x}");
        assert_eq!(Status(call.status), Status::NO_MEMORY, "{request:#x}");
        call.status = 0;
    }
    for wrong in [0, 8, u64::MAX] {
        assert_eq!(
            ioctl(control, alloc, wrong),
            Err(libc::EFAULT),
            "{wrong:#x}"
        );
        call.params = wrong;
        let bad = ioctl(control, alloc, (&raw mut call) as u64);
        assert!(bad == Err(libc::EFAULT), "{bad:?}");
    }
    // Neither rights, nor the classes of memory that are not known here.
    params.size = 2 * MIB;
    call.params = (&raw mut params) as u64;
    let rights = 1_u64;
    call.rights = (&raw const rights) as u64;
    assert_eq!(ioctl(control, alloc, (&raw mut call) as u64), Ok(()));
    assert_eq!(Status(call.status), Status::NOT_SUPPORTED);
    call.rights = 0;
    call.class = 0x82;
    assert_eq!(ioctl(control, alloc, (&raw mut call) as u64), Ok(()));
    assert_eq!(Status(call.status), Status::NOT_SUPPORTED);
    call.class = 0x40;
    assert_eq!(ioctl(control, alloc, (&raw mut call) as u64), Ok(()));
    assert_eq!(Status(call.status), Status::OK);
    assert_eq!(params.size, 2 * MIB);
    // A question in a form that this branch is not known to have.
    let mut entries = [0_u32; 4];
    let mut question = ControlArgs {
        client: tenant.client().0,
        object: tenant.subdevice().0,
        cmd: MEMORY_INFO,
        params: entries.as_mut_ptr() as u64,
        params_size: 16,
        ..ControlArgs::default()
    };
    let at = (&raw mut question) as u64;
    assert_eq!(
        ioctl(control, iowr(0x2A, size_of::<ControlArgs>()), at),
        Ok(())
    );
    assert_eq!(Status(question.status), Status::NOT_SUPPORTED);
    // Another's client is not on this file.
    call.root += 0x100;
    assert_eq!(ioctl(control, alloc, (&raw mut call) as u64), Ok(()));
    assert_eq!(Status(call.status), Status::INVALID_CLIENT);
    tenant.free(Object(0x77)).unwrap();
}

#[test]
fn a_call_that_is_made_again_on_another_file_frees_no_charge() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "repeats_on_another_file", |_| {});
}

#[test]
#[ignore = "a tenant of another test"]
fn repeats_on_another_file() {
    let tenant = open();
    let dev = PathBuf::from(std::env::var_os(DEV).unwrap());
    let node = dev.join("nvidiactl");
    let other = File::options().read(true).write(true).open(node).unwrap();
    let mut params = tenant.memory_params(600 * MIB);
    let mut alloc = |fd: BorrowedFd<'_>| {
        let handle = Object(0x77);
        let (client, device) = (tenant.client(), tenant.device());
        let form = AllocForm::WithRights;
        let params = Some(&mut params);
        status(Control::new(fd).alloc(form, client, device, handle, 0x40, params))
    };
    assert_eq!(alloc(tenant.fd()), Status::OK);
    assert_ne!(alloc(other.as_fd()), Status::OK);
    assert_eq!(status(tenant.alloc(600 * MIB)), Status::NO_MEMORY);
    // On its own file it is taken for one whose answer was lost.
    assert_eq!(alloc(tenant.fd()), Status::OK);
    assert_eq!(status(tenant.alloc(600 * MIB)), Status::NO_MEMORY);
    tenant.free(Object(0x77)).unwrap();
    assert_eq!(status(tenant.alloc(600 * MIB)), Status::OK);
}

#[test]
fn signals_lose_and_double_nothing() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "allocates_under_signals", |_| {});
    until("charges are gone", || host.current("a") == 0);
    assert_eq!(host.standin.memory_used(0), 0);
}

#[test]
#[ignore = "a tenant of another test"]
fn allocates_under_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let tenant = open();
    // SAFETY: the handler does nothing; the structures live in this frame.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()),
            0
        );
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: 300,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()),
            0
        );
    }
    for _ in 0..500 {
        let memory = tenant.alloc(600 * MIB).unwrap();
        assert_eq!(status(tenant.alloc(600 * MIB)), Status::NO_MEMORY);
        tenant.free(memory).unwrap();
    }
}

#[test]
fn a_tenant_need_not_be_root() {
    use std::os::unix::process::CommandExt;
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "holds_to_its_limit", |command| {
        _ = command.uid(65534).gid(65534)
    });
}

#[test]
#[ignore = "a tenant of another test"]
fn holds_to_its_limit() {
    let mut tenant = open();
    tenant.context().unwrap();
    assert_eq!(status(tenant.alloc(GIB)), Status::NO_MEMORY);
    assert_eq!(status(tenant.alloc(2 * MIB)), Status::OK);
    assert_eq!(tenant.memory_info().unwrap()[0], GIB);
}

#[test]
fn a_program_that_executes_another_one_is_known_as_that_one() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    // On the first thread, whose number outlives an exec.
    run(&host, "executes_itself", |command| {
        _ = command.arg("--test-threads=1")
    });
}

#[test]
#[ignore = "a tenant of another test"]
fn executes_itself() {
    use std::os::unix::process::CommandExt;
    const AGAIN: &str = "GHOST_TEST_AGAIN";
    holds_to_its_limit();
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(std::env::args().skip(1));
    match std::env::var(AGAIN).as_deref() {
        Err(_) => run.env(AGAIN, "1"),
        // With other rights, too.
        Ok("1") => run.env(AGAIN, "2").uid(65534).gid(65534),
        Ok(_) => return,
    };
    panic!("{}", run.exec());
}

#[test]
fn a_call_that_takes_too_long_is_answered_and_others_go_on_meanwhile() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    run(&host, "keeps_the_broker_waiting", |_| {});
    let usage = host.usage();
    assert_eq!(usage.counts.late, 1);
    assert!(usage.notes[0].contains("EIO"), "{:?}", usage.notes);
}

#[test]
#[ignore = "a tenant of another test"]
fn keeps_the_broker_waiting() {
    let tenant = open();
    // A page whose reader waits until this process fills it, which it never does.
    let page = 4096;
    // SAFETY: a new mapping; the descriptor is made and given structures as linux/userfaultfd.h
    // has them, alive for the calls.
    let address = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = libc::mmap(std::ptr::null_mut(), page, protection, flags, -1, 0);
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        let mut api = [0xAA_u64, 0, 0];
        assert_eq!(libc::ioctl(fd, 0xC018_AA3F, api.as_mut_ptr()), 0);
        let mut register = [address as u64, page as u64, 1, 0];
        assert_eq!(libc::ioctl(fd, 0xC020_AA00, register.as_mut_ptr()), 0);
        address as u64
    };
    let fd = tenant.fd().as_raw_fd();
    let kept = std::thread::spawn(move || {
        // SAFETY: the address is of a mapping that lives as long as the process.
        let rc = unsafe { libc::ioctl(fd, iowr(0x2A, 32) as _, address) };
        (rc, io::Error::last_os_error().raw_os_error())
    });
    let mut rounds = 0_u64;
    while !kept.is_finished() {
        let memory = tenant.alloc(2 * MIB).unwrap();
        tenant.free(memory).unwrap();
        rounds += 1;
    }
    assert!(rounds > 100, "{rounds}");
    assert_eq!(kept.join().unwrap(), (-1, Some(libc::EIO)));
}

/// What a call costs its caller: `cargo nextest run --release --run-ignored all --no-capture cost`.
#[test]
#[ignore = "prints numbers and asserts none"]
fn cost_of_a_call() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    let plain = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tenants::makes_many_calls",
            "--ignored",
            "--nocapture",
        ])
        .env(DEV, host.dev())
        .output()
        .unwrap();
    println!("without: {}", String::from_utf8_lossy(&plain.stdout));
    println!("with: {}", run(&host, "makes_many_calls", |_| {}));
    let counts = host.usage().counts;
    let each = |ns: u64, n: u64| ns as f64 / 1e3 / n as f64;
    println!(
        "{counts:?}: {:.1} us in the broker for each call, {:.1} us of it without the driver",
        each(counts.spent_ns, counts.notifications),
        each(counts.spent_ns - counts.driver_ns, counts.notifications)
    );
}

#[test]
#[ignore = "a tenant of another test"]
fn makes_many_calls() {
    const N: u32 = 5000;
    let mut tenant = open();
    let group = tenant.context().unwrap();
    let time = |what: &str, f: &mut dyn FnMut()| {
        let begin = std::time::Instant::now();
        (0..N).for_each(|_| f());
        println!(
            "{what}: {:.1} us",
            begin.elapsed().as_secs_f64() * 1e6 / f64::from(N)
        );
    };
    let client = tenant.client();
    time("control", &mut || {
        _ = tenant.rm().get_timeslice(client, group).unwrap();
    });
    time("memory info", &mut || {
        _ = tenant.memory_info().unwrap();
    });
    time("alloc and free", &mut || {
        let memory = tenant.alloc(2 * MIB).unwrap();
        tenant.free(memory).unwrap();
    });
}
