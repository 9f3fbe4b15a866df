//! Each program prints the same on the CPU device, through the shim *here*, and through the shim
//! and an executor at the other end of TCP connections.

use anyhow::Result;
use ghost_overflow_tests::{Executor, Place, Stage, built, program};
use std::path::Path;

fn everywhere(program: &Path) -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "cpu"])?;
    let ticket = stage.ticket(executor.address());
    let straight = stage.run(Place::Device, program, &[])?.right()?;
    assert!(!straight.out.is_empty());
    for place in [Place::Here, Place::There(&ticket)] {
        let said = stage.run(place, program, &[])?.right()?;
        assert_eq!(said.out, straight.out, "{place:?}");
    }
    Ok(())
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() -> Result<()> {
            everywhere(&program(stringify!($name)))
        })*
    };
}

programs! {
    vector_add saxpy reduction matmul atomics streams threads modules globals memsets copies
    hostmem managed values callbacks info ipc
}

/// The program in Rust, by cudarc, which looks for the library at run time.
#[test]
fn cudarc() -> Result<()> {
    everywhere(&built("ghost-overflow-saxpy")?)
}
