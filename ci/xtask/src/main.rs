//! What the scripts in `ci/` call: the demo, the benches, the device suite and the generators.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use xtask::{bench, demo, device, generate};

#[derive(Parser)]
#[command(
    name = "xtask",
    about = "Ghost's demo, benches, device suite and generators"
)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show the main job, on the GPU of this host or on the simulator.
    Demo {
        /// One JSON document instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Measure what needs no GPU: all, or one by name.
    Bench {
        /// `scale`, `rest`, `memory` or `overflow`.
        name: Option<String>,
        /// One JSON document instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Measure every promise on a real GPU: all parts, or one by name. Needs root.
    Device {
        /// `peers`, `shares`, `latency`, `limits`, `memory`, `faults`, `scale`, `driver`,
        /// `overflow` or `pytorch`.
        name: Option<String>,
        #[command(flatten)]
        asked: device::Asked,
        /// One JSON document instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Write man pages, completions, the key table of the documents and the kernel module's bindings.
    Gen {
        /// Write nothing; fail if a file is not as it would be written.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Demo { json } => demo::run(json),
        Task::Bench { name, json } => bench::run(name.as_deref(), json),
        Task::Device { name, asked, json } => device::run(name.as_deref(), asked, json),
        Task::Gen { check } => generate::run(check),
    };
    done.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::FAILURE
    })
}
