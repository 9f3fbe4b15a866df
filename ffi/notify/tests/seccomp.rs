//! The filter and its listener, on real system calls of real children.

mod common;

use std::arch::asm;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use common::{COMMAND, NUMBER, fork, hand_over, install, ioctl, ioctl_by, tenant};
use ghost_notify::filter::{self, InstallError};
use ghost_notify::{Delivered, Ioctl, Listener, NotifyError, Received, pass};

const ARCH_X86_64: u32 = 0xC000_003E;
const ARCH_I386: u32 = 0x4000_0003;

/// i386's ioctl from a 64-bit program.
fn ioctl_i386(fd: u32, command: u32, argument: u32) -> i32 {
    let result: i32;
    // SAFETY: the filter answers in the kernel's place. rbx, which the
    // compiler keeps for itself, is saved; older kernels clobber r8 to r11.
    unsafe {
        asm!(
            "push rbx",
            "mov ebx, {fd:e}",
            "int 0x80",
            "pop rbx",
            fd = in(reg) fd,
            inlateout("eax") 54 => result,
            in("ecx") command,
            in("edx") argument,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

#[test]
fn only_the_number_is_compared() {
    let mut tenant = tenant(|| {
        // Other numbers, and the number elsewhere than in the low byte, reach
        // the kernel, which has no descriptor 999.
        for command in [0xC030_462A, 0xC02B_4600, 0x2B00_2B00, 0x2B << 32] {
            if ioctl(999, command, 0) != -i64::from(libc::EBADF) {
                return 1;
            }
        }
        // dup is no ioctl, whatever its arguments.
        if ioctl_by(libc::SYS_dup, 999, COMMAND, 0) != -i64::from(libc::EBADF) {
            return 2;
        }
        for (place, command) in [0x2B, 0x462B, COMMAND, 0xFFFF_FF2B].into_iter().enumerate() {
            if ioctl(999, command, 7) != place as i64 + 40 {
                return 3;
            }
        }
        0
    });
    for (place, command) in [0x2B, 0x462B, COMMAND, 0xFFFF_FF2B].into_iter().enumerate() {
        let call = tenant.answer(place as i64 + 40);
        assert_eq!(call.tid, tenant.child.pid);
        assert_eq!((call.arch, call.nr), (ARCH_X86_64, 16));
        assert_eq!(
            call.ioctl(),
            Some(Ioctl {
                fd: 999,
                cmd: command as u32,
                arg: 7
            })
        );
    }
    assert!(matches!(tenant.next(), Received::Ended));
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn high_halves_of_arguments_do_not_matter() {
    let mut tenant = tenant(|| i32::from(ioctl(5, 0xDEAD_BEEF_0000_002B, u64::MAX) != 1));
    let call = tenant.answer(1);
    let ioctl = call.ioctl().unwrap();
    assert_eq!((ioctl.fd, ioctl.cmd, ioctl.arg), (5, 0x2B, u64::MAX));
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn calls_of_32_bit_programs_are_notified() {
    let mut tenant = tenant(|| {
        if ioctl_i386(999, 0xC030_462A, 0) == 41 {
            return 1;
        }
        i32::from(ioctl_i386(999, 0xC030_462B, 0xFFFF_F000) != 42)
    });
    let call = tenant.answer(42);
    assert_eq!((call.arch, call.nr), (ARCH_I386, 54));
    // An address of 32 bits: not sign-extended.
    assert_eq!(
        call.ioctl(),
        Some(Ioctl {
            fd: 999,
            cmd: 0xC030_462B,
            arg: 0xFFFF_F000
        })
    );
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn i386_s_numbers_are_not_taken_for_another_table_s() {
    // 54 is setsockopt in x86-64's, 16 is lchown in i386's.
    let mut tenant = tenant(|| i32::from(ioctl_by(54, 999, COMMAND, 0) != -9));
    assert!(matches!(tenant.next(), Received::Ended));
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn calls_of_x32_programs_are_notified() {
    // The filter runs before the kernel finds out whether it has the call, so
    // this needs no kernel that does.
    const X32: i64 = 0x4000_0000;
    let mut tenant = tenant(|| {
        for (place, nr) in [X32 | 514, X32 | 16, 514].into_iter().enumerate() {
            if ioctl_by(nr, 999, COMMAND, 8) != place as i64 + 50 {
                return 1 + place as i32;
            }
        }
        0
    });
    for place in 0..3 {
        let call = tenant.answer(50 + place);
        assert_eq!(call.arch, ARCH_X86_64);
        assert_eq!(
            call.ioctl(),
            Some(Ioctl {
                fd: 999,
                cmd: COMMAND as u32,
                arg: 8
            })
        );
    }
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn every_number_can_be_asked_for_at_once() {
    let all: Vec<u8> = (0..=255).collect();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = fork(|| {
        if hand_over(&theirs, filter::install(&all).ok()).is_none() {
            return 99;
        }
        (0..=255)
            .map(|number| i32::from(ioctl(9, number, 0) != 3))
            .sum()
    });
    let (_, mut fds) = pass::receive(&ours, &mut [0]).unwrap();
    let listener = Listener::new(fds.remove(0)).unwrap();
    pass::send(&ours, b"g", &[]).unwrap();
    let (_hold, stop) = UnixStream::pair().unwrap();
    for number in 0..=255 {
        let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() else {
            panic!("number {number} was not notified");
        };
        assert_eq!(call.ioctl().unwrap().cmd, number);
        listener.answer(call.id, Ok(3)).unwrap();
    }
    assert_eq!(child.wait(), 0);
}

#[test]
fn forks_and_execs_inherit() {
    let mut tenant = tenant(|| {
        let mut child = fork(|| i32::from(ioctl(999, COMMAND, 1) != 61));
        if child.wait() != 0 {
            return 1;
        }
        let ran = Command::new("/proc/self/exe")
            .args(["--exact", "executed", "--ignored", "--quiet"])
            .stdout(Stdio::null())
            .status();
        match ran {
            Ok(status) if status.success() => 0,
            _ => 2,
        }
    });
    let call = tenant.answer(61);
    assert_ne!(call.tid, tenant.child.pid);
    let call = tenant.answer(62);
    assert_eq!(call.ioctl().unwrap().arg, 2);
    assert_eq!(tenant.child.wait(), 0);
}

/// Part of [`forks_and_execs_inherit`].
#[test]
#[ignore = "run under a filter by another test"]
fn executed() {
    assert_eq!(ioctl(999, COMMAND, 2), 62);
}

#[test]
fn threads_that_were_there_before_are_filtered() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = fork(|| {
        let (go, wait) = mpsc::channel();
        let before = std::thread::spawn(move || {
            let () = wait.recv().unwrap();
            ioctl(999, COMMAND, 3)
        });
        if hand_over(&theirs, install()).is_none() {
            return 99;
        }
        let _ = go.send(());
        i32::from(before.join().ok() != Some(71))
    });
    let (_, mut fds) = pass::receive(&ours, &mut [0]).unwrap();
    let listener = Listener::new(fds.remove(0)).unwrap();
    pass::send(&ours, b"g", &[]).unwrap();
    let (_hold, stop) = UnixStream::pair().unwrap();
    let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() else {
        panic!("the thread was not filtered");
    };
    assert_ne!(call.tid, child.pid);
    listener.answer(call.id, Ok(71)).unwrap();
    assert_eq!(child.wait(), 0);
}

#[test]
fn a_second_listener_is_nested() {
    let mut tenant = tenant(|| match filter::install(&[NUMBER]) {
        // The first still holds.
        Err(InstallError::Nested) => i32::from(ioctl(999, COMMAND, 0) != 81),
        _ => 1,
    });
    tenant.answer(81);
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn without_the_right_privileges_are_given_up_for_good() {
    // SAFETY: these take integers only.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root, to tell the two cases apart");
        return;
    }
    let no_new_privs = || {
        // SAFETY: takes integers only.
        unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) }
    };
    let mut with = fork(|| install().map_or(99, |_| no_new_privs()));
    assert_eq!(with.wait(), 0);
    let mut without = fork(|| {
        // SAFETY: takes an integer only.
        if unsafe { libc::setuid(1000) } != 0 {
            return 98;
        }
        install().map_or(99, |_| no_new_privs())
    });
    assert_eq!(without.wait(), 1);
}

#[test]
fn the_three_answers() {
    let (read, write) = std::io::pipe().unwrap();
    let mut tenant = tenant(|| {
        // A pipe has no such command.
        let results = [
            ioctl(read.as_raw_fd(), COMMAND, 0),
            ioctl(read.as_raw_fd(), COMMAND, 0),
            ioctl(read.as_raw_fd(), COMMAND, 0),
        ];
        i32::from(results != [-25, 7_000_000_000, -12])
    });
    drop(write);
    let call = tenant.call();
    assert!(tenant.listener.still_waits(call.id));
    assert_eq!(tenant.listener.allow(call.id).unwrap(), Delivered::Yes);
    let call = tenant.call();
    let value = tenant.listener.answer(call.id, Ok(7_000_000_000));
    assert_eq!(value.unwrap(), Delivered::Yes);
    let call = tenant.call();
    let errno = tenant.listener.answer(call.id, Err(libc::ENOMEM));
    assert_eq!(errno.unwrap(), Delivered::Yes);
    assert!(matches!(tenant.next(), Received::Ended));
    assert!(!tenant.listener.still_waits(call.id));
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn an_answer_to_who_is_dead_is_not_delivered() {
    for answer in [None, Some(Ok(0)), Some(Err(libc::EIO))] {
        let mut tenant = tenant(|| ioctl(999, COMMAND, 0) as i32);
        let call = tenant.call();
        tenant.child.kill();
        assert_eq!(tenant.child.wait(), -libc::SIGKILL);
        assert!(!tenant.listener.still_waits(call.id));
        let delivered = match answer {
            None => tenant.listener.allow(call.id),
            Some(result) => tenant.listener.answer(call.id, result),
        };
        assert_eq!(delivered.unwrap(), Delivered::No);
        assert!(matches!(tenant.next(), Received::Ended));
    }
}

#[test]
fn a_signal_ends_the_wait_and_the_call_comes_anew() {
    // With a handler that asks for restarts, as the program would see of any
    // slow system call.
    extern "C" fn nothing(_: i32) {}
    let mut tenant = tenant(|| {
        // SAFETY: the handler does nothing; zeros are a mask and flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        i32::from(ioctl(999, COMMAND, 0) != 91)
    });
    let first = tenant.call();
    // SAFETY: takes integers only.
    unsafe { libc::kill(tenant.child.pid, libc::SIGUSR1) };
    let second = tenant.answer(91);
    assert_ne!(first.id, second.id);
    let late = tenant.listener.answer(first.id, Ok(1)).unwrap();
    assert_eq!(late, Delivered::No);
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn a_call_is_answered_once() {
    let mut tenant = tenant(|| {
        let first = ioctl(999, COMMAND, 0);
        i32::from(first != 1 || ioctl(999, COMMAND, 0) != 2)
    });
    let call = tenant.answer(1);
    tenant.answer(2);
    assert_eq!(
        tenant.listener.answer(call.id, Ok(3)).unwrap(),
        Delivered::No
    );
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn who_waits_for_calls_can_be_stopped() {
    let tenant = tenant(|| {
        std::thread::park();
        0
    });
    let (ours, stop) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let waiting = [0; 3].map(|_| scope.spawn(|| tenant.listener.receive(stop.as_fd())));
        pass::send(&ours, b"s", &[]).unwrap();
        for thread in waiting {
            let ended = thread.join().unwrap().unwrap();
            assert!(matches!(ended, Received::Stopped));
        }
    });
}

#[test]
fn two_threads_share_the_calls() {
    const CALLS: i64 = 200;
    let mut tenant = tenant(|| {
        let call = || (0..CALLS).all(|_| ioctl(999, COMMAND, 0) == 5);
        let other = std::thread::spawn(call);
        let own = call();
        i32::from(!own || other.join().ok() != Some(true))
    });
    let answered: i64 = std::thread::scope(|scope| {
        let threads = [0; 3].map(|_| {
            scope.spawn(|| {
                let mut count = 0;
                while let Received::Call(call) = tenant.next() {
                    tenant.listener.answer(call.id, Ok(5)).unwrap();
                    count += 1;
                }
                count
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(answered, 2 * CALLS);
    assert_eq!(tenant.child.wait(), 0);
}

#[test]
fn what_is_no_listener_is_refused() {
    // SAFETY: these make descriptors, the first with a name of ours.
    let fds: [OwnedFd; 2] = unsafe {
        [
            OwnedFd::from_raw_fd(libc::memfd_create(
                c"anon_inode:seccomp notify".as_ptr(),
                libc::MFD_CLOEXEC,
            )),
            OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)),
        ]
    };
    let (read, write) = std::io::pipe().unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let others = [read.into(), write.into(), socket.into(), null.into()];
    for fd in fds.into_iter().chain(others) {
        let raw = fd.as_raw_fd();
        match Listener::new(fd) {
            Err(NotifyError::NotAListener { fd, found }) => {
                assert_eq!(fd, raw);
                assert_ne!(found, "anon_inode:seccomp notify");
            }
            other => panic!("taken for a listener: {other:?}"),
        }
    }
}
