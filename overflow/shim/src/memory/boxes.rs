//! Copies of boxes: two and three dimensions, and all that touch an array.

mod batch;

pub(crate) use batch::*;

use super::copy::{is_pinned, seen_by_all, source_ready};
use super::host::window;
use super::{done, map, publish};
use crate::link::Region;
use crate::session::link;
use crate::work::{is_captured, wait_for};
use crate::{answer, thread};
use ghost_wire::message::{CopyBox, End, Field, Message, place, wait};
use ghost_wire::result::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use ghost_wire::{Id, Object};

/// One end of a copy, as `CUDA_MEMCPY3D` tells it, whichever form it was in.
#[derive(Debug, Clone, Copy)]
struct Place {
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
    height: usize,
    from: [usize; 3],
    level: usize,
}

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2D {
    from: End2D,
    to: End2D,
    width: usize,
    height: usize,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct End2D {
    x: usize,
    y: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy3D {
    from: End3D,
    to: End3D,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct End3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

impl From<End2D> for Place {
    fn from(end: End2D) -> Self {
        Self {
            kind: end.kind,
            host: end.host,
            device: end.device,
            array: end.array,
            pitch: end.pitch,
            height: 0,
            from: [end.x, end.y, 0],
            level: 0,
        }
    }
}

impl From<End3D> for Place {
    fn from(end: End3D) -> Self {
        Self {
            kind: end.kind,
            host: end.host,
            device: end.device,
            array: end.array,
            pitch: end.pitch,
            height: end.height,
            from: [end.x, end.y, end.z],
            level: end.level,
        }
    }
}

impl Place {
    /// Bytes of an array, from `offset` on.
    fn array(array: u64, offset: usize) -> Self {
        Self {
            kind: ARRAY,
            host: 0,
            device: 0,
            array,
            pitch: 0,
            height: 0,
            from: [offset, 0, 0],
            level: 0,
        }
    }

    /// Bytes in a row.
    fn flat(kind: u32, at: u64) -> Self {
        Self {
            kind,
            host: at,
            device: at,
            ..Self::array(0, 0)
        }
    }

    /// The same as the device sees it, where it is page-locked memory.
    fn shown(self) -> Result<Self, Code> {
        let at = match self.kind {
            HOST => self.host,
            UNIFIED => self.device,
            _ => return Ok(self),
        };
        match is_pinned(at) {
            true => Ok(Self {
                kind: DEVICE,
                device: window(at)?,
                ..self
            }),
            false => Ok(self),
        }
    }

    /// The end of a copy of `extent`: for the wire, and where the host has it if it is there.
    /// `is_host` says whose an address is that is only said to be of the one space.
    fn end(
        &self,
        extent: [usize; 3],
        is_host: impl Fn(u64) -> bool,
    ) -> Result<(End, Option<Region>), Code> {
        let [width, rows, slices] = extent;
        let kind = match self.kind {
            UNIFIED if is_host(self.device) => HOST,
            UNIFIED => DEVICE,
            kind => kind,
        };
        let (pitch, height) = self.steps(extent)?;
        let [x, y, z] = self.from;
        let word = |value: usize| value as u64;
        let end = End {
            place: place::HOST,
            at: 0,
            pitch: 0,
            height: 0,
            from: [0; 3],
            level: 0,
        };
        match kind {
            HOST => {
                let base = if self.kind == UNIFIED {
                    self.device
                } else {
                    self.host
                };
                let slice = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
                let offset = slice
                    .checked_mul(z)
                    .zip(pitch.checked_mul(y))
                    .and_then(|(z, y)| z.checked_add(y)?.checked_add(x));
                let offset = word(offset.ok_or(INVALID_VALUE)?);
                let base = base.checked_add(offset).filter(|_| base != 0);
                let region = Region {
                    base: base.ok_or(INVALID_VALUE)? as *mut u8,
                    width,
                    rows,
                    slices,
                    pitch,
                    slice,
                };
                Ok((end, Some(region)))
            }
            DEVICE => {
                let end = End {
                    place: place::DEVICE,
                    at: self.device,
                    pitch: word(pitch),
                    height: word(height),
                    from: [word(x), word(y), word(z)],
                    ..end
                };
                Ok((end, None))
            }
            ARRAY => {
                let object = Id::from_raw(self.array).and_then(Id::object);
                if object != Some(Object::Array) {
                    return Err(INVALID_HANDLE);
                }
                let end = End {
                    place: place::ARRAY,
                    at: self.array,
                    from: [word(x), word(y), word(z)],
                    level: u32::try_from(self.level).map_err(|_| INVALID_VALUE)?,
                    ..end
                };
                Ok((end, None))
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// Bytes from row to row and rows from slice to slice; what is left out follows from the box.
    fn steps(&self, [width, rows, slices]: [usize; 3]) -> Result<(usize, usize), Code> {
        let [x, y, _] = self.from;
        let least = x.checked_add(width).ok_or(INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { least } else { self.pitch };
        let height = match self.height {
            0 => y.checked_add(rows).ok_or(INVALID_VALUE)?,
            height => height,
        };
        let short = (pitch < least && rows > 1) || (slices > 1 && height < y.saturating_add(rows));
        if short && self.kind != ARRAY {
            return Err(INVALID_VALUE);
        }
        Ok((pitch, height))
    }
}

/// How a copy is called.
#[derive(Debug, Clone, Copy)]
struct How {
    stream: u64,
    sync: bool,
    per_thread: bool,
}

fn is_host(at: u64) -> bool {
    map::find(at).is_none_or(|range| range.is_host())
}

fn copy(mut from: Place, mut to: Place, extent: [usize; 3], how: How) -> Result<(), Code> {
    let link = link()?;
    if !how.sync && is_captured(how.stream, how.per_thread)? {
        (from, to) = (from.shown()?, to.shown()?);
    }
    let stream = thread::stream(how.stream, how.per_thread)?;
    if extent.contains(&0) {
        return Ok(());
    }
    let (from, source) = from.end(extent, is_host)?;
    let (to, target) = to.end(extent, is_host)?;
    publish(link)?;
    let message = CopyBox {
        from,
        to,
        extent: extent.map(|value| value as u64),
        stream,
        bulk: false,
        data: &[],
    };
    match (source, target) {
        (None, None) => {
            done(link.post(CopyBox::OP, |to| message.put(to)))?;
            Ok(())
        }
        (Some(source), None) => {
            source_ready(link, &source)?;
            // SAFETY: the program's memory, which it gave to be read.
            done(unsafe {
                link.post_data(CopyBox::OP, source, |to, bulk, data| {
                    CopyBox {
                        bulk,
                        data,
                        ..message
                    }
                    .put(to);
                })
            })?;
            match how.sync {
                true => seen_by_all(link, stream, how.per_thread),
                false => Ok(()),
            }
        }
        // SAFETY: the program's memory, which it gave to be written; pageable memory until the
        // call returns, pinned memory until it frees it, which waits.
        (None, Some(target)) => unsafe {
            if how.sync || !is_pinned(target.base as u64) {
                link.wait_landing(CopyBox::OP, target, |to| message.put(to))
            } else {
                done(link.post_landing(CopyBox::OP, target, |to| message.put(to)))
            }
        },
        (Some(source), Some(target)) => {
            wait_for(link, wait::STREAM, stream)?;
            let mut packed = Vec::with_capacity(source.len());
            // SAFETY: the program's memory, one end to be read, the other to be written.
            unsafe {
                source.gather(0, source.len(), &mut packed);
                target.scatter(0, &packed);
            }
            Ok(())
        }
    }
}

/// Reads a descriptor of the program's.
///
/// # Safety
/// It is null or whole.
unsafe fn read<T: Copy>(descriptor: *const T) -> Result<T, Code> {
    if descriptor.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and whole by the contract.
    Ok(unsafe { descriptor.read_unaligned() })
}

unsafe fn copy_2d(descriptor: *const Copy2D, how: How) -> Code {
    let copied = || {
        // SAFETY: handed on.
        let copy_of = unsafe { read(descriptor) }?;
        let extent = [copy_of.width, copy_of.height, 1];
        copy(copy_of.from.into(), copy_of.to.into(), extent, how)
    };
    answer(copied())
}

unsafe fn copy_3d(descriptor: *const Copy3D, how: How) -> Code {
    let copied = || {
        // SAFETY: handed on.
        let copy_of = unsafe { read(descriptor) }?;
        let extent = [copy_of.width, copy_of.height, copy_of.depth];
        copy(copy_of.from.into(), copy_of.to.into(), extent, how)
    };
    answer(copied())
}

/// Both ends of a copy that a graph is to make, and its extent. Of the host they may be in
/// page-locked memory only, which the device is shown.
///
/// # Safety
/// It is null or whole.
pub(crate) unsafe fn ends(descriptor: *const Copy3D) -> Result<(End, End, [u64; 3]), Code> {
    // SAFETY: handed on.
    let copy_of = unsafe { read(descriptor) }?;
    let extent = [copy_of.width, copy_of.height, copy_of.depth];
    let (from, source) = Place::from(copy_of.from).shown()?.end(extent, is_host)?;
    let (to, target) = Place::from(copy_of.to).shown()?.end(extent, is_host)?;
    if source.is_some() || target.is_some() {
        return Err(NOT_SUPPORTED);
    }
    Ok((from, to, extent.map(|value| value as u64)))
}

const fn sync<const PT: bool>() -> How {
    How {
        stream: 0,
        sync: true,
        per_thread: PT,
    }
}

const fn later<const PT: bool>(stream: u64) -> How {
    How {
        stream,
        sync: false,
        per_thread: PT,
    }
}

pub(crate) unsafe extern "C" fn cuMemcpy2D_v2<const PT: bool>(descriptor: *const Copy2D) -> Code {
    // SAFETY: handed on.
    unsafe { copy_2d(descriptor, sync::<PT>()) }
}

pub(crate) unsafe extern "C" fn cuMemcpy2DUnaligned_v2<const PT: bool>(
    descriptor: *const Copy2D,
) -> Code {
    // SAFETY: handed on.
    unsafe { copy_2d(descriptor, sync::<PT>()) }
}

pub(crate) unsafe extern "C" fn cuMemcpy2DAsync_v2<const PT: bool>(
    descriptor: *const Copy2D,
    stream: u64,
) -> Code {
    // SAFETY: handed on.
    unsafe { copy_2d(descriptor, later::<PT>(stream)) }
}

pub(crate) unsafe extern "C" fn cuMemcpy3D_v2<const PT: bool>(descriptor: *const Copy3D) -> Code {
    // SAFETY: handed on.
    unsafe { copy_3d(descriptor, sync::<PT>()) }
}

pub(crate) unsafe extern "C" fn cuMemcpy3DAsync_v2<const PT: bool>(
    descriptor: *const Copy3D,
    stream: u64,
) -> Code {
    // SAFETY: handed on.
    unsafe { copy_3d(descriptor, later::<PT>(stream)) }
}

fn row(from: Place, to: Place, len: usize, how: How) -> Code {
    answer(copy(from, to, [len, 1, 1], how))
}

pub(crate) unsafe extern "C" fn cuMemcpyDtoA_v2<const PT: bool>(
    to: u64,
    offset: usize,
    from: u64,
    len: usize,
) -> Code {
    let from = Place::flat(DEVICE, from);
    row(from, Place::array(to, offset), len, sync::<PT>())
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoD_v2<const PT: bool>(
    to: u64,
    from: u64,
    offset: usize,
    len: usize,
) -> Code {
    let to = Place::flat(DEVICE, to);
    row(Place::array(from, offset), to, len, sync::<PT>())
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoA_v2<const PT: bool>(
    to: u64,
    offset: usize,
    from: u64,
    len: usize,
) -> Code {
    let from = Place::flat(HOST, from);
    row(from, Place::array(to, offset), len, sync::<PT>())
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoH_v2<const PT: bool>(
    to: u64,
    from: u64,
    offset: usize,
    len: usize,
) -> Code {
    let to = Place::flat(HOST, to);
    row(Place::array(from, offset), to, len, sync::<PT>())
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoA_v2<const PT: bool>(
    to: u64,
    to_offset: usize,
    from: u64,
    from_offset: usize,
    len: usize,
) -> Code {
    let from = Place::array(from, from_offset);
    row(from, Place::array(to, to_offset), len, sync::<PT>())
}

pub(crate) unsafe extern "C" fn cuMemcpyHtoAAsync_v2<const PT: bool>(
    to: u64,
    offset: usize,
    from: u64,
    len: usize,
    stream: u64,
) -> Code {
    let from = Place::flat(HOST, from);
    row(from, Place::array(to, offset), len, later::<PT>(stream))
}

pub(crate) unsafe extern "C" fn cuMemcpyAtoHAsync_v2<const PT: bool>(
    to: u64,
    from: u64,
    offset: usize,
    len: usize,
    stream: u64,
) -> Code {
    let to = Place::flat(HOST, to);
    row(Place::array(from, offset), to, len, later::<PT>(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_sizes_of_cuda() {
        assert_eq!((size_of::<Copy2D>(), size_of::<Copy3D>()), (128, 200));
    }

    #[test]
    fn a_place_of_the_host_becomes_a_region() {
        let place = Place {
            pitch: 32,
            height: 4,
            from: [3, 1, 2],
            ..Place::flat(HOST, 0x1_0000)
        };
        let (end, region) = place.end([8, 2, 2], |_| false).unwrap();
        let region = region.unwrap();
        assert_eq!(region.base as u64, 0x1_0000 + 2 * 128 + 32 + 3);
        assert_eq!((region.pitch, region.slice, region.len()), (32, 128, 32));
        assert_eq!((end.place, end.at, end.from), (place::HOST, 0, [0; 3]));
    }

    #[test]
    fn what_is_left_out_follows_from_the_box() {
        let place = Place::flat(DEVICE, 0x1000);
        let (end, region) = place.end([8, 2, 3], |_| false).unwrap();
        assert!(region.is_none());
        assert_eq!((end.pitch, end.height), (8, 2));
        let unified = Place::flat(UNIFIED, 0x1000);
        assert!(unified.end([8, 1, 1], |_| true).unwrap().1.is_some());
        assert!(unified.end([8, 1, 1], |_| false).unwrap().1.is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let end = |place: Place, extent| place.end(extent, |_| false).map(|(end, _)| end);
        let short = Place {
            pitch: 7,
            ..Place::flat(DEVICE, 0x1000)
        };
        assert_eq!(end(short, [8, 2, 1]), Err(INVALID_VALUE));
        assert_eq!(end(Place::flat(HOST, 0), [8, 1, 1]), Err(INVALID_VALUE));
        assert_eq!(end(Place::flat(9, 1), [8, 1, 1]), Err(INVALID_VALUE));
        assert_eq!(end(Place::array(5, 0), [8, 1, 1]), Err(INVALID_HANDLE));
        let far = Place {
            from: [usize::MAX, 0, 0],
            ..Place::flat(HOST, 1)
        };
        assert_eq!(end(far, [8, 1, 1]), Err(INVALID_VALUE));
    }
}
