//! Copies of boxes.

use super::commands::{DONE, Done, Now, Session, range};
use crate::copies;
use crate::driver::{BoxCopy, BoxEnd};
use crate::kinds::Fault;
use crate::staging::Staging;
use ghost_wire::message::{CopyBox, End, place};
use ghost_wire::result::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use ghost_wire::{Malformed, Object};

impl Session {
    /// One end as the driver has it; of the host's only the extent is known yet.
    pub(super) fn end(&self, end: &End, extent: [u64; 3]) -> Result<BoxEnd, Fault> {
        let [width, rows, _] = extent;
        let common = BoxEnd {
            kind: end.place,
            from: end.from,
            level: end.level.into(),
            pitch: end.pitch,
            height: end.height,
            ..BoxEnd::default()
        };
        Ok(match end.place {
            place::HOST => BoxEnd {
                kind: place::HOST,
                pitch: width,
                height: rows,
                ..BoxEnd::default()
            },
            place::DEVICE => BoxEnd {
                device: end.at,
                ..common
            },
            place::ARRAY => BoxEnd {
                array: self.handles.get(Object::Array, end.at)?,
                ..common
            },
            other => return Err(range("an end of a copy", other)),
        })
    }

    fn room(&self, len: u64) -> Result<Staging, Code> {
        let len = usize::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
        let taken = self.shared.copies.pool.take(&self.shared.driver, len);
        taken.map_err(|_| OUT_OF_MEMORY)
    }

    /// The data of a box that comes from the host.
    fn box_data(&self, now: Now, message: &CopyBox<'_>, len: u64) -> Result<Staging, Fault> {
        if !message.bulk {
            if message.data.len() as u64 != len {
                return Err(Malformed::Short.into());
            }
            return Ok(self.filled(message.data)?);
        }
        let shared = &self.shared;
        let mut whole = self.room(len);
        let gathered = self.parts(now, len, |at, part| {
            let copied = whole.as_mut().map_err(|code| *code).and_then(|whole| {
                let (start, end) = (at as usize, at as usize + part.len());
                let to = whole.bytes_mut().get_mut(start..end);
                to.ok_or(INVALID_VALUE)?.copy_from_slice(part.bytes());
                Ok(())
            });
            shared.copies.pool.give(&shared.driver, part);
            copied
        });
        match (gathered, whole) {
            (Ok(()), Ok(whole)) => Ok(whole),
            (Err(fault), Ok(whole)) => {
                shared.copies.pool.give(&shared.driver, whole);
                Err(fault)
            }
            (gathered, Err(code)) => Err(gathered.err().unwrap_or(Fault::Code(code))),
        }
    }

    pub(super) fn copy_box(&mut self, now: Now, message: &CopyBox<'_>) -> Result<Done, Fault> {
        let extent = message.extent;
        let len = extent.iter().try_fold(1_u64, |len, n| len.checked_mul(*n));
        let len = len.filter(|len| *len <= isize::MAX as u64);
        let len = len.ok_or_else(|| range("the size of a box", u64::MAX))?;
        let (from_host, to_host) = (
            message.from.place == place::HOST,
            message.to.place == place::HOST,
        );
        if from_host && to_host {
            return Err(range("an end of a copy", place::HOST));
        }
        let host = from_host || to_host;
        let stream = if host {
            self.stream(message.stream)
        } else {
            self.handles.get(Object::Stream, message.stream)
        };
        let ends = || -> Result<(u64, BoxCopy), Fault> {
            let from = self.end(&message.from, extent)?;
            let to = self.end(&message.to, extent)?;
            Ok((stream?, BoxCopy { from, to, extent }))
        };
        if len == 0 {
            ends()?;
            return DONE;
        }
        let driver = &self.shared.driver;
        // The data is taken even if the copy can't be made.
        let mut staging = if from_host {
            Some(self.box_data(now, message, len)?)
        } else if to_host {
            Some(self.room(len)?)
        } else {
            None
        };
        let issued = ends().and_then(|(stream, mut copy)| {
            if let Some(staging) = &mut staging {
                let at = staging.as_mut_ptr() as u64;
                let end = if from_host {
                    &mut copy.from
                } else {
                    &mut copy.to
                };
                end.host = at;
            }
            // SAFETY: the buffer is as long as the box, and stays until the copy is done.
            unsafe { driver.copy_box(&copy, stream) }?;
            Ok(stream)
        });
        let stream = match issued {
            Ok(stream) => stream,
            Err(fault) => {
                if let Some(staging) = staging {
                    self.shared.copies.pool.give(driver, staging);
                }
                return Err(fault);
            }
        };
        let on = (message.stream, stream);
        if let Some(staging) = staging {
            let part = to_host.then_some(copies::Part {
                op: now.op,
                seq: now.seq,
                at: 0,
                late: !now.waited,
            });
            self.issued(on, staging, part)?;
        }
        if to_host && now.waited {
            return self.answer_after(now, on);
        }
        DONE
    }
}
