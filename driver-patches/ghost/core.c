// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * core.c - containers, GPUs, clients: the tree, its lock, and the requests that make, change and read
 * it.
 */
#include <linux/hashtable.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/xarray.h>

#include "core.h"

DEFINE_SPINLOCK(ghost_lock);

/* All under ghost_lock, as every function here that does not take it is. */
static LIST_HEAD(nodes);
static LIST_HEAD(protected);
static DEFINE_XARRAY(nodes_by_id);
static u64 last_node;
static u32 node_count;

static struct ghost_gpu_slot gpus[GHOST_GPUS_MAX];
static u32 gpu_count;

/* Tenants can make as many clients as the driver lets them, so these are found by number. */
static DEFINE_XARRAY(tenants);
static DEFINE_HASHTABLE(tenants_by_key, 12);
static DEFINE_HASHTABLE(tenants_by_handle, 12);
static DEFINE_HASHTABLE(tenants_by_process, 12);
static u64 last_tenant;

struct ghost_node *ghost_node(u64 id)
{
	return xa_load(&nodes_by_id, id);
}

struct list_head *ghost_nodes(void)
{
	return &nodes;
}

struct list_head *ghost_protected(void)
{
	return &protected;
}

struct ghost_gpu_slot *ghost_slot(u32 slot)
{
	return &gpus[slot];
}

u32 ghost_slots(void)
{
	return gpu_count;
}

int ghost_slot_of(u32 gpu)
{
	u32 slot;

	for (slot = 0; slot < gpu_count; slot++) {
		if (gpus[slot].gpu == gpu)
			return slot;
	}
	return -ENODEV;
}

/* Lines. */

static u64 now_us(void)
{
	return ktime_get_ns() / NSEC_PER_USEC;
}

static bool add_line(struct ghost_node *node, u32 slot)
{
	const struct ghost_line *defaults = &node->defaults;
	struct ghost_line *line = kzalloc(sizeof(*line), GFP_ATOMIC | __GFP_NOWARN);

	if (!line)
		return false;
	line->weight = defaults->weight;
	line->memory = defaults->memory;
	ghost_budget_set(&line->budget, defaults->budget.max_us, defaults->budget.period_us, now_us());
	node->lines[slot] = line;
	return true;
}

static void remove_line(struct ghost_node *node, u32 slot)
{
	kfree(node->lines[slot]);
	node->lines[slot] = NULL;
}

int ghost_slot_found(u32 gpu, u64 memory_total)
{
	struct ghost_node *node;
	int slot = ghost_slot_of(gpu);

	if (slot >= 0) {
		if (memory_total)
			gpus[slot].memory_total = memory_total;
		return slot;
	}
	slot = gpu_count;
	if (slot == GHOST_GPUS_MAX)
		return -ENOSPC;
	list_for_each_entry(node, &nodes, all) {
		if (!add_line(node, slot))
			goto no_memory;
	}
	gpus[slot] = (struct ghost_gpu_slot){ .gpu = gpu, .memory_total = memory_total };
	gpu_count++;
	ghost_event(GHOST_EVENT_GPU, NULL, 0, gpu, slot + 1, 0);
	ghost_time_changed();
	return slot;

no_memory:
	list_for_each_entry(node, &nodes, all)
		remove_line(node, slot);
	return -ENOMEM;
}

int ghost_gpu_found(u32 gpu, u64 memory_total)
{
	unsigned long flags;
	int slot;

	spin_lock_irqsave(&ghost_lock, flags);
	slot = ghost_slot_found(gpu, memory_total);
	spin_unlock_irqrestore(&ghost_lock, flags);
	return slot;
}

/* Nodes. */

static void free_node(struct ghost_node *node)
{
	u32 slot;

	for (slot = 0; slot < GHOST_GPUS_MAX; slot++)
		kfree(node->lines[slot]);
	kfree(node);
}

static struct ghost_node *new_node(const char *name)
{
	struct ghost_node *node = kzalloc(sizeof(*node), GFP_KERNEL);
	struct ghost_line *defaults;

