// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * time.c - the GPU's time: channel groups, their timeslices by weight, budgets, and the one thread
 * that asks the driver for all of it.
 *
 * Hooks and requests only write down what should be and wake the thread. In each round it looks at
 * every GPU under ghost_lock and decides (decide.c) which groups are to be stopped and what their
 * timeslices are, then asks the driver for some of what differs, without a lock, and writes down under the
 * lock what came of it. It sleeps until something changes, or a budget or a lease has its moment.
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "time.h"

/* Groups for which the driver is asked in one round: between these, budgets are looked at. */
#define BATCH			32
/* The driver refused: tried again after so long, twice as long each time, microseconds. */
#define BACKOFF_MIN_US		10000ULL
#define BACKOFF_MAX_US		1000000ULL
/* Rounds in which the module's end tries to let run what is stopped. */
#define LAST_ROUNDS		8

static LIST_HEAD(groups);
static u64 last_group;

static struct task_struct *thread;
/* The thread waits here, and those who wait for it. */
static DECLARE_WAIT_QUEUE_HEAD(changes);
static DECLARE_WAIT_QUEUE_HEAD(rounds);
/* Rises with each change. */
static atomic64_t asked;
/* The value of `asked` up to which the thread has looked at everything. Under ghost_lock. */
static u64 looked;

/* The thread's alone. */
static bool ending;
static bool held;	/* whether budgets and weights were held in the last round */
static struct work {
	struct ghost_channels *group;
	u8 operations, refused;
	u32 gpu, client, handle;
	u64 slice_us;
} batch[BATCH];

u64 ghost_now(void)
{
	return ktime_get_ns() / NSEC_PER_USEC;
}

/* Any context, under ghost_lock or not. */
void ghost_time_changed(void)
{
	atomic64_inc(&asked);
	wake_up(&changes);
}

/* Channel groups. The next five are called under ghost_lock. */

struct list_head *ghost_groups(void)
{
	return &groups;
}

struct ghost_channels *ghost_group(u64 id)
{
	struct ghost_channels *group;

	list_for_each_entry(group, &groups, all) {
		if (group->id == id)
			return group;
	}
	return NULL;
}

static struct ghost_channels *group_of(const void *key)
{
	struct ghost_channels *group;

	list_for_each_entry(group, &groups, all) {
		if (group->key == key)
			return group;
	}
	return NULL;
}

u32 ghost_group_paused(const struct ghost_channels *group)
{
	return group->stopped ? group->why : 0;
}

static u8 needs(const struct ghost_channels *group)
{
	u8 operations = 0;

	if (group->stop && !group->stopped)
		operations |= GHOST_STOP;
	if (group->wanted_us && group->wanted_us != group->slice_us)
		operations |= GHOST_SLICE;
	if (!group->stop && (group->stopped || group->doubt))
		operations |= GHOST_START;
	return operations;
}

/*
 * The driver made a channel group. Any context, the driver's locks held; a client that is not
 * charged has no groups here.
 */
void ghost_group_made(const void *key, u32 client, u32 handle, u32 gpu)
{
	struct ghost_channels *group = kzalloc(sizeof(*group), GFP_ATOMIC | __GFP_NOWARN);
	struct ghost_tenant *tenant;
	unsigned long flags;
	int slot;

	/* Without memory it runs unseen, as on a driver without Ghost. */
	if (!group)
		return;
	spin_lock_irqsave(&ghost_lock, flags);
	tenant = ghost_tenant_of(client);
	slot = tenant ? ghost_slot_found(gpu, 0) : -ENOENT;
	if (slot < 0) {
		spin_unlock_irqrestore(&ghost_lock, flags);
		kfree(group);
		return;
	}
	group->id = ++last_group;
	group->key = key;
	group->node = tenant->node;
	group->slot = slot;
	group->pid = tenant->pid;
	group->client = client;
	group->handle = handle;
	group->node->lines[slot]->groups++;
	list_add_tail(&group->all, &groups);
	ghost_event(GHOST_EVENT_GROUP, group->node, group->pid, gpu, group->id, 0);
	spin_unlock_irqrestore(&ghost_lock, flags);
	ghost_time_changed();
}

/* Under ghost_lock. */
static void drop(struct ghost_channels *group)
{
	struct ghost_line *line = group->node->lines[group->slot];

	list_del(&group->all);
	if (!--line->groups)
		line->slice_us = 0;
	group->node = NULL;
	group->gone = true;
	if (!group->used)
		kfree(group);
}

