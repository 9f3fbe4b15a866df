//! Launches, flat copies, waits, functions of the program's.

use super::commands::{DONE, Done, Now, Session, range, words};
use crate::calls::{self, calls};
use crate::copies;
use crate::handles::Params;
use crate::kinds::{Fault, HeldConfig};
use crate::staging::Staging;
use ghost_wire::message::{CaptureInfo, CopyIn, CopyOut, HostCall, Launch, Wait, wait};
use ghost_wire::result::{
    Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, SUCCESS,
};
use ghost_wire::{CHUNK, Malformed, Object};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// Pointers to each of a kernel's arguments, in a copy of them that is aligned as any type needs.
pub(super) struct Arguments {
    _bytes: Vec<u128>,
    pointers: Vec<*const u8>,
}

impl Arguments {
    /// Of the arguments `bytes`, laid out as `params` says.
    ///
    /// # Errors
    /// [`Malformed`] where there are fewer than the layout has.
    pub(super) fn new(params: Option<&Params>, bytes: &[u8]) -> Result<Self, Fault> {
        let params: &[(u32, u32)] = params.ok_or(INVALID_HANDLE)?;
        let ends = params
            .iter()
            .map(|&(at, size)| u64::from(at) + u64::from(size));
        if ends.max().unwrap_or(0) > bytes.len() as u64 {
            return Err(range(
                "the size of a kernel's arguments",
                bytes.len() as u64,
            ));
        }
        let mut copy = vec![0_u128; bytes.len().div_ceil(16)];
        for (word, chunk) in copy.iter_mut().zip(bytes.chunks(16)) {
            let mut whole = [0; 16];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u128::from_le_bytes(whole);
        }
        let base = copy.as_ptr().cast::<u8>();
        let pointers = params.iter().map(|&(at, _)| base.wrapping_add(at as usize));
        Ok(Self {
            pointers: pointers.collect(),
            _bytes: copy,
        })
    }

    /// As `kernelParams`, for as long as this stands.
    pub(super) fn raw(&mut self) -> *mut *const u8 {
        match self.pointers.as_mut_slice() {
            [] => null_mut(),
            some => some.as_mut_ptr(),
        }
    }
}

impl Session {
    pub(super) fn launch(&mut self, message: &Launch<'_>) -> Result<Done, Fault> {
        let driver = &self.shared.driver;
        let (function, params) = self.handles.function(message.function)?;
        let mut params = Arguments::new(params, message.params)?;
        let mut config = HeldConfig::new(&message.config, &self.handles)?;
        let config = config.raw();
        let launched = if config.count > 0 {
            // SAFETY: all pointers lead into what is held until after the call.
            unsafe { driver.cuLaunchKernelEx(config, function, params.raw(), null_mut()) }
        } else {
            let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
            let (shared, stream) = (config.shared, config.stream);
            // SAFETY: as above.
            unsafe {
                let params = params.raw();
                driver.cuLaunchKernel(
                    function,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shared,
                    stream,
                    params,
                    null_mut(),
                )
            }
        };
        launched?;
        DONE
    }

    /// The parts of a command's bulk data, in order, each given to `each`. After a failure the rest
    /// is taken all the same.
    pub(super) fn parts(
        &self,
        now: Now,
        len: u64,
        mut each: impl FnMut(u64, Staging) -> Result<(), Code>,
    ) -> Result<(), Fault> {
        let mut at = 0;
        let mut failed = Ok(());
        while at < len {
            let Ok((data, staging)) = self.bulk.recv() else {
                return Err(Fault::End("the connection for bulk data ended".to_owned()));
            };
            let fits = data.len > 0 && u64::from(data.len) <= len - at;
            if data.seq != now.seq || data.at != at || !fits {
                let (seq, found, size) = (data.seq, data.at, data.len);
                return Err(Fault::End(format!(
                    "bulk data of command {seq} ({size} bytes at {found}) where {} at {at} of \
                     command {} was due",
                    len - at,
                    now.seq
                )));
            }
            if failed.is_ok() {
                failed = each(at, staging);
            } else {
                self.shared.copies.pool.give(&self.shared.driver, staging);
            }
            at += u64::from(data.len);
        }
        Ok(failed?)
    }

