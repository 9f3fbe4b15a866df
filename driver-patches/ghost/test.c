// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test.c - the test-only entry: stands where the driver's hooks would be on a host with GPUs, and
 * where the driver would answer. Not in releases.
 */
#ifdef GHOST_TEST

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "core.h"

/* What a tenant would see of the driver. */
#define NV_OK			0
#define NV_ERR_NO_MEMORY	0x51

/* A further name of a memory. */
struct name {
	struct list_head list;
	u64 object;
	u64 memory;
};

/* Guards the names and GPUs; taken before ghost_lock. The driver has its own lock around its hooks. */
static DEFINE_MUTEX(lock);
static LIST_HEAD(names);

/* GPUs of this entry. Under ghost_lock. */
static u32 gpus[GHOST_GPUS_MAX];
static u32 gpu_count;

static atomic64_t fails;

/* Never the address of anything; numbers of memories, of managed memory and of groups are apart. */
static const void *key_of(u64 object, u32 kind)
{
	return (const void *)((object << 2 | kind) << 1 | 1);
}

#define MEMORY	0
#define CHUNK	1
#define GROUP	2

bool ghost_test_owns(u32 gpu)
{
	unsigned long flags;
	bool owns = false;
	u32 i;

	spin_lock_irqsave(&ghost_lock, flags);
	for (i = 0; i < gpu_count; i++)
		owns |= gpus[i] == gpu;
	spin_unlock_irqrestore(&ghost_lock, flags);
	return owns;
}

int ghost_test_control(void)
{
	return atomic64_dec_if_positive(&fails) >= 0 ? -EIO : 0;
}

static int find_gpu(const struct ghost_test *test)
{
	unsigned long flags;
	int slot, result = 0;

	if (test->gpu == GHOST_ALL_GPUS)
		return -EINVAL;
	spin_lock_irqsave(&ghost_lock, flags);
	slot = ghost_slot_of(test->gpu);
	if (slot < 0 && gpu_count < GHOST_GPUS_MAX)
		gpus[gpu_count++] = test->gpu;
	slot = ghost_slot_found(test->gpu, test->value);
	result = slot < 0 ? slot : 0;
	spin_unlock_irqrestore(&ghost_lock, flags);
	return result;
}

/* A request for a tenant: its client and its GPU. */
static int check(const struct ghost_test *test)
{
	unsigned long flags;
	int result = 0;

	spin_lock_irqsave(&ghost_lock, flags);
	if (!ghost_tenant_of(test->client))
		result = -ENOENT;
	else if (ghost_slot_of(test->gpu) < 0)
		result = -ENODEV;
	spin_unlock_irqrestore(&ghost_lock, flags);
	return result;
}

static int make_group(const struct ghost_test *test)
{
	int result = check(test);

	if (result)
		return result;
	ghost_group_gone(key_of(test->object, GROUP));
	ghost_group_made(key_of(test->object, GROUP), test->client, test->object, test->gpu);
	return 0;
}

static int set_timeslice(struct ghost_test *test)
{
	u64 instead = ghost_group_clamp(key_of(test->object, GROUP), test->value);

	if (instead)
		test->value = instead;
	return 0;
}

static struct name *name_of(u64 object)
{
	struct name *name;

	list_for_each_entry(name, &names, list) {
		if (name->object == object)
			return name;
	}
	return NULL;
}

static int add_name(const struct ghost_test *test)
{
	struct name *name;

	if (name_of(test->object) || name_of(test->value))
		return -EINVAL;
	name = kzalloc(sizeof(*name), GFP_KERNEL);
	if (!name)
		return -ENOMEM;
	if (!ghost_memory_share(key_of(test->value, MEMORY))) {
		kfree(name);
		return -ENOENT;
	}
	name->object = test->object;
	name->memory = test->value;
	list_add(&name->list, &names);
	return 0;
}

static void remove_name(u64 object)
{
	struct name *name = name_of(object);

	if (name) {
		object = name->memory;
		list_del(&name->list);
		kfree(name);
	}
	ghost_memory_uncharge(key_of(object, MEMORY));
}

static int take(struct ghost_test *test)
{
	int result = check(test);

	if (result)
		return result;
	if (test->op == GHOST_TEST_MEMORY)
		result = ghost_memory_charge(key_of(test->object, MEMORY), test->client, test->gpu,
					     test->value);
	else
		result = ghost_managed_charge(key_of(test->object, CHUNK), task_tgid_nr(current),
					      test->gpu, test->value, false);
	test->status = result ? NV_ERR_NO_MEMORY : NV_OK;
	return result;
}

static int run(struct ghost_test *test)
{
	switch (test->op) {
	case GHOST_TEST_GPU:
		return find_gpu(test);
	case GHOST_TEST_GROUP:
		return make_group(test);
	case GHOST_TEST_GROUP_GONE:
		ghost_group_gone(key_of(test->object, GROUP));
		return 0;
	case GHOST_TEST_TIMESLICE:
		return set_timeslice(test);
	case GHOST_TEST_MEMORY:
	case GHOST_TEST_CHUNK:
		return take(test);
	case GHOST_TEST_MEMORY_DUP:
		return add_name(test);
	case GHOST_TEST_MEMORY_GONE:
		remove_name(test->object);
		return 0;
	case GHOST_TEST_CHUNK_GONE:
		ghost_managed_uncharge(key_of(test->object, CHUNK), GHOST_MAX);
		return 0;
	case GHOST_TEST_FAIL:
		atomic64_set(&fails, min_t(u64, test->value, S32_MAX));
		return 0;
	}
	return -EINVAL;
}

int ghost_test(struct ghost_test *test)
{
	int result;

	if (mutex_lock_interruptible(&lock))
		return -EINTR;
	result = run(test);
	mutex_unlock(&lock);
	return result;
}

void ghost_test_end(void)
{
	struct name *name, *next;

	list_for_each_entry_safe(name, next, &names, list)
		kfree(name);
}

#endif
