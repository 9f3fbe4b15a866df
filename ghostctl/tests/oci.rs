//! The seccomp profile in the hands of real OCI runtimes: what crun and podman make a filter of,
//! and whom they hand its listener to.

#[allow(dead_code, reason = "not every test uses all of it")]
mod common;

use common::{Done, ghostctl};
use ghost_notify::{Listener, Notification, Received, pass};
use serde_json::{Value as J, json};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

/// A command of the driver's, with the number of an allocation, and one with another number.
const ALLOC: u32 = 0xC030_462B;
const OTHER: u32 = 0xC030_462C;
/// What the supervisor has notified calls return.
const ANSWER: i64 = 4711;
const EBADF: i64 = -9;

/// The program in the containers: it makes the calls by each table of the kernel, and says what
/// they returned; with an argument it waits.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <unistd.h>
static long call64(long nr, long fd, unsigned long cmd) {
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(fd), "S"(cmd), "d"(0)
                     : "rcx", "r11", "memory");
    return ret;
}
static long call32(int fd, unsigned cmd) {
    int ret;
    __asm__ volatile("int $0x80" : "=a"(ret) : "a"(54), "b"(fd), "c"(cmd), "d"(0)
                     : "memory", "r8", "r9", "r10", "r11");
    return ret;
}
int main(int count, char **args) {
    if (count > 1)
        pause();
    unsigned cmds[] = {ALLOC, OTHER};
    for (int i = 0; i < 2; i++) {
        long ret64 = call64(16, -1, cmds[i]), ret32 = call32(-1, cmds[i]);
        printf("%ld %ld %ld\n", ret64, ret32, call64(0x40000000 | 514, -1, cmds[i]));
    }
    return 0;
}
"#;

/// A bundle's place, with the program in its root.
fn rootfs() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("rootfs");
    for below in ["proc", "dev", "sys", "etc", "run", "tmp"] {
        fs::create_dir_all(root.join(below)).unwrap();
    }
    let source = dir.path().join("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc")
        .args([
            "-static",
            &format!("-DALLOC={ALLOC}u"),
            &format!("-DOTHER={OTHER}u"),
            "-o",
        ])
        .arg(root.join("program"))
        .arg(&source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    dir
}

/// Takes listeners at a socket in `dir` and answers.
#[derive(Clone, Default)]
struct Supervisor {
    messages: Arc<Mutex<Vec<J>>>,
    calls: Arc<Mutex<Vec<Notification>>>,
}

impl Supervisor {
    fn listen(dir: &Path) -> (Supervisor, PathBuf) {
        let path = dir.join("notify.sock");
        let socket = UnixListener::bind(&path).unwrap();
        let supervisor = Supervisor::default();
        let own = supervisor.clone();
        thread::spawn(move || {
            for stream in socket.incoming() {
                let mut bytes = vec![0; 65536];
                let (count, mut fds) = pass::receive(&stream.unwrap(), &mut bytes).unwrap();
                let message = serde_json::from_slice(&bytes[..count]).unwrap();
                own.messages.lock().unwrap().push(message);
                let listener = Listener::new(fds.remove(0)).unwrap();
                let own = own.clone();
                thread::spawn(move || own.answer(&listener));
            }
        });
        (supervisor, path)
    }

    fn answer(&self, listener: &Listener) {
        let (_hold, stop) = UnixStream::pair().unwrap();
        while let Received::Call(call) = listener.receive(stop.as_fd()).unwrap() {
            self.calls.lock().unwrap().push(call);
            listener.answer(call.id, Ok(ANSWER)).unwrap();
        }
    }

    /// What was notified, by table, and its arguments.
    fn check(&self, containers: usize) {
        let calls = self.calls.lock().unwrap();
        let commands: Vec<Option<u32>> = calls
            .iter()
            .map(|call| call.ioctl().map(|ioctl| ioctl.cmd))
            .collect();
        assert_eq!(commands, vec![Some(ALLOC); 3 * containers], "{calls:?}");
        let tables: Vec<i32> = calls.iter().take(3).map(|call| call.nr).collect();
        assert_eq!(tables, [16, 54, 0x4000_0000 | 514]);
    }
}

