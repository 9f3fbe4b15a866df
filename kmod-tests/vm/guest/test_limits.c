// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_limits.c - memory_min, low, high and max up and down the tree, and what is counted of them:
 * the rules of cgroup v2, and of ghostd's books where the driver is not woven.
 */
#include "groups.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define MIB (1ULL << 20)
/* Of GPU, as tenant() makes it known. */
#define TOTAL (1024 * MIB)

static int take(struct tenant *t, uint64_t object, uint64_t bytes)
{
	return entry(t, GHOST_TEST_MEMORY, GPU, object, &bytes);
}

static void give(struct tenant *t, uint64_t object)
{
	REQUIRE_EQ(entry(t, GHOST_TEST_MEMORY_GONE, GPU, object, NULL), 0);
}

static struct ghost_stat of(struct tenant *t)
{
	return ghost_stat_of(t->fd, t->container, GPU);
}

TEST(min_is_kept_from_others)
{
	int fd = ghost_open();
	struct tenant kept = tenant(fd, GHOST_NONE, "kept"), other = tenant(fd, GHOST_NONE, "other");

	set_limit(&kept, (struct ghost_limit){ .set = GHOST_SET_MEMORY_MIN, .memory_min = 600 * MIB });
	REQUIRE_EQ(take(&other, 1, 424 * MIB), 0);
	REQUIRE_EQ(take(&other, 2, 1), -ENOMEM);
	REQUIRE_EQ(of(&other).events.fail, 1);
	/* Nobody's memory_max: nobody's is counted. */
	REQUIRE_EQ(of(&other).events.max, 0);
	/* It has what was kept, and more only if it is there. */
	REQUIRE_EQ(take(&kept, 3, 500 * MIB), 0);
	REQUIRE_EQ(take(&other, 4, 1), -ENOMEM);
	REQUIRE_EQ(take(&kept, 5, 100 * MIB), 0);
	REQUIRE_EQ(take(&kept, 6, 1), 0);
	/* What it gives back is kept again. */
	give(&kept, 3);
	REQUIRE_EQ(take(&other, 7, 1), -ENOMEM);
	give(&other, 1);
	REQUIRE_EQ(take(&other, 7, 1), 0);
	leave();
}

TEST(min_is_no_more_than_that_above)
{
	int fd = ghost_open();
	struct tenant top = tenant(fd, GHOST_NONE, "top");
	struct tenant one = tenant(fd, top.container, "one"), two = tenant(fd, top.container, "two");
	struct tenant other = tenant(fd, GHOST_NONE, "other");

	/* Without a min above there is none below. */
	set_limit(&one, (struct ghost_limit){ .set = GHOST_SET_MEMORY_MIN, .memory_min = 512 * MIB });
	REQUIRE_EQ(take(&other, 1, TOTAL), 0);
	give(&other, 1);
	set_limit(&top, (struct ghost_limit){ .set = GHOST_SET_MEMORY_MIN, .memory_min = 256 * MIB });
	REQUIRE_EQ(take(&other, 1, TOTAL - 256 * MIB), 0);
	REQUIRE_EQ(take(&other, 2, 1), -ENOMEM);
	/* From its sibling it is kept as well, but not from itself. */
	REQUIRE_EQ(take(&two, 2, 1), -ENOMEM);
	REQUIRE_EQ(take(&one, 2, 256 * MIB), 0);
	leave();
}

TEST(low_is_counted_where_it_is_taken)
{
	int fd = ghost_open();
	struct tenant low = tenant(fd, GHOST_NONE, "low");
	struct tenant inner = tenant(fd, low.container, "inner"), other = tenant(fd, GHOST_NONE, "other");

	set_limit(&low, (struct ghost_limit){ .set = GHOST_SET_MEMORY_LOW, .memory_low = 600 * MIB });
	set_limit(&inner, (struct ghost_limit){ .set = GHOST_SET_MEMORY_LOW, .memory_low = 100 * MIB });
	REQUIRE_EQ(take(&other, 1, 424 * MIB), 0);
	REQUIRE_EQ(of(&low).events.low, 0);
	/* It is no reason to refuse. */
	REQUIRE_EQ(take(&other, 2, 1), 0);
	REQUIRE_EQ(of(&low).events_local.low, 1);
	REQUIRE_EQ(of(&inner).events_local.low, 1);
	REQUIRE_EQ(of(&low).events.low, 2);
	REQUIRE_EQ(of(&other).events.low, 0);
	/* Its own use takes nothing from it. */
	REQUIRE_EQ(take(&inner, 3, 500 * MIB), 0);
	REQUIRE_EQ(of(&low).events.low, 2);
	leave();
}

