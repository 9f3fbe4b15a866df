//! The books' changes in a file, written before they take effect, so that a guardian that is
//! killed anywhere knows at its next start what was charged and what it was about to do.
//!
//! The file opens with a magic and the boot's id. Then come records: a magic, the op's kind, the
//! length of its fields, its fields ([`Op::put`]), and a CRC-32 of the boot's id and all that, all
//! numbers little-endian. A change is one `write`; what the driver tells again if it is lost waits
//! for the next one. A file grown long is replaced by a snapshot with `rename`. Nothing is synced to a disk: the page cache outlives a `kill -9`, and no charge
//! outlives the boot.

use ghost_model::{MemoryWanted, Name, ProcId};
use ghost_rm::Client;

use super::books::{
    Books, Call, Card, CardInfo, MemoryId, Observed, Op, Refusal, SessionId, Ticket,
};
use crate::ledger::{BootId, LedgerError, Store};

const HEADER: [u8; 8] = *b"GHOSTBK1";
const MAGIC: [u8; 3] = *b"GBK";
/// Magic, kind and length.
const FRONT: usize = 8;
const CRC: usize = 4;
/// No op has more bytes of fields.
const MAX_FIELDS: usize = 16 << 20;

/// A file longer than this, and than twice its last snapshot, is replaced.
const COMPACT: usize = 4 << 20;

/// So many bytes wait for the next change at most.
const MAX_LATER: usize = 4 << 10;

/// What was found when the journal was opened, besides the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Places where bytes were no record. Each may hide a change: say so. The books are right
    /// again for a process when its clients close, and until then its residual makes up for what
    /// is missing.
    pub damaged: usize,
    /// Whether the last record was cut short, as by a kill while it was written. Its change had
    /// not taken effect.
    pub cut: bool,
    /// Whether the file was another boot's and is void.
    pub other_boot: bool,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The books say no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] LedgerError),
}

fn encode(boot: BootId, op: &Op, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.push(op.kind());
    out.extend_from_slice(&[0; 4]);
    op.put(out);
    let length = (out.len() - start - FRONT) as u32;
    let record = out.get_mut(start..).unwrap_or_default();
    if let Some(field) = record.get_mut(4..FRONT) {
        field.copy_from_slice(&length.to_le_bytes());
    }
    let crc = checksum(boot, record);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn checksum(boot: BootId, record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&boot.bytes());
    crc.update(record);
    crc.finalize()
}

/// What stands at the front of some bytes.
enum Front<'a> {
    Record(Op, &'a [u8]),
    /// The beginning of a record that may go on beyond the end.
    Cut,
    Damage,
}

fn front(boot: BootId, bytes: &[u8]) -> Front<'_> {
    let magic = bytes.get(..MAGIC.len()).unwrap_or(bytes);
    if !MAGIC.starts_with(magic) {
        return Front::Damage;
    }
    let Some([_, _, _, kind, length @ ..]) = bytes.first_chunk::<FRONT>() else {
        return Front::Cut;
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FIELDS {
        return Front::Damage;
    }
    let Some((record, rest)) = bytes.split_at_checked(FRONT + length) else {
        return Front::Cut;
    };
    let Some((crc, rest)) = rest.split_first_chunk::<CRC>() else {
        return Front::Cut;
    };
    if u32::from_le_bytes(*crc) != checksum(boot, record) {
        return Front::Damage;
    }
    let fields = record.get(FRONT..).unwrap_or_default();
    Op::take(*kind, fields).map_or(Front::Damage, |op| Front::Record(op, rest))
}

