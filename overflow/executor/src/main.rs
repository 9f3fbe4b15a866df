//! The program; see [`ghost_executor`].

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use ghost_executor::args::Args;
use ghost_executor::{listen, session};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(address) = args.listen {
        return Ok(listen::serve(address, args)?);
    }
    let mut fds = args.session.clone();
    fds.sort_unstable();
    fds.dedup();
    if fds.len() != 4 || fds.first().is_none_or(|fd| *fd < 3) {
        bail!("--session takes four different descriptors beyond the standard ones");
    }
    for fd in fds {
        // SAFETY: only asked whether it is open.
        let open = unsafe { BorrowedFd::borrow_raw(fd) };
        let kept = fcntl(open, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        kept.with_context(|| format!("descriptor {fd} of --session is not open"))?;
    }
    // SAFETY: open, different, and nobody else's: they were handed to this process for this.
    let owned = args.session.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
    let connections: Vec<OwnedFd> = owned.collect();
    let connections = connections.try_into();
    let connections = connections.map_err(|_| anyhow!("--session takes four descriptors"))?;
    session::serve(connections, args.options()).context("the session could not begin")
}
