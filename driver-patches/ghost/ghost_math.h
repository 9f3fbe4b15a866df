/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ghost_math.h - the arithmetic of shares, budgets and charges, in whole numbers, the same as that
 * of ghost-policy (ghostd/policy/golden holds the tables that both are tested against). Needs
 * nothing but types: the module, the tests with sanitizers and the fuzzer are built from it alike.
 * No lock, no allocation, no clock: time comes as an argument. Rounding is always down, so that
 * parts never add up to more than the whole.
 */
#ifndef GHOST_MATH_H
#define GHOST_MATH_H

#include <linux/types.h>

/* The whole of a GPU's time. */
#define GHOST_ONE		(1ULL << 30)
/* One, for corrections. */
#define GHOST_MILLION		1000000ULL
/* Binary places that lengths carry below a microsecond while they are divided. */
#define GHOST_LENGTH_SHIFT	10
/* GPU time that a switch costs, and what switches may cost of a round, per mille. */
#define GHOST_SWITCH_US		175ULL
#define GHOST_SWITCH_LOSS	20ULL
/* Rounds, microseconds: of few groups, stretched for a small share, the longest. */
#define GHOST_ROUND_US		30000ULL
#define GHOST_ROUND_FEW_US	50000ULL
#define GHOST_ROUND_MAX_US	200000ULL
/* A slice that is worth its switch, and the bounds of what is set. */
#define GHOST_GOOD_SLICE_US	1000ULL
#define GHOST_MIN_SLICE_US	100ULL
#define GHOST_MAX_SLICE_US	GHOST_ROUND_MAX_US
/* Nothing is let run or held back for less than half of this. */
#define GHOST_QUANTUM_US	1000ULL
/* Beyond memory_high a weight counts divided by this. */
#define GHOST_BEYOND_HIGH	10ULL
/* The weight with which a container's own groups stand beside the containers below it. */
#define GHOST_OWN_WEIGHT	100ULL
/* No limit. */
#define GHOST_UNLIMITED		(~0ULL)

static inline __u64 ghost_add(__u64 a, __u64 b)
{
	__u64 sum;

	return __builtin_add_overflow(a, b, &sum) ? ~0ULL : sum;
}

static inline __u64 ghost_sub(__u64 a, __u64 b)
{
	return a > b ? a - b : 0;
}

static inline __u64 ghost_mul(__u64 a, __u64 b)
{
	__u64 product;

	return __builtin_mul_overflow(a, b, &product) ? ~0ULL : product;
}

static inline __u64 ghost_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static inline __u64 ghost_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

static inline __u64 ghost_clamp(__u64 value, __u64 least, __u64 most)
{
	return ghost_max(least, ghost_min(value, most));
}

/* Shares. */

/* What a weight counts for, in parts of GHOST_BEYOND_HIGH. */
static inline __u64 ghost_counts(__u64 weight, int beyond_high)
{
	return beyond_high ? weight : ghost_mul(weight, GHOST_BEYOND_HIGH);
}

/* The part of `whole` that `weight` has of `sum`; nothing where `sum` is nothing. */
static inline __u64 ghost_part(__u64 whole, __u64 weight, __u64 sum)
{
	return sum ? ghost_mul(whole, weight) / sum : 0;
}

/* The best length of a round, microseconds, for `groups` groups the least of which has the share
 * `least` of GHOST_ONE. */
static inline __u64 ghost_round(__u64 groups, __u64 least)
{
	__u64 switches = ghost_part(ghost_mul(groups, GHOST_SWITCH_US), 1000, GHOST_SWITCH_LOSS);
	__u64 good = ghost_part(GHOST_GOOD_SLICE_US, GHOST_ONE, ghost_max(least, 1));

	good = ghost_min(good, GHOST_ROUND_FEW_US);
	return ghost_clamp(ghost_max(switches, good), GHOST_ROUND_US, GHOST_ROUND_MAX_US);
}

/* The timeslice, microseconds, of each of `groups` groups that share `length` (microseconds with
 * GHOST_LENGTH_SHIFT binary places), corrected by `factor` millionths. */
static inline __u64 ghost_slice_of(__u64 length, __u64 factor, __u64 groups)
{
	__u64 us = ghost_part(length, factor, ghost_mul(GHOST_MILLION, groups)) >> GHOST_LENGTH_SHIFT;

	return ghost_clamp(us, GHOST_MIN_SLICE_US, GHOST_MAX_SLICE_US);
}

