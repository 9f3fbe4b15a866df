//! Contexts: primary ones, those that a program makes, and which one is current.

use super::commands::{DONE, Done, Session, range};
use crate::driver::Driver;
use crate::kinds::Fault;
use ghost_wire::message::{CreateContext, DestroyContext, Primary, primary};
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_DEVICE};
use ghost_wire::{Id, Object};
use std::sync::Arc;

/// The device whose primary context is lent.
const FIRST: i32 = 0;

/// A device's primary context.
#[derive(Debug, Default)]
pub(super) struct PrimaryContext {
    /// Its id.
    context: u64,
    /// Those that it is to be made with.
    flags: u32,
    /// Whether it is retained: once, for the client or for a command of it that needs it.
    retained: bool,
}

impl Session {
    /// The commands that follow are in context `id`. One that does not exist yet may be retained
    /// under this id later.
    pub(super) fn use_context(&mut self, id: u64) -> Result<Done, Fault> {
        self.name_context(id)?;
        DONE
    }

    fn name_context(&mut self, id: u64) -> Result<(), Code> {
        self.named = id;
        self.context = self.handles.get(Object::Context, id).unwrap_or(0);
        self.shared.driver.cuCtxSetCurrent(self.context)
    }

    /// As before: what was done may have changed which context is current.
    fn use_again(&mut self) -> Result<Done, Fault> {
        self.use_context(self.named)
    }

    /// Ends the context `raw` with `end`, and what is kept of it here.
    fn end_context(
        &mut self,
        raw: u64,
        end: impl FnOnce(&Driver) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let shared = Arc::clone(&self.shared);
        let driver = &shared.driver;
        shared.copies.end_context(driver, &shared.link, raw);
        let ended = shared.shares.ended_by(driver, || end(driver));
        self.handles.remove_context(raw);
        ended
    }

    /// Retains the primary context of `device`, if it was not.
    fn retain(&mut self, device: i32) -> Result<(), Code> {
        let primary = self.primaries.get_mut(&device).ok_or(INVALID_DEVICE)?;
        if primary.retained {
            return Ok(());
        }
        let driver = &self.shared.driver;
        if primary.flags != 0 {
            // Refused while it is active: then it keeps those that it has.
            let _ = driver.cuDevicePrimaryCtxSetFlags_v2(device, primary.flags);
        }
        let mut raw = 0;
        driver.cuDevicePrimaryCtxRetain(&mut raw, device)?;
        primary.retained = true;
        if self.lent.take_if(|(lent, _)| *lent == device).is_some() {
            driver.cuDevicePrimaryCtxRelease_v2(device)?;
        }
        self.handles
            .insert(Object::Context, primary.context, raw, 0)
    }

    /// A command is in the context that was named. If that is a primary one that nobody has
    /// retained yet, it is retained now: the CUDA runtime loads libraries before it retains the
    /// context that it has made current. A failure is that of the command, which has no context.
    pub(super) fn retain_named(&mut self) {
        let mut all = self.primaries.iter();
        let Some((&device, _)) = all.find(|(_, primary)| primary.context == self.named) else {
            return;
        };
        if let Err(code) = self
            .retain(device)
            .and_then(|()| self.name_context(self.named))
        {
            eprintln!(
                "ghost-executor: the primary context of device {device} can't be retained: the \
                 driver answered {code}"
            );
        }
    }

    /// Does something for `id`. If that is a library there may be no context: the CUDA runtime loads
    /// libraries and asks for their managed variables before it has one, but the driver tells the
    /// layout of a kernel within a context only. So the first device's primary one is lent, and kept
    /// until the client has its own: to make one takes long.
    pub(super) fn for_image(
        &mut self,
        id: u64,
        what: impl FnOnce(&mut Self) -> Result<Done, Fault>,
    ) -> Result<Done, Fault> {
        if self.context != 0 || Id::from_raw(id).and_then(Id::object) != Some(Object::Library) {
            return what(self);
        }
        let shared = Arc::clone(&self.shared);
        let driver = &shared.driver;
        let (_, raw) = match self.lent {
            Some(lent) => lent,
            None => {
                let mut raw = 0;
                driver.cuDevicePrimaryCtxRetain(&mut raw, FIRST)?;
                *self.lent.insert((FIRST, raw))
            }
        };
        driver.cuCtxSetCurrent(raw)?;
        let done = what(self);
        driver.cuCtxSetCurrent(self.context)?;
        done
    }

    pub(super) fn primary(&mut self, message: Primary) -> Result<Done, Fault> {
        let device = i32::try_from(message.device).map_err(|_| INVALID_DEVICE)?;
        let primary = self.primaries.entry(device).or_default();
        primary.context = message.context;
        primary.flags = message.flags;
        let retained = primary.retained;
        match message.what {
            primary::NAME => return DONE,
            primary::RETAIN => self.retain(device)?,
            primary::RELEASE if !retained => return Err(INVALID_CONTEXT.into()),
            primary::RELEASE => {
                primary.retained = false;
                let raw = self.handles.get(Object::Context, message.context)?;
                self.end_context(raw, |driver| driver.cuDevicePrimaryCtxRelease_v2(device))?;
            }
            primary::RESET if !retained => return DONE,
            primary::RESET => {
                primary.retained = false;
                let raw = self.handles.get(Object::Context, message.context)?;
                self.end_context(raw, |driver| {
                    driver.cuDevicePrimaryCtxReset_v2(device)?;
                    // The client counts anew from here.
                    let _ = driver.cuDevicePrimaryCtxRelease_v2(device);
                    Ok(())
                })?;
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
        let ended = self.end_context(raw, |driver| driver.cuCtxDestroy_v2(raw));
        self.use_again()?;
        ended?;
        DONE
    }
}
