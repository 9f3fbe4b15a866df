// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_rm.c - charges and refusals by the driver's own calls. A test build charges memory of class
 * RM_MEMORY_DEVICELESS, the only one that there is without a GPU, as if HOST_GPU had it.
 */
#include "guest.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/ghost.h>

#define HOST_GPU 0xfffffff0
#define MIB (1ULL << 20)
#define TENANTS 8

static void attach_self(int fd, uint64_t id)
{
	struct ghost_attach attach = { .size = sizeof(attach), .id = id };

	attach.pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), 0);
	close(attach.pidfd);
}

static void set_max(int fd, uint64_t id, uint64_t bytes)
{
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = id,
		.gpu = GHOST_ALL_GPUS,
		.set = GHOST_SET_MEMORY_MAX,
		.memory_max = bytes,
	};

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
}

static int delete(int fd, uint64_t id)
{
	struct ghost_delete request = { .size = sizeof(request), .id = id };

	return ghost_call(fd, GHOST_IOC_DELETE, &request);
}

static uint64_t current(int fd, uint64_t id)
{
	return ghost_stat_of(fd, id, HOST_GPU).memory_current;
}

/* HOST_GPU is found by the first memory. */
static void find_gpu(void)
{
	uint32_t client, memory;
	int rm = rm_open();

	REQUIRE_EQ(rm_client(rm, &client), RM_OK);
	REQUIRE_EQ(rm_memory(rm, client, &memory, MIB), RM_OK);
	close(rm);
}

TEST(the_driver_is_refused)
{
	int fd = ghost_open(), rm = rm_open();
	uint64_t outer = ghost_make(fd, GHOST_NONE, "outer"), inner = ghost_make(fd, outer, "inner");
	uint32_t client, one, two;
	struct ghost_client seen;

	find_gpu();
	attach_self(fd, inner);
	set_max(fd, outer, 3 * MIB);
	REQUIRE_EQ(rm_client(rm, &client), RM_OK);
	REQUIRE_EQ(rm_memory(rm, client, &one, 2 * MIB), RM_OK);
	REQUIRE_EQ(current(fd, outer), 2 * MIB);
	REQUIRE(ghost_client_of(fd, client, &seen));
	REQUIRE_EQ(seen.memory, 2 * MIB);
	REQUIRE_EQ(rm_memory(rm, client, &two, 2 * MIB), RM_NO_MEMORY);
	REQUIRE_EQ(current(fd, outer), 2 * MIB);
	REQUIRE_EQ(ghost_stat_of(fd, outer, HOST_GPU).events_local.max, 1);
	REQUIRE_EQ(rm_free(rm, client, client, one), RM_OK);
	REQUIRE_EQ(current(fd, outer), 0);
	REQUIRE_EQ(rm_memory(rm, client, &two, 2 * MIB), RM_OK);
	/* Moved: the client stays, and so does what it takes from now on. */
	attach_self(fd, GHOST_SYSTEM);
	REQUIRE_EQ(rm_memory(rm, client, &one, MIB), RM_OK);
	REQUIRE_EQ(current(fd, inner), 3 * MIB);
	REQUIRE_EQ(delete(fd, inner), -EBUSY);
	close(rm);
	EVENTUALLY(delete(fd, inner) == 0);
	REQUIRE_EQ(current(fd, outer), 0);
	REQUIRE_EQ(delete(fd, outer), 0);
}

/* Takes and gives at random, with the driver's calls, until it is killed. */
static void take_and_give(int fd, uint64_t id, unsigned int seed)
{
	uint32_t client, memory[4] = { 0 };
	int rm = rm_open();

	attach_self(fd, id);
	REQUIRE_EQ(rm_client(rm, &client), RM_OK);
	for (;;) {
		uint32_t *one = &memory[rand_r(&seed) % 4];
		int64_t status;

		if (*one) {
			REQUIRE_EQ(rm_free(rm, client, client, *one), RM_OK);
			*one = 0;
			continue;
		}
		status = rm_memory(rm, client, one, (1 + rand_r(&seed) % 4) * MIB / 4);
		if (status != RM_OK) {
			REQUIRE_EQ(status, RM_NO_MEMORY);
			*one = 0;
		}
	}
}

