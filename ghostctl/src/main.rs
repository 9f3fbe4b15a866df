//! The `ghostctl` program: reads its arguments, does what they say, reports in one place.
#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser};
use ghostctl::cli::{Cli, Command};
use ghostctl::complete;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    clap_complete::CompleteEnv::with_factory(Cli::command)
        .var(complete::VARIABLE)
        .complete();
    let cli = Cli::parse();
    let run = matches!(cli.command, Command::Run(_) | Command::Enter(_));
    match ghostctl::execute(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if !matches!(error, ghostctl::error::Error::Closed) {
                // With standard error closed, the exit code has to do.
                let _ = std::io::stderr().write_all(error.report().as_bytes());
            }
            let code = if run { error.run_code() } else { error.code() };
            ExitCode::from(code as u8)
        }
    }
}