	if (!node)
		return NULL;
	INIT_LIST_HEAD(&node->children);
	INIT_LIST_HEAD(&node->sibling);
	INIT_LIST_HEAD(&node->protected);
	strscpy(node->name, name, sizeof(node->name));
	defaults = &node->defaults;
	defaults->weight = GHOST_WEIGHT_DEFAULT;
	defaults->budget.max_us = GHOST_UNLIMITED;
	defaults->budget.period_us = GHOST_PERIOD_DEFAULT;
	defaults->memory.high_bytes = GHOST_UNLIMITED;
	defaults->memory.max_bytes = GHOST_UNLIMITED;
	return node;
}

static bool has_child(const struct ghost_node *parent, const char *name)
{
	const struct ghost_node *node;

	if (parent) {
		list_for_each_entry(node, &parent->children, sibling) {
			if (!strcmp(node->name, name))
				return true;
		}
		return false;
	}
	list_for_each_entry(node, &nodes, all) {
		if (!node->parent && !strcmp(node->name, name))
			return true;
	}
	return false;
}

/* Puts a new node, on its way in, under its parent. On error nothing has changed but the node. */
static int add_node(struct ghost_node *node, u64 parent)
{
	u32 slot;

	if (parent != GHOST_NONE) {
		node->parent = ghost_node(parent);
		if (!node->parent)
			return -ENOENT;
	}
	node->depth = node->parent ? node->parent->depth + 1 : 1;
	if (node->depth > GHOST_DEPTH_MAX)
		return -EOVERFLOW;
	if (has_child(node->parent, node->name))
		return -EEXIST;
	if (node_count == GHOST_CONTAINERS_MAX)
		return -ENOSPC;
	for (slot = 0; slot < gpu_count; slot++) {
		if (!add_line(node, slot))
			return -ENOMEM;
	}
	node->id = last_node + 1;
	if (xa_err(xa_store(&nodes_by_id, node->id, node, GFP_ATOMIC | __GFP_NOWARN)))
		return -ENOMEM;
	last_node++;
	node_count++;
	list_add_tail(&node->all, &nodes);
	if (node->parent)
		list_add_tail(&node->sibling, &node->parent->children);
	return 0;
}

static int make_node(u64 parent, const char *name, u64 *id)
{
	struct ghost_node *node = new_node(name);
	unsigned long flags;
	int result;

	if (!node)
		return -ENOMEM;
	spin_lock_irqsave(&ghost_lock, flags);
	result = add_node(node, parent);
	if (!result)
		*id = node->id;
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (result)
		free_node(node);
	return result;
}

static bool is_name(const char *name)
{
	size_t length = strnlen(name, GHOST_NAME_LEN), i;

	if (!length || length == GHOST_NAME_LEN || name[0] == '.' || name[0] == '-')
		return false;
	for (i = 0; i < length; i++) {
		/* isalnum() takes Latin-1 for letters. */
		if (!(name[i] >= 'a' && name[i] <= 'z') && !(name[i] >= 'A' && name[i] <= 'Z') &&
		    !(name[i] >= '0' && name[i] <= '9') && !strchr("._-", name[i]))
			return false;
	}
	return true;
}

int ghost_create(struct ghost_create *create)
{
	if (!is_name(create->name))
		return -EINVAL;
	return make_node(create->parent, create->name, &create->id);
}

/* Whether anything is charged to it; there is nothing below it. */
static bool is_in_use(const struct ghost_node *node)
{
	u32 slot;

	if (node->clients)
		return true;
	for (slot = 0; slot < gpu_count; slot++) {
		if (node->lines[slot]->groups || node->lines[slot]->memory.current_bytes)
			return true;
	}
	return false;
}

