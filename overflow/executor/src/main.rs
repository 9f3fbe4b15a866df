//! The program; see [`ghost_executor`].

use anyhow::{Context, Result};
use clap::Parser;
use ghost_executor::args::{Args, Descriptors};
use ghost_executor::{listen, session};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
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
        // SAFETY: only asked whether it is open.
        let open = unsafe { BorrowedFd::borrow_raw(fd) };
        let kept = fcntl(open, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        kept.with_context(|| format!("descriptor {fd} of --session is not open"))?;
    }
    // SAFETY: open, different, and nobody else's: they were handed to this process for this.
    let connections = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    session::serve(connections, args.options()).context("the session could not begin")
}