    /// A buffer with the data of a command.
    pub(super) fn filled(&self, data: &[u8]) -> Result<Staging, Code> {
        let shared = &self.shared;
        let taken = shared.copies.pool.take(&shared.driver, data.len());
        let mut staging = taken.map_err(|_| OUT_OF_MEMORY)?;
        staging.bytes_mut().copy_from_slice(data);
        Ok(staging)
    }

    /// Looks after a copy that was issued on a stream.
    pub(super) fn issued(
        &self,
        (id, stream): (u64, u64),
        staging: Staging,
        part: Option<copies::Part>,
    ) -> Result<(), Code> {
        let shared = &self.shared;
        let on = (self.context_of(id), id);
        let issued = shared
            .copies
            .issued(&shared.driver, on, stream, staging, part);
        calls().busy();
        issued
    }

    /// Has the command answered once what is on the stream so far is done, and was sent.
    pub(super) fn answer_after(&self, now: Now, (id, stream): (u64, u64)) -> Result<Done, Fault> {
        let context = self.context_of(id);
        let driver = &self.shared.driver;
        let event = self.shared.copies.mark(driver, context, stream)?;
        let shared = Arc::clone(&self.shared);
        self.shared.waiters.run(move || {
            let driver = &shared.driver;
            let done = driver
                .cuCtxSetCurrent(context)
                .and_then(|()| driver.cuEventSynchronize(event));
            shared.copies.unmark(context, event);
            shared.finish(now.seq, done.err().unwrap_or(SUCCESS));
        });
        Ok(Done::Later)
    }

    fn copy_part(&self, on: (u64, u64), to: u64, staging: Staging) -> Result<(), Code> {
        let driver = &self.shared.driver;
        // SAFETY: the buffer stays until the copy is done: `issued` keeps it.
        let copied =
            unsafe { driver.cuMemcpyHtoDAsync_v2(to, staging.as_ptr(), staging.len(), on.1) };
        match copied {
            Ok(()) => self.issued(on, staging, None),
            Err(code) => {
                self.shared.copies.pool.give(driver, staging);
                Err(code)
            }
        }
    }

    pub(super) fn copy_in(&mut self, now: Now, message: &CopyIn<'_>) -> Result<Done, Fault> {
        let stream = self.stream(message.stream);
        if message.bulk {
            self.parts(now, message.len, |at, staging| match stream {
                Ok(stream) => {
                    let to = message.to.wrapping_add(at);
                    self.copy_part((message.stream, stream), to, staging)
                }
                Err(code) => {
                    self.shared.copies.pool.give(&self.shared.driver, staging);
                    Err(code)
                }
            })?;
        } else {
            if message.data.len() as u64 != message.len {
                return Err(Malformed::Short.into());
            }
            if !message.data.is_empty() {
                let staging = self.filled(message.data)?;
                self.copy_part((message.stream, stream?), message.to, staging)?;
            }
        }
        DONE
    }

    pub(super) fn copy_out(&mut self, now: Now, message: CopyOut) -> Result<Done, Fault> {
        let on = (message.stream, self.stream(message.stream)?);
        let shared = &self.shared;
        let mut at = 0;
        while at < message.len {
            let len = (message.len - at).min(CHUNK as u64);
            let taken = shared.copies.pool.take(&shared.driver, len as usize);
            let mut staging = taken.map_err(|_| OUT_OF_MEMORY)?;
            let from = message.from.wrapping_add(at);
            let to = staging.as_mut_ptr();
            // SAFETY: as in `copy_part`.
            let copied = unsafe {
                shared
                    .driver
                    .cuMemcpyDtoHAsync_v2(to, from, len as usize, on.1)
            };
            if let Err(code) = copied {
                shared.copies.pool.give(&shared.driver, staging);
                return Err(code.into());
            }
            let part = copies::Part {
                op: now.op,
                seq: now.seq,
                at,
                late: !now.waited,
            };
            self.issued(on, staging, Some(part))?;
            at += len;
        }
        if now.waited {
            return self.answer_after(now, on);
        }
        DONE
    }

