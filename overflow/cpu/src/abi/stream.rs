//! Streams, events and callbacks.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::{Out, entries};
use crate::context::{EVENTS, Event, Res, STREAMS, Stream, current, lock, new_handle, world};
use crate::engine::{Marker, Op, Order, engine};
use crate::ipc::Point;
use crate::result::{CuResult, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

type StreamCallback = unsafe extern "C" fn(usize, CuResult, *mut c_void);
type HostFunction = unsafe extern "C" fn(*mut c_void);

fn create(out: Out<usize>, flags: u32, priority: i32) -> Res<()> {
    let context = current()?;
    if flags > 1 || !out.given() {
        return Err(INVALID_VALUE);
    }
    let order = if flags == 1 {
        Order::NonBlocking
    } else {
        Order::Blocking
    };
    let handle = new_handle();
    let id = engine().open(context.clone(), order);
    let stream = Stream {
        id,
        context,
        flags,
        priority,
    };
    STREAMS.put(handle, Arc::new(stream));
    out.put(handle)
}

/// What is known of a stream that is not a default one.
fn made(stream: usize) -> Res<Option<Arc<Stream>>> {
    current()?;
    if stream < 3 {
        return Ok(None);
    }
    STREAMS.get(stream).map(Some)
}

/// Where an event was recorded last.
enum Last {
    Never,
    Here(Arc<Marker>),
    /// In a stream of some process: which record.
    Shared(Arc<Point>, u64),
}

impl Last {
    fn of(event: usize) -> Res<Self> {
        world()?;
        let event = EVENTS.get(event)?;
        if let Some(point) = &event.shared {
            return Ok(Self::Shared(point.clone(), point.recorded()));
        }
        let marker = lock(&event.last).clone();
        Ok(marker.map_or(Self::Never, Self::Here))
    }

    fn is_reached(&self) -> bool {
        match self {
            Self::Never => true,
            Self::Here(marker) => marker.reached().is_some(),
            Self::Shared(point, record) => point.reached(*record),
        }
    }
}

fn record(event: usize, stream: usize) -> Res<()> {
    let context = current()?;
    let event = EVENTS.get(event)?;
    let stream = context.queue(stream)?;
    if let Some(point) = event.shared.clone() {
        let record = point.record();
        let work = move || {
            point.reach(record);
            Ok(())
        };
        engine().submit(stream, Op::Work(Box::new(work), Duration::ZERO));
        return Ok(());
    }
    let marker = Arc::new(Marker::default());
    *lock(&event.last) = Some(marker.clone());
    engine().submit(stream, Op::Mark(marker));
    Ok(())
}

fn elapsed(out: Out<f32>, start: usize, end: usize) -> Res<()> {
    current()?;
    let (start, end) = (EVENTS.get(start)?, EVENTS.get(end)?);
    if !start.timed || !end.timed {
        return Err(INVALID_HANDLE);
    }
    let reached = |e: &Event| {
        let marker = lock(&e.last).clone().ok_or(INVALID_HANDLE)?;
        marker.reached().ok_or(NOT_READY)
    };
    let (from, to) = (reached(&start)?, reached(&end)?);
    let later = to.saturating_duration_since(from).as_secs_f32();
    let earlier = from.saturating_duration_since(to).as_secs_f32();
    out.put((later - earlier) * 1000.0)
}

/// Where a value of a stream's operation is.
fn value_at(at: u64, len: u64) -> Res<usize> {
    let host = lock(&world()?.memory).resolve(at, len);
    host.filter(|_| at.is_multiple_of(len)).ok_or(INVALID_VALUE)
}

fn write_value(stream: usize, at: u64, value: u64, len: u64) -> Res<()> {
    let stream = current()?.queue(stream)?;
    value_at(at, len)?;
    let work = move || {
        let host = value_at(at, len).map_err(|_| ILLEGAL_ADDRESS)? as *mut u64;
        // SAFETY: found just now, and aligned; what is freed is freed by this thread, or after it
        // was waited for.
        unsafe {
            match len {
                4 => host.cast::<u32>().write_volatile(value as u32),
                _ => host.write_volatile(value),
            }
        }
        Ok(())
    };
    engine().submit(stream, Op::Work(Box::new(work), Duration::ZERO));
    Ok(())
}

/// `CU_STREAM_WAIT_VALUE_*`: at least (as a difference that is not negative), equal, any of these
/// bits, not all of them.
fn wait_value(stream: usize, at: u64, value: u64, len: u64, flags: u32) -> Res<()> {
    let stream = current()?.queue(stream)?;
    value_at(at, len)?;
    if flags > 3 {
        return Err(INVALID_VALUE);
    }
    let is = move || {
        // What is gone is waited for no longer.
        let Ok(host) = value_at(at, len) else {
            return true;
        };
        // SAFETY: as in `write_value`.
        let (now, mask) = unsafe {
            match len {
                4 => (
                    (host as *const u32).read_volatile().into(),
                    u64::from(u32::MAX),
                ),
                _ => ((host as *const u64).read_volatile(), u64::MAX),
            }
        };
        match flags {
            0 => now.wrapping_sub(value) & mask <= mask >> 1,
            1 => now == value,
            2 => now & value != 0,
            _ => !(now | value) & mask != 0,
        }
    };
    engine().submit(stream, Op::Until(Box::new(is)));
    Ok(())
}

entries! {
    fn cuStreamCreate(out: Out<usize>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<usize>, flags: u32, _priority: i32) {
        // There is one priority.
        create(out, flags, 0)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        world()?;
        engine().close(STREAMS.take(stream)?.id);
        Ok(())
    }

    fn cuStreamQuery(stream: usize) {
        let context = current()?;
        let idle = engine().idle(context.queue(stream)?);
        context.error()?;
        if idle { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamSynchronize(stream: usize) {
        let context = current()?;
        engine().drain(context.queue(stream)?);
        context.error()
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let context = current()?;
        let stream = context.queue(stream)?;
        match Last::of(event)? {
            Last::Never => {}
            Last::Here(marker) => engine().submit(stream, Op::Wait(marker)),
            last => engine().submit(stream, Op::Until(Box::new(move || last.is_reached()))),
        }
        Ok(())
    }

    fn cuStreamGetPriority(stream: usize, out: Out<i32>) {
        out.put(made(stream)?.map_or(0, |s| s.priority))
    }

    fn cuStreamGetFlags(stream: usize, out: Out<u32>) {
        out.put(made(stream)?.map_or(0, |s| s.flags))
    }

    fn cuStreamGetCtx(stream: usize, out: Out<usize>) {
        let context = match made(stream)? {
            Some(stream) => stream.context.handle,
            None => current()?.handle,
        };
        out.put(context)
    }

    fn cuStreamGetId(stream: usize, out: Out<u64>) {
        out.put(current()?.queue(stream)?)
    }

    fn cuStreamGetDevice(stream: usize, out: Out<i32>) {
        let device = match made(stream)? {
            Some(stream) => stream.context.device,
            None => current()?.device,
        };
        out.put(device as i32)
    }

    fn cuStreamIsCapturing(stream: usize, out: Out<u32>) {
        made(stream)?;
        out.put(0)
    }

    fn cuStreamAddCallback(
        stream: usize, call: Option<StreamCallback>, data: usize, _flags: u32,
    ) {
        let call = call.ok_or(INVALID_VALUE)?;
        let context = current()?;
        engine().submit(context.queue(stream)?, Op::Call(Box::new(move |status| {
            // SAFETY: the program's function, with the data that it gave for it.
            unsafe { call(stream, status, data as *mut c_void) };
        })));
        Ok(())
    }

    fn cuLaunchHostFunc(stream: usize, call: Option<HostFunction>, data: usize) {
        let call = call.ok_or(INVALID_VALUE)?;
        let context = current()?;
        engine().submit(context.queue(stream)?, Op::Call(Box::new(move |status| {
            if status == 0 {
                // SAFETY: the program's function, with the data that it gave for it.
                unsafe { call(data as *mut c_void) };
            }
        })));
        Ok(())
    }

    fn cuEventCreate(out: Out<usize>, flags: u32) {
        let context = current()?;
        // One that processes share has no times.
        if flags > 7 || flags & 6 == 4 || !out.given() {
            return Err(INVALID_VALUE);
        }
        let shared = (flags & 4 != 0).then(Point::new).transpose()?.map(Arc::new);
        let handle = new_handle();
        let event = Event { context: context.handle, timed: flags & 2 == 0, last: Default::default(), shared };
        EVENTS.put(handle, Arc::new(event));
        out.put(handle)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: u32) {
        record(event, stream)
    }

    fn cuEventQuery(event: usize) {
        let last = Last::of(event)?;
        current()?;
        last.is_reached().then_some(()).ok_or(NOT_READY)
    }

    fn cuEventSynchronize(event: usize) {
        match Last::of(event)? {
            Last::Here(marker) => engine().reach(&marker),
            last => while !last.is_reached() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        current()?.error()
    }

    fn cuEventDestroy_v2(event: usize) {
        world()?;
        EVENTS.take(event).map(|_| ())
    }

    fn cuEventElapsedTime(out: Out<f32>, start: usize, end: usize) {
        elapsed(out, start, end)
    }

    fn cuEventElapsedTime_v2(out: Out<f32>, start: usize, end: usize) {
        elapsed(out, start, end)
    }

    fn cuStreamWriteValue32_v2(stream: usize, at: u64, value: u32, _flags: u32) {
        write_value(stream, at, value.into(), 4)
    }

    fn cuStreamWriteValue64_v2(stream: usize, at: u64, value: u64, _flags: u32) {
        write_value(stream, at, value, 8)
    }

    fn cuStreamWaitValue32_v2(stream: usize, at: u64, value: u32, flags: u32) {
        wait_value(stream, at, value.into(), 4, flags)
    }

    fn cuStreamWaitValue64_v2(stream: usize, at: u64, value: u64, flags: u32) {
        wait_value(stream, at, value, 8, flags)
    }
}
