// SPDX-License-Identifier: GPL-2.0 OR MIT
/* event.c - what happened: the last events, for as many readers as there are. */
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#include "core.h"

/* Events that are kept, a power of two. */
#define EVENTS_KEPT 4096

/* Guards the two below. Any context; taken last, also under ghost_lock. */
static DEFINE_SPINLOCK(lock);
static struct ghost_event kept[EVENTS_KEPT];
static u64 last;

DECLARE_WAIT_QUEUE_HEAD(ghost_events_wait);

void ghost_event(u32 type, const struct ghost_node *node, u32 pid, u32 gpu, u64 object, u64 value)
{
	unsigned long flags;

	BUILD_BUG_ON(sizeof(struct ghost_event) != GHOST_EVENT_SIZE);
	spin_lock_irqsave(&lock, flags);
	last++;
	kept[last % EVENTS_KEPT] = (struct ghost_event){
		.seq = last,
		.at_ns = ktime_get_ns(),
		.type = type,
		.pid = pid,
		.gpu = gpu,
		.container = node ? node->id : GHOST_NONE,
		.object = object,
		.value = value,
	};
	spin_unlock_irqrestore(&lock, flags);
	wake_up(&ghost_events_wait);
}

u64 ghost_events_last(void)
{
	unsigned long flags;
	u64 seq;

	spin_lock_irqsave(&lock, flags);
	seq = last;
	spin_unlock_irqrestore(&lock, flags);
	return seq;
}

u32 ghost_events(u64 after, struct ghost_event *events, u32 room)
{
	unsigned long flags;
	u32 count = 0;

	spin_lock_irqsave(&lock, flags);
	if (room && last - after > EVENTS_KEPT) {
		/* It stands for all that are missing, the last of which it counts as. */
		events[count++] = (struct ghost_event){
			.seq = last - EVENTS_KEPT,
			.at_ns = ktime_get_ns(),
			.type = GHOST_EVENT_LOST,
			.gpu = GHOST_ALL_GPUS,
			.value = last - EVENTS_KEPT - after,
		};
		after = last - EVENTS_KEPT;
	}
	while (count < room && after < last)
		events[count++] = kept[++after % EVENTS_KEPT];
	spin_unlock_irqrestore(&lock, flags);
	return count;
}
