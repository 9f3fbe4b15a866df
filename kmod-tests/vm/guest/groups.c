// SPDX-License-Identifier: GPL-2.0 OR MIT
/* groups.c - containers with channel groups. */
#include "groups.h"

#include <sys/syscall.h>
#include <unistd.h>

int entry(struct tenant *t, uint32_t op, uint32_t gpu, uint64_t object, uint64_t *value)
{
	struct ghost_test test = {
		.size = sizeof(test),
		.op = op,
		.gpu = gpu,
		.object = object,
		.value = value ? *value : 0,
		.client = t->client,
	};
	int result = ghost_call(t->fd, GHOST_IOC_TEST, &test);

	if (value)
		*value = test.value;
	return result;
}

struct tenant tenant(int fd, uint64_t parent, const char *name)
{
	struct tenant t = { .fd = fd, .rm = rm_open() };
	struct ghost_attach attach = { .size = sizeof(attach) };
	uint64_t memory = 1 << 30;

	REQUIRE_EQ(entry(&t, GHOST_TEST_GPU, GPU, 0, &memory), 0);
	REQUIRE_EQ(entry(&t, GHOST_TEST_GPU, OTHER_GPU, 0, &memory), 0);
	t.container = ghost_make(fd, parent, name);
	attach.id = t.container;
	attach.pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), 0);
	close(attach.pidfd);
	REQUIRE_EQ(rm_client(t.rm, &t.client), RM_OK);
	return t;
}

void add_group(struct tenant *t, uint32_t gpu, uint64_t object)
{
	REQUIRE_EQ(entry(t, GHOST_TEST_GROUP, gpu, object, NULL), 0);
}

void remove_group(struct tenant *t, uint64_t object)
{
	REQUIRE_EQ(entry(t, GHOST_TEST_GROUP_GONE, GPU, object, NULL), 0);
}

struct ghost_group group_on(struct tenant *t, uint32_t gpu)
{
	struct ghost_group group;
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_GROUPS,
		.item_size = sizeof(group),
		.items = (uintptr_t)&group,
	};

	for (;;) {
		list.count = 1;
		REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIST, &list), 0);
		if (!list.written)
			fail(__FILE__, __LINE__, "no group in the container");
		if (group.container == t->container && group.gpu == gpu)
			return group;
		list.after = group.id;
	}
}

struct ghost_group group_of(struct tenant *t)
{
	return group_on(t, GPU);
}

void set_limit(struct tenant *t, struct ghost_limit limit)
{
	limit.size = sizeof(limit);
	limit.id = t->container;
	limit.gpu = GPU;
	REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIMIT, &limit), 0);
}

void set_weight(struct tenant *t, uint32_t weight)
{
	set_limit(t, (struct ghost_limit){ .set = GHOST_SET_WEIGHT, .weight = weight });
}

int set_paused(int fd, uint64_t container, uint32_t gpu, bool resume)
{
	struct ghost_pause pause = {
		.size = sizeof(pause),
		.flags = resume ? GHOST_PAUSE_RESUME : 0,
		.id = container,
		.gpu = gpu,
	};

	return ghost_call(fd, GHOST_IOC_PAUSE, &pause);
}

int lead(int fd, uint32_t flags, uint64_t lease_us)
{
	struct ghost_lead request = { .size = sizeof(request), .flags = flags, .lease_us = lease_us };

	return ghost_call(fd, GHOST_IOC_LEAD, &request);
}

void let_fail(struct tenant *t, uint64_t controls)
{
	REQUIRE_EQ(entry(t, GHOST_TEST_FAIL, GPU, 0, &controls), 0);
}

void leave(void)
{
	close_range(3, ~0U, 0);
	EVENTUALLY(unload_driver() == 0);
}
