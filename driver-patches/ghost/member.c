// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * member.c - which container a process belongs to: that which it was attached to, else that of the
 * deepest of its cgroups (v2) that is bound.
 */
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "core.h"

/* All under ghost_lock. Containers by the number of the cgroup that is bound to them. */
static DEFINE_XARRAY(cgroups);

/* A process that was attached, by its thread group. */
struct attached {
	struct hlist_node by_process;
	struct list_head all;
	struct pid *process;		/* held */
	struct ghost_node *node;
};

static DEFINE_HASHTABLE(attached_by_process, 12);
static LIST_HEAD(attached);

/* Processes that are looked at for each that is attached: more go than come. */
#define SWEEP 2

static struct attached *attached_of(const struct pid *process)
{
	struct attached *one;

	hash_for_each_possible(attached_by_process, one, by_process, (unsigned long)process) {
		if (one->process == process)
			return one;
	}
	return NULL;
}

static void detach(struct attached *one)
{
	hash_del(&one->by_process);
	list_del(&one->all);
	put_pid(one->process);
	kfree(one);
}

struct ghost_node *ghost_member_node(struct task_struct *task)
{
	struct ghost_node *node = NULL;
	struct attached *one;
	struct cgroup *cgroup;

	one = attached_of(task_tgid(task));
	if (one)
		return one->node;
	rcu_read_lock();
	for (cgroup = task_dfl_cgroup(task); cgroup && !node; cgroup = cgroup_parent(cgroup))
		node = xa_load(&cgroups, cgroup_id(cgroup));
	rcu_read_unlock();
	return node ?: ghost_node(GHOST_SYSTEM);
}

void ghost_member_forget(struct ghost_node *node)
{
	struct attached *one, *next;
	struct ghost_node *bound;
	unsigned long cgroup;

	xa_for_each(&cgroups, cgroup, bound) {
		if (bound == node)
			xa_erase(&cgroups, cgroup);
	}
	list_for_each_entry_safe(one, next, &attached, all) {
		if (one->node == node)
			detach(one);
	}
}

int ghost_member_bind(u64 id, u64 cgroup)
{
	struct ghost_node *node;
	unsigned long flags;
	int result = 0;

	spin_lock_irqsave(&ghost_lock, flags);
	node = ghost_node(id);
	if (id == GHOST_NONE)
		xa_erase(&cgroups, cgroup);
	else if (!node)
		result = -ENOENT;
	else
		result = xa_err(xa_store(&cgroups, cgroup, node, GFP_ATOMIC | __GFP_NOWARN));
	spin_unlock_irqrestore(&ghost_lock, flags);
	return result;
}

/* A process that has ended may still be there as a zombie. */
static bool has_ended(struct pid *process)
{
	struct task_struct *task;
	bool ended;

	rcu_read_lock();
	task = pid_task(process, PIDTYPE_TGID);
	ended = !task || !atomic_read(&task->signal->live);
	rcu_read_unlock();
	return ended;
}

static void sweep(void)
{
	struct attached *one, *next;
	int looked = 0;

	list_for_each_entry_safe(one, next, &attached, all) {
		if (looked++ == SWEEP)
			break;
		if (has_ended(one->process))
			detach(one);
		else
			list_move_tail(&one->all, &attached);
	}
}

static int attach(u64 id, struct pid *process, struct attached **fresh)
{
	struct attached *one = attached_of(process);
	struct ghost_node *node = ghost_node(id);

	if (id != GHOST_NONE && !node)
		return -ENOENT;
	if (has_ended(process))
		return -ESRCH;
	sweep();
	if (id == GHOST_NONE) {
		if (one)
			detach(one);
		return 0;
	}
	if (!one) {
		one = *fresh;
		*fresh = NULL;
		one->process = get_pid(process);
		hash_add(attached_by_process, &one->by_process, (unsigned long)process);
		list_add_tail(&one->all, &attached);
	}
	one->node = node;
	return 0;
}

int ghost_member_attach(u64 id, struct pid *process)
{
	struct attached *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL);
	unsigned long flags;
	int result;

	if (!fresh)
		return -ENOMEM;
	spin_lock_irqsave(&ghost_lock, flags);
	result = attach(id, process, &fresh);
	spin_unlock_irqrestore(&ghost_lock, flags);
	kfree(fresh);
	return result;
}

u32 ghost_list_cgroups(u64 after, void *items, u32 room)
{
	struct ghost_cgroup *item = items;
	struct ghost_node *node;
	unsigned long flags, cgroup;
	u32 count = 0;

	if (after == U64_MAX)
		return 0;
	spin_lock_irqsave(&ghost_lock, flags);
	xa_for_each_start(&cgroups, cgroup, node, after + 1) {
		if (count == room)
			break;
		item[count++] = (struct ghost_cgroup){ .id = cgroup, .container = node->id };
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return count;
}

/* Under ghost_lock. */
void ghost_member_end(void)
{
	struct attached *one, *next;

	xa_destroy(&cgroups);
	list_for_each_entry_safe(one, next, &attached, all)
		detach(one);
}
