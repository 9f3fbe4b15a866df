// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_device.c - /dev/nvidia-ghost: forms of requests, rights, the tree, limits, lists, members. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <uapi/ghost.h>

/* Every request with a valid argument that changes nothing when it fails, its size, and what it
 * answers if all but its size is zero. */
static const struct {
	unsigned long request;
	size_t size;
	bool reads;
} requests[] = {
	{ GHOST_IOC_VERSION, sizeof(struct ghost_version), true },
	{ GHOST_IOC_CREATE, sizeof(struct ghost_create), false },
	{ GHOST_IOC_DELETE, sizeof(struct ghost_delete), false },
	{ GHOST_IOC_LIMIT, sizeof(struct ghost_limit), false },
	{ GHOST_IOC_STAT, sizeof(struct ghost_stat), true },
	{ GHOST_IOC_LIST, sizeof(struct ghost_list), true },
	{ GHOST_IOC_BIND, sizeof(struct ghost_bind), false },
	{ GHOST_IOC_ATTACH, sizeof(struct ghost_attach), false },
	{ GHOST_IOC_PAUSE, sizeof(struct ghost_pause), false },
	{ GHOST_IOC_LEAD, sizeof(struct ghost_lead), false },
	{ GHOST_IOC_SLICE, sizeof(struct ghost_slice), false },
};
#define REQUESTS (sizeof(requests) / sizeof(*requests))

/* Room for any request and some more, with its size and flags where every request has them. */
union argument {
	struct {
		uint32_t size;
		uint32_t flags;
	};
	unsigned char bytes[512];
};

TEST(version_is_the_drivers)
{
	struct ghost_version version = { .size = sizeof(version) };
	const char *driver;
	int fd = ghost_open();

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &version), 0);
	REQUIRE_EQ(version.size, sizeof(version));
	REQUIRE_EQ(version.abi, GHOST_ABI);
	REQUIRE(version.hooks & GHOST_HOOKS_MEMORY);
	REQUIRE(version.build[0] && !version.build[sizeof(version.build) - 1]);
	driver = text_of("/sys/module/nvidia/version");
	REQUIRE(version.driver[0] && !strncmp(driver, version.driver, strlen(version.driver)));
}

TEST(structures_may_be_shorter_or_longer)
{
	union argument argument = { .size = sizeof(struct ghost_version) + 8 };
	int fd = ghost_open();

	/* Longer, and zero beyond: a newer caller. */
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &argument), 0);
	REQUIRE_EQ(argument.size, sizeof(struct ghost_version));
	for (size_t i = 0; i < REQUESTS; i++) {
		/* Not zero beyond. */
		memset(&argument, 0, sizeof(argument));
		argument.size = requests[i].size + 4;
		argument.bytes[requests[i].size] = 1;
		if (ghost_call(fd, requests[i].request, &argument) != -E2BIG)
			fail(__FILE__, __LINE__, "request %zu takes what it does not know", i);
		/* Shorter than version 1. */
		memset(&argument, 0, sizeof(argument));
		argument.size = requests[i].size - 4;
		if (ghost_call(fd, requests[i].request, &argument) != -EINVAL)
			fail(__FILE__, __LINE__, "request %zu takes less than its first version", i);
		argument.size = 0;
		if (ghost_call(fd, requests[i].request, &argument) != -EINVAL)
			fail(__FILE__, __LINE__, "request %zu takes size 0", i);
		argument.size = UINT32_MAX;
		if (ghost_call(fd, requests[i].request, &argument) >= 0)
			fail(__FILE__, __LINE__, "request %zu takes size 0xffffffff", i);
	}
}

TEST(what_is_not_there_is_refused)
{
	union argument argument;
	int fd = ghost_open();

	for (size_t i = 0; i < REQUESTS; i++) {
		memset(&argument, 0, sizeof(argument));
		argument.size = requests[i].size;
		argument.flags = 1U << 31;
		if (ghost_call(fd, requests[i].request, &argument) != -EINVAL)
			fail(__FILE__, __LINE__, "request %zu takes an unknown flag", i);
		if (ghost_call(fd, requests[i].request, NULL) != -EFAULT)
			fail(__FILE__, __LINE__, "request %zu takes no argument", i);
		/* The kernel's half of the address space. */
		if (ghost_call(fd, requests[i].request, (void *)0xffffffff81000000) != -EFAULT)
			fail(__FILE__, __LINE__, "request %zu takes the kernel's memory", i);
	}
	argument.size = sizeof(argument);
	REQUIRE_EQ(ghost_call(fd, _IO(GHOST_IOC_MAGIC, 62), &argument), -ENOTTY);
	REQUIRE_EQ(ghost_call(fd, _IO('F', 0), &argument), -ENOTTY);
	REQUIRE_EQ(ghost_call(fd, 0, &argument), -ENOTTY);
}

