// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_cost.c - what charges cost, in instructions, which the plugin count/count.c counts: this says to
 * it what is to be counted. The numbers are those of tests/cost.rs.
 */
#include "groups.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MIB (1ULL << 20)
#define TIMES 200

#define OPEN(request)  asm volatile(".byte 0x0f, 0x1f, 0x80; .long %c0" : : "i"(0x67680200 | (request)) : "memory")
#define CLOSE() asm volatile(".byte 0x0f, 0x1f, 0x80; .long 0x67680300" : : : "memory")
#define FUNCTION 0x67680100

static const char *const functions[] = {
	"ghost_memory_charge", "ghost_memory_uncharge", "ghost_memory_settle", "ghost_memory_share",
	"ghost_memory_failed", "ghost_decide_pauses", "ghost_decide_slices",
};

static uint64_t address_of(const char *function)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	unsigned long long address, found = 0;
	char name[256], line[512];

	REQUIRE(file);
	while (!found && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%llx %*c %255s", &address, name) == 2 && !strcmp(name, function))
			found = address;
	}
	fclose(file);
	return found;
}

/* Runs "nopl FUNCTION + index; nopl address; ret". */
static void count_function(uint32_t index, uint64_t address)
{
	uint8_t code[] = { 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xc3 };
	uint32_t mark = FUNCTION | index, low = address;
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(page != MAP_FAILED);
	REQUIRE(address >> 32 == 0xffffffff);
	memcpy(code + 3, &mark, sizeof(mark));
	memcpy(code + 10, &low, sizeof(low));
	memcpy(page, code, sizeof(code));
	((void (*)(void))page)();
	munmap(page, 4096);
}

static void count_functions(void)
{
	if (!getenv("count"))
		skip("instructions are counted by tests/cost.rs");
	for (uint32_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
		count_function(i, address_of(functions[i]));
}

/* A request of both kinds is a number of its own. */
#define ALLOCATE_AND_FREE(t, request, bytes)                                        \
	for (int i_ = 0; i_ < TIMES; i_++) {                                        \
		uint32_t memory_;                                                   \
		OPEN(request);                                                      \
		int64_t taken_ = rm_memory((t)->rm, (t)->client, &memory_, bytes);  \
		CLOSE();                                                            \
		REQUIRE_EQ(taken_, RM_OK);                                          \
		OPEN(request + 1);                                                  \
		int64_t given_ = rm_free((t)->rm, (t)->client, (t)->client, memory_); \
		CLOSE();                                                            \
		REQUIRE_EQ(given_, RM_OK);                                          \
	}

static void set_max(const struct tenant *t, uint64_t bytes)
{
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = t->container,
		.gpu = GHOST_ALL_GPUS,
		.set = GHOST_SET_MEMORY_MAX,
		.memory_max = bytes,
	};

	REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIMIT, &limit), 0);
}

TEST(costs)
{
	int fd = ghost_open();
	struct tenant outer, inner, deep;
	uint64_t id;
	char name[16];

	count_functions();
	/* A container with a limit below another with one. */
	outer = tenant(fd, GHOST_NONE, "outer");
	inner = tenant(fd, outer.container, "inner");
	set_max(&outer, 64 * MIB);
	set_max(&inner, 32 * MIB);
	ALLOCATE_AND_FREE(&inner, 0, 4096);
	ALLOCATE_AND_FREE(&inner, 2, 2 * MIB);
	ALLOCATE_AND_FREE(&inner, 4, 4 * MIB);

	/* As deep as containers go. */
	id = inner.container;
	for (int depth = 3; depth < GHOST_DEPTH_MAX; depth++) {
		snprintf(name, sizeof(name), "depth%d", depth);
		id = ghost_make(fd, id, name);
	}
	deep = tenant(fd, id, "deep");
	ALLOCATE_AND_FREE(&deep, 6, 2 * MIB);
}

/* As many containers as there may be, a channel group in each: the thread's longest look. */
TEST(looks)
{
	struct rlimit files = { .rlim_cur = 2 * GHOST_CONTAINERS_MAX, .rlim_max = 2 * GHOST_CONTAINERS_MAX };
	int fd = ghost_open();
	struct tenant t = { .container = GHOST_SYSTEM };
	char name[16];

	count_functions();
	REQUIRE_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
	/* In a driver that was just loaded their numbers are from one on. */
	while (t.container < GHOST_CONTAINERS_MAX) {
		snprintf(name, sizeof(name), "wide%d", (int)t.container);
		t = tenant(fd, GHOST_NONE, name);
		add_group(&t, GPU, t.container);
	}
	for (uint32_t weight = 200; weight < 210; weight++) {
		uint64_t before = group_of(&t).slice_us;

		set_weight(&t, weight * weight / 10);
		EVENTUALLY(group_of(&t).slice_us != before);
	}
}