static int remove_node(struct ghost_node *node)
{
	if (!node)
		return -ENOENT;
	if (node->id == GHOST_SYSTEM)
		return -EBUSY;
	if (!list_empty(&node->children))
		return -ENOTEMPTY;
	if (is_in_use(node))
		return -EBUSY;
	ghost_member_forget(node);
	ghost_time_forget(node);
	list_del(&node->all);
	list_del(&node->sibling);
	list_del(&node->protected);
	xa_erase(&nodes_by_id, node->id);
	node_count--;
	return 0;
}

int ghost_delete(u64 id)
{
	struct ghost_node *node;
	unsigned long flags;
	int result;

	spin_lock_irqsave(&ghost_lock, flags);
	node = ghost_node(id);
	result = remove_node(node);
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (!result)
		free_node(node);
	return result;
}

/* Limits. */

static u32 wrong_of(const struct ghost_limit *limit)
{
	if (limit->set & GHOST_SET_WEIGHT &&
	    (limit->weight < GHOST_WEIGHT_MIN || limit->weight > GHOST_WEIGHT_MAX))
		return GHOST_SET_WEIGHT;
	if (limit->set & GHOST_SET_MAX &&
	    (limit->period_us < GHOST_PERIOD_MIN || limit->period_us > GHOST_PERIOD_MAX ||
	     !limit->max_us || (limit->max_us > limit->period_us && limit->max_us != GHOST_MAX)))
		return GHOST_SET_MAX;
	return 0;
}

static void set_line(struct ghost_line *line, const struct ghost_limit *limit)
{
	if (limit->set & GHOST_SET_WEIGHT)
		line->weight = limit->weight;
	if (limit->set & GHOST_SET_MEMORY_MIN)
		line->memory.min_bytes = limit->memory_min;
	if (limit->set & GHOST_SET_MEMORY_LOW)
		line->memory.low_bytes = limit->memory_low;
	if (limit->set & GHOST_SET_MEMORY_HIGH)
		line->memory.high_bytes = limit->memory_high;
	if (limit->set & GHOST_SET_MEMORY_MAX)
		line->memory.max_bytes = limit->memory_max;
}

static void set_budget(struct ghost_line *line, const struct ghost_limit *limit)
{
	u64 now = now_us();

	if (!(limit->set & GHOST_SET_MAX))
		return;
	ghost_budget_settle(line, now);
	ghost_budget_set(&line->budget, limit->max_us, limit->period_us, now);
}

static bool protects(const struct ghost_line *line)
{
	return line->memory.min_bytes || line->memory.low_bytes;
}

static void note_protection(struct ghost_node *node)
{
	bool is_protected = protects(&node->defaults);
	u32 slot;

	list_del_init(&node->protected);
	for (slot = 0; slot < gpu_count; slot++)
		is_protected |= protects(node->lines[slot]);
	if (is_protected && !node->parent)
		list_add_tail(&node->protected, &protected);
}

static int set_limits(const struct ghost_limit *limit)
{
	struct ghost_node *node = ghost_node(limit->id);
	u32 slot;
	int only;

	if (!node)
		return -ENOENT;
	if (limit->gpu == GHOST_ALL_GPUS) {
		set_line(&node->defaults, limit);
		if (limit->set & GHOST_SET_MAX) {
			node->defaults.budget.max_us = limit->max_us;
			node->defaults.budget.period_us = limit->period_us;
		}
		for (slot = 0; slot < gpu_count; slot++) {
			set_line(node->lines[slot], limit);
			set_budget(node->lines[slot], limit);
		}
	} else {
		only = ghost_slot_of(limit->gpu);
		if (only < 0)
			return only;
		set_line(node->lines[only], limit);
		set_budget(node->lines[only], limit);
	}
	note_protection(node);
	return 0;
}

int ghost_limit(struct ghost_limit *limit)
{
	unsigned long flags;
	int result;

	limit->wrong = wrong_of(limit);
	if (limit->wrong)
		return -EINVAL;
	spin_lock_irqsave(&ghost_lock, flags);
	result = set_limits(limit);
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (!result)
		ghost_time_changed();
	return result;
}

/* Reading. */

