//! Devices: what the welcome said of them. The numbers are those of the far driver, which was given
//! the program's `CUDA_VISIBLE_DEVICES`.

use crate::answer;
use crate::session::{self, Session};
use ghost_wire::hello::Device;
use ghost_wire::result::{Code, INVALID_DEVICE, INVALID_VALUE};
use std::ffi::{CStr, c_char};

/// Attributes that are 0 here whatever the far device says: what they promise needs both sides to
/// be one host, or is refused by the table.
const NOT_HERE: &[i32] = &[
    86, 147, // atomics over the link to the host
    88, 89, 100, 101, // pageable and managed memory in place
    91,  // host pointers that stand for registered memory
    103, 104, 105, 119, 124, 125, 128, 146, // handles for other processes and devices
    110, 116, 117, 118, // GPUDirect RDMA
    129, 132, // unified function pointers, multicast
    135, 138, // graphics
    136, 137, // decompression
    141, 142, 143, 144, 145, // memory of the host in pools
];

fn tell<T>(to: *mut T, what: impl FnOnce(&'static Session) -> Result<T, Code>) -> Code {
    let told = || {
        let session = session::session()?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let value = what(session)?;
        // SAFETY: not null, and the program's own room.
        unsafe { to.write_unaligned(value) };
        Ok(())
    };
    answer(told())
}

fn device(session: &'static Session, number: i32) -> Result<&'static Device, Code> {
    let number = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    session.welcome.devices.get(number).ok_or(INVALID_DEVICE)
}

fn attribute(device: &Device, number: i32) -> Result<i32, Code> {
    let at = usize::try_from(number).map_err(|_| INVALID_VALUE)?;
    let value = device.attributes.get(at).copied().flatten();
    let value = value.ok_or(INVALID_VALUE)?;
    Ok(if NOT_HERE.contains(&number) { 0 } else { value })
}

pub(crate) unsafe extern "C" fn cuInit(flags: u32) -> Code {
    answer(session::init(flags))
}

pub(crate) unsafe extern "C" fn cuDriverGetVersion(to: *mut i32) -> Code {
    let told = || {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let version = session::open()?.version;
        // SAFETY: not null, and the program's own room.
        unsafe { to.write(version.cast_signed()) };
        Ok(())
    };
    answer(told())
}

pub(crate) unsafe extern "C" fn cuDeviceGetCount(to: *mut i32) -> Code {
    tell(to, |session| {
        i32::try_from(session.welcome.devices.len()).map_err(|_| INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuDeviceGet(to: *mut i32, number: i32) -> Code {
    tell(to, |session| device(session, number).map(|_| number))
}

pub(crate) unsafe extern "C" fn cuDeviceGetAttribute(to: *mut i32, what: i32, number: i32) -> Code {
    tell(to, |session| attribute(device(session, number)?, what))
}

pub(crate) unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, number: i32) -> Code {
    tell(to, |session| {
        usize::try_from(device(session, number)?.memory).map_err(|_| INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], number: i32) -> Code {
    tell(to, |session| Ok(device(session, number)?.uuid))
}

pub(crate) unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], number: i32) -> Code {
    tell(to, |session| Ok(device(session, number)?.uuid))
}

pub(crate) unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    number: i32,
) -> Code {
    match tell(major, |session| attribute(device(session, number)?, 75)) {
        0 => tell(minor, |session| attribute(device(session, number)?, 76)),
        code => code,
    }
}

/// `CUdevprop`: its fourteen fields are the first fourteen attributes, in their order.
pub(crate) unsafe extern "C" fn cuDeviceGetProperties(to: *mut [i32; 14], number: i32) -> Code {
    tell(to, |session| {
        let device = device(session, number)?;
        let mut fields = [0; 14];
        for (field, number) in fields.iter_mut().zip(1..) {
            *field = attribute(device, number).unwrap_or(0);
        }
        Ok(fields)
    })
}

/// Writes a text and its NUL into `len` bytes of room, cut where it is too long.
fn text(to: *mut c_char, len: i32, text: &str) -> Result<(), Code> {
    let room = usize::try_from(len).ok().filter(|room| *room > 0);
    let (Some(room), false) = (room, to.is_null()) else {
        return Err(INVALID_VALUE);
    };
    let text = text.as_bytes();
    let text = text.get(..room - 1).unwrap_or(text);
    // SAFETY: not null, and room for as many bytes.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, len: i32, number: i32) -> Code {
    let told = || text(to, len, &device(session::session()?, number)?.name);
    answer(told())
}

pub(crate) unsafe extern "C" fn cuDeviceGetPCIBusId(
    to: *mut c_char,
    len: i32,
    number: i32,
) -> Code {
    let told = || text(to, len, &device(session::session()?, number)?.bus);
    answer(told())
}

/// Domain, bus, device and function of `0000:17:00.0`; domain and function may be left out.
fn bus_id(text: &str) -> Option<[u32; 4]> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let (rest, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    Some([hex(domain)?, hex(bus)?, hex(device)?, hex(function)?])
}

pub(crate) unsafe extern "C" fn cuDeviceGetByPCIBusId(to: *mut i32, id: *const c_char) -> Code {
    tell(to, |session| {
        if id.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and a text that ends.
        let asked = unsafe { CStr::from_ptr(id) }.to_str().unwrap_or_default();
        let asked = bus_id(asked).ok_or(INVALID_VALUE)?;
        let devices = session.welcome.devices.iter();
        let at = devices.map(|device| bus_id(&device.bus));
        let at = at.into_iter().position(|bus| bus == Some(asked));
        at.and_then(|at| i32::try_from(at).ok())
            .ok_or(INVALID_DEVICE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_id_is_read_in_each_of_its_forms() {
        assert_eq!(bus_id("0000:17:00.0"), Some([0, 0x17, 0, 0]));
        assert_eq!(bus_id("0001:a7:1F.3"), Some([1, 0xa7, 0x1f, 3]));
        assert_eq!(bus_id("17:00"), Some([0, 0x17, 0, 0]));
        assert_eq!(bus_id("17"), None);
        assert_eq!(bus_id("zz:00.0"), None);
    }

    #[test]
    fn a_text_is_cut_to_its_room() {
        let mut room = [1; 4];
        assert_eq!(text(room.as_mut_ptr(), 3, "abcdef"), Ok(()));
        assert_eq!(room.map(|c| c as u8), [b'a', b'b', 0, 1]);
        assert_eq!(text(room.as_mut_ptr(), 0, "a"), Err(INVALID_VALUE));
        assert_eq!(text(std::ptr::null_mut(), 4, "a"), Err(INVALID_VALUE));
    }

    #[test]
    fn what_needs_one_host_is_not_promised() {
        let device = Device {
            attributes: vec![Some(1); 140],
            ..Device::default()
        };
        assert_eq!(attribute(&device, 75), Ok(1));
        assert_eq!(attribute(&device, 89), Ok(0));
        assert_eq!(attribute(&device, 140), Err(INVALID_VALUE));
        assert_eq!(attribute(&device, -1), Err(INVALID_VALUE));
    }
}