static void change_without_rights(void *argument)
{
	int fd = *(int *)argument;
	union argument request;

	REQUIRE_EQ(setresuid(1000, 1000, 1000), 0);
	for (size_t i = 0; i < REQUESTS; i++) {
		memset(&request, 0, sizeof(request));
		request.size = requests[i].size;
		if (!requests[i].reads && ghost_call(fd, requests[i].request, &request) != -EPERM)
			fail(__FILE__, __LINE__, "request %zu needs no rights", i);
	}
	REQUIRE_EQ(open("/dev/" GHOST_DEVICE, O_RDONLY), -1);
	REQUIRE_EQ(errno, EACCES);
}

TEST(changes_need_rights)
{
	union argument argument = { .size = sizeof(struct ghost_version) };
	int fd = ghost_open(), reader = open("/dev/" GHOST_DEVICE, O_RDONLY);

	REQUIRE(reader >= 0);
	REQUIRE_EQ(ghost_call(reader, GHOST_IOC_VERSION, &argument), 0);
	for (size_t i = 0; i < REQUESTS; i++) {
		memset(&argument, 0, sizeof(argument));
		argument.size = requests[i].size;
		if (!requests[i].reads && ghost_call(reader, requests[i].request, &argument) != -EPERM)
			fail(__FILE__, __LINE__, "request %zu may be made by a reader", i);
	}
	in_child(change_without_rights, &fd);
}

static int create(int fd, uint64_t parent, const char *name, uint64_t *id)
{
	struct ghost_create request = { .size = sizeof(request), .parent = parent };
	int result;

	memcpy(request.name, name, strnlen(name, sizeof(request.name)));
	result = ghost_call(fd, GHOST_IOC_CREATE, &request);
	*id = request.id;
	return result;
}

static int delete(int fd, uint64_t id)
{
	struct ghost_delete request = { .size = sizeof(request), .id = id };

	return ghost_call(fd, GHOST_IOC_DELETE, &request);
}

TEST(names)
{
	static const char *const bad[] = { "", ".", "-a", ".a", "a/b", "a b", "a\n", "\xc3\xa4", "a\x7f" };
	static const char *const good[] = { "a", "A.b_c-9", "0", "_" };
	char name[GHOST_NAME_LEN + 1];
	int fd = ghost_open();
	uint64_t id;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (create(fd, GHOST_NONE, bad[i], &id) != -EINVAL)
			fail(__FILE__, __LINE__, "name %zu is taken", i);
	}
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		REQUIRE_EQ(create(fd, GHOST_NONE, good[i], &id), 0);
		REQUIRE_EQ(delete(fd, id), 0);
	}
	/* The longest, and one that has no end. */
	memset(name, 'x', sizeof(name));
	REQUIRE_EQ(create(fd, GHOST_NONE, name, &id), -EINVAL);
	name[GHOST_NAME_LEN - 1] = 0;
	REQUIRE_EQ(create(fd, GHOST_NONE, name, &id), 0);
	REQUIRE_EQ(delete(fd, id), 0);
}

TEST(tree)
{
	uint64_t ids[GHOST_DEPTH_MAX + 1] = { GHOST_NONE }, other;
	int fd = ghost_open();

	for (int depth = 1; depth <= GHOST_DEPTH_MAX; depth++)
		ids[depth] = ghost_make(fd, ids[depth - 1], "deeper");
	REQUIRE_EQ(create(fd, ids[GHOST_DEPTH_MAX], "deeper", &other), -EOVERFLOW);
	REQUIRE_EQ(create(fd, ids[1], "deeper", &other), -EEXIST);
	REQUIRE_EQ(create(fd, 1ULL << 60, "a", &other), -ENOENT);
	REQUIRE_EQ(delete(fd, ids[1]), -ENOTEMPTY);
	REQUIRE_EQ(delete(fd, GHOST_SYSTEM), -EBUSY);
	REQUIRE_EQ(delete(fd, GHOST_NONE), -ENOENT);
	for (int depth = GHOST_DEPTH_MAX; depth > 0; depth--)
		REQUIRE_EQ(delete(fd, ids[depth]), 0);
	REQUIRE_EQ(delete(fd, ids[1]), -ENOENT);
	/* A number is never used twice. */
	other = ghost_make(fd, GHOST_NONE, "deeper");
	REQUIRE(other > ids[GHOST_DEPTH_MAX]);
	REQUIRE_EQ(delete(fd, other), 0);
}

