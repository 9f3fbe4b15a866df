//! `run`: a program in a container. Membership rests on a kernel cgroup that the program is in
//! before its first instruction, never on who is whose parent.
//!
//! `run` stays outside: it starts `ghostctl enter`, which joins the cgroup, tells ghostd, has it
//! answer for the program's allocations of GPU memory, and becomes the program. So the program's
//! pid is that of the child for which `run` waits.

use super::change::{ensure, put_members, remove};
use crate::cgroup::{self, Made};
use crate::cli::{Enter, Run};
use crate::client::{Client, Target};
use crate::error::{Error, printable};
use crate::notify;
use crate::output;
use crate::overflow::Elsewhere;
use ghost_model::report::{Container, Placement};
use ghost_model::value::Overflow;
use ghost_model::{Key, Kind, Name, Problem};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, Uid, User, initgroups, setgid, setuid};
use serde_json::json;
use std::ffi::CString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Signals that others send to `ghostctl run` and mean for the program.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Where the program's cgroup comes from.
#[derive(Debug)]
enum Place {
    /// A scope of systemd, delegated.
    Scope,
    /// A directory of our own.
    Made(Made),
    /// Nowhere: the program is attached by its pid.
    Alone,
}

pub(super) fn run(client: &Client, runtime: &Runtime, args: Run) -> Result<u8, Error> {
    let made = runtime.block_on(ensure(client, &args.name, &args.limits))?;
    let peer = runtime.block_on(peer(client, &args))?;
    if args.in_place {
        let enter_args = Enter {
            join: None,
            alone: false,
            user: args.user,
            name: args.name,
            command: args.command,
        };
        return Err(enter(client, runtime, &enter_args));
    }
    let status = match peer {
        None => start(client, &args, None),
        Some(peer) => runtime
            .block_on(Elsewhere::new(client, &args.name, &peer))
            .and_then(|elsewhere| {
                let status = start(client, &args, Some(&elsewhere));
                runtime.block_on(elsewhere.end(client));
                status
            }),
    };
    if made && args.rm {
        let removed = runtime.block_on(remove_when_left(client, &args.name));
        // The program's status matters more than a container that stayed.
        if let Err(e) = removed {
            output::note(format!("{} is kept: {e}", args.name));
        }
    }
    status.map(code)
}

/// The peer on which the program is to compute, if not here.
async fn peer(client: &Client, args: &Run) -> Result<Option<String>, Error> {
    let rule = match &args.on {
        Some(rule) => rule.clone(),
        None => {
            let container: Container = client.read(Target::container(&args.name, "")).await?;
            container.spec.overflow()
        }
    };
    match rule {
        Overflow::Never => Ok(None),
        Overflow::Auto if args.in_place => Ok(None),
        Overflow::Peer(_) | Overflow::Always if args.in_place => {
            let detail = "--in-place computes on this host only: there is nobody left to take the \
                          ticket to the peer away";
            let problem = Problem::field(Kind::Unsupported, Key::Overflow, detail);
            Err(problem.of(&args.name).into())
        }
        Overflow::Peer(peer) => Ok(Some(peer)),
        rule @ (Overflow::Auto | Overflow::Always) => {
            let target = Target::container(&args.name, "/placement");
            let target = target.with("overflow", &rule.to_string());
            let Placement { on, why } = client.read(target).await?;
            if let Some(why) = why {
                let place = on
                    .as_ref()
                    .map_or("here".to_owned(), |peer| format!("on {peer}"));
                output::note(format!("{} computes {place}: {why}", args.name));
            }
            Ok(on)
        }
    }
}

/// The program's own code, or 128 + n if signal n ended it.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|n| 128 + n))
        .unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn start(client: &Client, args: &Run, elsewhere: Option<&Elsewhere>) -> Result<ExitStatus, Error> {
    let exe = std::env::current_exe().map_err(|e| Error::io("ghostctl", e))?;
    let place = place(&args.name);
    let mut command = match &place {
        Place::Scope => {
            let mut command = systemd_run();
            command.arg("--").arg(&exe);
            command
        }
        _ => Command::new(&exe),
    };
    command.arg("enter").arg("--socket").arg(client.socket());
    match &place {
        Place::Scope => {}
        Place::Made(made) => {
            command.arg("--join").arg(made.dir());
        }
        Place::Alone => {
            command.arg("--alone");
            output::note(format!(
                "children of the command do not follow it into {}: there is no systemd, and no \
                 cgroup v2 mount that this user may write",
                args.name
            ));
        }
    }
    if let Some(user) = &args.user {
        command.arg("--user").arg(user);
    }
    if let Some(elsewhere) = elsewhere {
        command.envs(elsewhere.variables());
    }
    command
        .arg(args.name.as_str())
        .arg("--")
        .args(&args.command);
    let status = supervise(command);
    if let Place::Made(made) = &place {
        made.remove();
    }
    status
}