TEST(beyond_high_is_counted_and_told_once)
{
	struct ghost_event events[64];
	int fd = ghost_open(), told = 0;
	struct tenant outer = tenant(fd, GHOST_NONE, "outer");
	struct tenant inner = tenant(fd, outer.container, "inner");
	int reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	ssize_t got;

	set_limit(&outer, (struct ghost_limit){ .set = GHOST_SET_MEMORY_HIGH, .memory_high = 10 * MIB });
	set_limit(&inner, (struct ghost_limit){ .set = GHOST_SET_MEMORY_HIGH, .memory_high = 4 * MIB });
	REQUIRE_EQ(take(&inner, 1, 4 * MIB), 0);
	REQUIRE_EQ(of(&inner).events.high, 0);
	REQUIRE_EQ(take(&inner, 2, 1 * MIB), 0);
	REQUIRE_EQ(take(&inner, 3, 1 * MIB), 0);
	REQUIRE_EQ(of(&inner).events_local.high, 2);
	REQUIRE_EQ(of(&outer).events_local.high, 0);
	REQUIRE_EQ(of(&outer).events.high, 2);
	REQUIRE_EQ(take(&inner, 4, 5 * MIB), 0);
	REQUIRE_EQ(of(&outer).events_local.high, 1);
	REQUIRE_EQ(of(&outer).events.high, 4);
	got = read(reader, events, sizeof(events));
	for (int i = 0; i < got / GHOST_EVENT_SIZE; i++) {
		if (events[i].type != GHOST_EVENT_MEMORY_HIGH)
			continue;
		told++;
		REQUIRE_EQ(events[i].gpu, GPU);
		REQUIRE_EQ(events[i].pid, getpid());
		REQUIRE_EQ(events[i].value, events[i].container == inner.container ? 5 * MIB : 11 * MIB);
	}
	REQUIRE_EQ(told, 2);
	leave();
}

TEST(max_is_counted_where_it_is)
{
	struct ghost_event events[64];
	int fd = ghost_open(), refused = 0;
	struct tenant outer = tenant(fd, GHOST_NONE, "outer");
	struct tenant middle = tenant(fd, outer.container, "middle");
	struct tenant inner = tenant(fd, middle.container, "inner");
	int reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	ssize_t got;

	set_limit(&middle, (struct ghost_limit){ .set = GHOST_SET_MEMORY_MAX, .memory_max = 10 * MIB });
	REQUIRE_EQ(take(&inner, 1, 11 * MIB), -ENOMEM);
	REQUIRE_EQ(of(&middle).events_local.max, 1);
	REQUIRE_EQ(of(&outer).events_local.max, 0);
	REQUIRE_EQ(of(&outer).events.max, 1);
	REQUIRE_EQ(of(&inner).events.max, 0);
	REQUIRE_EQ(of(&inner).events_local.fail, 1);
	REQUIRE_EQ(of(&middle).events_local.fail, 0);
	REQUIRE_EQ(of(&outer).events.fail, 1);
	REQUIRE_EQ(of(&outer).memory_peak, 0);
	got = read(reader, events, sizeof(events));
	for (int i = 0; i < got / GHOST_EVENT_SIZE; i++) {
		if (events[i].type != GHOST_EVENT_MEMORY_MAX)
			continue;
		refused++;
		REQUIRE_EQ(events[i].container, inner.container);
		REQUIRE_EQ(events[i].value, 11 * MIB);
	}
	REQUIRE_EQ(refused, 1);
	/* Below what is in use already: taken, and nothing is granted. */
	REQUIRE_EQ(take(&inner, 1, 10 * MIB), 0);
	set_limit(&middle, (struct ghost_limit){ .set = GHOST_SET_MEMORY_MAX, .memory_max = 1 });
	REQUIRE_EQ(take(&inner, 2, 1), -ENOMEM);
	give(&inner, 1);
	REQUIRE_EQ(take(&inner, 2, 1), 0);
	leave();
}

