//! Descriptors through sockets.

mod common;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use common::fork;
use ghost_notify::pass::{self, MAX_FDS};

#[test]
fn bytes_and_descriptors_arrive_together() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut read, write) = std::io::pipe().unwrap();
    pass::send(&ours, b"hello", &[write.as_fd(), ours.as_fd()]).unwrap();
    drop(write);
    let mut buf = [0; 64];
    let (count, fds) = pass::receive(&theirs, &mut buf).unwrap();
    assert_eq!(&buf[..count], b"hello");
    let [write, _] = <[_; 2]>::try_from(fds).unwrap();
    // SAFETY: takes integers only.
    let flags = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    let mut write = std::fs::File::from(write);
    write.write_all(b"through").unwrap();
    drop(write);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}

#[test]
fn as_many_as_the_kernel_takes_and_no_more() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let many = vec![ours.as_fd(); MAX_FDS];
    pass::send(&ours, b"m", &many).unwrap();
    let (_, fds) = pass::receive(&theirs, &mut [0]).unwrap();
    assert_eq!(fds.len(), MAX_FDS);
    let more: Vec<BorrowedFd<'_>> = vec![ours.as_fd(); MAX_FDS + 1];
    let refused = pass::send(&ours, b"m", &more).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    let refused = pass::send(&ours, b"", &[ours.as_fd()]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn the_end_is_no_bytes_and_a_broken_pipe() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let (count, fds) = pass::receive(&theirs, &mut [0; 8]).unwrap();
    assert_eq!((count, fds.len()), (0, 0));
    // An error, not a signal.
    let error = pass::send(&theirs, b"x", &[]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_long_message_carries_its_descriptors_once() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let long = vec![7; 1 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| pass::send(&ours, &long, &[ours.as_fd()]).unwrap());
        let (mut bytes, mut fds) = (0, 0);
        while bytes < long.len() {
            let mut buf = [0; 4096];
            let (count, came) = pass::receive(&theirs, &mut buf).unwrap();
            assert!(buf[..count].iter().all(|&byte| byte == 7));
            assert!(count > 0);
            bytes += count;
            fds += came.len();
        }
        assert_eq!((bytes, fds), (long.len(), 1));
    });
}

#[test]
fn descriptors_that_do_not_fit_are_an_error_and_none_is_kept() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let few = vec![ours.as_fd(); 40];
    pass::send(&ours, b"f", &few).unwrap();
    // In a child, whose own limit is lowered.
    let mut child = fork(|| {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let next = open() as u64;
        let limit = libc::rlimit {
            rlim_cur: next + 20,
            rlim_max: next + 20,
        };
        // SAFETY: the kernel reads one structure.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        let before = open();
        match pass::receive(&theirs, &mut [0]) {
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => i32::from(open() != before),
            _ => 2,
        }
    });
    assert_eq!(child.wait(), 0);
}