fn place(name: &Name) -> Place {
    if Path::new("/run/systemd/system").exists() && scopes_work() {
        return Place::Scope;
    }
    let made = cgroup::mount().map(|mount| Made::new(&mount, name, std::process::id()));
    match made {
        Some(Ok(made)) => Place::Made(made),
        _ => Place::Alone,
    }
}

fn systemd_run() -> Command {
    let mut command = Command::new("systemd-run");
    if !Uid::effective().is_root() {
        command.arg("--user");
    }
    command.args(["--scope", "--quiet", "--collect", "--no-ask-password"]);
    command.args(["-p", "Delegate=yes"]);
    command
}

/// A user without a session has no systemd of its own, and a container may show its host's: only
/// a try tells.
fn scopes_work() -> bool {
    systemd_run()
        .args(["--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Starts a child, passes signals on to it, and waits for it.
fn supervise(mut command: Command) -> Result<ExitStatus, Error> {
    let own = |e: io::Error| Error::io("ghostctl run", e);
    // Blocked before the child is there, so that no signal is lost in between; `enter` takes
    // the block away again.
    let mut signals: SigSet = FORWARDED.into_iter().collect();
    signals.add(Signal::SIGCHLD);
    signals.thread_block().map_err(|e| own(e.into()))?;
    let queue = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).map_err(|e| own(e.into()))?;
    let mut child = command.spawn().map_err(own)?;
    loop {
        if let Some(status) = child.try_wait().map_err(own)? {
            return Ok(status);
        }
        match queue.read_signal() {
            Ok(Some(info)) => forward(&child, info.ssi_signo, info.ssi_code),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(e) => return Err(own(e.into())),
        }
    }
}

fn forward(child: &Child, signal: u32, code: i32) {
    // What the terminal sends (Ctrl-C), it sends to the whole foreground group: the program has
    // it already. Only what a process sent, whose code is not positive, was for us alone.
    let sent = code <= 0;
    let signal = FORWARDED.into_iter().find(|s| *s as u32 == signal);
    if let (true, Some(signal)) = (sent, signal) {
        // The child is not reaped yet, so the pid is its; if it is a zombie, nothing is lost.
        let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
    }
}

/// Deletes a container whose program has ended; ghostd may need a moment to see that it did.
async fn remove_when_left(client: &Client, name: &Name) -> Result<(), Error> {
    for _ in 0..50 {
        match remove(client, name, false).await {
            Err(Error::Problem(p)) if p.kind == Kind::Conflict => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
    remove(client, name, false).await
}

/// Joins the container, then becomes the command; returns only if it could not.
pub(super) fn enter(client: &Client, runtime: &Runtime, args: &Enter) -> Error {
    let socket = match runtime.block_on(join(client, args)) {
        Ok(socket) => socket,
        Err(e) => return e,
    };
    if let Some(Err(e)) = socket.map(|socket| notify::hold(&socket, &args.name)) {
        return e;
    }
    if let Some(Err(e)) = args.user.as_deref().map(become_user) {
        return e;
    }
    // `run` blocks what it forwards; the program is to begin with nothing blocked.
    if let Err(e) = SigSet::all().thread_unblock() {
        return Error::io("ghostctl enter", e.into());
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Error::usage("no command");
    };
    let source = Command::new(program).args(rest).exec();
    Error::Execute {
        command: printable(&program.to_string_lossy()),
        source,
    }
}

/// Gives up all that this user has and that one has not.
fn become_user(name: &str) -> Result<(), Error> {
    let failed = |e: Errno| Error::io(format!("user {name:?}"), e.into());
    let user = User::from_name(name).map_err(failed)?;
    let user = user.ok_or_else(|| Problem::new(Kind::NotFound, format!("no user {name:?}")))?;
    let groups = CString::new(name).map_err(|_| Error::usage("a user's name has a NUL"))?;
    initgroups(&groups, user.gid).map_err(failed)?;
    setgid(user.gid).map_err(failed)?;
    setuid(user.uid).map_err(failed)
}

/// Makes this process a member; gives the socket where its memory is to be held, if it is.
async fn join(client: &Client, args: &Enter) -> Result<Option<PathBuf>, Error> {
    if let Some(dir) = &args.join {
        cgroup::join(dir).map_err(|e| Error::io(dir.display().to_string(), e))?;
    }
    let alone = json!({ "pids": [std::process::id()] });
    // The root is no cgroup of our own, and what lies outside of this cgroup namespace has no
    // name that ghostd knows.
    let own = cgroup::own().filter(|path| !args.alone && path != "/" && !path.starts_with("/.."));
    let members = own.map_or(alone, |path| json!({ "cgroups": [path] }));
    put_members(client, &args.name, &members).await?;
    client.notify_socket().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_passed_and_signals_are_above_128() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
    }
}
