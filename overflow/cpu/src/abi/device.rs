//! Start, devices, names of errors, and where entry points are.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::{Out, Text, entries};
use crate::context::{lock, start, world};
use crate::result::{self, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use std::ffi::{c_char, c_void};

const NAME: &[u8] = b"Ghost CPU device (PTX interpreter)\0";
/// 12.8, whose entry points these are.
pub(super) const VERSION: i32 = 12080;
pub(super) const SHARED_OPT_IN: u32 = 96 * 1024;

/// A device by number.
pub(super) fn device(number: i32) -> Result<usize, u32> {
    let number = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    if number < world()?.devices {
        Ok(number)
    } else {
        Err(INVALID_DEVICE)
    }
}

fn put_text(out: Out<c_char>, text: &[u8], room: i32) -> Result<(), u32> {
    let room = usize::try_from(room).map_err(|_| INVALID_VALUE)?;
    let last = room.checked_sub(1).ok_or(INVALID_VALUE)?;
    for (i, c) in text.iter().enumerate().take(room) {
        out.put_at(i, if i == last { 0 } else { *c as c_char })?;
    }
    Ok(())
}

fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"ghost-cpu-device";
    uuid[15] = device as u8;
    uuid
}

fn attribute(attribute: u32, device: usize) -> i32 {
    match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 48 * 1024,
        9 => 64 * 1024,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 | 36 => 1_000_000,
        14 | 51 => 512,
        15 | 16 | 19 | 31 | 40 | 41 | 78 | 79 | 80 | 83 | 91 | 95 | 99 | 106 | 125 | 126 => 1,
        33 => device as i32 + 1,
        37 => 64,
        38 => 1 << 20,
        39 => 1024,
        75 => 8,
        81 | 97 => SHARED_OPT_IN as i32,
        87 => 2,
        134 => -1,
        _ => 0,
    }
}

/// The exported symbol for a name, a version and what the caller was built for: the newest that is
/// not newer than that.
fn symbol(name: &str, version: i32) -> Option<*const c_void> {
    const OLD: &[(&str, i32)] = &[
        ("cuDeviceGetUuid_v2", 11040),
        ("cuGetProcAddress_v2", 12000),
        ("cuCtxCreate_v3", 11040),
        ("cuCtxCreate_v4", 12050),
        ("cuEventElapsedTime_v2", 12080),
    ];
    ["_v4", "_v3", "_v2", ""].iter().find_map(|suffix| {
        let full = format!("{name}{suffix}");
        let since = OLD.iter().find(|(n, _)| *n == full);
        if since.is_some_and(|(_, v)| version < *v) {
            return None;
        }
        super::find(&full)
    })
}

entries! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        start().map(|_| ())
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(VERSION)
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        let found = result::name(code);
        name.put(found.map_or(std::ptr::null(), |n| n.as_ptr()))?;
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        let found = result::text(code);
        text.put(found.map_or(std::ptr::null(), |n| n.as_ptr()))?;
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuDeviceGet(out: Out<i32>, ordinal: i32) {
        device(ordinal)?;
        out.put(ordinal)
    }

    fn cuDeviceGetCount(out: Out<i32>) {
        out.put(world()?.devices as i32)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, dev: i32) {
        device(dev)?;
        put_text(name, NAME, room)
    }

    fn cuDeviceGetUuid(out: Out<[u8; 16]>, dev: i32) {
        out.put(uuid(device(dev)?))
    }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, dev: i32) {
        out.put(uuid(device(dev)?))
    }

    fn cuDeviceGetLuid(_luid: Out<c_char>, _mask: Out<u32>, dev: i32) {
        device(dev)?;
        Err(NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem_v2(out: Out<usize>, dev: i32) {
        let (_, total) = lock(&world()?.memory).info(device(dev)?);
        out.put(total as usize)
    }

    fn cuDeviceGetAttribute(out: Out<i32>, which: u32, dev: i32) {
        let device = device(dev)?;
        if !(1..=147).contains(&which) {
            return Err(INVALID_VALUE);
        }
        out.put(attribute(which, device))
    }

    fn cuDeviceGetPCIBusId(out: Out<c_char>, room: i32, dev: i32) {
        let id = format!("0000:{:02x}:00.0\0", device(dev)? + 1);
        put_text(out, id.as_bytes(), room)
    }

    fn cuDeviceGetByPCIBusId(out: Out<i32>, id: Text) {
        let id = id.read()?;
        let short = id.trim_start_matches("0000:");
        let bus = short.strip_suffix(":00.0").and_then(|b| i32::from_str_radix(b, 16).ok());
        let number = bus.and_then(|b| b.checked_sub(1)).ok_or(INVALID_VALUE)?;
        device(number)?;
        out.put(number)
    }

    fn cuDeviceCanAccessPeer(out: Out<i32>, dev: i32, peer: i32) {
        device(dev)?;
        device(peer)?;
        out.put(0)
    }

    fn cuGetProcAddress(name: Text, out: Out<*const c_void>, version: i32, _flags: u64) {
        let found = symbol(&name.read()?, version);
        out.put(found.unwrap_or(std::ptr::null()))?;
        found.map(|_| ()).ok_or(NOT_FOUND)
    }

    fn cuGetProcAddress_v2(
        name: Text,
        out: Out<*const c_void>,
        version: i32,
        _flags: u64,
        status: Out<u32>,
    ) {
        let found = symbol(&name.read()?, version);
        out.put(found.unwrap_or(std::ptr::null()))?;
        // CU_GET_PROC_ADDRESS_SUCCESS, or SYMBOL_NOT_FOUND.
        status.put_if_given(u32::from(found.is_none()));
        found.map(|_| ()).ok_or(NOT_FOUND)
    }

    fn cuGetExportTable(out: Out<*const c_void>, _id: usize) {
        out.put(std::ptr::null())?;
        Err(NOT_FOUND)
    }

    fn cuProfilerStart() {
        world().map(|_| ())
    }

    fn cuProfilerStop() {
        world().map(|_| ())
    }
}
