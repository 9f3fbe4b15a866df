//! Contexts: primary ones, those that a program makes, and which one is current.

use super::commands::{DONE, Done, Session, range};
use crate::kinds::Fault;
use ghost_wire::Object;
use ghost_wire::message::{CreateContext, DestroyContext, Primary, primary};
use ghost_wire::result::{INVALID_CONTEXT, INVALID_DEVICE};
use std::sync::Arc;

impl Session {
    /// The commands that follow are in context `id`. One that does not exist yet may be retained
    /// under this id later.
    pub(super) fn use_context(&mut self, id: u64) -> Result<Done, Fault> {
        self.named = id;
        self.context = self.handles.get(Object::Context, id).unwrap_or(0);
        self.shared.driver.cuCtxSetCurrent(self.context)?;
        DONE
    }

    /// As before: what was done may have changed which context is current.
    fn use_again(&mut self) -> Result<Done, Fault> {
        self.use_context(self.named)
    }

    fn end_context(&mut self, raw: u64) {
        let shared = &self.shared;
        shared.copies.end_context(&shared.driver, &shared.link, raw);
    }

    pub(super) fn primary(&mut self, message: Primary) -> Result<Done, Fault> {
        let driver = &Arc::clone(&self.shared).driver;
        let device = i32::try_from(message.device).map_err(|_| INVALID_DEVICE)?;
        let uses = self.primaries.get(&device).copied().unwrap_or(0);
        match message.what {
            primary::RETAIN => {
                if message.flags != 0 {
                    // Refused while it is active: then it keeps those that it has.
                    let _ = driver.cuDevicePrimaryCtxSetFlags_v2(device, message.flags);
                }
                let mut raw = 0;
                driver.cuDevicePrimaryCtxRetain(&mut raw, device)?;
                self.primaries.insert(device, uses + 1);
                self.handles
                    .insert(Object::Context, message.context, raw, 0)?;
            }
            primary::RELEASE => {
                let left = uses.checked_sub(1).ok_or(INVALID_CONTEXT)?;
                let raw = self.handles.get(Object::Context, message.context)?;
                if left == 0 {
                    self.end_context(raw);
                }
                driver.cuDevicePrimaryCtxRelease_v2(device)?;
                self.primaries.insert(device, left);
                if left == 0 {
                    self.handles.remove_context(raw);
                }
            }
            primary::RESET => {
                let raw = self.handles.get(Object::Context, message.context);
                if let Ok(raw) = raw {
                    self.end_context(raw);
                }
                driver.cuDevicePrimaryCtxReset_v2(device)?;
                if let Ok(raw) = raw {
                    self.handles.remove_context(raw);
                    let kept = self
                        .handles
                        .insert(Object::Context, message.context, raw, 0);
                    kept?;
                }
            }
            other => return Err(range("what to do with a primary context", other)),
        }
        self.use_again()
    }

    pub(super) fn create_context(&mut self, message: CreateContext) -> Result<Done, Fault> {
        let driver = &Arc::clone(&self.shared).driver;
        let device = i32::try_from(message.device).map_err(|_| INVALID_DEVICE)?;
        let mut raw = 0;
        driver.cuCtxCreate_v2(&mut raw, message.flags, device)?;
        let inserted = self
            .handles
            .insert(Object::Context, message.context, raw, 0);
        self.use_again()?;
        inserted?;
        DONE
    }

    pub(super) fn destroy_context(&mut self, message: DestroyContext) -> Result<Done, Fault> {
        let raw = self.handles.get(Object::Context, message.context)?;
        if raw == 0 {
            return Err(INVALID_CONTEXT.into());
        }
        self.end_context(raw);
        let ended = self.shared.driver.cuCtxDestroy_v2(raw);
        self.handles.remove_context(raw);
        self.use_again()?;
        ended?;
        DONE
    }
}
