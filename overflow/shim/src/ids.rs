//! Handles that this process makes.

use ghost_wire::id::Maker;
use ghost_wire::{Id, Object};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A handle that no one has had.
pub(crate) fn new(object: Object) -> u64 {
    Id::new(Maker::Client, object, NEXT.fetch_add(1, Ordering::Relaxed)).raw()
}
