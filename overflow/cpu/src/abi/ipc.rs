//! Memory and events that processes share.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::{Out, entries};
use crate::context::{EVENTS, Event, current, lock, new_handle, world};
use crate::engine::engine;
use crate::ipc::{Handle, Point};
use crate::result::{INVALID_HANDLE, INVALID_VALUE};
use std::sync::Arc;

entries! {
    fn cuIpcGetMemHandle(out: Out<Handle>, at: u64) {
        current()?;
        let world = world()?;
        // Nothing writes to what is put into a file.
        out.put(engine().still(|| lock(&world.memory).share(at))?)
    }

    fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: Handle, flags: u32) {
        let context = current()?;
        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        if flags != 1 || !out.given() {
            return Err(INVALID_VALUE);
        }
        out.put(lock(&world()?.memory).open(context.device, context.handle, &handle)?)
    }

    fn cuIpcCloseMemHandle(at: u64) {
        current()?;
        let world = world()?;
        engine().still(|| lock(&world.memory).close(at)).ok_or(INVALID_VALUE)
    }

    fn cuIpcGetEventHandle(out: Out<Handle>, event: usize) {
        current()?;
        let event = EVENTS.get(event)?;
        out.put(event.shared.as_ref().ok_or(INVALID_HANDLE)?.handle()?)
    }

    fn cuIpcOpenEventHandle(out: Out<usize>, handle: Handle) {
        let context = current()?;
        if !out.given() {
            return Err(INVALID_VALUE);
        }
        let event = Event {
            context: context.handle,
            timed: false,
            last: Default::default(),
            shared: Some(Arc::new(Point::open(&handle)?)),
        };
        let handle = new_handle();
        EVENTS.put(handle, Arc::new(event));
        out.put(handle)
    }
}
