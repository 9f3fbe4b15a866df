// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_memory.c - charges and limits. Without a GPU there is no device memory, so the module's
 * test-only entry stands where the driver's hooks would: beyond it all is as with a GPU.
 */
#include "guest.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/ghost.h>

#define GPU 0x100
#define OTHER_GPU 0x200
#define MIB (1ULL << 20)

struct tenant {
	int fd, rm;
	uint32_t client;
	uint64_t outer, inner;
};

static int entry(int fd, uint32_t op, uint32_t client, uint32_t gpu, uint64_t object, uint64_t value)
{
	struct ghost_test test = {
		.size = sizeof(test),
		.op = op,
		.gpu = gpu,
		.object = object,
		.value = value,
		.client = client,
	};

	return ghost_call(fd, GHOST_IOC_TEST, &test);
}

static int take(struct tenant *t, uint32_t gpu, uint64_t object, uint64_t bytes)
{
	return entry(t->fd, GHOST_TEST_MEMORY, t->client, gpu, object, bytes);
}

static void give(struct tenant *t, uint64_t object)
{
	REQUIRE_EQ(entry(t->fd, GHOST_TEST_MEMORY_GONE, t->client, GPU, object, 0), 0);
}

static int limit_max(int fd, uint64_t id, uint32_t gpu, uint64_t bytes)
{
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = id,
		.gpu = gpu,
		.set = GHOST_SET_MEMORY_MAX,
		.memory_max = bytes,
	};

	return ghost_call(fd, GHOST_IOC_LIMIT, &limit);
}

static void attach_self(int fd, uint64_t id)
{
	struct ghost_attach attach = { .size = sizeof(attach), .id = id };

	attach.pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), 0);
	close(attach.pidfd);
}

/* A client in outer/inner, on a host with a GPU of 1 GiB and one more. */
static struct tenant tenant(void)
{
	struct tenant t = { .fd = ghost_open(), .rm = rm_open() };

	REQUIRE_EQ(entry(t.fd, GHOST_TEST_GPU, 0, GPU, 0, 1024 * MIB), 0);
	REQUIRE_EQ(entry(t.fd, GHOST_TEST_GPU, 0, OTHER_GPU, 0, 1024 * MIB), 0);
	t.outer = ghost_make(t.fd, GHOST_NONE, "outer");
	t.inner = ghost_make(t.fd, t.outer, "inner");
	attach_self(t.fd, t.inner);
	REQUIRE_EQ(rm_client(t.rm, &t.client), RM_OK);
	return t;
}

/* The next test finds neither containers nor GPUs. */
static void leave(struct tenant *t)
{
	close(t->rm);
	close(t->fd);
	EVENTUALLY(unload_driver() == 0);
}

static uint64_t current(struct tenant *t, uint64_t id)
{
	return ghost_stat_of(t->fd, id, GPU).memory_current;
}

TEST(memory_is_charged_up_the_tree)
{
	struct tenant t = tenant();
	struct ghost_client client;

	REQUIRE_EQ(take(&t, GPU, 1, 6 * MIB), 0);
	REQUIRE_EQ(take(&t, OTHER_GPU, 2, 2 * MIB), 0);
	REQUIRE_EQ(current(&t, t.inner), 6 * MIB);
	REQUIRE_EQ(current(&t, t.outer), 6 * MIB);
	REQUIRE_EQ(current(&t, GHOST_SYSTEM), 0);
	REQUIRE_EQ(ghost_stat_of(t.fd, t.outer, OTHER_GPU).memory_current, 2 * MIB);
	REQUIRE(ghost_client_of(t.fd, t.client, &client));
	REQUIRE_EQ(client.memory, 8 * MIB);
	give(&t, 1);
	REQUIRE_EQ(current(&t, t.inner), 0);
	REQUIRE_EQ(current(&t, t.outer), 0);
	REQUIRE_EQ(ghost_stat_of(t.fd, t.inner, GPU).memory_peak, 6 * MIB);
	give(&t, 2);
	leave(&t);
}

TEST(past_the_limit_allocations_fail)
{
	struct tenant t = tenant();
	struct ghost_stat stat;

	REQUIRE_EQ(limit_max(t.fd, t.outer, GHOST_ALL_GPUS, 10 * MIB), 0);
	REQUIRE_EQ(take(&t, GPU, 1, 10 * MIB), 0);
	REQUIRE_EQ(take(&t, GPU, 2, 1), -ENOMEM);
	/* Each GPU has its own. */
	REQUIRE_EQ(take(&t, OTHER_GPU, 3, 10 * MIB), 0);
	REQUIRE_EQ(take(&t, OTHER_GPU, 4, 1), -ENOMEM);
	stat = ghost_stat_of(t.fd, t.outer, GPU);
	REQUIRE_EQ(stat.memory_current, 10 * MIB);
	REQUIRE_EQ(stat.events_local.max, 1);
	REQUIRE_EQ(ghost_stat_of(t.fd, t.inner, GPU).memory_current, 10 * MIB);
	/* What failed left nothing; after a free it fits again. */
	give(&t, 1);
	REQUIRE_EQ(take(&t, GPU, 5, 10 * MIB), 0);
	/* A limit below what is in use is taken; more is refused. */
	REQUIRE_EQ(limit_max(t.fd, t.inner, GPU, MIB), 0);
	REQUIRE_EQ(current(&t, t.inner), 10 * MIB);
	REQUIRE_EQ(take(&t, GPU, 6, 1), -ENOMEM);
	give(&t, 5);
	REQUIRE_EQ(take(&t, GPU, 7, MIB), 0);
	REQUIRE_EQ(take(&t, GPU, 8, UINT64_MAX), -ENOMEM);
	leave(&t);
}