static void fill_stat(struct ghost_stat *stat, const struct ghost_node *node, u32 slot)
{
	const struct ghost_line *line = node->lines[slot];

	stat->weight = line->weight;
	stat->max_us = line->budget.max_us;
	stat->period_us = line->budget.period_us;
	stat->memory_min = line->memory.min_bytes;
	stat->memory_low = line->memory.low_bytes;
	stat->memory_high = line->memory.high_bytes;
	stat->memory_max = line->memory.max_bytes;
	stat->memory_current = line->memory.current_bytes;
	stat->memory_managed = line->memory.managed_bytes;
	stat->memory_peak = line->memory.peak_bytes;
	stat->events = line->events;
	stat->events_local = line->events_local;
	stat->nr_periods = line->budget.periods;
	stat->nr_throttled = line->budget.throttled_periods;
	stat->throttled_us = line->budget.throttled_us;
	stat->slice_us = line->groups ? line->slice_us : 0;
	stat->clients = node->clients;
	stat->groups = line->groups;
	stat->paused = ghost_paused(node, slot);
}

int ghost_stat(struct ghost_stat *stat)
{
	const struct ghost_node *node;
	unsigned long flags;
	int slot;

	spin_lock_irqsave(&ghost_lock, flags);
	node = ghost_node(stat->id);
	slot = node ? ghost_slot_of(stat->gpu) : -ENOENT;
	if (slot >= 0)
		fill_stat(stat, node, slot);
	spin_unlock_irqrestore(&ghost_lock, flags);
	return slot < 0 ? slot : 0;
}

