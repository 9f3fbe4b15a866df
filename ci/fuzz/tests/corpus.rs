//! Every input that is kept, hostile or once harmful, on every target, and that no target lacks
//! one.

use ghost_fuzz::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn list(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries.map(|e| e.unwrap().path()).collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let name = |p: PathBuf| p.file_stem().unwrap().to_str().unwrap().to_owned();
    list(dir).into_iter().map(name).collect()
}

#[test]
fn every_kept_input_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        let inputs = list(&corpus.join(name));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            // Seen only if the target panics.
            println!("{}", input.display());
            target(&fs::read(&input).unwrap());
        }
    }
}

#[test]
fn targets_corpora_and_libfuzzer_programs_are_the_same() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&here.join("corpus")), targets);
    assert_eq!(names(&here.join("../../fuzz/fuzz_targets")), targets);
}
