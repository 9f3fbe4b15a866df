//! Contexts.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::device::device;
use super::{Out, entries};
use crate::context::{CONTEXTS, Context, current, current_or_failed, lock, stack, world};
use crate::engine::engine;
use crate::result::{
    CuResult, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, PRIMARY_CONTEXT_ACTIVE,
    UNSUPPORTED_LIMIT,
};

/// A context that a program names, or the current one for 0.
fn named(context: usize) -> Result<std::sync::Arc<Context>, CuResult> {
    if context == 0 {
        return current();
    }
    world()?;
    CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)
}

fn create(out: Out<usize>, flags: u32, dev: i32) -> Result<(), CuResult> {
    let device = device(dev)?;
    if !out.given() {
        return Err(INVALID_VALUE);
    }
    let context = Context::new(device, flags);
    stack(|s| s.push(context.handle));
    out.put(context.handle)
}

fn reset(dev: i32, only_one: bool) -> Result<(), CuResult> {
    let device = device(dev)?;
    let gone = {
        let mut all = lock(&world()?.primary);
        let primary = all.get_mut(device).ok_or(INVALID_VALUE)?;
        if only_one {
            primary.retained = primary.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        }
        if only_one && primary.retained > 0 {
            None
        } else {
            primary.context.take()
        }
    };
    gone.map_or(Ok(()), |context| context.destroy())
}

fn default_limit(limit: u32) -> Option<usize> {
    match limit {
        0 => Some(1024),
        1 => Some(1 << 20),
        2 => Some(8 << 20),
        5 => Some(64),
        6 => Some(0),
        _ => None,
    }
}

entries! {
    fn cuDevicePrimaryCtxRetain(out: Out<usize>, dev: i32) {
        let device = device(dev)?;
        let mut all = lock(&world()?.primary);
        let primary = all.get_mut(device).ok_or(INVALID_VALUE)?;
        let flags = primary.flags;
        let context = primary.context.get_or_insert_with(|| Context::new(device, flags));
        out.put(context.handle)?;
        primary.retained = primary.retained.saturating_add(1);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: i32) {
        reset(dev, true)
    }

    fn cuDevicePrimaryCtxReset_v2(dev: i32) {
        reset(dev, false)
    }

    fn cuDevicePrimaryCtxGetState(dev: i32, flags: Out<u32>, active: Out<i32>) {
        let device = device(dev)?;
        let all = lock(&world()?.primary);
        let primary = all.get(device).ok_or(INVALID_VALUE)?;
        flags.put(primary.flags)?;
        active.put(i32::from(primary.context.is_some()))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: i32, flags: u32) {
        let device = device(dev)?;
        let mut all = lock(&world()?.primary);
        let primary = all.get_mut(device).ok_or(INVALID_VALUE)?;
        if primary.context.as_ref().is_some_and(|c| c.flags != flags) {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        primary.flags = flags;
        Ok(())
    }

    fn cuCtxCreate_v2(out: Out<usize>, flags: u32, dev: i32) {
        create(out, flags, dev)
    }

    fn cuCtxCreate_v3(out: Out<usize>, _affinity: usize, count: i32, flags: u32, dev: i32) {
        if count != 0 {
            return Err(NOT_SUPPORTED);
        }
        create(out, flags, dev)
    }

    fn cuCtxCreate_v4(out: Out<usize>, params: usize, flags: u32, dev: i32) {
        if params != 0 {
            return Err(NOT_SUPPORTED);
        }
        create(out, flags, dev)
    }

    fn cuCtxDestroy_v2(context: usize) {
        world()?;
        let context = CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)?;
        stack(|s| {
            if s.last() == Some(&context.handle) {
                s.pop();
            }
        });
        context.destroy()
    }

    fn cuCtxGetCurrent(out: Out<usize>) {
        world()?;
        out.put(stack(|s| s.last().copied()).unwrap_or(0))
    }

    fn cuCtxSetCurrent(context: usize) {
        world()?;
        if context != 0 {
            CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)?;
        }
        stack(|s| {
            s.pop();
            if context != 0 {
                s.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        world()?;
        CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)?;
        stack(|s| s.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<usize>) {
        world()?;
        out.put_if_given(stack(Vec::pop).ok_or(INVALID_CONTEXT)?);
        Ok(())
    }

    fn cuCtxGetDevice(out: Out<i32>) {
        out.put(current_or_failed()?.device as i32)
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        engine().settle_context(context.handle);
        context.error()
    }

    fn cuCtxGetApiVersion(context: usize, out: Out<u32>) {
        named(context)?;
        out.put(3020)
    }

    fn cuCtxGetFlags(out: Out<u32>) {
        out.put(current()?.flags)
    }

    fn cuCtxGetId(context: usize, out: Out<u64>) {
        out.put(named(context)?.handle as u64)
    }

    fn cuCtxGetLimit(out: Out<usize>, limit: u32) {
        let set = lock(&current()?.limits).get(&limit).copied();
        out.put(set.or(default_limit(limit)).ok_or(UNSUPPORTED_LIMIT)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let context = current()?;
        default_limit(limit).ok_or(UNSUPPORTED_LIMIT)?;
        lock(&context.limits).insert(limit, value);
        Ok(())
    }

    fn cuCtxGetCacheConfig(out: Out<u32>) {
        current()?;
        out.put(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        current().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.put_if_given(0);
        greatest.put_if_given(0);
        Ok(())
    }
}
