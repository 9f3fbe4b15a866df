//! Data on its way to the program's memory, and how much of what was sent has been taken.

use super::Region;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Landing {
    region: Region,
    /// Bytes that are still to come.
    left: usize,
}

/// Where the data of each command goes.
#[derive(Debug, Default)]
pub(super) struct Landings {
    /// Guards the landings, by the number of their commands. Never held while reading or writing.
    open: Mutex<HashMap<u64, Landing>>,
    /// Told when a landing is over, a frame was taken, or all has ended.
    changed: Condvar,
    /// Frames taken from `down`.
    taken: AtomicU64,
}

impl Landings {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Landing>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Data of command `seq` goes to `region`.
    pub(super) fn open(&self, seq: u64, region: Region) {
        let left = region.len();
        if left > 0 {
            self.lock().insert(seq, Landing { region, left });
        }
    }

    /// Where data of command `seq` goes.
    pub(super) fn region(&self, seq: u64) -> Option<Region> {
        self.lock().get(&seq).map(|landing| landing.region)
    }

    /// `len` bytes of command `seq` are where they belong.
    pub(super) fn came(&self, seq: u64, len: usize) {
        let mut open = self.lock();
        if let Some(landing) = open.get_mut(&seq) {
            landing.left = landing.left.saturating_sub(len);
            if landing.left == 0 {
                open.remove(&seq);
            }
        }
    }

    /// Nothing more comes of command `seq`.
    pub(super) fn close(&self, seq: u64) {
        if self.lock().remove(&seq).is_some() {
            self.changed.notify_all();
        }
    }

    /// A frame was taken.
    pub(super) fn took(&self) {
        let guard = self.lock();
        self.taken.fetch_add(1, Ordering::Release);
        drop(guard);
        self.changed.notify_all();
    }

    /// Nothing more comes at all: wakes all who wait.
    pub(super) fn end(&self) {
        self.lock().clear();
        self.changed.notify_all();
    }

    /// Waits until as many frames were taken, or `ended`.
    pub(super) fn wait_taken(&self, frames: u64, ended: impl Fn() -> bool) {
        if self.taken.load(Ordering::Acquire) >= frames {
            return;
        }
        let mut open = self.lock();
        while self.taken.load(Ordering::Acquire) < frames && !ended() {
            open = self
                .changed
                .wait(open)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until nothing is on its way to `len` bytes at `at`, or `ended`.
    pub(super) fn wait_clear(&self, at: u64, len: usize, ended: impl Fn() -> bool) {
        let mut open = self.lock();
        while !ended() && open.values().any(|l| l.region.overlaps(at, len)) {
            open = self
                .changed
                .wait(open)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether anything is on its way to `len` bytes at `at`.
    pub(super) fn busy(&self, at: u64, len: usize) -> bool {
        self.lock().values().any(|l| l.region.overlaps(at, len))
    }
}