/* Budgets: a token bucket. Each period adds `max`, never to more than `max` in all. */

/* What may be used after `periods` have begun. */
static inline __s64 ghost_refill(__s64 level, __u64 max, __u64 periods)
{
	__s64 full = max > (__u64)__INT64_MAX__ ? __INT64_MAX__ : (__s64)max;
	__u64 more = ghost_mul(periods, max);
	__s64 by = more > (__u64)__INT64_MAX__ ? __INT64_MAX__ : (__s64)more;
	__s64 sum;

	if (__builtin_add_overflow(level, by, &sum))
		sum = __INT64_MAX__;
	return sum < full ? sum : full;
}

/* Whether what may be used is worth to run for; to begin again it must be more. */
static inline int ghost_may_run(__s64 level, __u64 max, int throttled)
{
	__u64 worth = throttled ? ghost_min(GHOST_QUANTUM_US, max / 2)
				: ghost_min(GHOST_QUANTUM_US, max) / 2;

	return level >= (__s64)ghost_max(worth, 1);
}

/*
 * The budget that the module keeps by itself: nobody measures what a container used, so all time
 * in which it could run is taken for used. It gets no more than `max` of each period that way, and
 * less where it shares the GPU.
 */
struct ghost_budget {
	__u64 max_us;		/* GHOST_UNLIMITED: none */
	__u64 period_us;
	__u64 start_us;		/* of this period */
	__u64 at_us;		/* the moment up to which the level is right */
	__s64 level_us;		/* what may still be used; negative in debt */
	__u64 periods;		/* that ended with something to run */
	__u64 throttled_periods;	/* of these: in which it ran out */
	__u64 throttled_us;
	__u32 throttled;
	__u32 ran;		/* in this period */
	__u32 ran_out;		/* in this period */
	__u32 reserved;
};

static inline int ghost_budget_limits(const struct ghost_budget *budget)
{
	return budget->max_us < budget->period_us;
}

/* The invariant. */
static inline int ghost_budget_is_valid(const struct ghost_budget *budget)
{
	if (!ghost_budget_limits(budget))
		return !budget->throttled;
	return budget->max_us > 0 && budget->start_us <= budget->at_us &&
	       budget->at_us - budget->start_us < budget->period_us &&
	       budget->level_us <= (__s64)budget->max_us &&
	       budget->level_us >= -(__s64)budget->period_us &&
	       (budget->throttled || budget->level_us > 0);
}

/* A new limit from `now` on, to which the budget was advanced. What was used in this period stays
 * used, and shorter periods do not bring back what longer ones have not. */
static inline void ghost_budget_set(struct ghost_budget *budget, __u64 max_us, __u64 period_us,
				    __u64 now_us)
{
	int limited = budget->period_us && ghost_budget_limits(budget);
	__s64 used = limited ? (__s64)budget->max_us - budget->level_us : 0;

	budget->max_us = max_us;
	budget->period_us = period_us;
	budget->at_us = ghost_max(budget->at_us, now_us);
	if (!limited) {
		budget->start_us = budget->at_us;
		budget->ran = budget->ran_out = 0;
	}
	if (!ghost_budget_limits(budget)) {
		budget->throttled = 0;
		return;
	}
	budget->start_us = budget->at_us - (budget->at_us - budget->start_us) % period_us;
	used = used > (__s64)period_us ? (__s64)period_us : used;
	budget->level_us = (__s64)max_us - used;
	budget->throttled = !ghost_may_run(budget->level_us, max_us, budget->throttled);
	budget->ran_out |= budget->throttled;
}

/*
 * Moves to `now`; `running`: it had groups and could run since the last time. However late that is,
 * the level is that of one who looked at each period's end; only a debt beyond one period is let
 * go. Moments are below 2^62.
 */
