//! Copies that the device has not finished: their buffers, and when what they brought is sent.

use crate::driver::Driver;
use crate::link::Link;
use crate::staging::{Pool, Staging};
use ghost_wire::Op;
use ghost_wire::frame::DataKind;
use ghost_wire::result::{Code, NOT_READY};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;

/// A copy out: where its bytes belong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The command.
    pub(crate) op: Op,
    /// Its number.
    pub(crate) seq: u64,
    /// Offset in its data.
    pub(crate) at: u64,
    /// Whether the client does not wait: an error comes late.
    pub(crate) late: bool,
}

/// A stream: its context, and its id, which is never used for another.
pub(crate) type On = (u64, u64);

#[derive(Debug)]
struct Pending {
    on: On,
    event: u64,
    staging: Staging,
    /// None: a copy in, only the buffer is to come back.
    part: Option<Part>,
}

#[derive(Debug, Default)]
struct State {
    pending: VecDeque<Pending>,
    /// Finished, and not yet sent.
    finished: usize,
    /// Events to be used again, by context.
    events: HashMap<u64, Vec<u64>>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Guards the list and the events. Held for short.
    state: Mutex<State>,
    /// Held while what has finished is sent, so that it goes in order. Taken before `state`.
    sending: Mutex<()>,
    pub(crate) pool: Pool,
}

impl Copies {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is underway, and all was sent.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.pending.is_empty() && state.finished == 0
    }

    /// An event on `stream`, after all that is there so far.
    pub(crate) fn mark(&self, driver: &Driver, context: u64, stream: u64) -> Result<u64, Code> {
        let kept = self.lock().events.get_mut(&context).and_then(Vec::pop);
        let event = match kept {
            Some(event) => event,
            None => {
                let mut event = 0;
                driver.cuEventCreate(&mut event, UNTIMED)?;
                event
            }
        };
        driver.cuEventRecord(event, stream)?;
        Ok(event)
    }

    /// Gives an event back.
    pub(crate) fn unmark(&self, context: u64, event: u64) {
        self.lock().events.entry(context).or_default().push(event);
    }

    /// After a copy was issued on `stream`: what is to become of its buffer.
    pub(crate) fn issued(
        &self,
        driver: &Driver,
        on: On,
        stream: u64,
        staging: Staging,
        part: Option<Part>,
    ) -> Result<(), Code> {
        // Without an event nobody knows when the device is done with the buffer: then it is never
        // used again.
        let event = self.mark(driver, on.0, stream)?;
        self.lock().pending.push_back(Pending {
            on,
            event,
            staging,
            part,
        });
        Ok(())
    }

    /// Sends what has finished, gives back the buffers. Changes the thread's current context.
    pub(crate) fn flush(&self, driver: &Driver, link: &Link) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut current = None;
        // Streams on which nothing more can have finished.
        let mut waiting: Vec<On> = Vec::new();
        let finished: Vec<(Pending, Result<(), Code>)> = {
            let mut state = self.lock();
            let mut finished = Vec::new();
            let mut left = VecDeque::with_capacity(state.pending.len());
            for pending in state.pending.drain(..) {
                if waiting.contains(&pending.on) {
                    left.push_back(pending);
                    continue;
                }
                if current != Some(pending.on.0) {
                    let _ = driver.cuCtxSetCurrent(pending.on.0);
                    current = Some(pending.on.0);
                }
                match driver.cuEventQuery(pending.event) {
                    Err(NOT_READY) => {
                        waiting.push(pending.on);
                        left.push_back(pending);
                    }
                    done => finished.push((pending, done)),
                }
            }
            state.pending = left;
            state.finished = finished.len();
            finished
        };
        for (pending, done) in finished {
            if let Some(part) = pending.part {
                match done {
                    Ok(()) => {
                        let bytes = pending.staging.bytes();
                        link.data(DataKind::Part, part.seq, part.at, bytes);
                    }
                    Err(code) if part.late => link.late(part.op, part.seq, code),
                    Err(_) => {}
                }
            }
            self.pool.give(driver, pending.staging);
            self.lock().finished -= 1;
            if done.is_ok() {
                self.unmark(pending.on.0, pending.event);
            }
        }
    }

    /// Before a context ends: its copies finish and its events go with it.
    pub(crate) fn end_context(&self, driver: &Driver, link: &Link, context: u64) {
        if driver.cuCtxSetCurrent(context).is_ok() {
            let _ = driver.cuCtxSynchronize();
        }
        self.flush(driver, link);
        self.lock().events.remove(&context);
    }
}
