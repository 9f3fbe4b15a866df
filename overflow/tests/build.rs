//! Compiles the C programs, each against a library that has the driver's names and soname and
//! nothing behind them: which `libcuda.so.1` it gets is decided when it starts.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=programs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let stub = stub(&out)?;
    let programs = out.join("programs");
    fs::create_dir_all(&programs)?;
    for folder in ["programs", "programs/traps", "programs/bench"] {
        for entry in fs::read_dir(folder)? {
            let source = entry?.path();
            if source.extension() == Some(OsStr::new("c")) {
                let name = source.file_stem().ok_or("a source without a name")?;
                program(&source, &programs.join(name), &stub)?;
            }
        }
    }
    println!(
        "cargo::rustc-env=GHOST_TEST_PROGRAMS={}",
        programs.display()
    );
    Ok(())
}

/// Makes the library from the prototypes of `cuda.h`.
fn stub(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let header = fs::read_to_string("programs/cuda.h")?;
    let names = header
        .lines()
        .filter_map(|line| line.strip_prefix("CUresult ")?.split('(').next());
    let code: String = names
        .map(|name| format!("int {name}(void) {{ return 34; }}\n"))
        .collect();
    let source = out.join("stub.c");
    fs::write(&source, code)?;
    let library = out.join("libcuda.so.1");
    run(cc()
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&library)
        .arg(&source))?;
    Ok(library)
}

fn program(source: &Path, to: &Path, stub: &Path) -> Result<(), Box<dyn Error>> {
    let kernels = fs::canonicalize("programs/kernels.ptx")?;
    run(cc()
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra"])
        .arg(format!("-DKERNELS=\"{}\"", kernels.display()))
        .arg("-o")
        .arg(to)
        .arg(source)
        .arg(stub)
        .args(["-pthread", "-ldl", "-Wl,--no-as-needed"]))
}

fn cc() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}").into()),
    }
}
