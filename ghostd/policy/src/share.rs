//! The arithmetic of shares, in whole numbers so that a driver can do the same
//! (`golden/weights.csv`, `golden/shares.csv`, `golden/slices.csv`). Rounding is always down, so
//! that parts never add up to more than the whole.

use crate::tuning::{BEYOND_HIGH, MAX_SLICE, MIN_SLICE};
use ghost_model::Micros;

/// The whole of a GPU's time.
pub const ONE: u64 = 1 << 30;

/// One, for corrections.
pub const MILLION: u64 = 1_000_000;

/// Binary places that lengths carry below a microsecond while they are divided.
pub const LENGTH_SHIFT: u32 = 10;

/// What a weight counts for, in parts of [`BEYOND_HIGH`]: one part each where the container is
/// `beyond` its `gpu.memory.high` there, all of them where it is not.
pub const fn weight(weight: u64, beyond: bool) -> u64 {
    if beyond { weight } else { weight * BEYOND_HIGH }
}

/// The part of `whole` that `weight` has of `sum`; nothing where `sum` is nothing.
pub const fn part(whole: u64, weight: u64, sum: u64) -> u64 {
    match whole.saturating_mul(weight).checked_div(sum) {
        Some(part) => part,
        None => 0,
    }
}

/// The timeslice of each of `groups` groups that share `length` (microseconds with
/// [`LENGTH_SHIFT`] binary places), corrected by `factor` millionths.
pub const fn slice(length: u64, factor: u64, groups: u64) -> Micros {
    let us = part(length, factor, MILLION.saturating_mul(groups)) >> LENGTH_SHIFT;
    if us < MIN_SLICE.0 {
        MIN_SLICE
    } else if us > MAX_SLICE.0 {
        MAX_SLICE
    } else {
        Micros(us)
    }
}

/// A share of the GPU's time as a ratio, for people.
pub fn ratio(share: u64) -> f64 {
    share as f64 / ONE as f64
}