/// Replays a journal. A place that is no record is skipped up to the next magic.
fn replay(bytes: &[u8], boot: BootId) -> (Books, Found) {
    let mut books = Books::default();
    let mut found = Found::default();
    if bytes.is_empty() {
        return (books, found);
    }
    let mut rest = bytes;
    match bytes.split_at_checked(HEADER.len() + boot.bytes().len()) {
        Some((header, after)) if header.starts_with(&HEADER) => {
            if !header.ends_with(&boot.bytes()) {
                found.other_boot = true;
                return (books, found);
            }
            rest = after;
        }
        // The records say themselves whether they are of this boot.
        _ => {
            found.damaged += 1;
            rest = next_magic(rest);
        }
    }
    while !rest.is_empty() {
        match front(boot, rest) {
            Front::Record(op, after) => {
                // One that was taken for cut before was not the last.
                found.damaged += usize::from(std::mem::take(&mut found.cut));
                books.apply(&op);
                rest = after;
                continue;
            }
            Front::Cut if !found.cut => found.cut = true,
            Front::Cut => {}
            Front::Damage => found.damaged += 1,
        }
        rest = next_magic(rest.get(1..).unwrap_or_default());
    }
    books.tidy();
    (books, found)
}

/// From the next magic on.
fn next_magic(bytes: &[u8]) -> &[u8] {
    let at = bytes.windows(MAGIC.len()).position(|w| w == MAGIC);
    at.and_then(|at| bytes.get(at..)).unwrap_or_default()
}

/// The books and their journal: how the broker changes them.
///
/// What takes (`open`, `charge`, `share`, `begin`, limits and cards) is not done when it cannot be written
/// down. What gives back or follows the driver is done nevertheless: then the file is replaced
/// before anything else is written.
#[derive(Debug)]
pub struct Keeper<S> {
    store: S,
    boot: BootId,
    books: Books,
    /// Bytes in the file, and at which it is replaced.
    length: usize,
    compact_at: usize,
    /// The file may end in a piece of a record, or lack one.
    torn: bool,
    /// Records of changes that have taken effect and are written with the next one: that an
    /// allocation or a free was done, which [`Keeper::start`]'s caller asks the driver for anyway.
    buffer: Vec<u8>,
}

/// A call that is about to be done for a thread.
#[derive(Clone, Copy, Debug)]
pub struct Begun<'a> {
    /// The thread's session.
    pub session: &'a SessionId,
    /// Its number.
    pub tid: i32,
    /// What it calls.
    pub call: Call,
}

