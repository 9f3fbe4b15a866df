//! The numbers of the policy, all in one place. Where one follows from what an H200 does, its
//! comment gives the measurement.

use ghost_model::Micros;

/// GPU time that a switch from one channel group to another costs: 0.15 to 0.2 ms on an H200.
pub const SWITCH: Micros = Micros(175);

/// What the switches may cost, in parts per thousand of a round. Longer rounds cost less, make
/// everybody wait longer and shares hold over longer times only.
pub const SWITCH_LOSS_PERMILLE: u64 = 20;

/// A round of few groups is this long: two backlogged containers then lose about 1.5 %.
pub const ROUND: Micros = Micros(30_000);

/// A round of few groups may become this long, so that the smallest slice reaches
/// [`GOOD_SLICE`]. It is also how long a container that wakes waits at most.
pub const ROUND_FEW: Micros = Micros(50_000);

/// No round is chosen longer, however many groups there are: 100 groups get 2 ms each and lose
/// 9 % to switches, where 2 % would take a round of nearly a second.
pub const ROUND_MAX: Micros = Micros(200_000);

/// A slice that is worth its switch.
pub const GOOD_SLICE: Micros = Micros(1_000);

/// The shortest slice that is ever set. At 50 us the 99th percentile of a neighbour's latency
/// was worse than at 100 us.
pub const MIN_SLICE: Micros = Micros(100);

/// The longest slice that is ever set.
pub const MAX_SLICE: Micros = ROUND_MAX;

/// A slice that differs from the wanted one by no more than one part in this is left alone: it
/// was rounded. At most 0.15 points of a share.
pub const SLICE_ROUNDING: u64 = 200;

/// Where a slice cannot be read back, it is set again after this long.
pub const SLICE_RETRY: Micros = Micros(1_000_000);

/// A group that used nothing for this long has no work; one that used anything has at once.
pub const IDLE_AFTER: Micros = Micros(1_000_000);

/// `usage_ratio` is over this long, or a little more.
pub const USAGE_WINDOW: Micros = Micros(1_000_000);

/// Feedback compares shares over this long at least,
pub const FEEDBACK_WINDOW: Micros = Micros(2_000_000);

/// and over this many rounds: a window that cuts a slice off is then wrong by less than the
/// dead band.
pub const FEEDBACK_ROUNDS: u64 = 100;

/// Feedback leaves errors below this alone, in millionths of the GPU's time. The hardware keeps
/// 0.4 points by itself.
pub const FEEDBACK_DEAD_BAND: u64 = 7_500;

/// A container that is further from its share than this, in millionths of it, was not held back
/// by its slices: it had no work.
pub const FEEDBACK_PLAUSIBLE: u64 = 300_000;

/// Bounds of the correction, in millionths.
pub const FEEDBACK_RANGE: (u64, u64) = (800_000, 1_250_000);

/// The slice of a container with `gpu.latency`: longer than what it has to do at a time.
pub const LATENCY_SLICE: Micros = Micros(10_000);

/// What a neighbour's turn costs a waiting kernel beyond the neighbour's slice: with slices of
/// 0, 100, 200 and 500 us the 99th percentile was 0.19 to 0.24 ms above the slice.
pub const LATENCY_TURN: Micros = Micros(200);

/// Two neighbours with short slices lose much to switches. They are freed of them when the
/// container with `gpu.latency` did nothing for this long.
pub const LATENCY_LINGER: Micros = Micros(10_000_000);

/// Containers of `gpu.idle` run when nobody else had work for this long.
pub const IDLE_GRACE: Micros = Micros(150_000);

/// The slice of the only group of `gpu.idle` that has work: who wakes gets nearly everything.
pub const IDLE_SLICE: Micros = Micros(200);

/// Several groups of `gpu.idle` get this on average, for at 200 us they would lose half.
pub const IDLE_SLICE_MANY: Micros = Micros(2_000);

/// A pause and a resume cost about 1 ms: nothing is let run or held back for less than half of
/// this.
pub const QUANTUM: Micros = Micros(1_000);

/// A container that uses more of a GPU's memory than `gpu.memory.high` counts there with its
/// weight divided by this.
pub const BEYOND_HIGH: u64 = 10;

/// The weight with which a container's own processes stand beside its children.
pub const OWN_WEIGHT: u64 = 100;
