//! A driver and a ledger's file in memory, for tests: disables nest as the
//! driver's do, a list is gone through in order, and a fuse can end the
//! guardian before or after any step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ghost_rm::{Channel, Gpu};

use crate::channels::{ChannelState, Channels, SwitchError, SwitchErrorKind};
use crate::ledger::{LedgerError, Store};

/// What a blown fuse panics with, as a `kill -9` would stop the process.
pub(crate) struct Killed;

/// Kills at one of the steps to come.
#[derive(Clone, Default)]
pub(crate) struct Fuse {
    // Steps left until the kill, if there is to be one.
    left: Arc<Mutex<Option<usize>>>,
}

impl Fuse {
    pub(crate) fn set(&self, left: Option<usize>) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }

    fn step(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match *left {
            Some(0) => std::panic::panic_any(Killed),
            some => *left = some.map(|steps| steps - 1),
        }
    }
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) counts: BTreeMap<(Gpu, Channel), i64>,
    pub(crate) gone: BTreeSet<Channel>,
    pub(crate) refuse: bool,
    pub(crate) blind: bool,
    /// Enables of a channel that was enabled.
    pub(crate) idle_enables: usize,
    pub(crate) calls: usize,
    pub(crate) log: Vec<u8>,
    pub(crate) full: bool,
}

/// The driver. Its clones are one driver.
#[derive(Clone, Default)]
pub(crate) struct Driver {
    // All that the driver and the file system would know.
    world: Arc<Mutex<World>>,
    pub(crate) fuse: Fuse,
}

/// Channels that one call of the double takes.
const CALL: usize = 2;

impl Driver {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, gpu: Gpu, channel: Channel) -> i64 {
        let world = self.world();
        world.counts.get(&(gpu, channel)).copied().unwrap_or(0)
    }

    pub(crate) fn none_disabled(&self) -> bool {
        self.world().counts.values().all(|&count| count == 0)
    }

    fn switch(&self, gpu: Gpu, channels: &[Channel], by: i64) -> Result<(), SwitchError> {
        let mut done = 0;
        for call in channels.chunks(CALL) {
            self.fuse.step();
            self.one_call(gpu, call, by).map_err(|kind| SwitchError {
                done,
                kind,
                detail: format!("{kind:?}"),
            })?;
            done += call.len();
            self.fuse.step();
        }
        Ok(())
    }

    fn one_call(&self, gpu: Gpu, call: &[Channel], by: i64) -> Result<(), SwitchErrorKind> {
        let mut world = self.world();
        world.calls += 1;
        if world.refuse {
            return Err(SwitchErrorKind::Refused);
        }
        for channel in call {
            if world.gone.contains(channel) {
                return Err(SwitchErrorKind::Gone);
            }
            let count = world.counts.entry((gpu, *channel)).or_insert(0);
            if *count + by >= 0 {
                *count += by;
            } else {
                world.idle_enables += 1;
            }
        }
        Ok(())
    }
}

impl Channels for Driver {
    fn disable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError> {
        self.switch(gpu, channels, 1)
    }

    fn enable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError> {
        self.switch(gpu, channels, -1)
    }

    fn state(&mut self, gpu: Gpu, channel: Channel) -> ChannelState {
        let world = self.world();
        if world.blind || world.gone.contains(&channel) {
            return ChannelState::Unknown;
        }
        match world.counts.get(&(gpu, channel)) {
            None | Some(0) => ChannelState::Enabled,
            Some(_) => ChannelState::Disabled,
        }
    }
}

/// The ledger's file, which the driver's double keeps: both outlive a killed
/// guardian.
#[derive(Clone)]
pub(crate) struct MemoryStore(pub(crate) Driver);

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Vec<u8>, LedgerError> {
        Ok(self.0.world().log.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.0.fuse.step();
        // Killed in the middle of a write: some of it is there.
        let (first, second) = bytes.split_at(bytes.len() * 2 / 3);
        self.0.world().log.extend(first);
        self.0.fuse.step();
        self.full()?;
        self.0.world().log.extend(second);
        self.0.fuse.step();
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        self.0.fuse.step();
        self.full()?;
        self.0.world().log = bytes.to_vec();
        self.0.fuse.step();
        Ok(())
    }
}

impl MemoryStore {
    fn full(&self) -> Result<(), LedgerError> {
        match self.0.world().full {
            false => Ok(()),
            true => Err(LedgerError::Io {
                path: "memory".into(),
                what: "append to",
                source: std::io::ErrorKind::StorageFull.into(),
            }),
        }
    }
}
