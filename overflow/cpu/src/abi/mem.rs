//! Memory: allocation, copies, fills, and what a pointer is.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::{In, Out, entries};
use crate::context::{Context, Res, current, lock, world};
use crate::engine::{Op, engine};
use crate::memory::{Alloc, Backing};
use crate::result::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_FOUND,
    NOT_SUPPORTED, OUT_OF_MEMORY,
};
use std::sync::Arc;
use std::time::Duration;

const PITCH: usize = 512;
/// The legacy default stream.
const LEGACY: usize = 0;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copy2D {
    src_x: usize,
    src_y: usize,
    src_type: u32,
    src_host: usize,
    src_device: u64,
    src_array: usize,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: u32,
    dst_host: usize,
    dst_device: u64,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// One side of a copy: rows of a pitch.
#[derive(Clone, Copy)]
struct Rows {
    at: u64,
    pitch: u64,
}

/// Where bytes are that a program gives an address of: what is allocated, or host memory of its own.
/// Whether it is the latter.
fn locate(at: u64, len: u64, device_only: bool) -> Res<(usize, bool)> {
    let memory = lock(&world()?.memory);
    if let Some(host) = memory.resolve(at, len) {
        return Ok((host, false));
    }
    if at == 0 || device_only || memory.in_a_region(at) {
        return Err(INVALID_VALUE);
    }
    usize::try_from(at)
        .map(|at| (at, true))
        .map_err(|_| INVALID_VALUE)
}

fn span(rows: Rows, width: u64, height: u64) -> Res<u64> {
    let before = (height - 1).checked_mul(rows.pitch);
    before
        .and_then(|b| b.checked_add(width))
        .ok_or(INVALID_VALUE)
}

/// Copies `height` rows of `width` bytes in stream order. `wait`: until it is done. Which sides may
/// only be of a device, in the order destination, source.
fn copy(
    to: Rows,
    from: Rows,
    width: usize,
    height: usize,
    stream: usize,
    wait: bool,
    device_only: (bool, bool),
) -> Res<()> {
    let context = current()?;
    let stream = context.queue(stream)?;
    let (width, height) = (width as u64, height as u64);
    if width == 0 || height == 0 {
        return Ok(());
    }
    let (to_span, from_span) = (span(to, width, height)?, span(from, width, height)?);
    let (_, to_own) = locate(to.at, to_span, device_only.0)?;
    let (source, from_own) = locate(from.at, from_span, device_only.1)?;
    // Memory that is not pinned is read before the call returns, and written before it does.
    let kept = (from_own && !wait && !to_own).then(|| {
        let mut bytes = vec![0_u8; from_span as usize];
        // SAFETY: the program vows that it may be read while the call lasts.
        unsafe {
            std::ptr::copy_nonoverlapping(source as *const u8, bytes.as_mut_ptr(), bytes.len())
        };
        bytes
    });
    let work = move || {
        let fault = |_| crate::result::ILLEGAL_ADDRESS;
        let (to_host, _) = locate(to.at, to_span, device_only.0).map_err(fault)?;
        let source = match &kept {
            Some(bytes) => bytes.as_ptr() as usize,
            None => locate(from.at, from_span, device_only.1).map_err(fault)?.0,
        };
        for row in 0..height {
            let from = (source + (row * from.pitch) as usize) as *const u8;
            let to = (to_host + (row * to.pitch) as usize) as *mut u8;
            // SAFETY: both sides were found for all rows just now; what is freed is freed by this
            // thread, or after it was waited for. They may overlap.
            unsafe { std::ptr::copy(from, to, width as usize) };
        }
        Ok(())
    };
    engine().submit(stream, Op::Work(Box::new(work), Duration::ZERO));
    if wait || to_own {
        engine().drain(stream);
        context.error()?;
    }
    Ok(())
}

fn flat(to: u64, from: u64, len: usize, stream: usize, wait: bool, only: (bool, bool)) -> Res<()> {
    let rows = |at| Rows { at, pitch: 0 };
    copy(rows(to), rows(from), len, 1, stream, wait, only)
}

fn copy_2d(how: In<Copy2D>, stream: usize, wait: bool) -> Res<()> {
    let c = how.get()?;
    let side = |ty, host: usize, device: u64, pitch: usize, x: usize, y: usize| {
        let base = match ty {
            1 => host as u64,
            2 | 4 => device,
            _ => return Err(NOT_SUPPORTED),
        };
        let pitch = if pitch == 0 { c.width } else { pitch };
        if pitch < c.width {
            return Err(INVALID_VALUE);
        }
        let skip = pitch
            .checked_mul(y)
            .and_then(|b| b.checked_add(x))
            .ok_or(INVALID_VALUE)?;
        let at = base.checked_add(skip as u64).ok_or(INVALID_VALUE)?;
        Ok((
            Rows {
                at,
                pitch: pitch as u64,
            },
            ty == 2,
        ))
    };
    let (to, to_only) = side(
        c.dst_type,
        c.dst_host,
        c.dst_device,
        c.dst_pitch,
        c.dst_x,
        c.dst_y,
    )?;
    let (from, from_only) = side(
        c.src_type,
        c.src_host,
        c.src_device,
        c.src_pitch,
        c.src_x,
        c.src_y,
    )?;
    copy(
        to,
        from,
        c.width,
        c.height,
        stream,
        wait,
        (to_only, from_only),
    )
}

/// Fills rows of `width` elements of `size` bytes. Not waited for, as on the genuine driver.
fn fill(
    at: u64,
    pitch: usize,
    value: u32,
    size: u64,
    width: usize,
    height: usize,
    stream: usize,
) -> Res<()> {
    let context = current()?;
    let stream = context.queue(stream)?;
    let bytes = (width as u64).checked_mul(size).ok_or(INVALID_VALUE)?;
    let rows = Rows {
        at,
        pitch: pitch as u64,
    };
    if width == 0 || height == 0 {
        return Ok(());
    }
    if !at.is_multiple_of(size)
        || (height > 1 && (rows.pitch < bytes || !rows.pitch.is_multiple_of(size)))
    {
        return Err(INVALID_VALUE);
    }
    let all = span(rows, bytes, height as u64)?;
    locate(at, all, true)?;
    let work = move || {
        let (host, _) = locate(at, all, true).map_err(|_| crate::result::ILLEGAL_ADDRESS)?;
        let value = value.to_le_bytes();
        for row in 0..height as u64 {
            let row = (host + (row * rows.pitch) as usize) as *mut u8;
            for i in 0..bytes as usize {
                let byte = value.get(i % size as usize).copied().unwrap_or(0);
                // SAFETY: within what was found just now; see `copy`.
                unsafe { row.wrapping_add(i).write(byte) };
            }
        }
        Ok(())
    };
    engine().submit(stream, Op::Work(Box::new(work), Duration::ZERO));
    Ok(())
}

fn alloc(out: Out<u64>, size: usize) -> Res<Arc<Context>> {
    let context = current()?;
    if !out.given() {
        return Err(INVALID_VALUE);
    }
    let at = lock(&world()?.memory).alloc(context.device, context.handle, size as u64)?;
    out.put(at)?;
    Ok(context)
}

fn alloc_host(out: Out<usize>, size: usize, managed: bool, flags: u32) -> Res<()> {
    let context = current()?;
    if !out.given() {
        return Err(INVALID_VALUE);
    }
    let mut memory = lock(&world()?.memory);
    out.put(memory.alloc_host(context.device, context.handle, size, managed, flags)?)
}

/// Frees what begins at `at` and is of a kind, once no work can use it.
fn free(at: u64, kind: impl Fn(Backing) -> bool, missing: u32) -> Res<()> {
    let world = world()?;
    let is = || {
        lock(&world.memory)
            .exactly(at)
            .is_some_and(|a| kind(a.backing))
    };
    if !is() {
        return Err(missing);
    }
    // Another thread may have been faster.
    let removed = engine().still(|| lock(&world.memory).remove(at));
    removed.map(|_| ()).ok_or(missing)
}

fn attribute(which: u32, at: u64, out: usize) -> Res<()> {
    let memory = lock(&world()?.memory);
    let alloc = *memory.find(at).ok_or(INVALID_VALUE)?;
    let managed = matches!(alloc.backing, Backing::Host { managed: true, .. });
    let host = alloc.on_host();
    let word = |v: u32| Out(out as *mut u32).put(v);
    let long = |v: u64| Out(out as *mut u64).put(v);
    let byte = |v: bool| Out(out as *mut u8).put(u8::from(v));
    match which {
        1 => long(alloc.context as u64),
        2 => word(if host && !managed { 1 } else { 2 }),
        3 => long(at),
        4 if host => long(at),
        7 => long(alloc.id),
        8 => byte(managed),
        9 => word(alloc.device as u32),
        10 => byte(alloc.backing == Backing::Device),
        15 => byte(false),
        11 | 19 => long(alloc.start),
        12 | 18 => long(alloc.size),
        13 => byte(true),
        14 => long(0),
        16 => word(3),
        _ => Err(INVALID_VALUE),
    }
}

/// Whether all of it is managed memory: what is asked for it is a hint, and nothing to do here.
fn managed(at: u64, len: usize) -> Res<()> {
    let memory = lock(&world()?.memory);
    let is = |a: &Alloc| matches!(a.backing, Backing::Host { managed: true, .. });
    let inside = memory.resolve(at, len as u64).is_some();
    (inside && memory.find(at).is_some_and(is))
        .then_some(())
        .ok_or(INVALID_VALUE)
}

entries! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = current()?;
        let (left, all) = lock(&world()?.memory).info(context.device);
        free.put(left as usize)?;
        total.put(all as usize)
    }

    fn cuMemAlloc_v2(out: Out<u64>, size: usize) {
        alloc(out, size).map(|_| ())
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if ![4, 8, 16].contains(&element) {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
        pitch.put(row)?;
        alloc(out, row.checked_mul(height).ok_or(OUT_OF_MEMORY)?).map(|_| ())
    }

    fn cuMemAllocAsync(out: Out<u64>, size: usize, stream: usize) {
        current()?.queue(stream)?;
        alloc(out, size).map(|_| ())
    }

    fn cuMemFree_v2(at: u64) {
        current()?;
        if at == 0 {
            return Ok(());
        }
        let kind = |b| matches!(b, Backing::Device | Backing::Host { managed: true, .. });
        free(at, kind, INVALID_VALUE)
    }

    fn cuMemFreeAsync(at: u64, stream: usize) {
        let context = current()?;
        let stream = context.queue(stream)?;
        let world = world()?;
        let found = lock(&world.memory).exactly(at).map(|a| a.backing);
        if found != Some(Backing::Device) {
            return Err(INVALID_VALUE);
        }
        let work = move || {
            let gone = lock(&world.memory).remove(at);
            gone.map(|_| ()).ok_or(INVALID_VALUE)
        };
        engine().submit(stream, Op::Work(Box::new(work), Duration::ZERO));
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, at: u64) {
        current()?;
        let alloc = lock(&world()?.memory).find(at).copied().ok_or(NOT_FOUND)?;
        base.put_if_given(alloc.start);
        size.put_if_given(alloc.size as usize);
        Ok(())
    }

    fn cuMemAllocHost_v2(out: Out<usize>, size: usize) {
        alloc_host(out, size, false, 0)
    }

    fn cuMemHostAlloc(out: Out<usize>, size: usize, flags: u32) {
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        alloc_host(out, size, false, flags)
    }

    fn cuMemAllocManaged(out: Out<usize>, size: usize, flags: u32) {
        if ![1, 2].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        alloc_host(out, size, true, flags)
    }

    fn cuMemFreeHost(at: usize) {
        current()?;
        let kind = |b| matches!(b, Backing::Host { managed: false, .. });
        free(at as u64, kind, INVALID_VALUE)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, at: usize, _flags: u32) {
        current()?;
        let memory = lock(&world()?.memory);
        let alloc = memory.find(at as u64).filter(|a| a.on_host());
        alloc.ok_or(INVALID_VALUE)?;
        out.put(at as u64)
    }

    fn cuMemHostGetFlags(out: Out<u32>, at: usize) {
        current()?;
        let found = lock(&world()?.memory).find(at as u64).map(|a| a.backing);
        match found {
            Some(Backing::Host { flags, .. } | Backing::Registered { flags }) => out.put(flags),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemHostRegister_v2(at: usize, size: usize, flags: u32) {
        let context = current()?;
        if at == 0 || size == 0 || flags > 15 {
            return Err(INVALID_VALUE);
        }
        let mut memory = lock(&world()?.memory);
        let done = memory.register(context.device, context.handle, at, size, flags);
        done.ok_or(HOST_MEMORY_ALREADY_REGISTERED)
    }

    fn cuMemHostUnregister(at: usize) {
        current()?;
        let kind = |b| matches!(b, Backing::Registered { .. });
        free(at as u64, kind, HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuPointerGetAttribute(out: usize, which: u32, at: u64) {
        world()?;
        attribute(which, at, out)
    }

    fn cuPointerGetAttributes(count: u32, which: In<u32>, out: In<usize>, at: u64) {
        world()?;
        for i in 0..count as usize {
            let (which, out) = (which.at(i)?, out.at(i)?);
            // A pointer that is not known is no error here: the answers are zeros.
            if attribute(which, at, out).is_err() {
                match which {
                    1 | 3 | 4 | 7 | 11 | 12 | 18 | 19 => Out(out as *mut u64).put(0)?,
                    2 | 16 => Out(out as *mut u32).put(0)?,
                    8 | 10 | 13 | 15 => Out(out as *mut u8).put(0)?,
                    9 => Out(out as *mut i32).put(-2)?,
                    14 => Out(out as *mut u64).put(0)?,
                    _ => return Err(INVALID_VALUE),
                }
            }
        }
        Ok(())
    }

    fn cuMemAdvise(at: u64, len: usize, _advice: u32, _device: i32) {
        managed(at, len)
    }

    fn cuMemAdvise_v2(at: u64, len: usize, _advice: u32, _location: u64) {
        managed(at, len)
    }

    fn cuMemPrefetchAsync(at: u64, len: usize, _device: i32, stream: usize) {
        current()?.queue(stream)?;
        managed(at, len)
    }

    fn cuMemPrefetchAsync_v2(at: u64, len: usize, _location: u64, _flags: u32, stream: usize) {
        current()?.queue(stream)?;
        managed(at, len)
    }

    fn cuMemcpy(to: u64, from: u64, len: usize) {
        flat(to, from, len, LEGACY, true, (false, false))
    }

    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: usize) {
        flat(to, from, len, stream, false, (false, false))
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, len: usize) {
        flat(to, from as u64, len, LEGACY, true, (true, false))
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, len: usize) {
        flat(to as u64, from, len, LEGACY, true, (false, true))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        flat(to, from, len, LEGACY, false, (true, true))
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: usize) {
        flat(to, from as u64, len, stream, false, (true, false))
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, len: usize, stream: usize) {
        flat(to as u64, from, len, stream, false, (false, true))
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        flat(to, from, len, stream, false, (true, true))
    }

    fn cuMemcpy2D_v2(how: In<Copy2D>) {
        copy_2d(how, LEGACY, true)
    }

    fn cuMemcpy2DUnaligned_v2(how: In<Copy2D>) {
        copy_2d(how, LEGACY, true)
    }

    fn cuMemcpy2DAsync_v2(how: In<Copy2D>, stream: usize) {
        copy_2d(how, stream, false)
    }

    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        fill(at, 0, value.into(), 1, count, 1, LEGACY)
    }

    fn cuMemsetD16_v2(at: u64, value: u16, count: usize) {
        fill(at, 0, value.into(), 2, count, 1, LEGACY)
    }

    fn cuMemsetD32_v2(at: u64, value: u32, count: usize) {
        fill(at, 0, value, 4, count, 1, LEGACY)
    }

    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: usize) {
        fill(at, 0, value.into(), 1, count, 1, stream)
    }

    fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: usize) {
        fill(at, 0, value.into(), 2, count, 1, stream)
    }

    fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: usize) {
        fill(at, 0, value, 4, count, 1, stream)
    }

    fn cuMemsetD2D8_v2(at: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(at, pitch, value.into(), 1, width, height, LEGACY)
    }

    fn cuMemsetD2D16_v2(at: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(at, pitch, value.into(), 2, width, height, LEGACY)
    }

    fn cuMemsetD2D32_v2(at: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(at, pitch, value, 4, width, height, LEGACY)
    }

    fn cuMemsetD2D8Async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize) {
        fill(at, pitch, value.into(), 1, width, height, stream)
    }

    fn cuMemsetD2D16Async(at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize) {
        fill(at, pitch, value.into(), 2, width, height, stream)
    }

    fn cuMemsetD2D32Async(at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize) {
        fill(at, pitch, value, 4, width, height, stream)
    }
}