TEST(as_many_as_may_be)
{
	static uint64_t ids[GHOST_CONTAINERS_MAX];
	static struct ghost_container containers[GHOST_CONTAINERS_MAX];
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CONTAINERS,
		.item_size = sizeof(*containers),
		.items = (uintptr_t)containers,
		.count = GHOST_CONTAINERS_MAX,
	};
	int fd = ghost_open(), made = 0;
	char name[32];
	uint64_t id;

	for (;;) {
		snprintf(name, sizeof(name), "many-%d", made);
		int result = create(fd, GHOST_NONE, name, &id);
		if (result) {
			REQUIRE_EQ(result, -ENOSPC);
			break;
		}
		REQUIRE(made < GHOST_CONTAINERS_MAX);
		ids[made++] = id;
	}
	/* "system" is one of them. */
	REQUIRE_EQ(made, GHOST_CONTAINERS_MAX - 1);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, GHOST_CONTAINERS_MAX);
	for (int i = 1; i < GHOST_CONTAINERS_MAX; i++)
		REQUIRE(containers[i].id > containers[i - 1].id);
	for (int i = 0; i < made; i++)
		REQUIRE_EQ(delete(fd, ids[i]), 0);
}

TEST(lists_are_continued)
{
	struct {
		struct ghost_container container;
		uint64_t newer;
	} item;
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CONTAINERS,
		.item_size = sizeof(item.container),
		.items = (uintptr_t)&item,
		.count = 1,
	};
	int fd = ghost_open();
	uint64_t first = ghost_make(fd, GHOST_NONE, "first");
	uint64_t second = ghost_make(fd, first, "second");

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 1);
	REQUIRE_EQ(list.count, 3);
	REQUIRE_EQ(item.container.id, GHOST_SYSTEM);
	list.after = first;
	list.count = 1;
	/* A newer caller's item is filled with zeros. */
	list.item_size = sizeof(item);
	item.newer = 7;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 1);
	REQUIRE_EQ(item.container.id, second);
	REQUIRE_EQ(item.container.parent, first);
	REQUIRE_EQ(strcmp(item.container.name, "second"), 0);
	REQUIRE_EQ(item.newer, 0);
	list.after = second;
	list.count = 1;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 0);
	REQUIRE_EQ(list.count, 0);
	list.after = 0;
	list.count = 1;
	list.items = 0xffffffff81000000;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), -EFAULT);
	list.what = 99;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), -EINVAL);
	REQUIRE_EQ(delete(fd, second), 0);
	REQUIRE_EQ(delete(fd, first), 0);
}

TEST(limits_out_of_range)
{
	static const struct ghost_limit wrong[] = {
		{ .set = GHOST_SET_WEIGHT, .weight = 0, .wrong = GHOST_SET_WEIGHT },
		{ .set = GHOST_SET_WEIGHT, .weight = GHOST_WEIGHT_MAX + 1, .wrong = GHOST_SET_WEIGHT },
		{ .set = GHOST_SET_MAX, .max_us = 0, .period_us = 100000, .wrong = GHOST_SET_MAX },
		{ .set = GHOST_SET_MAX, .max_us = 100001, .period_us = 100000, .wrong = GHOST_SET_MAX },
		{ .set = GHOST_SET_MAX, .max_us = 1, .period_us = GHOST_PERIOD_MIN - 1, .wrong = GHOST_SET_MAX },
		{ .set = GHOST_SET_MAX, .max_us = 1, .period_us = GHOST_PERIOD_MAX + 1, .wrong = GHOST_SET_MAX },
	};
	int fd = ghost_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "limits");
	struct ghost_limit limit;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		limit = wrong[i];
		limit.size = sizeof(limit);
		limit.id = id;
		limit.gpu = GHOST_ALL_GPUS;
		limit.wrong = 0;
		if (ghost_call(fd, GHOST_IOC_LIMIT, &limit) != -EINVAL || limit.wrong != wrong[i].wrong)
			fail(__FILE__, __LINE__, "limit %zu is not refused, or not as wrong", i);
	}
	limit = (struct ghost_limit){ .size = sizeof(limit), .id = id, .gpu = GHOST_ALL_GPUS, .set = 1U << 31 };
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), -EINVAL);
	limit.set = GHOST_SET_WEIGHT;
	limit.weight = 1;
	limit.gpu = 12345;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), -ENODEV);
	limit.gpu = GHOST_ALL_GPUS;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	REQUIRE_EQ(delete(fd, id), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), -ENOENT);
}