static inline void ghost_budget_advance(struct ghost_budget *budget, int running, __u64 now_us)
{
	__u64 periods;

	if (!ghost_budget_limits(budget) || now_us <= budget->at_us)
		return;
	if (budget->throttled)
		budget->throttled_us = ghost_add(budget->throttled_us, now_us - budget->at_us);
	budget->ran |= !!running;
	periods = (now_us - budget->start_us) / budget->period_us;
	if (periods) {
		__u64 end = budget->start_us + budget->period_us, more = periods - 1;

		if (running)
			budget->level_us -= (__s64)(end - budget->at_us);
		budget->level_us = ghost_refill(budget->level_us, budget->max_us, 1);
		if (running)
			budget->level_us -= (__s64)(more * budget->period_us);
		budget->level_us = ghost_refill(budget->level_us, budget->max_us, more);
		budget->periods += (budget->ran || budget->ran_out) +
				   (running || budget->throttled ? more : 0);
		budget->throttled_periods += budget->ran_out + (budget->throttled ? more : 0);
		budget->start_us = budget->at_us = end + more * budget->period_us;
		budget->ran = running && now_us > budget->at_us;
		budget->ran_out = 0;
	}
	if (running)
		budget->level_us -= (__s64)(now_us - budget->at_us);
	if (budget->level_us < -(__s64)budget->period_us)
		budget->level_us = -(__s64)budget->period_us;
	budget->at_us = now_us;
	budget->throttled = !ghost_may_run(budget->level_us, budget->max_us, budget->throttled);
	budget->ran_out |= budget->throttled;
}

/* The moment at which it must be looked at again, GHOST_UNLIMITED: not at all. */
static inline __u64 ghost_budget_wake(const struct ghost_budget *budget, int running)
{
	__u64 end;

	if (!ghost_budget_limits(budget))
		return GHOST_UNLIMITED;
	end = ghost_add(budget->start_us, budget->period_us);
	if (budget->throttled)
		return end;
	if (!running)
		return GHOST_UNLIMITED;
	return ghost_min(end, ghost_add(budget->at_us, ghost_max((__u64)budget->level_us,
								 GHOST_QUANTUM_US / 2)));
}

/* Memory: one counter a container and GPU, charged with all above it. */

struct ghost_memory {
	__u64 current_bytes;
	__u64 managed_bytes;	/* of these, taken by UVM */
	__u64 peak_bytes;
	__u64 min_bytes;
	__u64 low_bytes;
	__u64 high_bytes;	/* GHOST_UNLIMITED: none */
	__u64 max_bytes;	/* likewise */
};

static inline int ghost_memory_is_valid(const struct ghost_memory *memory)
{
	return memory->current_bytes <= memory->peak_bytes &&
	       memory->managed_bytes <= memory->current_bytes;
}

/* Whether `bytes` more are within its limit. What is over the limit already frees nothing. */
static inline int ghost_may_charge(const struct ghost_memory *memory, __u64 bytes)
{
	__u64 sum;

	return !__builtin_add_overflow(memory->current_bytes, bytes, &sum) &&
	       (memory->max_bytes == GHOST_UNLIMITED || sum <= memory->max_bytes);
}

/* Charges what may be charged: the sum must not overflow. */
static inline void ghost_charge(struct ghost_memory *memory, __u64 bytes, int managed)
{
	memory->current_bytes += bytes;
	memory->managed_bytes += managed ? bytes : 0;
	memory->peak_bytes = ghost_max(memory->peak_bytes, memory->current_bytes);
}

/* Takes off what was charged. */
static inline void ghost_uncharge(struct ghost_memory *memory, __u64 bytes, int managed)
{
	memory->current_bytes = ghost_sub(memory->current_bytes, bytes);
	memory->managed_bytes = ghost_sub(memory->managed_bytes, managed ? bytes : 0);
	memory->managed_bytes = ghost_min(memory->managed_bytes, memory->current_bytes);
}

static inline int ghost_beyond_high(const struct ghost_memory *memory)
{
	return memory->high_bytes != GHOST_UNLIMITED && memory->current_bytes > memory->high_bytes;
}

/*
 * What a container lacks of a protection, of which those above it protect `cap`, where the
 * containers below it lack `below` together. One in whose lineage the asker is lacks only what is
 * below it.
 */
static inline __u64 ghost_lacking(__u64 protection, __u64 cap, __u64 current_bytes, __u64 below,
				  int is_askers)
{
	__u64 effective = ghost_min(protection, cap);

	if (is_askers)
		return effective ? below : 0;
	return ghost_max(ghost_sub(effective, current_bytes), ghost_min(below, effective));
}

#endif /* GHOST_MATH_H */
