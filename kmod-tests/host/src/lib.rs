//! Builds the C programs of the tests with the host's compiler. `c/` holds them: `golden.c` reads
//! the tables that ghost-policy is tested against too, `sequence.c` is one property of a run of
//! calls that bytes describe, `replay.c` feeds it, and libFuzzer may feed it instead:
//!
//! ```text
//! clang -g -O1 -fsanitize=fuzzer,address,undefined -Idriver-patches/ghost \
//!     -o /tmp/sequence kmod-tests/host/c/sequence.c
//! /tmp/sequence -max_len=1024 NEW_FINDS kmod-tests/host/corpus
//! ```
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Why a program was not built, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no compiler, or no room for what it makes.
    #[error("cannot run {program}: {source}; ci/setup installs a compiler")]
    Run {
        /// What was to be run.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It said something, and ended with an error.
    #[error("{program} failed:\n{said}")]
    Failed {
        /// Which program.
        program: PathBuf,
        /// What it wrote.
        said: String,
    },
}

/// A program that was built, for as long as this lives.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    _dir: TempDir,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Program {
    /// Builds `sources`, paths from the root, with warnings as errors, under ASan and UBSan.
    ///
    /// # Errors
    /// [`HostError`]
    pub fn build(sources: &[&str]) -> Result<Self, HostError> {
        let cc = PathBuf::from("cc");
        let failed = |source| HostError::Run {
            program: cc.clone(),
            source,
        };
        let dir = TempDir::new().map_err(failed)?;
        let path = dir.path().join("program");
        let mut command = Command::new(&cc);
        command.current_dir(root()).args([
            "-std=gnu11",
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-Idriver-patches/ghost",
            "-Idriver-patches/include",
        ]);
        run(command.arg("-o").arg(&path).args(sources))?;
        Ok(Self { path, _dir: dir })
    }

    /// Runs it; gives what it wrote.
    ///
    /// # Errors
    /// [`HostError`]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<String, HostError> {
        run(Command::new(&self.path).args(arguments))
    }
}

fn run(command: &mut Command) -> Result<String, HostError> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(|source| HostError::Run {
        program: program.clone(),
        source,
    })?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    said += &String::from_utf8_lossy(&output.stderr);
    Err(HostError::Failed { program, said })
}
