// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_model.c - random requests that make sense, and the same in plain numbers beside them: what the
 * module answers and counts must be what the numbers say.
 */
#include "guest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <uapi/ghost.h>

#define STEPS 20000
#define NODES 24
#define CLIENTS 8
#define MEMORIES 64
#define GPUS 3
#define FIRST_GPU 0x100

/* Nodes stand behind their parents; the first is GHOST_SYSTEM. */
static struct node {
	uint64_t id, max[GPUS], current[GPUS];
	int parent, depth, clients, children;
} nodes[NODES];
static struct client {
	int rm, node;
	uint32_t handle;
} clients[CLIENTS];
static struct memory {
	uint64_t bytes;
	int node, gpu, names;
	bool managed;
} memories[MEMORIES];
static int fd;
static unsigned int seed = 20261202;
static uint32_t number;

static int any(int below)
{
	return rand_r(&seed) % below;
}

static int entry(uint32_t op, int gpu, uint64_t object, uint64_t value, uint32_t client)
{
	struct ghost_test test = {
		.size = sizeof(test),
		.op = op,
		.gpu = FIRST_GPU + gpu,
		.object = object,
		.value = value,
		.client = client,
	};

	return ghost_call(fd, GHOST_IOC_TEST, &test);
}

static void attach(uint64_t id)
{
	struct ghost_attach attach = { .size = sizeof(attach), .id = id };

	attach.pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), 0);
	close(attach.pidfd);
}

static void create(int at)
{
	struct ghost_create request = { .size = sizeof(request) };
	int parent = any(at + 1) - 1;
	int wanted = 0;

	if (at == 0 || nodes[at].id || (parent >= 0 && !nodes[parent].id))
		return;
	request.parent = parent < 0 ? GHOST_NONE : nodes[parent].id;
	snprintf(request.name, sizeof(request.name), "n%u", number++);
	if (parent >= 0 && nodes[parent].depth == GHOST_DEPTH_MAX)
		wanted = -EOVERFLOW;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, &request), wanted);
	if (wanted)
		return;
	nodes[at] = (struct node){ .id = request.id, .parent = parent };
	nodes[at].depth = parent < 0 ? 1 : nodes[parent].depth + 1;
	for (int gpu = 0; gpu < GPUS; gpu++)
		nodes[at].max[gpu] = GHOST_MAX;
	if (parent >= 0)
		nodes[parent].children++;
}

static bool in_use(const struct node *node)
{
	bool used = node->clients;

	for (int gpu = 0; gpu < GPUS; gpu++)
		used |= node->current[gpu] != 0;
	return used;
}

static void delete(int at)
{
	struct ghost_delete request = { .size = sizeof(request), .id = nodes[at].id };
	int wanted = 0;

	if (!nodes[at].id)
		return;
	if (at == 0)
		wanted = -EBUSY;
	else if (nodes[at].children)
		wanted = -ENOTEMPTY;
	else if (in_use(&nodes[at]))
		wanted = -EBUSY;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_DELETE, &request), wanted);
	if (wanted)
		return;
	if (nodes[at].parent >= 0)
		nodes[nodes[at].parent].children--;
	nodes[at].id = 0;
}

static void set_max(int at)
{
	int gpu = any(GPUS + 1) - 1;
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = nodes[at].id,
		.gpu = gpu < 0 ? GHOST_ALL_GPUS : (uint32_t)(FIRST_GPU + gpu),
		.set = GHOST_SET_MEMORY_MAX,
		.memory_max = any(4) ? (uint64_t)any(2000) : GHOST_MAX,
	};

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), nodes[at].id ? 0 : -ENOENT);
	for (int i = 0; i < GPUS; i++) {
		if (gpu < 0 || i == gpu)
			nodes[at].max[i] = limit.memory_max;
	}
}

static void come_or_go(struct client *client)
{
	int at = any(NODES);

	if (client->handle) {
		REQUIRE_EQ(rm_free(client->rm, client->handle, client->handle, client->handle), RM_OK);
		close(client->rm);
		nodes[client->node].clients--;
		client->handle = 0;
	} else if (nodes[at].id) {
		attach(nodes[at].id);
		client->rm = rm_open();
		REQUIRE_EQ(rm_client(client->rm, &client->handle), RM_OK);
		client->node = at;
		nodes[at].clients++;
	}
}

static bool fits(int at, int gpu, uint64_t bytes)
{
	for (; at >= 0; at = nodes[at].parent) {
		if (nodes[at].max[gpu] != GHOST_MAX && nodes[at].current[gpu] + bytes > nodes[at].max[gpu])
			return false;
	}
	return true;
}