    pub(super) fn wait(&mut self, now: Now, message: Wait) -> Result<Done, Fault> {
        let driver = &self.shared.driver;
        let object = match message.what {
            wait::CONTEXT => Object::Context,
            wait::STREAM => Object::Stream,
            wait::EVENT => Object::Event,
            other => return Err(range("what to wait for", other)),
        };
        let handle = self.handles.get(object, message.handle)?;
        let asked = match object {
            Object::Stream => driver.cuStreamQuery(handle),
            Object::Event => driver.cuEventQuery(handle),
            _ if handle == 0 => return Err(INVALID_CONTEXT.into()),
            _ if message.query => return Err(INVALID_VALUE.into()),
            _ => Err(NOT_READY),
        };
        let nothing_to_send = self.shared.copies.is_empty() && self.shared.shares.is_empty();
        match asked {
            Err(NOT_READY) if message.query => return Err(NOT_READY.into()),
            Err(NOT_READY) => {}
            done if nothing_to_send => {
                self.shared.finish(now.seq, done.err().unwrap_or(SUCCESS));
                return Ok(Done::Later);
            }
            _ => {}
        }
        let context = match object {
            Object::Context => handle,
            _ => self.context_of(message.handle),
        };
        let shared = Arc::clone(&self.shared);
        self.shared.waiters.run(move || {
            let driver = &shared.driver;
            let wait = || match (asked, object) {
                (Ok(()), _) => Ok(()),
                (Err(code), _) if code != NOT_READY => Err(code),
                (_, Object::Stream) => driver.cuStreamSynchronize(handle),
                (_, Object::Event) => driver.cuEventSynchronize(handle),
                _ => driver.cuCtxSynchronize(),
            };
            let done = driver.cuCtxSetCurrent(context).and_then(|()| wait());
            shared.finish(now.seq, done.err().unwrap_or(SUCCESS));
        });
        Ok(Done::Later)
    }

    pub(super) fn host_call(&mut self, message: HostCall) -> Result<Done, Fault> {
        let driver = &self.shared.driver;
        let stream = self.handles.get(Object::Stream, message.stream)?;
        let data = message.token as *mut c_void;
        // SAFETY: the data is a number to these functions, never followed.
        let added = unsafe {
            if message.with_status {
                driver.cuStreamAddCallback(stream, calls::callback, data, 0)
            } else {
                driver.cuLaunchHostFunc(stream, calls::host, data)
            }
        };
        added?;
        DONE
    }

    pub(super) fn capture_info(&mut self, message: CaptureInfo) -> Result<Done, Fault> {
        let stream = self.handles.get(Object::Stream, message.stream)?;
        let (mut status, mut id, mut graph, mut count) = (0, 0, 0, 0);
        let mut nodes = std::ptr::null();
        self.shared.driver.cuStreamGetCaptureInfo_v2(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut count,
        )?;
        let mut answer = vec![u64::from(status), id];
        answer.push(self.handles.found(Object::Graph, graph, self.context));
        let raws: &[u64] = if nodes.is_null() {
            &[]
        } else {
            // SAFETY: the driver's list of as many, until its next call on this stream.
            unsafe { std::slice::from_raw_parts(nodes, count) }
        };
        answer.push(raws.len() as u64);
        for raw in raws {
            answer.push(self.handles.found(Object::GraphNode, *raw, self.context));
        }
        Ok(Done::Answer(words(&answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_where_the_layout_says() {
        let params: Params = vec![(0, 8), (8, 4)].into();
        let bytes: Vec<u8> = (0..12).collect();
        let arguments = Arguments::new(Some(&params), &bytes).map(|mut arguments| {
            let raw = arguments.raw();
            // SAFETY: two pointers, into the copy.
            unsafe { **raw.add(1) }
        });
        assert_eq!(arguments, Ok(8));
        let short = Arguments::new(Some(&params), &bytes[..11]).err();
        assert_eq!(
            short,
            Some(range("the size of a kernel's arguments", 11_u64))
        );
        let none = Arguments::new(None, &bytes).err();
        assert_eq!(none, Some(Fault::Code(INVALID_HANDLE)));
    }
}