static int bind_to(int fd, uint64_t id, int cgroup)
{
	struct ghost_bind request = { .size = sizeof(request), .id = id, .cgroup_fd = cgroup };

	return ghost_call(fd, GHOST_IOC_BIND, &request);
}

static int attach_to(int fd, uint64_t id, pid_t pid)
{
	struct ghost_attach request = { .size = sizeof(request), .id = id };
	int result;

	request.pidfd = syscall(SYS_pidfd_open, pid, 0);
	result = ghost_call(fd, GHOST_IOC_ATTACH, &request);
	close(request.pidfd);
	return result;
}

static void join(const char *cgroup)
{
	char text[128];

	snprintf(text, sizeof(text), "/sys/fs/cgroup/%s/cgroup.procs", cgroup);
	REQUIRE_EQ(write_text(text, "0"), 0);
}

/* The container that a client which this process makes now is charged to. */
static uint64_t container_now(int fd)
{
	struct ghost_client client, gone;
	uint32_t handle;
	int rm = rm_open();

	REQUIRE(rm >= 0);
	REQUIRE_EQ(rm_client(rm, &handle), RM_OK);
	REQUIRE(ghost_client_of(fd, handle, &client));
	close(rm);
	EVENTUALLY(!ghost_client_of(fd, handle, &gone));
	return client.container;
}

struct members {
	int fd;
	uint64_t outer, inner, hand;
};

static void members_of_cgroups(void *argument)
{
	struct members *m = argument;

	REQUIRE_EQ(container_now(m->fd), GHOST_SYSTEM);
	join("outer");
	REQUIRE_EQ(container_now(m->fd), m->outer);
	join("outer/inner");
	REQUIRE_EQ(container_now(m->fd), m->inner);
	/* Below a bound one, itself not bound. */
	join("outer/plain");
	REQUIRE_EQ(container_now(m->fd), m->outer);
	/* By hand goes before. */
	REQUIRE_EQ(attach_to(m->fd, m->hand, getpid()), 0);
	REQUIRE_EQ(container_now(m->fd), m->hand);
	REQUIRE_EQ(attach_to(m->fd, GHOST_NONE, getpid()), 0);
	REQUIRE_EQ(container_now(m->fd), m->outer);
	REQUIRE_EQ(bind_to(m->fd, GHOST_NONE, open("/sys/fs/cgroup/outer", O_RDONLY)), 0);
	REQUIRE_EQ(container_now(m->fd), GHOST_SYSTEM);
}

TEST(members)
{
	struct members m = { .fd = ghost_open() };

	m.outer = ghost_make(m.fd, GHOST_NONE, "outer");
	m.inner = ghost_make(m.fd, m.outer, "inner");
	m.hand = ghost_make(m.fd, GHOST_NONE, "hand");
	mkdir("/sys/fs/cgroup/outer", 0755);
	mkdir("/sys/fs/cgroup/outer/inner", 0755);
	mkdir("/sys/fs/cgroup/outer/plain", 0755);
	REQUIRE_EQ(bind_to(m.fd, m.outer, open("/sys/fs/cgroup/outer", O_RDONLY)), 0);
	REQUIRE_EQ(bind_to(m.fd, m.inner, open("/sys/fs/cgroup/outer/inner", O_RDONLY)), 0);
	in_child(members_of_cgroups, &m);

	REQUIRE_EQ(bind_to(m.fd, 1ULL << 60, open("/sys/fs/cgroup/outer", O_RDONLY)), -ENOENT);
	REQUIRE_EQ(bind_to(m.fd, m.outer, -1), -EBADF);
	REQUIRE_EQ(bind_to(m.fd, m.outer, open("/proc", O_RDONLY)), -EINVAL);
	REQUIRE_EQ(attach_to(m.fd, m.outer, 1 << 30), -EBADF);
	REQUIRE_EQ(attach_to(m.fd, 1ULL << 60, getpid()), -ENOENT);
	/* Bound cgroups are no reason to keep a container. */
	REQUIRE_EQ(delete(m.fd, m.inner), 0);
	REQUIRE_EQ(delete(m.fd, m.outer), 0);
	REQUIRE_EQ(delete(m.fd, m.hand), 0);
}

