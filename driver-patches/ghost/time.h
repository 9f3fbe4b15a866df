/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * time.h - between time.c, which has the thread; decide.c, which says what should be; and owner.c,
 * which knows what files have asked for.
 */
#ifndef GHOST_TIME_H
#define GHOST_TIME_H

#include <linux/bits.h>

#include "core.h"

/* What the thread asks of the driver for a group. */
#define GHOST_STOP	BIT(0)
#define GHOST_SLICE	BIT(1)
#define GHOST_START	BIT(2)

/* Microseconds of CLOCK_MONOTONIC. */
u64 ghost_now(void);

/* What somebody waits for: these operations of these groups. */
struct ghost_ask {
	u64 node;		/* groups in it and below; GHOST_NONE: of `group` alone */
	u64 group;
	u64 last;		/* groups that came later are not waited for */
	u32 slots;		/* GPUs, a bit each */
	u8 operations;
	u64 seq;		/* the look at which the thread sees what was asked */
};

/* Under ghost_lock: lets what was refused be tried at once, and wakes the thread. */
void ghost_ask(struct ghost_ask *ask);
/* Sleeps until the thread has done it. -EIO: refused. -ENOENT: node or group is gone. -ERESTARTSYS. */
int ghost_ask_wait(const struct ghost_ask *ask);
/* Under ghost_lock. */
struct ghost_channels *ghost_group(u64 id);

/* decide.c, under ghost_lock, for one GPU. */
struct ghost_look {
	u64 now_us;
	bool stops;		/* anything may be stopped */
	bool held;		/* budgets are held from now on, as they were up to now ... */
	bool anew;		/* ... or were not */
};

/* Sets .stop of its groups; returns when the next budget has its moment. */
u64 ghost_decide_pauses(u32 slot, const struct ghost_look *look);
/* Sets .wanted_us of its groups, after ghost_decide_pauses(). */
void ghost_decide_slices(u32 slot);

/* owner.c, under ghost_lock. */
bool ghost_led(void);
/* GPUs may have been found: what is paused on all is paused on them. */
void ghost_owners_grow(void);
/* Ends leases that have lapsed by `now`; the end of the next one. */
u64 ghost_owners_lapse(u64 now_us);

#endif /* GHOST_TIME_H */
