//! Threads of others, and work with their rights.

mod common;

use std::fs;
use std::io::Seek;
use std::os::fd::AsRawFd;

use common::{COMMAND, fork, ioctl, tenant, until};
use ghost_notify::{
    Credentials, Memory, ProcError, ProcId, Thread, as_tenant, as_tenant_lasting, own_rights,
};

fn is_root() -> bool {
    // SAFETY: takes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// What `/proc` says of this very thread.
fn own(key: &str) -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line[key.len()..].trim().to_owned()
}

#[test]
fn memory_is_read_and_written_where_the_call_says() {
    let mut buffer = *b"question";
    let at = buffer.as_mut_ptr() as u64;
    let mut tenant = tenant(|| {
        let result = ioctl(999, COMMAND, buffer.as_mut_ptr() as u64);
        // SAFETY: `buffer` is ours, and was written by another process.
        let now = unsafe { std::ptr::read_volatile(&raw const buffer) };
        i32::from(result != 0 || now != *b"answered")
    });
    let call = tenant.call();
    let thread = Thread::open(call.tid).unwrap();
    let memory = Memory::open(call.tid).unwrap();
    assert!(tenant.listener.still_waits(call.id));
    let arg = call.ioctl().unwrap().arg;
    // A fork has its memory where its parent has it.
    assert_eq!(arg, at);
    let mut read = [0; 8];
    memory.read(arg, &mut read).unwrap();
    assert_eq!(&read, b"question");
    let mut read = [0; 8];
    Memory::peek(call.tid, arg, &mut read).unwrap();
    assert_eq!(&read, b"question");
    memory.write(arg, b"answered").unwrap();
    assert_eq!(&buffer, b"question", "another process's memory was written");
    for nowhere in [0, 0xFFFF_8000_0000_0000, u64::MAX] {
        let error = memory.read(nowhere, &mut read).unwrap_err();
        assert!(matches!(error, ProcError::System { .. }), "{error:?}");
        let error = memory.write(nowhere, &read).unwrap_err();
        assert!(matches!(error, ProcError::System { .. }), "{error:?}");
        let error = Memory::peek(call.tid, nowhere, &mut read).unwrap_err();
        assert!(matches!(error, ProcError::System { .. }), "{error:?}");
    }
    tenant.listener.answer(call.id, Ok(0)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
    assert!(!thread.is_alive());
    assert!(memory.read(arg, &mut read).is_err());
    let gone = Memory::open(call.tid).unwrap_err();
    assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
    let gone = Memory::peek(call.tid, arg, &mut read).unwrap_err();
    assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
}

#[test]
fn memory_opened_before_an_exec_is_not_the_next_program_s() {
    // Another thread may exec while one waits, and the new program has the
    // leader's number.
    let mut buffer = *b"question";
    let mut tenant = tenant(|| {
        std::thread::spawn(|| {
            let argv = [c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null()];
            std::thread::sleep(std::time::Duration::from_millis(50));
            // SAFETY: a list of C strings that ends with null.
            unsafe { libc::execv(c"/bin/sleep".as_ptr(), argv.as_ptr()) };
        });
        ioctl(999, COMMAND, buffer.as_mut_ptr() as u64) as i32
    });
    let call = tenant.call();
    let thread = Thread::open(call.tid).unwrap();
    let memory = Memory::open(call.tid).unwrap();
    let Some(held) = thread.memory() else {
        assert!(
            !tells_parents(),
            "it is its parent's fork, and shares nothing"
        );
        return;
    };
    let arg = call.ioctl().unwrap().arg;
    held.write(arg, b"answered").unwrap();
    until("it runs sleep", || {
        fs::read(format!("/proc/{}/comm", tenant.child.pid)).unwrap() == b"sleep\n"
    });
    assert!(!tenant.listener.still_waits(call.id));
    assert!(memory.read(arg, &mut [0; 8]).is_err());
    let gone = memory.write(arg, b"attacked").unwrap_err();
    assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
    let gone = held.write(arg, b"attacked").unwrap_err();
    assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
    // The process is the same, and held still.
    assert!(thread.is_alive());
    assert_eq!(thread.process(), ProcId::of_pid(tenant.child.pid).unwrap());
    tenant.child.kill();
    tenant.child.wait();
}

/// Whether this kernel tells a pidfd's parent: Linux 6.13.
fn tells_parents() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

#[test]
fn memory_that_another_process_shares_is_not_held() {
    extern "C" fn waits(_: *mut libc::c_void) -> libc::c_int {
        // SAFETY: takes nothing.
        unsafe { libc::pause() }
    }
    let mut stack = vec![0_u128; 4096];
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: the stack lives until the child is gone, and the child only waits.
    let pid = unsafe {
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        libc::clone(waits, top.cast(), flags, std::ptr::null_mut())
    };
    let thread = Thread::open(pid).unwrap();
    assert!(thread.memory().is_none());
    // SAFETY: these take integers, and one null pointer.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
    }
}

