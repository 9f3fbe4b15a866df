// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * sequence.c - what must hold of the arithmetic whatever is called in whichever order. The input is
 * read as a list of calls; the first byte says of what.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "ghost_math.h"

struct input {
	const uint8_t *data;
	size_t size;
};

/* A number of a random size: small ones are as likely as large ones. 0 at the end. */
static __u64 number(struct input *in)
{
	__u64 value = 0;
	size_t bytes;

	if (!in->size)
		return 0;
	bytes = in->data[0] % 9;
	in->data++, in->size--;
	if (bytes > in->size)
		bytes = in->size;
	memcpy(&value, in->data, bytes);
	in->data += bytes, in->size -= bytes;
	return value;
}

static __u64 between(struct input *in, __u64 least, __u64 most)
{
	return least + number(in) % (most - least + 1);
}

/* The parts of a whole never add up to more. */
static void parts(struct input *in)
{
	__u64 whole = number(in), weights[16], sum = 0, all = 0, least;
	size_t count = between(in, 1, 16);

	for (size_t i = 0; i < count; i++) {
		weights[i] = ghost_counts(between(in, 1, 10000), number(in) & 1);
		CHECK(weights[i] >= 1 && weights[i] <= 100000);
		sum += weights[i];
	}
	least = GHOST_ONE;
	for (size_t i = 0; i < count; i++) {
		__u64 part = ghost_part(whole, weights[i], sum);

		CHECK(part <= whole && all + part >= all);
		all += part;
		least = ghost_min(least, ghost_part(GHOST_ONE, weights[i], sum));
	}
	CHECK(all <= whole);
	CHECK(whole > ~0ULL / 100000 || whole - all < count);

	__u64 round = ghost_round(count, least), slices = 0;

	CHECK(round >= GHOST_ROUND_US && round <= GHOST_ROUND_MAX_US);
	for (size_t i = 0; i < count; i++) {
		__u64 length = ghost_part(round << GHOST_LENGTH_SHIFT, weights[i], sum);
		__u64 us = ghost_slice_of(length, GHOST_MILLION, 1);

		CHECK(us >= GHOST_MIN_SLICE_US && us <= GHOST_MAX_SLICE_US);
		slices += us;
	}
	CHECK(slices <= round + count * GHOST_MIN_SLICE_US);

	__u64 any = ghost_slice_of(number(in), number(in), number(in));

	CHECK(any >= GHOST_MIN_SLICE_US && any <= GHOST_MAX_SLICE_US);
	any = ghost_round(number(in), number(in));
	CHECK(any >= GHOST_ROUND_US && any <= GHOST_ROUND_MAX_US);
}

/* The budget as somebody reckons who looks at each end of a period. */
struct slow {
	__s64 level;
	__u64 start, at, used, credit;
};

static void slow_advance(struct slow *slow, const struct ghost_budget *b, bool running, __u64 now)
{
	for (;;) {
		__u64 end = slow->start + b->period_us, to = end < now ? end : now;

		if (running) {
			slow->level -= (__s64)(to - slow->at);
			slow->used += to - slow->at;
		}
		slow->at = to;
		if (to != end)
			break;
		slow->start = end;
		slow->credit += b->max_us;
		slow->level += (__s64)b->max_us;
		if (slow->level > (__s64)b->max_us)
			slow->level = (__s64)b->max_us;
	}
	if (slow->level < -(__s64)b->period_us)
		slow->level = -(__s64)b->period_us;
}

