//! The two clocks that are read: the monotonic one that samples are stamped with, and the one of
//! the calendar that the driver stamps utilization with.

use ghost_model::Micros;
use nix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    // Neither clock can fail where Linux runs.
    let Ok(time) = clock_gettime(clock) else {
        return 0;
    };
    let (seconds, nanos) = (
        time.tv_sec().cast_unsigned(),
        time.tv_nsec().cast_unsigned(),
    );
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The monotonic clock.
pub(crate) fn now() -> Micros {
    Micros(now_ns() / 1000)
}

/// Nanoseconds of the calendar's clock.
pub(crate) fn realtime_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// The calendar's clock.
pub(crate) fn realtime() -> Micros {
    Micros(realtime_ns() / 1000)
}
