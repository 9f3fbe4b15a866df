//! What ghostd kept.

use ghostd::store::Store;
use std::fs;

/// A log, in which a line that begins with `{` is given its checksum, and others are damage.
/// What could be read of it is there, and undamaged, for the next ghostd.
pub fn store_log(data: &[u8]) {
    let mut log = Vec::new();
    for line in data.split_inclusive(|&b| b == b'\n') {
        if line.starts_with(b"{") {
            let json = line.strip_suffix(b"\n").unwrap_or(line);
            log.extend(format!("{:08x} ", crc32fast::hash(json)).into_bytes());
        }
        log.extend(line);
    }
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    fs::write(directory.path().join("containers.log"), log).expect("room for a file");
    let Ok((store, _)) = Store::open(directory.path()) else {
        return;
    };
    let contents = store.contents().clone();
    drop(store);
    let (store, damage) = Store::open(directory.path()).expect("it was opened before");
    assert_eq!(store.contents(), &contents);
    assert_eq!(damage, Vec::<String>::new());
}
