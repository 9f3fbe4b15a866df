// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * memory.c - charges of device memory and managed memory, limits, protections, what is counted of
 * them. The same rules as those of ghostd's books for a driver that is not woven.
 *
 * The driver's hooks call it from any context, its locks held: nothing here sleeps.
 */
#include <linux/export.h>
#include <linux/hashtable.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core.h"

/* Memory that is charged. There are as many as tenants have memories in the driver. */
struct charge {
	struct hlist_node by_key;
	const void *key;
	struct ghost_node *node;
	u64 tenant;		/* its id, 0: none; the client may be gone before it */
	u64 bytes;
	u32 names;
	u8 slot;
	bool managed;
};

/* Who asks for memory. */
struct asker {
	struct ghost_node *node;
	u64 tenant;
	u32 pid;
	bool managed;
};

/* All under ghost_lock, as every function here is that does not take it. */
static DEFINE_HASHTABLE(charges, 14);

static struct charge *charge_of(const void *key)
{
	struct charge *charge;

	hash_for_each_possible(charges, charge, by_key, (unsigned long)key) {
		if (charge->key == key)
			return charge;
	}
	return NULL;
}

/* Protections. */

/* What is asked of the tree: what others lack of their memory_min or memory_low. */
struct lacking {
	const struct ghost_node *asker;
	u32 slot;
	bool low;
	bool count;		/* it is taken: count it */
};

static void count_low(struct ghost_node *node, u32 slot)
{
	node->lines[slot]->events_local.low++;
	for (; node; node = node->parent)
		node->lines[slot]->events.low++;
}

static bool is_within(const struct ghost_node *node, const struct ghost_node *above)
{
	while (node && node->depth > above->depth)
		node = node->parent;
	return node == above;
}

/* Calls itself, no deeper than containers lie. */
static u64 lacks(const struct lacking *what, struct ghost_node *node, u64 cap)
{
	const struct ghost_memory *memory = &node->lines[what->slot]->memory;
	u64 protection = what->low ? memory->low_bytes : memory->min_bytes;
	u64 effective = ghost_min(protection, cap), below = 0;
	bool is_askers = is_within(what->asker, node);
	struct ghost_node *child;

	if (!effective)
		return 0;
	list_for_each_entry(child, &node->children, sibling)
		below = ghost_add(below, lacks(what, child, effective));
	if (what->count && !is_askers && effective > memory->current_bytes)
		count_low(node, what->slot);
	return ghost_lacking(protection, cap, memory->current_bytes, below, is_askers);
}

static u64 all_lack(const struct lacking *what)
{
	struct ghost_node *node;
	u64 sum = 0;

	list_for_each_entry(node, ghost_protected(), protected)
		sum = ghost_add(sum, lacks(what, node, GHOST_UNLIMITED));
	return sum;
}

/* Charging. */

static u64 free_of(const struct ghost_gpu_slot *gpu)
{
	return ghost_sub(gpu->memory_total, gpu->memory_charged);
}

static void count_fail(struct ghost_node *node, u32 slot)
{
	node->lines[slot]->events_local.fail++;
	for (; node; node = node->parent)
		node->lines[slot]->events.fail++;
}

static void count_max(struct ghost_node *node, u32 slot)
{
	node->lines[slot]->events_local.max++;
	for (; node; node = node->parent)
		node->lines[slot]->events.max++;
}

static bool may_charge(struct ghost_node *asker, u32 slot, u64 bytes)
{
	const struct ghost_gpu_slot *gpu = ghost_slot(slot);
	struct lacking min = { .asker = asker, .slot = slot };
	struct ghost_node *node;
	u64 sum, needed;

	for (node = asker; node; node = node->parent) {
		if (!ghost_may_charge(&node->lines[slot]->memory, bytes)) {
			count_max(node, slot);
			return false;
		}
	}
	if (__builtin_add_overflow(gpu->memory_charged, bytes, &sum))
		return false;
	if (!gpu->memory_total)
		return true;
	if (bytes > gpu->memory_total)
		return false;
	needed = all_lack(&min);
	return !needed || ghost_sub(free_of(gpu), bytes) >= needed;
}