TEST(shared_memory_is_charged_once)
{
	struct tenant t = tenant();

	REQUIRE_EQ(take(&t, GPU, 1, 4 * MIB), 0);
	REQUIRE_EQ(entry(t.fd, GHOST_TEST_MEMORY_DUP, t.client, GPU, 2, 1), 0);
	REQUIRE_EQ(current(&t, t.inner), 4 * MIB);
	give(&t, 1);
	REQUIRE_EQ(current(&t, t.inner), 4 * MIB);
	give(&t, 2);
	REQUIRE_EQ(current(&t, t.inner), 0);
	leave(&t);
}

TEST(managed_memory_is_the_processs)
{
	struct tenant t = tenant();
	struct ghost_stat stat;

	REQUIRE_EQ(limit_max(t.fd, t.inner, GPU, 5 * MIB), 0);
	REQUIRE_EQ(entry(t.fd, GHOST_TEST_CHUNK, t.client, GPU, 1, 2 * MIB), 0);
	REQUIRE_EQ(take(&t, GPU, 2, 2 * MIB), 0);
	stat = ghost_stat_of(t.fd, t.inner, GPU);
	REQUIRE_EQ(stat.memory_current, 4 * MIB);
	REQUIRE_EQ(stat.memory_managed, 2 * MIB);
	REQUIRE_EQ(entry(t.fd, GHOST_TEST_CHUNK, t.client, GPU, 3, 2 * MIB), -ENOMEM);
	REQUIRE_EQ(entry(t.fd, GHOST_TEST_CHUNK_GONE, t.client, GPU, 1, 0), 0);
	REQUIRE_EQ(current(&t, t.inner), 2 * MIB);
	leave(&t);
}

#define TENANTS 8
#define ROUNDS 300

/* Takes and gives at random below a limit that all share; ends by a kill, memory in hand or not. */
static void take_and_give(struct tenant *t, unsigned int seed)
{
	bool held[4] = { false };
	int rm = rm_open();

	attach_self(t->fd, t->inner);
	REQUIRE_EQ(rm_client(rm, &t->client), RM_OK);
	for (int i = 0; i < ROUNDS; i++) {
		unsigned int slot = rand_r(&seed) % 4;
		uint64_t object = 1000 * (uint64_t)getpid() + slot;

		if (held[slot]) {
			give(t, object);
			held[slot] = false;
		} else {
			int result = take(t, GPU, object, (1 + rand_r(&seed) % 4) * MIB);
			REQUIRE(result == 0 || result == -ENOMEM);
			held[slot] = result == 0;
		}
	}
	for (unsigned int slot = 0; slot < 4; slot++) {
		if (held[slot])
			give(t, 1000 * (uint64_t)getpid() + slot);
	}
}

TEST(eight_at_once_stay_below)
{
	struct tenant t = tenant();
	int running = TENANTS, status;

	REQUIRE_EQ(limit_max(t.fd, t.outer, GPU, 20 * MIB), 0);
	for (int i = 0; i < TENANTS; i++) {
		pid_t pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			take_and_give(&t, i);
			_exit(0);
		}
	}
	while (running) {
		REQUIRE(current(&t, t.outer) <= 20 * MIB);
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid > 0) {
			REQUIRE_EQ(status, 0);
			running--;
		}
		pause_ms(1);
	}
	REQUIRE_EQ(current(&t, t.outer), 0);
	REQUIRE(ghost_stat_of(t.fd, t.outer, GPU).memory_peak <= 20 * MIB);
	leave(&t);
}

static void forever(uint64_t id, int fd)
{
	uint32_t client, memory;
	int rm = rm_open();

	attach_self(fd, id);
	if (rm < 0 || rm_client(rm, &client) != RM_OK)
		_exit(1);
	for (;;) {
		if (rm_memory(rm, client, &memory, MIB) == RM_OK)
			rm_free(rm, client, client, memory);
	}
}

/* The driver's own way of cleaning up, with real clients and real memory of the host. */
TEST(tenants_are_killed_while_they_allocate)
{
	int fd = ghost_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "killed");
	struct ghost_delete delete = { .size = sizeof(delete), .id = id };
	pid_t pids[TENANTS];

	for (int i = 0; i < TENANTS; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			forever(id, fd);
	}
	pause_ms(300);
	for (int i = 0; i < TENANTS; i++) {
		kill(pids[i], 9);
		REQUIRE_EQ(waitpid(pids[i], NULL, 0), pids[i]);
	}
	/* Nothing of them is charged any more. */
	EVENTUALLY(ghost_call(fd, GHOST_IOC_DELETE, &delete) == 0);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}