/* A level is kept whoever looks when; who is woken in time never has more than his budget. */
static void budget(struct input *in)
{
	struct ghost_budget b = { .max_us = GHOST_UNLIMITED, .period_us = 100000 };
	__u64 now = between(in, 0, 1ULL << 61), late = 0;
	struct slow slow = { 0 };

	CHECK(ghost_budget_is_valid(&b));
	for (int calls = 0; in->size && calls < 100; calls++) {
		struct ghost_budget before = b;
		bool limits = ghost_budget_limits(&b), running = number(in) & 1, in_time;
		__u64 wake, by;

		if (number(in) % 8 == 0) {
			__u64 period = between(in, 1000, 1000000);
			__u64 max = between(in, 1, period);
			__s64 used = limits ? (__s64)b.max_us - b.level_us : 0;

			if (max == period)
				max = GHOST_UNLIMITED;
			ghost_budget_set(&b, max, period, now);
			CHECK(ghost_budget_is_valid(&b));
			CHECK(b.at_us == now && b.periods == before.periods);
			if (ghost_budget_limits(&b) && used <= (__s64)period)
				CHECK(b.level_us == (__s64)max - used);
			slow = (struct slow){ .level = b.level_us, .start = b.start_us, .at = now };
			slow.credit = b.level_us > 0 ? b.level_us : 0;
			late = b.level_us < 0 ? -b.level_us : 0;
			continue;
		}
		/* A throttled one is stopped, though maybe not at once. */
		running = running && (!b.throttled || number(in) % 4 == 0);
		wake = ghost_budget_wake(&b, running);
		CHECK(wake > now || !limits);
		by = between(in, 0, number(in) & 1 ? 50000000 : 20000);
		in_time = !running || (!b.throttled && now + by <= wake);
		if (!in_time)
			late += now + by - (b.throttled ? now : wake);
		now += by;
		if (limits)
			slow_advance(&slow, &b, running, now);
		ghost_budget_advance(&b, running, now);
		CHECK(ghost_budget_is_valid(&b));
		if (!limits)
			continue;
		CHECK(b.at_us == now || !by);
		CHECK(b.level_us == slow.level && b.start_us == slow.start);
		CHECK(slow.used <= slow.credit + late + GHOST_QUANTUM_US);
		CHECK(b.periods >= before.periods && b.throttled_periods <= b.periods);
		CHECK(b.throttled_us - before.throttled_us == (before.throttled ? by : 0));
		CHECK(b.start_us <= now && now - b.start_us < b.period_us);
	}
}

/* One container below another: charges are those of what is there, and end with it. */
static void memory(struct input *in)
{
	struct ghost_memory tree[2] = { { .max_bytes = number(in), .high_bytes = number(in) },
					{ .max_bytes = GHOST_UNLIMITED,
					  .high_bytes = GHOST_UNLIMITED } };
	struct {
		__u64 bytes;
		bool managed;
		int from;
	} held[32];
	size_t count = 0;

	while (in->size) {
		bool managed = number(in) & 1;
		int from = number(in) & 1;
		__u64 bytes = number(in), sums[2] = { 0 }, taken[2] = { 0 };

		if (number(in) % 3 && count < 32) {
			bool may = true;

			for (int i = 0; i <= from; i++)
				may = may && ghost_may_charge(&tree[i], bytes);
			for (int i = 0; may && i <= from; i++)
				ghost_charge(&tree[i], bytes, managed);
			if (may) {
				CHECK(tree[0].current_bytes <= tree[0].max_bytes);
				held[count].bytes = bytes;
				held[count].managed = managed;
				held[count++].from = from;
			}
		} else if (number(in) % 8 == 0) {
			/* Never a reason to refuse. */
			tree[0].max_bytes = number(in);
		} else if (count) {
			size_t at = number(in) % count;

			for (int i = 0; i <= held[at].from; i++)
				ghost_uncharge(&tree[i], held[at].bytes, held[at].managed);
			held[at] = held[--count];
		}
		for (size_t i = 0; i < count; i++) {
			for (int up = 0; up <= held[i].from; up++) {
				sums[up] += held[i].bytes;
				taken[up] += held[i].managed ? held[i].bytes : 0;
			}
		}
		for (int i = 0; i < 2; i++) {
			CHECK(ghost_memory_is_valid(&tree[i]));
			CHECK(tree[i].current_bytes == sums[i] && tree[i].managed_bytes == taken[i]);
			CHECK(ghost_beyond_high(&tree[i]) ==
			      (tree[i].high_bytes != GHOST_UNLIMITED && sums[i] > tree[i].high_bytes));
		}
		CHECK(tree[0].current_bytes >= tree[1].current_bytes);
	}
}

/* Nobody lacks more than what protects it, and an asker none of his own. */
static void lacking(struct input *in)
{
	__u64 protection = number(in), cap = number(in), current = number(in), below = number(in);
	__u64 lacks = ghost_lacking(protection, cap, current, below, 0);

	CHECK(lacks <= ghost_min(protection, cap));
	CHECK(current < ghost_min(protection, cap) || lacks <= below);
	CHECK(ghost_lacking(protection, cap, current, 0, 1) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const all[])(struct input *) = { parts, budget, memory, lacking };
	struct input in = { data, size };

	all[number(&in) % 4](&in);
	return 0;
}
