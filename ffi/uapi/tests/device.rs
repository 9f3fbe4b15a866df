//! The device over descriptors that are not the module's.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use ghost_uapi::sys::{GHOST_EVENT_LOST, GHOST_EVENT_MEMORY_MAX};
use ghost_uapi::{ContainerId, Device, Error, GpuNumber, Kind};

fn null() -> Device {
    Device::open(Path::new("/dev/null")).unwrap()
}

#[test]
fn what_is_no_device_is_named() {
    let error = Device::open(Path::new("/nonexistent/ghost")).unwrap_err();
    assert_eq!(error.errno(), Some(2));
    assert!(error.to_string().starts_with("/nonexistent/ghost: "));
    let error = null().pause(ContainerId(7), GpuNumber(0x100)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot pause container 7 on gpu 0x100: the module is of a version that does not know this"
    );
    assert!(!error.is_gone());
}

#[test]
fn names_are_looked_at_before_the_module_is_asked() {
    let device = null();
    let long = "x".repeat(65);
    for name in ["", "a/b", "a b", ".a", "-a", "ä", "a\0", long.as_str()] {
        let error = device.create(ContainerId::NONE, name).unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{name:?}: {error}");
    }
    for name in ["a", "A.b_c-9", "_", &long[1..]] {
        let error = device.create(ContainerId::NONE, name).unwrap_err();
        assert_eq!(error.errno(), Some(25), "{name:?} reaches the module");
    }
}

/// A record with numbers in native order, as in the header.
fn record(seq: u64, kind: u32, pid: u32, gpu: u32, container: u64, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(seq.to_ne_bytes());
    bytes.extend((seq * 10).to_ne_bytes());
    for word in [kind, pid, gpu, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    for long in [container, 99, value, 0] {
        bytes.extend(long.to_ne_bytes());
    }
    bytes
}

#[test]
fn events_are_read_as_they_come() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut writer, reader) = (File::from(OwnedFd::from(writer)), OwnedFd::from(reader));
    let device = Device::from(reader);
    let mut bytes = record(1, GHOST_EVENT_LOST, 0, u32::MAX, 0, 12);
    bytes.extend(record(2, GHOST_EVENT_MEMORY_MAX, 41, 0x100, 5, 4096));
    bytes.extend(record(3, 77, 0, u32::MAX, 0, 0));
    writer.write_all(&bytes).unwrap();
    let events = device.events().unwrap();
    let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [Kind::Lost(12), Kind::MemoryMax(4096), Kind::Other(77)]
    );
    let refused = events[1];
    assert_eq!((refused.seq, refused.at_ns), (2, 20));
    assert_eq!(
        (refused.pid, refused.gpu),
        (Some(41), Some(GpuNumber(0x100)))
    );
    assert_eq!(refused.container, ContainerId(5));
    assert_eq!((events[0].pid, events[0].gpu), (None, None));
}