TEST(a_container_with_a_client_stays)
{
	int fd = ghost_open(), rm = rm_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "busy");
	struct ghost_client client;
	uint32_t handle;

	REQUIRE_EQ(attach_to(fd, id, getpid()), 0);
	REQUIRE_EQ(rm_client(rm, &handle), RM_OK);
	REQUIRE_EQ(attach_to(fd, GHOST_NONE, getpid()), 0);
	/* The client stays where it is charged. */
	REQUIRE(ghost_client_of(fd, handle, &client));
	REQUIRE_EQ(client.container, id);
	REQUIRE_EQ(delete(fd, id), -EBUSY);
	close(rm);
	EVENTUALLY(delete(fd, id) == 0);
}

/*
 * Other numbers by hand, on the kernel's command line: fuzz=10000000 seed=1. The driver is loaded anew
 * after each FUZZ_ROUND, so that what is still there then was leaked.
 */
#define FUZZ_CALLS 100000
#define FUZZ_ROUND 50000
#define LEAK_KIB 1024

/* Of the kernel's memory, in KiB. */
static long unreclaimable(void)
{
	const char *line = strstr(text_of("/proc/meminfo"), "SUnreclaim:");

	return line ? atol(line + strlen("SUnreclaim:")) : 0;
}

static void call_nonsense(unsigned int *seed, int calls)
{
	union argument argument;
	struct ghost_version version = { .size = sizeof(version) };
	int fd = ghost_open();

	for (int i = 0; i < calls; i++) {
		size_t which = rand_r(seed) % (REQUESTS + 1);
		unsigned long request = which < REQUESTS ? requests[which].request : GHOST_IOC_TEST;

		for (size_t byte = 0; byte < sizeof(argument); byte += 4) {
			uint32_t value = rand_r(seed);
			/* Small numbers and zeros get further than noise does. */
			value = value % 3 == 0 ? value : value % 3 == 1 ? value % 8 : 0;
			memcpy(argument.bytes + byte, &value, 4);
		}
		if (rand_r(seed) % 8)
			argument.size = which < REQUESTS ? requests[which].size : sizeof(struct ghost_test);
		if (rand_r(seed) % 8)
			argument.flags = 0;
		/* A negative descriptor at times, and none that others wait for. */
		ioctl(fd, request, &argument);
		if (i % 1000 == 999) {
			/* Leads and pauses end with the file. */
			close(fd);
			fd = ghost_open();
		}
	}
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &version), 0);
	/* What it made goes with the module. */
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}

TEST(nonsense)
{
	const char *fuzz = getenv("fuzz"), *first = getenv("seed");
	int rounds = (fuzz ? atoi(fuzz) : FUZZ_CALLS) / FUZZ_ROUND;
	unsigned int seed = first ? atoi(first) : 20261202;
	long before = 0;

	for (int round = 0; round < rounds; round++) {
		if (round)
			REQUIRE_EQ(load_driver("ghost_no_gpu=1"), 0);
		call_nonsense(&seed, FUZZ_ROUND);
		/* The first round fills the kernel's caches. */
		if (!round)
			before = unreclaimable();
		if (fuzz)
			printf("# %d calls, %ld KiB\n", (round + 1) * FUZZ_ROUND, unreclaimable());
		fflush(stdout);
	}
	/* A kernel with KASAN keeps for a while what is freed. */
	if (access("/proc/lockdep_stats", F_OK))
		REQUIRE(unreclaimable() < before + LEAK_KIB);
}
