//! `ghost_math.h` against ghost-policy's tables, and in sequences of calls, known and random.

use ghost_host::{HostError, Program, root};

#[test]
fn the_tables_hold_in_c() -> Result<(), HostError> {
    let program = Program::build(&["kmod-tests/host/c/golden.c"])?;
    for table in ["budgets", "shares", "slices", "weights"] {
        let path = root().join(format!("ghostd/policy/golden/{table}.csv"));
        let rows = program.run(&[table.as_ref(), path.as_os_str()])?;
        let rows: usize = rows.trim().parse().expect("a number of rows");
        assert!(rows > 20, "{table} has {rows} rows");
    }
    Ok(())
}

#[test]
fn no_sequence_breaks_an_invariant() -> Result<(), HostError> {
    let program = Program::build(&["kmod-tests/host/c/sequence.c", "kmod-tests/host/c/replay.c"])?;
    let corpus = root().join("kmod-tests/host/corpus");
    let files = std::fs::read_dir(&corpus).expect("the corpus is there");
    let mut arguments = vec!["200000".into()];
    arguments.extend(files.map(|entry| entry.expect("an entry").path().into_os_string()));
    assert!(arguments.len() > 20, "the corpus has few files");
    program.run(&arguments)?;
    Ok(())
}
