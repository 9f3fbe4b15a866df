// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * owner.c - what files have asked for: pauses, the lead, leases. It ends with the file, or when its
 * lease lapses; the thread of time.c does what follows from it.
 *
 * All functions that are called for a file: process context, nothing held; they may sleep.
 */
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "time.h"

/* What a file has stopped of one container. */
struct ghost_hold {
	struct list_head list;
	struct ghost_node *node;
	u32 slots;		/* GPUs, a bit each, those that are not found yet included */
};

/* A file. All but `asking` under ghost_lock. */
struct ghost_owner {
	struct list_head all;
	struct list_head holds;
	/* One pause or resume after another, so that one that fails undoes its own. Taken first. */
	struct mutex asking;
	u64 lease_end_us;	/* GHOST_UNLIMITED: none */
	u32 pid;		/* who opened it */
};

/* Under ghost_lock. */
static LIST_HEAD(owners);
static struct ghost_owner *leader;
static u32 grown;		/* slots that holds are counted for */

/* The functions down to ghost_time_forget() are called under ghost_lock. */

static void set_hold(struct ghost_hold *hold, u32 slots)
{
	u32 changed = hold->slots ^ slots, slot;

	for (slot = 0; slot < grown; slot++) {
		if (changed & BIT(slot))
			hold->node->lines[slot]->pauses += slots & BIT(slot) ? 1 : -1;
	}
	hold->slots = slots;
	if (!slots) {
		list_del(&hold->list);
		kfree(hold);
	}
}

static struct ghost_hold *hold_of(struct ghost_owner *owner, u64 node)
{
	struct ghost_hold *hold;

	list_for_each_entry(hold, &owner->holds, list) {
		if (hold->node->id == node)
			return hold;
	}
	return NULL;
}

static void let_go(struct ghost_owner *owner)
{
	struct ghost_hold *hold, *next;

	list_for_each_entry_safe(hold, next, &owner->holds, list)
		set_hold(hold, 0);
	if (leader == owner)
		leader = NULL;
}

bool ghost_led(void)
{
	return leader;
}

void ghost_owners_grow(void)
{
	struct ghost_owner *owner;
	struct ghost_hold *hold;

	for (; grown < ghost_slots(); grown++) {
		list_for_each_entry(owner, &owners, all) {
			list_for_each_entry(hold, &owner->holds, list) {
				if (hold->slots & BIT(grown))
					hold->node->lines[grown]->pauses++;
			}
		}
	}
}

u64 ghost_owners_lapse(u64 now_us)
{
	struct ghost_owner *owner;
	u64 next = GHOST_UNLIMITED;

	list_for_each_entry(owner, &owners, all) {
		if (owner->lease_end_us <= now_us) {
			owner->lease_end_us = GHOST_UNLIMITED;
			let_go(owner);
			ghost_event(GHOST_EVENT_LAPSED, NULL, owner->pid, GHOST_ALL_GPUS, 0, 0);
		}
		next = ghost_min(next, owner->lease_end_us);
	}
	return next;
}

void ghost_time_forget(struct ghost_node *node)
{
	struct ghost_owner *owner;
	struct ghost_hold *hold, *next;

	list_for_each_entry(owner, &owners, all) {
		list_for_each_entry_safe(hold, next, &owner->holds, list) {
			if (hold->node == node)
				set_hold(hold, 0);
		}
	}
}

struct ghost_owner *ghost_owner_new(void)
{
	struct ghost_owner *owner = kzalloc(sizeof(*owner), GFP_KERNEL);
	unsigned long flags;

	if (!owner)
		return NULL;
	INIT_LIST_HEAD(&owner->holds);
	mutex_init(&owner->asking);
	owner->lease_end_us = GHOST_UNLIMITED;
	owner->pid = task_tgid_nr(current);
	spin_lock_irqsave(&ghost_lock, flags);
	list_add_tail(&owner->all, &owners);
	spin_unlock_irqrestore(&ghost_lock, flags);
	return owner;
}

void ghost_owner_free(struct ghost_owner *owner)
{
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	if (leader == owner)
		ghost_event(GHOST_EVENT_LAPSED, NULL, owner->pid, GHOST_ALL_GPUS, 0, 0);
	let_go(owner);
	list_del(&owner->all);
	spin_unlock_irqrestore(&ghost_lock, flags);
	kfree(owner);
	ghost_time_changed();
}

