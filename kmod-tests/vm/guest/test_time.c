// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_time.c - channel groups: timeslices by weight, tenants' own, pauses, the lead, events. Groups
 * come by the module's test-only entry, which also answers for the driver what is asked of them.
 */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <uapi/ghost.h>

#define GPU 0x100

struct tenant {
	int fd, rm;
	uint32_t client;
	uint64_t container;
};

static int entry(struct tenant *t, uint32_t op, uint64_t object, uint64_t *value)
{
	struct ghost_test test = {
		.size = sizeof(test),
		.op = op,
		.gpu = GPU,
		.object = object,
		.value = value ? *value : 0,
		.client = t->client,
	};
	int result = ghost_call(t->fd, GHOST_IOC_TEST, &test);

	if (value)
		*value = test.value;
	return result;
}

/* A client of this process in a container of its own, with one group, whose key is `object`. */
static struct tenant tenant(int fd, const char *name, uint64_t object)
{
	struct tenant t = { .fd = fd, .rm = rm_open() };
	struct ghost_attach attach = { .size = sizeof(attach) };
	uint64_t memory = 1 << 30;

	REQUIRE_EQ(entry(&t, GHOST_TEST_GPU, 0, &memory), 0);
	t.container = ghost_make(fd, GHOST_NONE, name);
	attach.id = t.container;
	attach.pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), 0);
	close(attach.pidfd);
	REQUIRE_EQ(rm_client(t.rm, &t.client), RM_OK);
	REQUIRE_EQ(entry(&t, GHOST_TEST_GROUP, object, NULL), 0);
	return t;
}

static void leave(struct tenant *t, uint64_t object)
{
	REQUIRE_EQ(entry(t, GHOST_TEST_GROUP_GONE, object, NULL), 0);
	close(t->rm);
}

static struct ghost_group group_of(struct tenant *t)
{
	struct ghost_group groups[16];
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_GROUPS,
		.item_size = sizeof(*groups),
		.items = (uintptr_t)groups,
		.count = 16,
	};

	REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIST, &list), 0);
	for (uint32_t i = 0; i < list.written; i++) {
		if (groups[i].container == t->container)
			return groups[i];
	}
	fail(__FILE__, __LINE__, "no group in the container");
}

static void set_weight(struct tenant *t, uint32_t weight)
{
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = t->container,
		.gpu = GPU,
		.set = GHOST_SET_WEIGHT,
		.weight = weight,
	};

	REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIMIT, &limit), 0);
}

static int set_paused(int fd, uint64_t container, bool resume)
{
	struct ghost_pause pause = {
		.size = sizeof(pause),
		.flags = resume ? GHOST_PAUSE_RESUME : 0,
		.id = container,
		.gpu = GHOST_ALL_GPUS,
	};

	return ghost_call(fd, GHOST_IOC_PAUSE, &pause);
}

