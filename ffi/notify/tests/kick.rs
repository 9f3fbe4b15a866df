//! A call whose answerer is gone is asked anew.

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use common::{COMMAND, NUMBER, fork, hand_over, install, ioctl, tenant, until};
use ghost_notify::kick::{kick, waiting};
use ghost_notify::{Delivered, Listener, Received, pass};

#[test]
fn a_call_that_a_dead_supervisor_received_comes_to_another() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (_hold, stop) = UnixStream::pair().unwrap();
    // The program counts what it sees: one call, one answer, no signal.
    let mut child = fork(|| {
        if hand_over(&theirs, install()).is_none() {
            return 99;
        }
        i32::from(ioctl(999, COMMAND, 0) != 17 || ioctl(999, COMMAND, 1) != 18)
    });
    let (_, mut fds) = pass::receive(&ours, &mut [0]).unwrap();
    let listener = Listener::new(fds.remove(0)).unwrap();
    // A supervisor that receives the call and dies without an answer.
    let mut supervisor = fork(|| match listener.receive(stop.as_fd()) {
        Ok(Received::Call(_)) => 0,
        _ => 1,
    });
    pass::send(&ours, b"g", &[]).unwrap();
    assert_eq!(supervisor.wait(), 0);

    until("it waits", || waiting(&[NUMBER]).contains(&child.pid));
    assert!(!waiting(&[NUMBER + 1]).contains(&child.pid));
    kick(child.pid).unwrap();
    for (argument, answer) in [(0, 17), (1, 18)] {
        let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() else {
            panic!("the call did not come anew");
        };
        assert_eq!((call.tid, call.ioctl().unwrap().arg), (child.pid, argument));
        let delivered = listener.answer(call.id, Ok(answer)).unwrap();
        assert_eq!(delivered, Delivered::Yes);
    }
    assert_eq!(child.wait(), 0);
    assert!(!waiting(&[NUMBER]).contains(&child.pid));
}

#[test]
fn a_thread_that_is_no_leader_can_be_kicked_and_again() {
    let mut tenant = tenant(|| {
        let thread = std::thread::spawn(|| ioctl(999, COMMAND, 0));
        i32::from(thread.join().ok() != Some(23))
    });
    let mut call = tenant.call();
    assert_ne!(call.tid, tenant.child.pid);
    for _ in 0..20 {
        let before = call.id;
        kick(call.tid).unwrap();
        call = tenant.call();
        assert_ne!(call.id, before);
    }
    assert_eq!(
        tenant.listener.answer(call.id, Ok(23)).unwrap(),
        Delivered::Yes
    );
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn who_is_traced_already_is_kicked_by_signals() {
    let mut tenant = tenant(|| i32::from(ioctl(999, COMMAND, 0) != 29));
    let first = tenant.call();
    // A debugger that lets every stop go on.
    let pid = tenant.child.pid;
    let mut tracer = fork(|| {
        // SAFETY: these take integers, and write one.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) != 0 {
                return 1;
            }
            let mut status = 0;
            while libc::waitpid(pid, &raw mut status, libc::__WALL) == pid {
                if !libc::WIFSTOPPED(status) {
                    return 0;
                }
                let request = match status >> 16 {
                    libc::PTRACE_EVENT_STOP if libc::WSTOPSIG(status) != libc::SIGTRAP => {
                        libc::PTRACE_LISTEN
                    }
                    _ => libc::PTRACE_CONT,
                };
                let signal = match status >> 16 {
                    0 => libc::WSTOPSIG(status),
                    _ => 0,
                };
                libc::ptrace(request, pid, 0, signal);
            }
        }
        0
    });
    until("it is traced", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains(&format!("TracerPid:\t{}", tracer.pid))
    });
    kick(pid).unwrap();
    let second = tenant.answer(29);
    assert_ne!(first.id, second.id);
    assert_eq!(tracer.wait(), 0);
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn a_kick_beside_the_mark_is_not_noticed() {
    let mut tenant = tenant(|| {
        // SAFETY: sleeps.
        let left = unsafe { libc::sleep(1) };
        i32::from(left != 0)
    });
    let mut running = fork(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    kick(tenant.child.pid).unwrap();
    kick(running.pid).unwrap();
    assert_eq!(tenant.child.wait(), 0);
    running.kill();
    assert_eq!(running.wait(), -libc::SIGKILL);
    let gone = kick(running.pid).unwrap_err();
    assert!(
        matches!(gone.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)),
        "{gone}"
    );
}

#[test]
fn a_filter_that_waits_for_kills_only_cannot_be_kicked() {
    // As a runtime's profile may have it; ours has not.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let program = ghost_notify::filter::program(&[NUMBER]);
    let mut child = fork(|| {
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        let flags =
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        // SAFETY: the kernel reads the program; the descriptor is new.
        let listener = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let fd = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            );
            (fd >= 0).then(|| std::os::fd::FromRawFd::from_raw_fd(fd as i32))
        };
        if hand_over(&theirs, listener).is_none() {
            return 99;
        }
        i32::from(ioctl(999, COMMAND, 0) != 37)
    });
    let (_, mut fds) = pass::receive(&ours, &mut [0]).unwrap();
    let listener = Listener::new(fds.remove(0)).unwrap();
    pass::send(&ours, b"g", &[]).unwrap();
    let (_hold, stop) = UnixStream::pair().unwrap();
    let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() else {
        panic!("no call");
    };
    until("it waits", || waiting(&[NUMBER]).contains(&child.pid));
    let refused = kick(child.pid).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
    listener.answer(call.id, Ok(37)).unwrap();
    assert_eq!(child.wait(), 0);
}