/* Under ghost_lock. Writes down what is to be paused; `added`: what was not before, for undoing it. */
static int write_down(struct ghost_owner *owner, struct ghost_hold **fresh, u64 id, u32 gpu,
		      bool resume, u32 *added, struct ghost_ask *ask)
{
	struct ghost_node *node = ghost_node(id);
	struct ghost_hold *hold;
	u32 slots = ~0U;
	int slot;

	ghost_owners_grow();
	if (!node)
		return -ENOENT;
	if (gpu != GHOST_ALL_GPUS) {
		slot = ghost_slot_of(gpu);
		if (slot < 0)
			return slot;
		slots = BIT(slot);
	}
	hold = hold_of(owner, id);
	if (!hold && !resume) {
		hold = *fresh;
		*fresh = NULL;
		hold->node = node;
		list_add(&hold->list, &owner->holds);
	}
	if (hold) {
		*added = resume ? 0 : slots & ~hold->slots;
		set_hold(hold, resume ? hold->slots & ~slots : hold->slots | slots);
	}
	*ask = (struct ghost_ask){
		.node = id,
		.slots = slots,
		.operations = GHOST_STOP | GHOST_START,
	};
	ghost_ask(ask);
	return 0;
}

int ghost_owner_pause(struct ghost_owner *owner, u64 id, u32 gpu, bool resume)
{
	struct ghost_hold *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL), *hold;
	struct ghost_ask ask;
	unsigned long flags;
	u32 added = 0;
	int result;

	if (!fresh)
		return -ENOMEM;
	result = mutex_lock_interruptible(&owner->asking);
	if (result) {
		kfree(fresh);
		return result;
	}
	spin_lock_irqsave(&ghost_lock, flags);
	result = write_down(owner, &fresh, id, gpu, resume, &added, &ask);
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (!result)
		result = ghost_ask_wait(&ask);
	if (result && added) {
		spin_lock_irqsave(&ghost_lock, flags);
		hold = hold_of(owner, id);
		if (hold)
			set_hold(hold, hold->slots & ~added);
		spin_unlock_irqrestore(&ghost_lock, flags);
		ghost_time_changed();
	}
	mutex_unlock(&owner->asking);
	kfree(fresh);
	return result;
}

int ghost_owner_lead(struct ghost_owner *owner, u32 request, u64 lease_us)
{
	unsigned long flags;
	int result = 0;

	if (request == (GHOST_LEAD_RENEW | GHOST_LEAD_RESIGN))
		return -EINVAL;
	spin_lock_irqsave(&ghost_lock, flags);
	if (request == GHOST_LEAD_RESIGN) {
		if (leader == owner)
			leader = NULL;
		else
			result = -EACCES;
	} else if (request != GHOST_LEAD_RENEW && leader && leader != owner) {
		result = -EBUSY;
	} else {
		if (request != GHOST_LEAD_RENEW)
			leader = owner;
		owner->lease_end_us = lease_us ? ghost_add(ghost_now(), lease_us) : GHOST_UNLIMITED;
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (!result)
		ghost_time_changed();
	return result;
}

int ghost_owner_slice(struct ghost_owner *owner, u64 id, u64 slice_us)
{
	struct ghost_ask ask = { .group = id, .operations = GHOST_SLICE };
	struct ghost_channels *group = NULL;
	unsigned long flags;
	u64 before = 0;
	int result = 0;

	if (slice_us < GHOST_SLICE_MIN || slice_us > GHOST_SLICE_MAX)
		return -EINVAL;
	spin_lock_irqsave(&ghost_lock, flags);
	if (leader != owner) {
		result = -EACCES;
	} else {
		group = ghost_group(id);
		result = group ? 0 : -ENOENT;
	}
	if (group) {
		before = group->wanted_us;
		group->wanted_us = slice_us;
		ghost_ask(&ask);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (result)
		return result;
	result = ghost_ask_wait(&ask);
	spin_lock_irqsave(&ghost_lock, flags);
	group = ghost_group(id);
	if (group && group->wanted_us == slice_us) {
		if (result)
			group->wanted_us = before;
		else
			group->node->lines[group->slot]->slice_us = slice_us;
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return result;
}
