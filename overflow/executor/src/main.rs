//! The program; see [`ghost_executor`].

use anyhow::{Context, Result, bail};
use clap::Parser;
use ghost_executor::args::{Args, Descriptors};
use ghost_executor::{listen, session};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::fs::File;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(address) = args.listen {
        return Ok(listen::serve(address, args)?);
    }
    let Descriptors(fds) = args
        .session
        .context("neither --session nor --listen is given")?;
    for fd in fds {
        take(fd)?;
    }
    // SAFETY: open, different, and nobody else's: they were handed to this process for this.
    let connections = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let stats = match (args.stats_fd, &args.stats) {
        (Some(fd), _) if fds.contains(&fd) => bail!("descriptor {fd} is one of --session"),
        (Some(fd), _) => {
            take(fd)?;
            // SAFETY: as above.
            Some(unsafe { File::from_raw_fd(fd) })
        }
        (None, Some(path)) => {
            let made = File::create(path);
            Some(made.with_context(|| format!("no counters in {}", path.display()))?)
        }
        (None, None) => None,
    };
    let served = session::serve(connections, args.options(stats));
    served.context("the session could not begin")
}

/// A descriptor that this process was handed: kept from those that it starts.
fn take(fd: i32) -> Result<()> {
    // SAFETY: only asked whether it is open.
    let open = unsafe { BorrowedFd::borrow_raw(fd) };
    let kept = fcntl(open, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    kept.with_context(|| format!("descriptor {fd} of the command line is not open"))?;
    Ok(())
}
