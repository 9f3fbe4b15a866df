//! `ghostctl run`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use ghost_standin::DEV_ENV;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::until;
use crate::host::{GIB, GROUP_ID, Host, is_made, printed, program, text};

/// `ghostctl run ARGS ghost-load mem STEPS`
fn run(host: &Host, args: &[&str], steps: &[&str]) -> Command {
    let mut command = Command::new(program("ghostctl"));
    command
        .arg("run")
        .args(args)
        .env("GHOST_SOCKET", host.at("ghostd.sock"));
    command.arg(program("ghost-load")).arg("mem").args(steps);
    command.env(DEV_ENV, host.driver.standin.dir());
    command
}

#[test]
fn a_program_has_its_container_s_limit_and_sees_its_card() {
    let Some(host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    let steps = [
        "alloc=1000M",
        "heap=25M",
        "alloc=24M",
        "info",
        "free=all",
        "alloc=1G",
    ];
    let out = printed(&mut run(&host, &["a", "--"], &steps));
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        is_made(lines[0]) && is_made(lines[2]) && is_made(lines[5]),
        "{out}"
    );
    assert_eq!(lines[1], "heap out of memory");
    let card = format!("info total={GIB} free=0 ");
    assert!(lines[3].starts_with(&card), "{out}");
    until("charges are gone", || host.current("a") == 0);
    // A program that was there before, beside a child of a shell's child.
    let held = run(&host, &["a", "--"], &["alloc=1000M", "hold=600"]).spawn();
    let mut held = held.unwrap();
    until("the first allocates", || host.current("a") == 1000 << 20);
    let shell = ["a", "--", "sh", "-c", "(\"$0\" \"$@\"; true); exit 0"];
    let out = printed(&mut run(&host, &shell, &["alloc=25M", "alloc=24M"]));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "alloc out of memory");
    assert!(is_made(lines[1]), "{out}");
    // `run` passes it on.
    kill(Pid::from_raw(held.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(held.wait().unwrap().code(), Some(128 + 15));
    until("charges are gone", || host.current("a") == 0);
}

#[test]
fn within_a_container_the_limit_is_the_inner_one_s() {
    let Some(host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "outer", "gpu.memory.max=1G"]);
    host.ctl(&["create", "inner", "gpu.memory.max=512M"]);
    let ghostctl = program("ghostctl").display().to_string();
    let nested = ["outer", "--", &ghostctl, "run", "inner", "--"];
    let out = printed(&mut run(
        &host,
        &nested,
        &["alloc=512M", "alloc=2M", "info"],
    ));
    let lines: Vec<&str> = out.lines().collect();
    assert!(is_made(lines[0]), "{out}");
    assert_eq!(lines[1], "alloc out of memory");
    let card = format!("info total={} free=0 ", GIB / 2);
    assert!(lines[2].starts_with(&card), "{out}");
}

#[test]
fn in_place_the_limit_holds_as_well() {
    let Some(host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    let out = printed(&mut run(
        &host,
        &["--in-place", "a", "--"],
        &["alloc=1G", "alloc=2M"],
    ));
    let lines: Vec<&str> = out.lines().collect();
    assert!(is_made(lines[0]), "{out}");
    assert_eq!(lines[1], "alloc out of memory");
}

#[test]
fn an_ordinary_user_s_program_is_held() {
    let Some(host) = Host::start(&[]) else {
        return;
    };
    host.ctl(&["create", "a", "gpu.memory.max=1G"]);
    // Where every user finds them.
    let copied = |name: &str| -> PathBuf {
        let to = host.at(name);
        fs::copy(program(name), &to).unwrap();
        to
    };
    let mut command = Command::new(copied("ghostctl"));
    command
        .args(["run", "a", "--"])
        .arg(copied("ghost-load"))
        .arg("mem");
    command.args(["alloc=1000M", "alloc=25M", "alloc=24M"]);
    command.env("GHOST_SOCKET", host.at("ghostd.sock"));
    command.env(DEV_ENV, host.driver.standin.dir());
    let done = command
        .uid(GROUP_ID)
        .gid(GROUP_ID)
        .current_dir("/")
        .output()
        .unwrap();
    let out = text(&done.stdout);
    assert!(done.status.success(), "{out}{}", text(&done.stderr));
    let lines: Vec<&str> = out.lines().collect();
    assert!(is_made(lines[0]) && is_made(lines[2]), "{out}");
    assert_eq!(lines[1], "alloc out of memory");
}