#[test]
fn more_is_read_up_to_the_pages_end() {
    #[repr(align(4096))]
    struct Pages([u8; 8192]);
    let mut pages = Box::new(Pages([0; 8192]));
    pages
        .0
        .iter_mut()
        .zip(0_u64..)
        .for_each(|(byte, n)| *byte = (n % 251) as u8);
    let base = pages.0.as_ptr() as u64;
    // SAFETY: takes nothing.
    let tid = unsafe { libc::gettid() };
    for (from, least, room, read) in [
        (0, 32, 512, 512),
        (4000, 32, 512, 96),
        (4064, 32, 512, 32),
        (4080, 32, 512, 32),
        (4000, 96, 96, 96),
        (100, 0, 8, 8),
    ] {
        let mut into = [0; 512];
        let into = &mut into[..room];
        let got = Memory::peek_ahead(tid, base + from, least, into).unwrap();
        assert_eq!(got, read, "{from} {least} {room}");
        let from = from as usize;
        assert_eq!(into[..got], pages.0[from..from + got]);
        assert!(into[got..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_thread_is_told_from_its_process() {
    let mut tenant = tenant(|| {
        let thread = std::thread::spawn(|| ioctl(999, COMMAND, 0));
        let done = thread.join().ok() == Some(3);
        i32::from(!done || ioctl(999, COMMAND, 0) != 4)
    });
    let call = tenant.call();
    let thread = Thread::open(call.tid).unwrap();
    assert_eq!(thread.tid(), call.tid);
    assert_ne!(thread.tid(), tenant.child.pid);
    assert_eq!(thread.process(), ProcId::of_pid(tenant.child.pid).unwrap());
    assert!(thread.is_alive());
    tenant.listener.answer(call.id, Ok(3)).unwrap();
    let call = tenant.call();
    let leader = Thread::open(call.tid).unwrap();
    // Joined: the thread is gone, its process is not.
    until("the thread is gone", || !thread.is_alive());
    assert!(matches!(
        thread.with_fd(0, |_| ()),
        Err(ProcError::Gone { .. })
    ));
    assert!(matches!(thread.credentials(), Err(ProcError::Gone { .. })));
    assert!(leader.is_alive());
    assert_eq!(leader.process(), thread.process());
    tenant.listener.answer(call.id, Ok(4)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn the_descriptors_are_the_thread_s_own() {
    let (mut file, path) = temporary();
    let fd = file.as_raw_fd();
    let mut tenant = tenant(|| {
        let thread = std::thread::spawn(move || {
            // SAFETY: takes an integer; this thread has its own table then.
            if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
                return 0;
            }
            // SAFETY: only this thread's table is changed.
            unsafe { libc::dup2(0, fd) };
            ioctl(fd, COMMAND, 0)
        });
        let other = thread.join().ok();
        i32::from(other != Some(5) || ioctl(fd, COMMAND, 0) != 6)
    });
    let is_file = |thread: &Thread| {
        let at = file.stream_position().unwrap();
        let moved = thread.with_fd(fd, |fd| {
            // SAFETY: takes integers only.
            unsafe { libc::lseek(fd.as_raw_fd(), at as i64 + 1, libc::SEEK_SET) };
        });
        moved.unwrap();
        file.stream_position().unwrap() == at + 1
    };
    let mut is_file = is_file;
    let call = tenant.call();
    assert!(!is_file(&Thread::open(call.tid).unwrap()));
    tenant.listener.answer(call.id, Ok(5)).unwrap();
    let call = tenant.call();
    let leader = Thread::open(call.tid).unwrap();
    assert!(is_file(&leader));
    assert!(matches!(
        leader.with_fd(998, |_| ()),
        Err(ProcError::NoSuchFd { fd: 998, .. })
    ));
    tenant.listener.answer(call.id, Ok(6)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
    fs::remove_file(path).unwrap();
}

fn temporary() -> (fs::File, std::path::PathBuf) {
    let name = format!("ghost-notify-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true);
    (file.open(&path).unwrap(), path)
}

#[test]
fn no_thread_has_these_numbers() {
    for tid in [0, -1, i32::MIN, i32::MAX] {
        let error = Thread::open(tid).unwrap_err();
        assert!(matches!(error, ProcError::Gone { .. }), "{tid}: {error:?}");
    }
}

#[test]
fn credentials_are_the_effective_ones() {
    if !is_root() {
        return;
    }
    let mut tenant = tenant(|| {
        // SAFETY: these take integers only.
        unsafe {
            if libc::setegid(1234) != 0 || libc::seteuid(1000) != 0 {
                return 1;
            }
        }
        i32::from(ioctl(999, COMMAND, 0) != 0)
    });
    let call = tenant.call();
    let thread = Thread::open(call.tid).unwrap();
    let expected = Credentials {
        uid: 1000,
        gid: 1234,
    };
    assert_eq!(thread.credentials().unwrap(), expected);
    tenant.listener.answer(call.id, Ok(0)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn a_thread_with_other_rights_is_to_be_opened_anew() {
    if !is_root() {
        return;
    }
    let mut tenant = tenant(|| {
        let first = ioctl(999, COMMAND, 0);
        // SAFETY: takes an integer.
        let changed = unsafe { libc::seteuid(1000) };
        i32::from(first != 0 || changed != 0 || ioctl(999, COMMAND, 0) != 0)
    });
    let call = tenant.call();
    let before = Thread::open(call.tid).unwrap();
    assert_eq!(before.credentials().unwrap().uid, 0);
    tenant.listener.answer(call.id, Ok(0)).unwrap();
    let call = tenant.call();
    let gone = before.credentials().unwrap_err();
    assert!(matches!(gone, ProcError::Gone { .. }), "{gone:?}");
    let now = Thread::open(call.tid).unwrap();
    assert_eq!(now.credentials().unwrap().uid, 1000);
    tenant.listener.answer(call.id, Ok(0)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn rights_are_a_tenant_s_on_this_thread_and_ours_again() {
    if !is_root() {
        return;
    }
    let rights = || ["CapEff:", "CapPrm:", "Uid:"].map(own);
    let before = rights();
    assert_ne!(before[0], "0000000000000000", "root without capabilities");
    for (uid, gid) in [(0, 0), (1000, 1234), (65534, 65534), (0, 5)] {
        let other = || {
            let seen = std::thread::spawn(|| ["CapEff:", "CapPrm:", "Uid:"].map(own));
            seen.join().unwrap()
        };
        // A thread that was there before, to look at meanwhile.
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let bystander = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                tell.send(["CapEff:", "CapPrm:", "Uid:"].map(own)).unwrap();
            }
        });
        let (seen, beside) = as_tenant(Credentials { uid, gid }, || {
            ask.send(()).unwrap();
            (["CapEff:", "Uid:", "Gid:"].map(own), told.recv().unwrap())
        })
        .unwrap();
        assert_eq!(seen[0], "0000000000000000");
        assert_eq!(seen[1], format!("0\t{uid}\t0\t{uid}"));
        assert_eq!(seen[2], format!("0\t{gid}\t0\t{gid}"));
        assert_eq!(beside, before);
        assert_eq!(rights(), before);
        // Kept for the next call; the others are what it could not rid itself of.
        assert_eq!(own("Gid:"), format!("0\t{gid}\t0\t{gid}"));
        assert_eq!(other(), before);
        drop(ask);
        bystander.join().unwrap();
    }
}

#[test]
fn rights_that_stay_down_are_had_back_when_they_are_needed() {
    if !is_root() {
        return;
    }
    let mut tenant = tenant(|| {
        // SAFETY: these take integers only. What was root's is root's file but for the last.
        let changed = unsafe { libc::setuid(1000) | libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        i32::from(changed != 0 || ioctl(999, COMMAND, 0) != 0)
    });
    let call = tenant.call();
    let (all, ptrace) = (own("CapEff:"), "0000000000080000");
    let root = Credentials { uid: 0, gid: 0 };
    let seen = || own("CapEff:");
    assert!(!own_rights());
    assert_eq!(as_tenant_lasting(root, seen).unwrap(), ptrace);
    assert_eq!(own("CapEff:"), ptrace);
    assert_eq!(as_tenant_lasting(root, seen).unwrap(), ptrace);
    // Another's file.
    Memory::open(call.tid).unwrap();
    assert_eq!(own("CapEff:"), all);
    tenant.listener.answer(call.id, Ok(0)).unwrap();
    assert_eq!(tenant.child.wait(), 0);
    // Another user has none at all, and all are back after it.
    let other = Credentials { uid: 1000, gid: 0 };
    for strict in [false, true] {
        assert_eq!(as_tenant_lasting(root, seen).unwrap(), ptrace);
        let within = match strict {
            true => as_tenant(other, seen),
            false => as_tenant_lasting(other, seen),
        };
        assert_eq!(within.unwrap(), "0000000000000000");
        assert_eq!(own("CapEff:"), all);
    }
    assert_eq!(as_tenant_lasting(root, seen).unwrap(), ptrace);
    assert!(own_rights());
    assert_eq!(own("CapEff:"), all);
}

#[test]
fn what_root_may_a_tenant_may_not() {
    if !is_root() {
        return;
    }
    // A mode that nobody but an administrator passes.
    let (_, path) = temporary();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    fs::set_permissions(&path, mode).unwrap();
    for uid in [0, 1000] {
        let who = Credentials { uid, gid: uid };
        // Root's user without capabilities owns the file, and may not either.
        let opened = as_tenant(who, || fs::File::open(&path).map(drop)).unwrap();
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        fs::File::open(&path).unwrap();
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn rights_come_back_after_a_panic() {
    if !is_root() {
        return;
    }
    let before = ["CapEff:", "Uid:"].map(own);
    let who = Credentials {
        uid: 1000,
        gid: 1000,
    };
    let panicked = std::panic::catch_unwind(|| as_tenant(who, || panic!("within")));
    assert!(panicked.is_err());
    assert_eq!(["CapEff:", "Uid:"].map(own), before);
}

#[test]
fn without_the_right_nothing_is_called() {
    if !is_root() {
        return;
    }
    let mut child = fork(|| {
        // SAFETY: takes an integer only.
        if unsafe { libc::setuid(1000) } != 0 {
            return 1;
        }
        let who = Credentials {
            uid: 1001,
            gid: 1001,
        };
        match as_tenant(who, || ()) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => 0,
            _ => 2,
        }
    });
    assert_eq!(child.wait(), 0);
}
