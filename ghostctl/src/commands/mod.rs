//! The verbs.

mod apply;
mod change;
mod check;
mod debug;
mod events;
mod gpu;
mod info;
mod peer;
mod profile;
mod read;
mod run;
mod top;

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::complete;
use crate::error::Error;
use crate::output;
use std::path::Path;

/// Does what the command line says. The number is the exit code of a command that did not fail:
/// 0, or for `run` that of the program.
///
/// # Errors
/// [`Error`], not yet printed.
pub fn execute(cli: Cli) -> Result<u8, Error> {
    let client = Client::new(cli.socket.clone(), cli.verbose);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("runtime", e))?;
    let done = match cli.command {
        Command::Run(args) => return run::run(&client, &runtime, args),
        Command::Enter(args) => return Err(run::enter(&client, &runtime, &args)),
        Command::Create(args) => runtime.block_on(change::create(&client, args)),
        Command::Limit(args) => runtime.block_on(change::limit(&client, args)),
        Command::Attach(args) => runtime.block_on(change::attach(&client, args)),
        Command::Revert(args) => runtime.block_on(change::revert(&client, args)),
        Command::Freeze(args) => runtime.block_on(change::freeze(&client, args, true)),
        Command::Thaw(args) => runtime.block_on(change::freeze(&client, args, false)),
        Command::Delete(args) => runtime.block_on(change::delete(&client, args)),
        Command::Apply(args) => runtime.block_on(apply::apply(&client, args)),
        Command::List(args) => runtime.block_on(read::list(&client, args)),
        Command::Status(args) => runtime.block_on(read::status(&client, args)),
        Command::Show(args) => runtime.block_on(read::show(&client, args)),
        Command::Get(args) => runtime.block_on(read::get(&client, args)),
        Command::Cat(args) => runtime.block_on(read::cat(&client, args)),
        Command::Top(args) => runtime.block_on(top::top(&client, args)),
        Command::Events(args) => runtime.block_on(events::events(&client, args)),
        Command::Gpu(args) => runtime.block_on(gpu::gpu(&client, args)),
        Command::Peer(args) => runtime.block_on(peer::peer(&client, args)),
        Command::Info(args) => runtime.block_on(info::info(&client, args)),
        Command::Check(args) => runtime.block_on(check::check(&client, args)),
        Command::SeccompProfile(args) => runtime.block_on(profile::profile(&client, args)),
        Command::Completion(args) => {
            complete::script(&args.shell).and_then(|script| output::print(&script))
        }
        Command::Debug(args) => debug::debug(&client, &runtime, args),
    };
    done.map(|()| 0)
}

/// A file's text, or standard input's for `-`.
fn read_file(path: &Path) -> Result<String, Error> {
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|e| Error::io(path.display().to_string(), e))
}
