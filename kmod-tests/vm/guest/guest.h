/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* guest.h - what tests in the virtual machine use: results, modules, calls of the driver. */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/*
 * TEST(name) { ... } is one line of the result. Files are linked in the order of their names, tests
 * run in the order in which they stand in their file. The driver is loaded when one begins, and
 * whatever a test did to it, it is loaded anew for the next if need be.
 */
struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};
void add_test(struct test *test);

#define TEST(id)                                                          \
	static void id(void);                                             \
	static struct test test_##id = { .name = #id, .run = id };        \
	__attribute__((constructor)) static void add_##id(void)           \
	{                                                                 \
		add_test(&test_##id);                                     \
	}                                                                 \
	static void id(void)

/* Ends the test as failed, from whichever process or depth of calls, with what was wrong. */
__attribute__((noreturn, format(printf, 3, 4))) void fail(const char *file, int line,
							  const char *format, ...);
/* Ends it as one that cannot be run here. */
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *why, ...);

#define REQUIRE(condition)                                                \
	do {                                                              \
		if (!(condition))                                         \
			fail(__FILE__, __LINE__, "%s", #condition);       \
	} while (0)
/* Compares integers; both are shown when they differ. */
#define REQUIRE_EQ(got, wanted)                                                             \
	do {                                                                                \
		long long got_ = (long long)(got), wanted_ = (long long)(wanted);           \
		if (got_ != wanted_)                                                        \
			fail(__FILE__, __LINE__, "%s is %lld (0x%llx), not %s, %lld (0x%llx)", \
			     #got, got_, got_, #wanted, wanted_, wanted_);                  \
	} while (0)

/* nvidia.ko and nvidia-uvm.ko; 0 or -errno. Parameters as insmod has them. */
int load_driver(const char *parameters);
int load_uvm(void);
int unload_driver(void);
int unload_uvm(void);

/* The driver's release: 535, 550, ... */
int driver_branch(void);
/* The text of a file, "" if it cannot be read; in a buffer that the next call takes. */
const char *text_of(const char *path);
int write_text(const char *path, const char *text);

/* nvidiactl. The resource manager's calls answer its status, or -errno. */
#define RM_OK		    0
#define RM_NO_MEMORY	    0x51
#define RM_MEMORY_DEVICELESS 0x90ce
int rm_open(void);
int64_t rm_alloc(int fd, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class,
		 void *params, uint32_t size);
int64_t rm_free(int fd, uint32_t client, uint32_t parent, uint32_t handle);
int64_t rm_dup(int fd, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t from_client,
	       uint32_t from);
int64_t rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
		   uint32_t size);
/* A client of its own, or its status. */
int64_t rm_client(int fd, uint32_t *client);
/* System memory of class RM_MEMORY_DEVICELESS, the only memory that there is without a GPU. */
int64_t rm_memory(int fd, uint32_t client, uint32_t *handle, uint64_t bytes);

/* /dev/nvidia-ghost, or the test ends. */
int ghost_open(void);
/* 0 or -errno. `argument` is a structure of the request, its size set. */
int ghost_call(int fd, unsigned long request, void *argument);
uint64_t ghost_make(int fd, uint64_t parent, const char *name);
struct ghost_stat;
struct ghost_stat ghost_stat_of(int fd, uint64_t id, uint32_t gpu);
/* A client of this process as the module lists it: its container and what it holds. */
struct ghost_client;
bool ghost_client_of(int fd, uint32_t handle, struct ghost_client *client);

/* Runs `body` in a child and waits for it; a failure in it fails the test. */
void in_child(void (*body)(void *), void *argument);

/* Asks until it is so, for some seconds; the test fails if it never was. */
#define EVENTUALLY(condition)                                             \
	do {                                                              \
		int tries_ = 0;                                           \
		while (!(condition)) {                                    \
			if (++tries_ == 2000)                             \
				fail(__FILE__, __LINE__, "never: %s", #condition); \
			pause_ms(10);                                     \
		}                                                         \
	} while (0)
void pause_ms(unsigned int ms);

#endif