TEST(timeslices_go_by_weight)
{
	int fd = ghost_open();
	struct tenant one = tenant(fd, "one", 1), three = tenant(fd, "three", 2);
	struct ghost_group group;

	set_weight(&one, 100);
	set_weight(&three, 300);
	/* In microseconds, which may be rounded. */
	EVENTUALLY(group_of(&one).slice_us &&
		   llabs((long long)(group_of(&three).slice_us - 3 * group_of(&one).slice_us)) <= 3);
	group = group_of(&three);
	REQUIRE_EQ(group.gpu, GPU);
	REQUIRE_EQ(group.pid, getpid());
	REQUIRE_EQ(group.client, three.client);
	REQUIRE_EQ(ghost_stat_of(fd, three.container, GPU).groups, 1);
	set_weight(&three, 100);
	EVENTUALLY(group_of(&three).slice_us == group_of(&one).slice_us);
	leave(&one, 1);
	leave(&three, 2);
	REQUIRE_EQ(ghost_stat_of(fd, three.container, GPU).groups, 0);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(a_tenant_cannot_set_its_timeslice)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, "one", 1);
	uint64_t asked = 1000000, slice;

	EVENTUALLY(group_of(&t).slice_us);
	slice = group_of(&t).slice_us;
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, 1, &asked), 0);
	REQUIRE_EQ(asked, slice);
	REQUIRE_EQ(group_of(&t).slice_us, slice);
	leave(&t, 1);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(a_pause_ends_with_its_file)
{
	int fd = ghost_open(), other = ghost_open(), third = ghost_open();
	struct tenant t = tenant(fd, "one", 1);

	REQUIRE_EQ(set_paused(other, t.container, false), 0);
	/* It is so when the request returns. */
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(set_paused(third, t.container, false), 0);
	REQUIRE_EQ(set_paused(third, t.container, true), 0);
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	close(other);
	EVENTUALLY(group_of(&t).paused == 0);
	REQUIRE_EQ(set_paused(third, t.container, false), 0);
	REQUIRE_EQ(set_paused(third, t.container, true), 0);
	REQUIRE_EQ(group_of(&t).paused, 0);
	REQUIRE_EQ(set_paused(third, 1ULL << 60, false), -ENOENT);
	leave(&t, 1);
	close(third);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

static void pause_and_die(void *argument)
{
	struct tenant *t = argument;
	int fd = ghost_open();

	REQUIRE_EQ(set_paused(fd, t->container, false), 0);
	REQUIRE_EQ(group_of(t).paused, GHOST_PAUSED_ASKED);
	/* As kill -9 would: nobody closes anything. */
}

TEST(a_dead_daemon_leaves_nothing_paused)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, "one", 1);

	in_child(pause_and_die, &t);
	EVENTUALLY(group_of(&t).paused == 0);
	leave(&t, 1);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(the_lead)
{
	int fd = ghost_open(), other = ghost_open();
	struct tenant t = tenant(fd, "one", 1);
	struct ghost_lead lead = { .size = sizeof(lead) };
	struct ghost_slice slice = { .size = sizeof(slice), .group = group_of(&t).id, .slice_us = 4321 };

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_SLICE, &slice), -EACCES);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LEAD, &lead), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LEAD, &lead), 0);
	REQUIRE_EQ(ghost_call(other, GHOST_IOC_LEAD, &lead), -EBUSY);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_SLICE, &slice), 0);
	REQUIRE_EQ(group_of(&t).slice_us, 4321);
	slice.slice_us = GHOST_SLICE_MAX + 1;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_SLICE, &slice), -EINVAL);
	slice.slice_us = GHOST_SLICE_MIN;
	slice.group = 1ULL << 60;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_SLICE, &slice), -ENOENT);
	/* A lease that lapses gives the lead, and the timeslice, back. */
	lead.lease_us = 50000;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LEAD, &lead), 0);
	EVENTUALLY(group_of(&t).slice_us != 4321);
	lead.lease_us = 0;
	REQUIRE_EQ(ghost_call(other, GHOST_IOC_LEAD, &lead), 0);
	lead.flags = GHOST_LEAD_RESIGN;
	REQUIRE_EQ(ghost_call(other, GHOST_IOC_LEAD, &lead), 0);
	lead.flags = 0;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LEAD, &lead), 0);
	leave(&t, 1);
	close(other);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(a_budget_stops_and_lets_run)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, "one", 1);
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = t.container,
		.gpu = GPU,
		.set = GHOST_SET_MAX,
		.max_us = 10000,
		.period_us = 100000,
	};

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_MAX);
	EVENTUALLY(group_of(&t).paused == 0);
	EVENTUALLY(ghost_stat_of(fd, t.container, GPU).nr_throttled > 1);
	REQUIRE(ghost_stat_of(fd, t.container, GPU).throttled_us > 0);
	limit.max_us = GHOST_MAX;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	EVENTUALLY(group_of(&t).paused == 0);
	leave(&t, 1);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(events)
{
	struct ghost_event events[64];
	uint64_t asked = 1, lost = 0;
	int fd = ghost_open(), reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	struct pollfd waiting = { .fd = reader, .events = POLLIN };
	ssize_t got;
	bool client = false, group = false, clamped = false;
	struct tenant t;

	REQUIRE(reader >= 0);
	REQUIRE_EQ(poll(&waiting, 1, 0), 0);
	REQUIRE_EQ(read(reader, events, sizeof(events)), -1);
	REQUIRE_EQ(errno, EAGAIN);
	t = tenant(fd, "one", 1);
	EVENTUALLY(group_of(&t).slice_us);
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, 1, &asked), 0);
	REQUIRE_EQ(poll(&waiting, 1, 1000), 1);
	REQUIRE_EQ(read(reader, events, GHOST_EVENT_SIZE - 1), -1);
	REQUIRE_EQ(errno, EINVAL);
	got = read(reader, events, sizeof(events));
	REQUIRE(got > 0 && got % GHOST_EVENT_SIZE == 0);
	for (int i = 0; i < got / GHOST_EVENT_SIZE; i++) {
		REQUIRE(i == 0 || events[i].seq == events[i - 1].seq + 1);
		client |= events[i].type == GHOST_EVENT_CLIENT && events[i].container == t.container &&
			  events[i].pid == (uint32_t)getpid();
		group |= events[i].type == GHOST_EVENT_GROUP && events[i].object == group_of(&t).id;
		clamped |= events[i].type == GHOST_EVENT_CLAMPED && events[i].value == 1;
		lost += events[i].type == GHOST_EVENT_LOST;
	}
	REQUIRE(client);
	REQUIRE(group);
	REQUIRE(clamped);
	REQUIRE_EQ(lost, 0);
	/* More than are kept: the reader is told how many it missed. */
	for (int i = 0; i < 100000; i++)
		entry(&t, GHOST_TEST_TIMESLICE, 1, &asked);
	got = read(reader, events, sizeof(events));
	REQUIRE(got > 0);
	REQUIRE_EQ(events[0].type, GHOST_EVENT_LOST);
	REQUIRE(events[0].value > 0);
	leave(&t, 1);
	close(reader);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}