/* The driver is about to free it. Any context, the driver's locks held. */
void ghost_group_gone(const void *key)
{
	struct ghost_channels *group;
	unsigned long flags;

	spin_lock_irqsave(&ghost_lock, flags);
	group = group_of(key);
	if (group) {
		ghost_event(GHOST_EVENT_GROUP_GONE, group->node, group->pid,
			    ghost_slot(group->slot)->gpu, group->id, 0);
		drop(group);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	if (group)
		ghost_time_changed();
}

/*
 * A tenant is about to set its group's timeslice. Any context, the driver's locks held: the thread
 * sets another before or after that, never between.
 */
u64 ghost_group_clamp(const void *key, u64 asked_us)
{
	struct ghost_channels *group;
	unsigned long flags;
	u64 wanted = 0;

	spin_lock_irqsave(&ghost_lock, flags);
	group = ghost_on ? group_of(key) : NULL;
	if (group) {
		wanted = group->wanted_us;
		if (!wanted)
			/* What it will have is not ours, nor known to succeed. */
			group->slice_us = 0;
		else if (wanted != asked_us)
			ghost_event(GHOST_EVENT_CLAMPED, group->node, group->pid,
				    ghost_slot(group->slot)->gpu, group->id, asked_us);
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return wanted;
}

/* Waiting for the thread. */

/* Under ghost_lock. */
static bool is_asked(const struct ghost_ask *ask, const struct ghost_channels *group)
{
	const struct ghost_node *node;

	if (ask->node == GHOST_NONE)
		return group->id == ask->group;
	if (!(ask->slots & BIT(group->slot)) || group->id > ask->last)
		return false;
	for (node = group->node; node; node = node->parent) {
		if (node->id == ask->node)
			return true;
	}
	return false;
}

/* Under ghost_lock. */
void ghost_ask(struct ghost_ask *ask)
{
	struct ghost_channels *group;

	ask->last = last_group;
	list_for_each_entry(group, &groups, all) {
		if (is_asked(ask, group))
			group->refused &= ~ask->operations;
	}
	ask->seq = atomic64_inc_return(&asked);
	wake_up(&changes);
}

/* 0: done. -EAGAIN: not yet. Else how it failed. */
static int outcome(const struct ghost_ask *ask)
{
	struct ghost_channels *group;
	unsigned long flags;
	int result = 0;
	u8 open;

	spin_lock_irqsave(&ghost_lock, flags);
	if (ask->node == GHOST_NONE ? !ghost_group(ask->group) : !ghost_node(ask->node)) {
		result = -ENOENT;
	} else if (looked < ask->seq) {
		result = -EAGAIN;
	} else {
		list_for_each_entry(group, &groups, all) {
			if (!is_asked(ask, group))
				continue;
			open = needs(group) & ask->operations;
			if (open & ~group->refused) {
				result = -EAGAIN;
				break;
			}
			if (open)
				result = -EIO;
		}
	}
	spin_unlock_irqrestore(&ghost_lock, flags);
	return result;
}

static bool is_over(const struct ghost_ask *ask, int *result)
{
	*result = outcome(ask);
	return *result != -EAGAIN;
}

/* A request: process context, nothing held. */
int ghost_ask_wait(const struct ghost_ask *ask)
{
	int result;

	return wait_event_interruptible(rounds, is_over(ask, &result)) ?: result;
}

/* Asking: the thread. */

/* Under ghost_lock. What is due for those that are to be stopped, or for the others. */
static u32 pick(u32 count, u64 now, bool stops)
{
	struct ghost_channels *group;

	list_for_each_entry(group, &groups, all) {
		u8 operations = needs(group);

		if (now < group->retry_us)
			operations &= ~group->refused;
		if (count == BATCH)
			break;
		if (!operations || group->stop != stops)
			continue;
		group->used = true;
		batch[count++] = (struct work){
			.group = group,
			.operations = operations,
			.gpu = ghost_slot(group->slot)->gpu,
			.client = group->client,
			.handle = group->handle,
			.slice_us = group->wanted_us,
		};
	}
	return count;
}

/* No lock held: the driver sleeps. What it does not know any more needs nothing. */
static void perform(struct work *work)
{
	if (work->operations & GHOST_STOP &&
	    ghost_rm_stop(work->gpu, work->client, work->handle) == -EIO)
		work->refused |= GHOST_STOP;
	if (work->operations & GHOST_SLICE &&
	    ghost_rm_set_slice(work->gpu, work->client, work->handle, work->slice_us) == -EIO)
		work->refused |= GHOST_SLICE;
	if (work->operations & GHOST_START &&
	    ghost_rm_start(work->gpu, work->client, work->handle) == -EIO)
		work->refused |= GHOST_START;
}

/* Under ghost_lock. */
static void write_down(const struct work *work, u64 now)
{
	struct ghost_channels *group = work->group;
	u8 done = work->operations & ~work->refused;

	group->used = false;
	if (group->gone) {
		kfree(group);
		return;
	}
	if (done & GHOST_SLICE)
		group->slice_us = work->slice_us;
	if (done & (GHOST_STOP | GHOST_START)) {
		group->stopped = done & GHOST_STOP;
		group->doubt = false;
	}
	group->doubt |= work->refused & GHOST_STOP;
	group->refused = (group->refused & ~done) | work->refused;
	if (!work->refused) {
		group->backoff_us = 0;
		return;
	}
	group->backoff_us = ghost_clamp(2 * group->backoff_us, BACKOFF_MIN_US, BACKOFF_MAX_US);
	group->retry_us = now + group->backoff_us;
}

/* When what was refused is to be tried again. Under ghost_lock. */
static u64 next_retry(void)
{
	struct ghost_channels *group;
	u64 wake = GHOST_UNLIMITED;

	list_for_each_entry(group, &groups, all) {
		if (needs(group))
			wake = ghost_min(wake, group->retry_us);
	}
	return wake;
}

/* The thread, no lock held. Returns the moment of the next round; 0: at once. */
static u64 do_round(void)
{
	u64 now, wake, seq = atomic64_read(&asked);
	struct ghost_look look;
	bool weigh;
	unsigned long flags;
	u32 slot, count;

	spin_lock_irqsave(&ghost_lock, flags);
	now = ghost_now();
	wake = ghost_owners_lapse(now);
	ghost_owners_grow();
	look = (struct ghost_look){
		.now_us = now,
		.stops = ghost_on && !ending,
		.held = ghost_on && !ghost_led(),
	};
	look.anew = look.held != held;
	weigh = look.held && (look.anew || looked != seq);
	/* The lock is not kept over all GPUs. */
	for (slot = 0; slot < ghost_slots(); slot++) {
		wake = ghost_min(wake, ghost_decide_pauses(slot, &look));
		if (weigh)
			ghost_decide_slices(slot);
		spin_unlock_irqrestore(&ghost_lock, flags);
		spin_lock_irqsave(&ghost_lock, flags);
	}
	held = look.held;
	looked = seq;
	count = pick(0, now, true);
	count = pick(count, now, false);
	spin_unlock_irqrestore(&ghost_lock, flags);

	for (slot = 0; slot < count; slot++)
		perform(&batch[slot]);

	spin_lock_irqsave(&ghost_lock, flags);
	now = ghost_now();
	for (slot = 0; slot < count; slot++)
		write_down(&batch[slot], now);
	wake = ghost_min(wake, next_retry());
	spin_unlock_irqrestore(&ghost_lock, flags);
	wake_up_all(&rounds);
	/* The time of those that run is counted from what came of it. */
	return count ? 0 : wake;
}

static bool anything_stopped(void)
{
	struct ghost_channels *group;
	unsigned long flags;
	bool stopped = false;

	spin_lock_irqsave(&ghost_lock, flags);
	list_for_each_entry(group, &groups, all)
		stopped |= group->stopped || group->doubt;
	spin_unlock_irqrestore(&ghost_lock, flags);
	return stopped;
}

static bool is_asked_anew(void)
{
	return atomic64_read(&asked) != looked || kthread_should_stop();
}

static int run(void *unused)
{
	u64 wake = GHOST_UNLIMITED, sleep;
	ktime_t timeout;
	int i;

	while (!kthread_should_stop()) {
		sleep = ghost_sub(wake, ghost_now());
		if (wake != GHOST_UNLIMITED)
			timeout = ktime_set(sleep / USEC_PER_SEC,
					    sleep % USEC_PER_SEC * NSEC_PER_USEC);
		else
			timeout = KTIME_MAX;
		if (sleep)
			wait_event_interruptible_hrtimeout(changes, is_asked_anew(), timeout);
		else
			cond_resched();
		wake = do_round();
	}
	ending = true;
	for (i = 0; i < LAST_ROUNDS; i++) {
		while (!do_round())
			cond_resched();
		if (!anything_stopped())
			break;
		schedule_timeout_uninterruptible(usecs_to_jiffies(BACKOFF_MIN_US << i));
	}
	return 0;
}

int ghost_time_begin(void)
{
	held = true;
	thread = kthread_run(run, NULL, "nvidia-ghost");
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	return 0;
}

/* No file is open and the driver makes no groups any more. */
void ghost_time_end(void)
{
	struct ghost_channels *group, *next;
	unsigned long flags;

	kthread_stop(thread);
	spin_lock_irqsave(&ghost_lock, flags);
	list_for_each_entry_safe(group, next, &groups, all)
		drop(group);
	spin_unlock_irqrestore(&ghost_lock, flags);
}
