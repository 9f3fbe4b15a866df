//! ghost-standin: mounts a stand-in for the NVIDIA driver until it is told to end.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use ghost_standin::Standin;
use nix::sys::signal::{SigSet, Signal};

#[derive(Parser)]
#[command(about = "Mounts a stand-in for the NVIDIA driver until SIGINT or SIGTERM")]
struct Args {
    /// An empty directory to mount it on.
    dir: PathBuf,
    /// How many GPUs it has.
    #[arg(default_value_t = 2)]
    gpus: u32,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Blocked before any thread is there, so that every thread has them blocked.
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    ends.thread_block()?;
    let standin = Standin::mount(&args.dir, args.gpus).with_context(|| {
        format!(
            "{}: cannot mount; is /dev/fuse there, and this root?",
            args.dir.display()
        )
    })?;
    println!("{}", standin.dir().display());
    ends.wait()?;
    Ok(())
}