TEST(eight_that_allocate_stay_below_and_leave_nothing)
{
	int fd = ghost_open();
	uint64_t outer = ghost_make(fd, GHOST_NONE, "outer"), inner[TENANTS];
	struct ghost_stat stat;
	pid_t pids[TENANTS];
	char name[8];

	find_gpu();
	set_max(fd, outer, 5 * MIB);
	for (int i = 0; i < TENANTS; i++) {
		snprintf(name, sizeof(name), "inner%d", i);
		inner[i] = ghost_make(fd, outer, name);
		pids[i] = fork();
		if (pids[i] == 0)
			take_and_give(fd, inner[i], i);
	}
	/* Containers with a client are not removed, whatever they do at the moment. */
	EVENTUALLY(ghost_stat_of(fd, outer, HOST_GPU).events.max > 50);
	for (int i = 0; i < TENANTS; i++)
		REQUIRE(delete(fd, inner[i]) == -EBUSY);
	for (int i = 0; i < 200; i++)
		REQUIRE(current(fd, outer) <= 5 * MIB);
	for (int i = 0; i < TENANTS; i++) {
		kill(pids[i], SIGKILL);
		REQUIRE_EQ(waitpid(pids[i], NULL, 0), pids[i]);
	}
	EVENTUALLY(current(fd, outer) == 0);
	stat = ghost_stat_of(fd, outer, HOST_GPU);
	REQUIRE(stat.memory_peak <= 5 * MIB);
	REQUIRE_EQ(stat.events.max, stat.events.fail);
	for (int i = 0; i < TENANTS; i++) {
		REQUIRE_EQ(ghost_stat_of(fd, inner[i], HOST_GPU).clients, 0);
		REQUIRE_EQ(delete(fd, inner[i]), 0);
	}
	REQUIRE_EQ(delete(fd, outer), 0);
}

TEST(hooks_that_are_off_hold_nothing)
{
	int fd = ghost_open(), rm = rm_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "off"), other;
	struct ghost_version version = { .size = sizeof(version) };
	struct ghost_create create = { .size = sizeof(create), .name = "none" };
	struct ghost_lead lead = { .size = sizeof(lead) };
	uint32_t client, one, two, three;

	find_gpu();
	attach_self(fd, id);
	set_max(fd, id, 2 * MIB);
	REQUIRE_EQ(rm_client(rm, &client), RM_OK);
	REQUIRE_EQ(rm_memory(rm, client, &one, MIB), RM_OK);
	other = ghost_make(fd, GHOST_NONE, "other");
	REQUIRE_EQ(write_text("/sys/module/nvidia/parameters/ghost_hooks", "0"), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &version), 0);
	REQUIRE_EQ(version.hooks, 0);
	/* Nothing can be promised; what is there can be read and removed. */
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, &create), -ENODEV);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LEAD, &lead), -ENODEV);
	REQUIRE_EQ(delete(fd, other), 0);
	REQUIRE_EQ(rm_memory(rm, client, &two, 3 * MIB), RM_OK);
	REQUIRE_EQ(current(fd, id), MIB);
	/* What was charged before is taken off all the same. */
	REQUIRE_EQ(rm_free(rm, client, client, one), RM_OK);
	REQUIRE_EQ(current(fd, id), 0);
	REQUIRE_EQ(write_text("/sys/module/nvidia/parameters/ghost_hooks", "1"), 0);
	REQUIRE_EQ(rm_free(rm, client, client, two), RM_OK);
	REQUIRE_EQ(current(fd, id), 0);
	REQUIRE_EQ(rm_memory(rm, client, &three, 3 * MIB), RM_NO_MEMORY);
	close(rm);
	EVENTUALLY(delete(fd, id) == 0);
}

TEST(a_module_with_containers_is_unloaded)
{
	int fd = ghost_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "left");

	ghost_make(fd, id, "below");
	find_gpu();
	attach_self(fd, id);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
	REQUIRE_EQ(load_driver("ghost_no_gpu=1"), 0);
	fd = ghost_open();
	/* Its name is free, it has nothing below it, and this process is in no container. */
	id = ghost_make(fd, GHOST_NONE, "left");
	find_gpu();
	REQUIRE_EQ(delete(fd, id), 0);
}
