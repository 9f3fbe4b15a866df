//! A mounted stand-in, and waiting.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use ghost_standin::Standin;

/// A stand-in on a directory of its own, or `None` with a reason where there can be none.
pub(crate) struct Mounted {
    // Dropped in this order: unmounted, then removed.
    pub(crate) standin: Standin,
    _dir: tempfile::TempDir,
}

pub(crate) fn mount(gpus: u32) -> Option<Mounted> {
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        eprintln!("skipped: /dev/fuse: {e}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let standin = Standin::mount(dir.path(), gpus).expect("a stand-in can be mounted");
    Some(Mounted { standin, _dir: dir })
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "{what} within 30 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn telemetry(on: &Mounted) -> serde_json::Value {
    let text = std::fs::read(on.standin.dir().join("telemetry.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}