/// What the program prints under the profile.
fn expected() -> String {
    // Without x32 in the kernel the call that was let through is ENOSYS.
    format!(
        "{ANSWER} {ANSWER} {ANSWER}\n{EBADF} {EBADF} {X}\n",
        X = x32_without_a_filter()
    )
}

fn x32_without_a_filter() -> i64 {
    // SAFETY: no descriptor has this number.
    let got = unsafe { nix::libc::syscall(0x4000_0000 | 514, -1, u64::from(OTHER), 0) };
    assert_eq!(got, -1);
    -i64::from(nix::errno::Errno::last_raw())
}

fn profile(args: &[&str]) -> J {
    let done = Done::of(
        ghostctl(&[&["seccomp-profile"], args].concat())
            .output()
            .unwrap(),
    );
    serde_json::from_str(&done.ok()).unwrap()
}

/// Runs `script` where cgroup v2 is all of `/sys/fs/cgroup`: crun refuses hybrid hosts.
fn on_cgroup_v2(script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let v2 = ghostctl::cgroup::mount().map_or_else(String::new, |m| m.display().to_string());
    let mounted = "[ \"$V2\" = /sys/fs/cgroup ] || mount --bind \"$V2\" /sys/fs/cgroup";
    command.args([
        "--mount",
        "sh",
        "-euc",
        &format!("{mounted}\n{script}"),
        "sh",
    ]);
    command.args(args).env("V2", v2);
    command
}

/// Whether containers can be run at all; says why not.
fn can_run(runtime: &str) -> bool {
    let runs = Command::new(runtime).arg("--version").output();
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: needs root");
        return false;
    }
    if ghostctl::cgroup::mount().is_none() || runs.is_err() {
        eprintln!("skipped: no {runtime}, or no cgroup v2");
        return false;
    }
    true
}

/// A bundle for crun.
fn bundle(dir: &Path, args: &[&str], seccomp: &J) {
    let made = Command::new("crun")
        .arg("spec")
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let file = dir.join("config.json");
    let mut config: J = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["process"]["args"] = json!(args);
    config["process"]["terminal"] = json!(false);
    // Not every host's root may raise limits.
    config["process"].as_object_mut().unwrap().remove("rlimits");
    let linux = config["linux"].as_object_mut().unwrap();
    linux.remove("resources");
    linux.insert("seccomp".into(), seccomp.clone());
    fs::write(file, config.to_string()).unwrap();
}

fn crun(dir: &Path, args: &[&str]) -> Done {
    Done::of(crun_command(dir, args).output().unwrap())
}

fn crun_command(dir: &Path, args: &[&str]) -> Command {
    let state = dir.join("crun").display().to_string();
    let script = "exec crun --cgroup-manager=disabled --root \"$@\"";
    let mut command = on_cgroup_v2(script, &[&[state.as_str()], args].concat());
    command.current_dir(dir);
    command
}

#[test]
fn crun_notifies_the_numbers_by_each_table_and_tells_whose_they_are() {
    if !can_run("crun") {
        return;
    }
    let dir = rootfs();
    let (supervisor, socket) = Supervisor::listen(dir.path());
    let socket = socket.display().to_string();
    let made = profile(&["--listener", &socket, "--container", "team/job"]);
    bundle(dir.path(), &["/program"], &made);
    let done = crun(dir.path(), &["run", "ghost-test-run"]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (Some(0), expected().as_str()),
        "{done:?}"
    );
    supervisor.check(1);
    let messages = supervisor.messages.lock().unwrap();
    assert_eq!(messages[0]["metadata"], "team/job");
    assert_eq!(messages[0]["fds"], json!(["seccompFd"]));
}

