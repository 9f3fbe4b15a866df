/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * groups.h - containers with channel groups. These come by the module's test-only entry, which also
 * answers for the driver what is asked of them.
 */
#ifndef GROUPS_H
#define GROUPS_H

#include "guest.h"

#include <uapi/ghost.h>

#define GPU	  0x100
#define OTHER_GPU 0x200

/* A container and a client of this process that is charged to it. */
struct tenant {
	int fd, rm;
	uint32_t client;
	uint64_t container;
};

/* The test-only entry; 0 or -errno. */
int entry(struct tenant *t, uint32_t op, uint32_t gpu, uint64_t object, uint64_t *value);
/* A container below `parent`; GPU and OTHER_GPU are known from then on. */
struct tenant tenant(int fd, uint64_t parent, const char *name);
/* A channel group whose key is `object`. */
void add_group(struct tenant *t, uint32_t gpu, uint64_t object);
void remove_group(struct tenant *t, uint64_t object);
/* The first channel group of its container on a GPU, or the test ends. */
struct ghost_group group_on(struct tenant *t, uint32_t gpu);
struct ghost_group group_of(struct tenant *t);
/* Sets one limit or more on GPU. */
void set_limit(struct tenant *t, struct ghost_limit limit);
void set_weight(struct tenant *t, uint32_t weight);
/* 0 or -errno. */
int set_paused(int fd, uint64_t container, uint32_t gpu, bool resume);
int lead(int fd, uint32_t flags, uint64_t lease_us);
/* Of the next controls that the module asks of the driver, so many fail. */
void let_fail(struct tenant *t, uint64_t controls);
/* Closes all files; the driver goes with all that it knows, so that the next test finds nothing. */
void leave(void);

#endif