impl<S: Store> Keeper<S> {
    /// Reads the journal and starts a fresh one. What is pending then was asked of the driver with
    /// an unknown answer: [`Keeper::resolve`] each.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    pub fn start(mut store: S, boot: BootId) -> Result<(Self, Found), LedgerError> {
        let (books, found) = replay(&store.load()?, boot);
        let mut keeper = Self {
            store,
            boot,
            books,
            length: 0,
            compact_at: COMPACT,
            torn: false,
            buffer: Vec::new(),
        };
        keeper.compact()?;
        Ok((keeper, found))
    }

    /// The books, to read.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Gives the cards, in place of those before.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    pub fn set_cards(&mut self, mut cards: Vec<CardInfo>) -> Result<(), LedgerError> {
        cards.sort_by_key(|info| info.card);
        cards.dedup_by_key(|info| info.card);
        if self.books.cards().eq(&cards) {
            return Ok(());
        }
        self.take_one(Op::Cards { cards })
    }

    /// Gives the limits, in place of those before. A container that is not in it is forgotten, with
    /// what was counted, once nothing is charged to it: name those that exist, also without limits.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    pub fn set_limits(&mut self, wanted: MemoryWanted) -> Result<(), LedgerError> {
        if *self.books.wanted() == wanted {
            return Ok(());
        }
        self.take_one(Op::Limits { wanted })
    }

    /// Takes in a client where it is first seen; what is known already stays as it is. Handles are
    /// used again: [`Keeper::close`] one that is just being made.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooMany`], [`LedgerError::Io`].
    pub fn open(
        &mut self,
        client: Client,
        owner: ProcId,
        container: &Name,
    ) -> Result<(), KeepError> {
        if self.books.tenant(client).is_some() {
            return Ok(());
        }
        self.books.may_open(container)?;
        let container = container.clone();
        Ok(self.take_one(Op::Open {
            client,
            owner,
            container,
        })?)
    }

    /// Charges an allocation before the driver is asked. `id` has the object 0 if the driver picks.
    ///
    /// # Errors
    ///
    /// [`Refusal`], counted; [`LedgerError::Io`].
    pub fn charge(&mut self, id: MemoryId, card: Card, bytes: u64) -> Result<Ticket, KeepError> {
        self.charge_for(id, card, bytes, None)
    }

    /// The same, and what [`Keeper::begin`] does, in one.
    ///
    /// # Errors
    ///
    /// [`Refusal`], counted; [`LedgerError::Io`].
    pub fn charge_for(
        &mut self,
        id: MemoryId,
        card: Card,
        bytes: u64,
        call: Option<Begun<'_>>,
    ) -> Result<Ticket, KeepError> {
        match self.books.may_charge(id.0, card, bytes) {
            Ok(ticket) => {
                let charge = Op::Charge {
                    ticket,
                    id,
                    card,
                    bytes,
                };
                match call {
                    Some(begun) => self.take(&[charge, self.begin_op(begun)?])?,
                    None => self.take(&[charge])?,
                }
                Ok(ticket)
            }
            Err(refusal) => {
                let max = match &refusal {
                    Refusal::NoClient { .. } | Refusal::NoCard { .. } => return Err(refusal.into()),
                    Refusal::Max { container, .. } => Some(container.clone()),
                    _ => None,
                };
                self.give(&Op::Refuse {
                    client: id.0,
                    card,
                    max,
                })?;
                Err(refusal.into())
            }
        }
    }

    /// Notes a further name of the memory that has the name `of`, before the driver is asked for
    /// it. `None` if no memory in the books has that name.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoClient`], [`Refusal::TooMany`]; [`LedgerError::Io`].
    pub fn share(&mut self, of: MemoryId, id: MemoryId) -> Result<Option<Ticket>, KeepError> {
        let Some(memory) = self.books.ticket(of) else {
            return Ok(None);
        };
        let ticket = self.books.may_name(id.0)?;
        self.take_one(Op::Share { ticket, memory, id })?;
        Ok(Some(ticket))
    }

    /// The driver did it, under this name of the same client; a new memory has this size.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn settle(&mut self, ticket: Ticket, id: MemoryId, bytes: u64) -> Result<(), LedgerError> {
        let op = Op::Settle { ticket, id, bytes };
        if self.books.pending(ticket) == Some((id, bytes)) {
            return self.give_later(&op);
        }
        self.give(&op)
    }

    /// The driver did not do it; `failed` counts it as an allocation that failed.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn cancel(&mut self, ticket: Ticket, failed: bool) -> Result<(), LedgerError> {
        self.give(&Op::Cancel { ticket, failed })
    }

    /// Ends a charge or a share whose answer was lost, by whether the driver has the object that
    /// was asked for. Of one that the driver was to name nobody can say: pass `false`, and what
    /// there is shows as residual.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn resolve(&mut self, ticket: Ticket, exists: bool) -> Result<(), LedgerError> {
        match self.books.pending(ticket) {
            Some((id, bytes)) if exists => self.settle(ticket, id, bytes),
            Some(_) => self.cancel(ticket, false),
            None => Ok(()),
        }
    }

    /// A name is gone. If others may use it again meanwhile, compare [`Books::ticket`] with what
    /// it was before the driver was asked.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn free(&mut self, id: MemoryId) -> Result<(), LedgerError> {
        if !self.books.knows(id) {
            return Ok(());
        }
        self.give(&Op::Free { id })
    }

    /// The same, of what the call frees that was begun last for a thread.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn free_by(
        &mut self,
        id: MemoryId,
        session: &SessionId,
        tid: i32,
    ) -> Result<(), LedgerError> {
        let call = self.books.call_of(session, tid);
        if self.books.knows(id) && call.is_some_and(|call| (call.client, call.object) == id) {
            return self.give_later(&Op::Free { id });
        }
        self.free(id)
    }

    /// Writes what waits for the next change.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`].
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        match self.buffer.is_empty() {
            true => Ok(()),
            false => self.append(&[]),
        }
    }

    /// A client is gone, with all names in it and what is pending for it.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn close(&mut self, client: Client) -> Result<(), LedgerError> {
        if self.books.tenant(client).is_none() {
            return Ok(());
        }
        self.give(&Op::Close { client })
    }

    /// Takes in what the driver says a process holds; `false` if the reading does not count.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn observe(&mut self, seen: &Observed) -> Result<bool, LedgerError> {
        if !self.books.is_current(seen) {
            return Ok(false);
        }
        if let Some(op) = self.books.reading(seen) {
            self.give(&op)?;
        }
        Ok(true)
    }

    /// A process has ended: its residual is gone. Its clients are not, for another process may
    /// have them open: [`Keeper::close`] them when the driver says so.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn gone(&mut self, owner: ProcId) -> Result<(), LedgerError> {
        if !self.books.has_residual(owner) {
            return Ok(());
        }
        self.give(&Op::Gone { owner })
    }

    /// A call is about to be done for a thread; one begun for it before is forgotten.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooMany`], [`LedgerError::Io`].
    pub fn begin(&mut self, session: &SessionId, tid: i32, call: Call) -> Result<(), KeepError> {
        let op = self.begin_op(Begun { session, tid, call })?;
        Ok(self.take(&[op])?)
    }

    fn begin_op(&self, begun: Begun<'_>) -> Result<Op, Refusal> {
        let Begun { session, tid, call } = begun;
        self.books.may_begin(session, tid)?;
        let session = session.clone();
        Ok(Op::Begin { session, tid, call })
    }

    /// The call was done and its answer delivered, or cannot be made again.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Io`]; done nevertheless.
    pub fn end(&mut self, session: &SessionId, tid: i32) -> Result<(), LedgerError> {
        if self.books.call_of(session, tid).is_none() {
            return Ok(());
        }
        let session = session.clone();
        self.give(&Op::End { session, tid })
    }

    /// Writes it down, then does it.
    fn take(&mut self, ops: &[Op]) -> Result<(), LedgerError> {
        self.append(ops)?;
        ops.iter().for_each(|op| self.books.apply(op));
        Ok(())
    }

    fn take_one(&mut self, op: Op) -> Result<(), LedgerError> {
        self.take(&[op])
    }

    /// Does it, written down or not.
    fn give(&mut self, op: &Op) -> Result<(), LedgerError> {
        let written = self.append(std::slice::from_ref(op));
        self.books.apply(op);
        written
    }

    /// Does it, and writes it down with what comes next.
    fn give_later(&mut self, op: &Op) -> Result<(), LedgerError> {
        encode(self.boot, op, &mut self.buffer);
        self.books.apply(op);
        match self.buffer.len() > MAX_LATER {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn append(&mut self, ops: &[Op]) -> Result<(), LedgerError> {
        if self.torn || self.length > self.compact_at {
            self.compact()?;
        }
        for op in ops {
            encode(self.boot, op, &mut self.buffer);
        }
        self.torn = true;
        let written = self.store.append(&self.buffer);
        self.length += self.buffer.len();
        self.buffer.clear();
        written?;
        self.torn = false;
        Ok(())
    }

    fn compact(&mut self) -> Result<(), LedgerError> {
        // Whatever happens, the file may lack what is about to be appended.
        self.torn = true;
        let mut bytes = [&HEADER[..], &self.boot.bytes()].concat();
        let boot = self.boot;
        self.books.snapshot(|op| encode(boot, op, &mut bytes));
        self.store.replace(&bytes)?;
        // It has them too.
        self.buffer.clear();
        self.length = bytes.len();
        self.compact_at = COMPACT.max(2 * bytes.len());
        self.torn = false;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