/* Use grew by `bytes`: memory_high of each that is beyond it, memory_low of those who are short now. */
static void grew(const struct asker *asker, u32 slot, u64 bytes)
{
	const struct ghost_gpu_slot *gpu = ghost_slot(slot);
	struct lacking low = { .asker = asker->node, .slot = slot, .low = true };
	struct ghost_node *node;
	u64 beyond = 0;

	for (node = asker->node; node; node = node->parent) {
		struct ghost_line *line = node->lines[slot];

		if (ghost_beyond_high(&line->memory)) {
			line->events_local.high++;
			beyond++;
			if (line->memory.current_bytes - bytes <= line->memory.high_bytes) {
				ghost_event(GHOST_EVENT_MEMORY_HIGH, node, asker->pid, gpu->gpu, 0,
					    line->memory.current_bytes);
				ghost_time_changed();
			}
		}
		line->events.high += beyond;
	}
	if (gpu->memory_total && all_lack(&low) > free_of(gpu)) {
		low.count = true;
		all_lack(&low);
	}
}

static void take(const struct charge *charge, u64 bytes)
{
	struct ghost_tenant *tenant = ghost_tenant(charge->tenant);
	struct ghost_node *node;

	for (node = charge->node; node; node = node->parent)
		ghost_charge(&node->lines[charge->slot]->memory, bytes, charge->managed);
	ghost_slot(charge->slot)->memory_charged += bytes;
	if (tenant)
		tenant->memory_bytes += bytes;
}

static void give_back(const struct charge *charge, u64 bytes)
{
	struct ghost_tenant *tenant = ghost_tenant(charge->tenant);
	struct ghost_node *node;

	for (node = charge->node; node; node = node->parent) {
		struct ghost_memory *memory = &node->lines[charge->slot]->memory;
		bool beyond = ghost_beyond_high(memory);

		ghost_uncharge(memory, bytes, charge->managed);
		if (beyond && !ghost_beyond_high(memory))
			ghost_time_changed();
	}
	ghost_slot(charge->slot)->memory_charged -= bytes;
	if (tenant)
		tenant->memory_bytes -= bytes;
}

static void add(struct charge *charge)
{
	take(charge, charge->bytes);
	hash_add(charges, &charge->by_key, (unsigned long)charge->key);
}

static void drop(struct charge *charge)
{
	give_back(charge, charge->bytes);
	hash_del(&charge->by_key);
	kfree(charge);
}

/* `charge` is used if 0 is returned. */
static int try_charge(struct charge *charge, const struct asker *asker, u32 gpu, bool must)
{
	int slot = ghost_slot_found(gpu, 0);

	if (slot < 0)
		return -ENOMEM;
	if (!may_charge(asker->node, slot, charge->bytes) && !must) {
		count_fail(asker->node, slot);
		ghost_event(GHOST_EVENT_MEMORY_MAX, asker->node, asker->pid, gpu, 0, charge->bytes);
		return -ENOMEM;
	}
	charge->node = asker->node;
	charge->tenant = asker->tenant;
	charge->managed = asker->managed;
	charge->names = 1;
	charge->slot = slot;
	add(charge);
	grew(asker, slot, charge->bytes);
	return 0;
}

static struct charge *new_charge(const void *key, u64 bytes)
{
	struct charge *charge = kzalloc(sizeof(*charge), GFP_ATOMIC | __GFP_NOWARN);

	if (charge) {
		charge->key = key;
		charge->bytes = bytes;
	}
	return charge;
}

static void forget(const void *key)
{
	struct charge *charge = charge_of(key);

	if (charge)
		drop(charge);
}