u32 ghost_list_containers(u64 after, void *items, u32 room)
{
	struct ghost_container *item = items;
	struct ghost_node *node;
	unsigned long flags, id;
	u32 count = 0;

	if (after == U64_MAX)
		return 0;
	spin_lock_irqsave(&ghost_lock, flags);
	xa_for_each_start(&nodes_by_id, id, node, after + 1) {
		if (count == room)
			break;
		item[count] = (struct ghost_container){
			.id = id,
			.parent = node->parent ? node->parent->id : GHOST_NONE,
		};
		strscpy(item[count++].name, node->name, GHOST_NAME_LEN);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return count;
}

u32 ghost_list_clients(u64 after, void *items, u32 room)
{
	struct ghost_client *item = items;
	struct ghost_tenant *tenant;
	unsigned long flags, id;
	u32 count = 0;

	if (after == U64_MAX)
		return 0;
	spin_lock_irqsave(&ghost_lock, flags);
	xa_for_each_start(&tenants, id, tenant, after + 1) {
		if (count == room)
			break;
		item[count++] = (struct ghost_client){
			.id = id,
			.container = tenant->node->id,
			.handle = tenant->handle,
			.pid = tenant->pid,
			.memory = tenant->memory_bytes,
		};
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return count;
}

u32 ghost_list_groups(u64 after, void *items, u32 room)
{
	struct ghost_group *item = items;
	struct ghost_channels *group;
	unsigned long flags;
	u32 count = 0;

	spin_lock_irqsave(&ghost_lock, flags);
	list_for_each_entry(group, ghost_groups(), all) {
		if (group->id <= after)
			continue;
		if (count == room)
			break;
		item[count++] = (struct ghost_group){
			.id = group->id,
			.container = group->node->id,
			.gpu = gpus[group->slot].gpu,
			.pid = group->pid,
			.client = group->client,
			.handle = group->handle,
			.slice_us = group->slice_us,
			.paused = ghost_group_paused(group),
		};
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return count;
}

u32 ghost_list_gpus(u64 after, void *items, u32 room)
{
	struct ghost_gpu *item = items;
	unsigned long flags;
	u32 count = 0;

	spin_lock_irqsave(&ghost_lock, flags);
	while (count < room && after < gpu_count) {
		item[count++] = (struct ghost_gpu){
			.id = after + 1,
			.gpu = gpus[after].gpu,
			.memory_total = gpus[after].memory_total,
			.memory_charged = gpus[after].memory_charged,
		};
		after++;
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return count;
}

/* Clients. */

struct ghost_tenant *ghost_tenant(u64 id)
{
	return xa_load(&tenants, id);
}

struct ghost_tenant *ghost_tenant_of(u32 handle)
{
	struct ghost_tenant *tenant;

	hash_for_each_possible(tenants_by_handle, tenant, by_handle, handle) {
		if (tenant->handle == handle)
			return tenant;
	}
	return NULL;
}

struct ghost_tenant *ghost_tenant_of_process(const struct pid *process)
{
	struct ghost_tenant *tenant;

	/* New ones are put first. */
	hash_for_each_possible(tenants_by_process, tenant, by_process, (unsigned long)process) {
		if (tenant->process == process)
			return tenant;
	}
	return NULL;
}

static int add_tenant(struct ghost_tenant *tenant)
{
	tenant->id = last_tenant + 1;
	if (xa_err(xa_store(&tenants, tenant->id, tenant, GFP_ATOMIC | __GFP_NOWARN)))
		return -ENOMEM;
	last_tenant++;
	hash_add(tenants_by_key, &tenant->by_key, (unsigned long)tenant->key);
	hash_add(tenants_by_handle, &tenant->by_handle, tenant->handle);
	hash_add(tenants_by_process, &tenant->by_process, (unsigned long)tenant->process);
	tenant->node = ghost_member_node(current);
	tenant->node->clients++;
	ghost_event(GHOST_EVENT_CLIENT, tenant->node, tenant->pid, GHOST_ALL_GPUS, tenant->id, 0);
	return 0;
}

static void remove_tenant(struct ghost_tenant *tenant)
{
	xa_erase(&tenants, tenant->id);
	hash_del(&tenant->by_key);
	hash_del(&tenant->by_handle);
	hash_del(&tenant->by_process);
	tenant->node->clients--;
	put_pid(tenant->process);
	kfree(tenant);
}

int ghost_client_made(const void *key, u32 handle, u32 pid)
{
	struct ghost_tenant *tenant;
	unsigned long flags;
	int result;

	if (!pid)
		return 0;
	tenant = kzalloc(sizeof(*tenant), GFP_KERNEL_ACCOUNT);
	if (!tenant)
		return -ENOMEM;
	tenant->key = key;
	tenant->handle = handle;
	tenant->pid = pid;
	tenant->process = get_pid(task_tgid(current));
	spin_lock_irqsave(&ghost_lock, flags);
	result = add_tenant(tenant);
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (result) {
		put_pid(tenant->process);
		kfree(tenant);
	}
	return result;
}

/* Any context. */
void ghost_client_gone(const void *key)
{
	struct ghost_tenant *tenant;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	hash_for_each_possible(tenants_by_key, tenant, by_key, (unsigned long)key) {
		if (tenant->key == key) {
			ghost_event(GHOST_EVENT_CLIENT_GONE, tenant->node, tenant->pid,
				    GHOST_ALL_GPUS, tenant->id, 0);
			remove_tenant(tenant);
			break;
		}
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
}

/* Before anything else of Ghost: process context. */
int ghost_core_begin(void)
{
	u64 id;

	return make_node(GHOST_NONE, "system", &id);
}

/* After all else of Ghost: no file is open and the driver calls no hook any more. */
void ghost_core_end(void)
{
	struct ghost_node *node, *next;
	struct ghost_tenant *tenant;
	unsigned long flags, id;

#ifdef GHOST_TEST
	ghost_test_end();
#endif
	spin_lock_irqsave(&ghost_lock, flags);
	ghost_memory_end();
	ghost_member_end();
	xa_for_each(&tenants, id, tenant)
		remove_tenant(tenant);
	list_for_each_entry_safe(node, next, &nodes, all) {
		list_del(&node->all);
		free_node(node);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	xa_destroy(&nodes_by_id);
	xa_destroy(&tenants);
}