static void change(int at, int gpu, int64_t bytes)
{
	for (; at >= 0; at = nodes[at].parent)
		nodes[at].current[gpu] += bytes;
}

/* The newest client is where a process's managed memory goes. */
static struct client *newest(void)
{
	struct client *found = NULL;

	for (int i = 0; i < CLIENTS; i++) {
		if (clients[i].handle && (!found || clients[i].handle > found->handle))
			found = &clients[i];
	}
	return found;
}

static void take(struct memory *memory, const struct client *client)
{
	bool managed = !any(4);
	uint64_t bytes = 1 + any(500);
	int gpu = any(GPUS), wanted;

	if (managed)
		client = newest();
	if (!client || !client->handle)
		return;
	wanted = fits(client->node, gpu, bytes) ? 0 : -ENOMEM;
	REQUIRE_EQ(entry(managed ? GHOST_TEST_CHUNK : GHOST_TEST_MEMORY, gpu, memory - memories, bytes,
			 client->handle), wanted);
	if (wanted)
		return;
	*memory = (struct memory){ bytes, client->node, gpu, 1, managed };
	change(client->node, gpu, bytes);
}

/* Further names of a memory are numbered from a thousand times its own. */
static uint64_t name_of(const struct memory *memory, int name)
{
	uint64_t object = memory - memories;

	return name ? 1000 * (object + 1) + name : object;
}

static void share_or_give(struct memory *memory)
{
	if (!memory->managed && memory->names < 4 && any(2)) {
		REQUIRE_EQ(entry(GHOST_TEST_MEMORY_DUP, memory->gpu, name_of(memory, memory->names),
				 name_of(memory, 0), 0), 0);
		memory->names++;
		return;
	}
	memory->names--;
	REQUIRE_EQ(entry(memory->managed ? GHOST_TEST_CHUNK_GONE : GHOST_TEST_MEMORY_GONE, memory->gpu,
			 name_of(memory, memory->names), 0, 0), 0);
	if (!memory->names)
		change(memory->node, memory->gpu, -(int64_t)memory->bytes);
}

static void compare(void)
{
	for (int at = 0; at < NODES; at++) {
		for (int gpu = 0; nodes[at].id && gpu < GPUS; gpu++) {
			struct ghost_stat stat = ghost_stat_of(fd, nodes[at].id, FIRST_GPU + gpu);

			REQUIRE_EQ(stat.memory_current, nodes[at].current[gpu]);
			REQUIRE_EQ(stat.memory_max, nodes[at].max[gpu]);
			REQUIRE_EQ(stat.clients, nodes[at].clients);
			REQUIRE(stat.memory_managed <= stat.memory_current);
			REQUIRE(stat.memory_current <= stat.memory_peak);
		}
	}
}

static void step(void)
{
	struct memory *memory = &memories[any(MEMORIES)];

	switch (any(8)) {
	case 0:
		return create(any(NODES));
	case 1:
		return delete(any(NODES));
	case 2:
		return set_max(any(NODES));
	case 3:
		return come_or_go(&clients[any(CLIENTS)]);
	default:
		if (memory->names)
			share_or_give(memory);
		else
			take(memory, &clients[any(CLIENTS)]);
	}
}

TEST(random_requests_that_make_sense)
{
	/* Without what earlier tests left. */
	EVENTUALLY(unload_driver() == 0);
	REQUIRE_EQ(load_driver("ghost_no_gpu=1"), 0);
	fd = ghost_open();
	nodes[0] = (struct node){ .id = GHOST_SYSTEM, .parent = -1, .depth = 1 };
	for (int gpu = 0; gpu < GPUS; gpu++) {
		nodes[0].max[gpu] = GHOST_MAX;
		REQUIRE_EQ(entry(GHOST_TEST_GPU, gpu, 0, 0, 0), 0);
	}
	for (int i = 0; i < STEPS; i++) {
		step();
		if (i % 200 == 0)
			compare();
	}
	for (int i = 0; i < MEMORIES; i++) {
		while (memories[i].names)
			share_or_give(&memories[i]);
	}
	compare();
	for (int i = 0; i < CLIENTS; i++) {
		if (clients[i].handle)
			come_or_go(&clients[i]);
	}
	for (int at = NODES - 1; at >= 0; at--)
		delete(at);
	for (int at = 1; at < NODES; at++)
		REQUIRE_EQ(nodes[at].id, 0);
	compare();
	/* GHOST_SYSTEM's limits stay as they fell: none of the next test's. */
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}