int ghost_memory_charge(const void *key, u32 client, u32 gpu, u64 bytes)
{
	struct charge *charge;
	struct asker asker = {};
	struct ghost_tenant *tenant;
	unsigned long flags;
	int result = 0;

	if (!ghost_on || !bytes)
		return 0;
	charge = new_charge(key, bytes);
	if (!charge)
		return -ENOMEM;
	spin_lock_irqsave(&ghost_lock, flags);
	forget(key);
	tenant = ghost_tenant_of(client);
	if (tenant) {
		asker.node = tenant->node;
		asker.tenant = tenant->id;
		asker.pid = tenant->pid;
		result = try_charge(charge, &asker, gpu, false);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (!tenant || result)
		kfree(charge);
	return result;
}

void ghost_memory_settle(const void *key, const void *as, u64 bytes)
{
	struct charge *charge;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	charge = charge_of(key);
	if (charge && !bytes) {
		/* A charge of nothing would not keep its container. */
		drop(charge);
	} else if (charge) {
		hash_del(&charge->by_key);
		forget(as);
		if (bytes > charge->bytes)
			take(charge, bytes - charge->bytes);
		else
			give_back(charge, charge->bytes - bytes);
		charge->key = as;
		charge->bytes = bytes;
		hash_add(charges, &charge->by_key, (unsigned long)as);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
}
EXPORT_SYMBOL(ghost_memory_settle);

bool ghost_memory_share(const void *key)
{
	struct charge *charge;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	charge = charge_of(key);
	if (charge)
		charge->names++;
	spin_unlock_irqrestore(&ghost_lock, flags);
	return charge;
}

void ghost_memory_uncharge(const void *key)
{
	struct charge *charge;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	charge = charge_of(key);
	if (charge && !--charge->names)
		drop(charge);
	spin_unlock_irqrestore(&ghost_lock, flags);
}

void ghost_memory_failed(const void *key)
{
	struct charge *charge;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	charge = charge_of(key);
	if (charge) {
		count_fail(charge->node, charge->slot);
		drop(charge);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
}

/*
 * A process's managed memory is charged where its newest client is. One that uses a client of
 * another process is charged where it belongs.
 */
static void ask_for_process(struct asker *asker, u32 pid)
{
	struct ghost_tenant *tenant = NULL;
	struct task_struct *task = NULL;
	struct pid *process;

	asker->managed = true;
	asker->pid = pid;
	rcu_read_lock();
	process = find_pid_ns(pid, &init_pid_ns);
	if (process) {
		tenant = ghost_tenant_of_process(process);
		task = pid_task(process, PIDTYPE_TGID);
	}
	if (tenant)
		asker->node = tenant->node;
	else
		asker->node = task ? ghost_member_node(task) : ghost_node(GHOST_SYSTEM);
	rcu_read_unlock();
}

int ghost_managed_charge(const void *key, u32 pid, u32 gpu, u64 bytes, bool must)
{
	struct charge *charge;
	struct asker asker = {};
	unsigned long flags;
	int result;

	if (!ghost_on || !bytes || !pid)
		return 0;
	charge = new_charge(key, bytes);
	if (!charge)
		return -ENOMEM;
	spin_lock_irqsave(&ghost_lock, flags);
	forget(key);
	ask_for_process(&asker, pid);
	result = try_charge(charge, &asker, gpu, must);
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (result)
		kfree(charge);
	return result;
}
EXPORT_SYMBOL(ghost_managed_charge);

bool ghost_managed_room(u32 pid, u32 gpu, u64 bytes)
{
	struct asker asker = {};
	unsigned long flags;
	bool room;
	int slot;

	if (!ghost_on || !pid)
		return true;
	spin_lock_irqsave(&ghost_lock, flags);
	slot = ghost_slot_of(gpu);
	ask_for_process(&asker, pid);
	room = slot < 0 || may_charge(asker.node, slot, bytes);
	spin_unlock_irqrestore(&ghost_lock, flags);
	return room;
}
EXPORT_SYMBOL(ghost_managed_room);

bool ghost_managed_uncharge(const void *key, u64 bytes)
{
	struct charge *charge;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	charge = charge_of(key);
	if (charge && charge->bytes > bytes) {
		give_back(charge, bytes);
		charge->bytes -= bytes;
	} else if (charge) {
		drop(charge);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return charge;
}
EXPORT_SYMBOL(ghost_managed_uncharge);

/* Under ghost_lock: what the driver forgot to tell of. */
void ghost_memory_end(void)
{
	struct hlist_node *next;
	struct charge *charge;
	int bucket;

	hash_for_each_safe(charges, bucket, next, charge, by_key)
		drop(charge);
}