TEST(nobody_has_more_than_there_is)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	REQUIRE_EQ(take(&t, 1, TOTAL + 1), -ENOMEM);
	REQUIRE_EQ(take(&t, 1, UINT64_MAX), -ENOMEM);
	REQUIRE_EQ(of(&t).events_local.fail, 2);
	REQUIRE_EQ(of(&t).events_local.max, 0);
	REQUIRE_EQ(of(&t).memory_current, 0);
	leave();
}

TEST(limits_of_all_gpus_are_those_of_later_ones)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = t.container,
		.gpu = GHOST_ALL_GPUS,
		.set = GHOST_SET_WEIGHT | GHOST_SET_MAX | GHOST_SET_MEMORY_MIN | GHOST_SET_MEMORY_LOW |
		       GHOST_SET_MEMORY_HIGH | GHOST_SET_MEMORY_MAX,
		.weight = 7,
		.max_us = 5000,
		.period_us = 50000,
		.memory_min = 1,
		.memory_low = 2,
		.memory_high = 3 * MIB,
		.memory_max = 4 * MIB,
	};
	uint64_t total = TOTAL;
	struct ghost_stat stat = of(&t);

	REQUIRE_EQ(stat.weight, GHOST_WEIGHT_DEFAULT);
	REQUIRE_EQ(stat.max_us, GHOST_MAX);
	REQUIRE_EQ(stat.period_us, GHOST_PERIOD_DEFAULT);
	REQUIRE_EQ(stat.memory_min, 0);
	REQUIRE_EQ(stat.memory_high, GHOST_MAX);
	REQUIRE_EQ(stat.memory_max, GHOST_MAX);
	set_weight(&t, 55);
	/* Replaces what single GPUs had. */
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	REQUIRE_EQ(entry(&t, GHOST_TEST_GPU, OTHER_GPU, 0, &total), 0);
	for (uint32_t gpu = GPU; gpu <= OTHER_GPU; gpu += OTHER_GPU - GPU) {
		stat = ghost_stat_of(fd, t.container, gpu);
		REQUIRE_EQ(stat.weight, 7);
		REQUIRE_EQ(stat.max_us, 5000);
		REQUIRE_EQ(stat.period_us, 50000);
		REQUIRE_EQ(stat.memory_min, 1);
		REQUIRE_EQ(stat.memory_low, 2);
		REQUIRE_EQ(stat.memory_high, 3 * MIB);
		REQUIRE_EQ(stat.memory_max, 4 * MIB);
	}
	/* One wrong value: nothing is set. */
	limit.weight = 8;
	limit.max_us = 0;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), -EINVAL);
	REQUIRE_EQ(limit.wrong, GHOST_SET_MAX);
	REQUIRE_EQ(of(&t).weight, 7);
	leave();
}

TEST(protection_of_a_gpu_found_later)
{
	int fd = ghost_open();
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = ghost_make(fd, GHOST_NONE, "kept"),
		.gpu = GHOST_ALL_GPUS,
		.set = GHOST_SET_MEMORY_MIN,
		.memory_min = 600 * MIB,
	};
	struct tenant other;
	uint64_t bytes;

	/* Before there is any. */
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	other = tenant(fd, GHOST_NONE, "other");
	REQUIRE_EQ(take(&other, 1, 424 * MIB + 1), -ENOMEM);
	REQUIRE_EQ(take(&other, 1, 424 * MIB), 0);
	/* Where the memory is not known, nothing is kept. */
	bytes = 0;
	REQUIRE_EQ(entry(&other, GHOST_TEST_GPU, 0x300, 0, &bytes), 0);
	bytes = TOTAL;
	REQUIRE_EQ(entry(&other, GHOST_TEST_MEMORY, 0x300, 2, &bytes), 0);
	leave();
}