#[test]
fn a_base_that_allows_by_name_notifies_the_same() {
    if !can_run("crun") {
        return;
    }
    let dir = rootfs();
    let (supervisor, socket) = Supervisor::listen(dir.path());
    // What a static program and crun itself need, by name.
    let names: Vec<&str> =
        "read write writev close fstat newfstatat mmap munmap mprotect brk ioctl \
        execve exit exit_group arch_prctl set_tid_address set_robust_list rseq prlimit64 readlink \
        readlinkat getrandom uname lseek prctl setresuid setresgid setgroups capset capget chdir \
        futex rt_sigprocmask rt_sigaction open openat openat2 fcntl dup dup2 dup3 getpid gettid \
        umask setsid wait4 sendmsg recvmsg poll close_range access faccessat faccessat2 stat statx \
        getdents64 kill"
            .split_whitespace()
            .collect();
    let base = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}]
    });
    let file = dir.path().join("base.json");
    fs::write(&file, base.to_string()).unwrap();
    let (socket, file) = (socket.display().to_string(), file.display().to_string());
    let made = profile(&["--listener", &socket, "--container", "a", "--base", &file]);
    bundle(dir.path(), &["/program"], &made);
    let done = crun(dir.path(), &["run", "ghost-test-base"]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (Some(0), expected().as_str()),
        "{done:?}"
    );
    supervisor.check(1);
}

#[test]
fn what_is_executed_into_a_container_is_notified_too() {
    if !can_run("crun") {
        return;
    }
    let dir = rootfs();
    let (supervisor, socket) = Supervisor::listen(dir.path());
    let made = profile(&[
        "--listener",
        &socket.display().to_string(),
        "--container",
        "a",
    ]);
    bundle(dir.path(), &["/program", "wait"], &made);
    let name = "ghost-test-exec";
    let mut run = crun_command(dir.path(), &["run", "--detach", name]);
    // Its output is the container's, which stays.
    let started = run.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(started.unwrap().success());
    let done = crun(dir.path(), &["exec", name, "/program"]);
    let deleted = crun(dir.path(), &["delete", "--force", name]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (Some(0), expected().as_str()),
        "{done:?}"
    );
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    supervisor.check(1);
    let messages = supervisor.messages.lock().unwrap();
    let whose: Vec<&J> = messages
        .iter()
        .map(|message| &message["metadata"])
        .collect();
    assert_eq!(whose, ["a", "a"]);
}

#[test]
fn podman_does_the_same_with_its_own_profile_as_base() {
    const BASE: &str = "/usr/share/containers/seccomp.json";
    if !can_run("podman") {
        return;
    }
    let dir = rootfs();
    let (supervisor, socket) = Supervisor::listen(dir.path());
    let socket = socket.display().to_string();
    let mut args = vec!["--listener", &socket, "--container", "team/job"];
    if Path::new(BASE).exists() {
        args.extend(["--base", BASE]);
    } else {
        eprintln!("without a base: no {BASE}");
    }
    let file = dir.path().join("profile.json");
    fs::write(&file, profile(&args).to_string()).unwrap();
    // Storage of its own; what a root with few rights cannot have is left out.
    let script = "cd \"$1\" && exec podman --root \"$1/storage\" --runroot \"$1/runroot\" \
        --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime crun \
        run --rm --network none --cgroups disabled --ulimit nofile=1000:1000 \
        --ulimit nproc=1000:1000 --security-opt seccomp=\"$1/profile.json\" \
        --rootfs \"$1/rootfs\" /program";
    let place = dir.path().display().to_string();
    let done = Done::of(on_cgroup_v2(script, &[&place]).output().unwrap());
    assert_eq!(
        (done.code, done.out.as_str()),
        (Some(0), expected().as_str()),
        "{done:?}"
    );
    supervisor.check(1);
    assert_eq!(
        supervisor.messages.lock().unwrap()[0]["metadata"],
        "team/job"
    );
}
