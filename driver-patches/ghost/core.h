/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * core.h - what Ghost's files in nvidia.ko share.
 *
 * core.c	containers, GPUs, clients: the tree and its lock
 * member.c	which container a process belongs to
 * memory.c	charges, limits, protections
 * time.c	channel groups, and the thread that stops them and sets their timeslices
 * decide.c	who is stopped, which timeslices there are: the policy that the module has by itself
 * owner.c	what files have asked for: pauses, the lead, leases; time.h: between these three
 * event.c	what happened, for readers
 * device.c	/dev/nvidia-ghost
 * hooks.c	where the driver calls us; rm.c: what we read of its structures and ask of it
 * test.c	the test-only entry
 *
 * Nothing but hooks.c and rm.c knows the driver; nothing but device.c knows user space.
 */
#ifndef GHOST_CORE_H
#define GHOST_CORE_H

#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

#include <uapi/ghost.h>

#include "ghost_math.h"
#include "managed.h"

struct pid;
struct task_struct;

/*
 * Guards all of the tree: nodes, lines, GPUs, clients, groups, memories, memberships, pauses, the
 * lead. Hooks come from any context that the driver has, its GPU lock held, so it is a spinlock
 * taken with interrupts off, and nothing sleeps or calls the driver under it. Not finer: a charge
 * walks up the tree and needs all of it still, and is made some thousand times a second at most.
 */
extern spinlock_t ghost_lock;

/*
 * The module parameter, in hooks.c. Where it is false nothing is charged, refused, clamped or stopped;
 * what comes and goes is still written down, so that all is right when it is true again.
 */
extern bool ghost_on;

/* One container on one GPU. Made with the container or the GPU, whichever is later. */
struct ghost_line {
	struct ghost_memory memory;
	struct ghost_events events;
	struct ghost_events events_local;
	struct ghost_budget budget;
	u32 weight;
	u32 groups;		/* its own */
	u32 pauses;		/* files that have it stopped; 0 in a new one */
	bool running;		/* since the budget's at_us: groups, here or below, that are not stopped */
	u64 slice_us;		/* of each of its groups; 0: none yet */
};

/* What time.c's thread works out of a container on the GPU that it looks at. */
struct ghost_turn {
	u64 weight;		/* as it counts */
	u64 sum;		/* of the weights of its groups and of the containers below */
	u64 whole;		/* its part, with the containers below */
	u64 own;		/* that of its own groups */
	u32 paused;		/* GHOST_PAUSED_* */
	bool running;
	bool takes_part;	/* groups, here or below */
};

struct ghost_node {
	u64 id;
	struct ghost_node *parent;
	struct list_head children;	/* by .sibling */
	struct list_head sibling;
	struct list_head all;		/* in rising order of id: parents first */
	struct list_head protected;	/* at the top, with memory_min or memory_low of some GPU */
	u32 depth;			/* 1: at the top */
	u32 clients;			/* charged to it */
	char name[GHOST_NAME_LEN];
	struct ghost_line defaults;	/* limits for GPUs that are found later */
	struct ghost_line *lines[GHOST_GPUS_MAX];	/* by GPU slot; there for every GPU that is known */
	struct ghost_turn turn;
};

/* A GPU, by slot. */
struct ghost_gpu_slot {
	u32 gpu;		/* the driver's gpu_id */
	u64 memory_total;	/* 0: not known */
	u64 memory_charged;
	u64 round_us;		/* length of a round of timeslices among ... */
	u64 round_weight;	/* ... these weights at the top together; 0: none yet */
};

/* A client of the driver. */
struct ghost_tenant {
	struct hlist_node by_key;
	struct hlist_node by_handle;
	struct hlist_node by_process;
	u64 id;
	const void *key;		/* the driver's pointer */
	struct pid *process;		/* held, so that no other is taken for it */
	struct ghost_node *node;
	u32 handle;
	u32 pid;			/* in the initial pid namespace */
	u64 memory_bytes;		/* that it was the first to name */
};

/* A compute channel group. */
struct ghost_channels {
	struct list_head all;		/* in rising order of id */
	u64 id;
	const void *key;		/* the driver's pointer */
	struct ghost_node *node;
	u32 slot;			/* of its GPU */
	u32 pid;
	u32 client;			/* the driver's handles */
	u32 handle;
	u64 wanted_us;			/* timeslice that it should have; 0: the driver's own */
	u64 slice_us;			/* that it has */
	bool stop;			/* should be stopped ... */
	u32 why;			/* ... GHOST_PAUSED_*, last time */
	bool stopped;			/* is */
	bool doubt;			/* the driver refused to stop it, and may have done so in part */
	bool used;			/* the thread is at it, and frees it if it went meanwhile */
	bool gone;
	u8 refused;			/* operations of time.c that the driver refused last time ... */
	u64 retry_us;			/* ... and when they are tried again */
	u64 backoff_us;
};

/* core.c */
int ghost_core_begin(void);
void ghost_core_end(void);
/* Under ghost_lock: */
struct ghost_node *ghost_node(u64 id);
struct list_head *ghost_nodes(void);
struct list_head *ghost_protected(void);	/* those at the top, by .protected */
struct ghost_gpu_slot *ghost_slot(u32 slot);
u32 ghost_slots(void);
int ghost_slot_of(u32 gpu);			/* slot, or -ENODEV */
/* One that is not known yet is made known. Slot, -ENOMEM, -ENOSPC. */
int ghost_slot_found(u32 gpu, u64 memory_total);
struct ghost_tenant *ghost_tenant(u64 id);
struct ghost_tenant *ghost_tenant_of(u32 handle);
struct ghost_tenant *ghost_tenant_of_process(const struct pid *process);	/* its newest */
/* Takes ghost_lock; may not sleep. As ghost_slot_found(). */
int ghost_gpu_found(u32 gpu, u64 memory_total);

/*
 * Clients. `made` is called by the process that makes it, in process context, when the driver has
 * made it; it may sleep: 0, or -ENOMEM (the driver is to fail then). `pid` 0: the kernel's own, which
 * is not charged, limited or listed.
 */
int ghost_client_made(const void *key, u32 handle, u32 pid);
void ghost_client_gone(const void *key);

/* For device.c: process context, nothing held. They answer as the header says. */
int ghost_create(struct ghost_create *create);
int ghost_delete(u64 id);
int ghost_limit(struct ghost_limit *limit);
int ghost_stat(struct ghost_stat *stat);
/* Lists: up to `room` items of keys beyond `after`, in rising order; how many were filled in. */
u32 ghost_list_containers(u64 after, void *items, u32 room);
u32 ghost_list_clients(u64 after, void *items, u32 room);
u32 ghost_list_groups(u64 after, void *items, u32 room);
u32 ghost_list_gpus(u64 after, void *items, u32 room);

/* member.c. Under ghost_lock: the container of a process, which the caller keeps from ending. */
struct ghost_node *ghost_member_node(struct task_struct *task);
void ghost_member_forget(struct ghost_node *node);
void ghost_member_end(void);
/* Process context, nothing held. Node GHOST_NONE: unbind, or back by its cgroup. */
int ghost_member_bind(u64 node, u64 cgroup);
int ghost_member_attach(u64 node, struct pid *process);	/* takes a reference of its own */
u32 ghost_list_cgroups(u64 after, void *items, u32 room);

/*
 * memory.c: `key` is the memory's own name, the same at charge and uncharge; what shares its pages
 * is charged once. Any context. Charge: 0, or -ENOMEM, counted and told as an event. A `client`
 * that is not known, or the kernel's, is not charged: 0. What was charged by the same name before is
 * taken for gone. Uncharge of what is not known does nothing.
 */
int ghost_memory_charge(const void *key, u32 client, u32 gpu, u64 bytes);
bool ghost_memory_share(const void *key);	/* one name more: uncharged with the last */
void ghost_memory_uncharge(const void *key);
void ghost_memory_failed(const void *key);	/* uncharge: the driver failed, which is counted */
void ghost_memory_end(void);			/* under ghost_lock */

/* time.c, decide.c */
int ghost_time_begin(void);
void ghost_time_end(void);
void ghost_group_made(const void *key, u32 client, u32 handle, u32 gpu);
void ghost_group_gone(const void *key);
/* The timeslice that a tenant's group must have instead of `asked`; 0: let it be. Any context. */
u64 ghost_group_clamp(const void *key, u64 asked_us);
/* Weights, limits, use that went beyond memory_high or back, ghost_on: look again, soon. Any context. */
void ghost_time_changed(void);
/* Under ghost_lock: */
struct list_head *ghost_groups(void);	/* struct ghost_channels, by .all */
u32 ghost_paused(const struct ghost_node *node, u32 slot);	/* GHOST_PAUSED_* of a container ... */
u32 ghost_group_paused(const struct ghost_channels *group);	/* ... and of a group: if it is stopped */
/* Before a budget's limits are set: what was used up to now is taken off. */
void ghost_budget_settle(struct ghost_line *line, u64 now_us);
void ghost_time_forget(struct ghost_node *node);	/* it is about to be freed; has no groups */

/* owner.c */
/* Of a file (its private data is the owner): see the header for what they do. May sleep. */
struct ghost_owner;
struct ghost_owner *ghost_owner_new(void);	/* NULL: no memory */
void ghost_owner_free(struct ghost_owner *owner);	/* undoes its pauses and lead */
int ghost_owner_pause(struct ghost_owner *owner, u64 node, u32 gpu, bool resume);
int ghost_owner_lead(struct ghost_owner *owner, u32 flags, u64 lease_us);
int ghost_owner_slice(struct ghost_owner *owner, u64 group, u64 slice_us);

/* event.c: any context, under ghost_lock or not. `node` NULL: none. */
void ghost_event(u32 type, const struct ghost_node *node, u32 pid, u32 gpu, u64 object, u64 value);
/* For readers: the number of the last event, and a queue that is woken at each. */
u64 ghost_events_last(void);
extern wait_queue_head_t ghost_events_wait;
/* Up to `room` events beyond `after`, the first of them GHOST_EVENT_LOST where some are missing. */
u32 ghost_events(u64 after, struct ghost_event *events, u32 room);

/* device.c */
int ghost_device_begin(void);
void ghost_device_end(void);

/*
 * rm.c: what time.c asks of the driver, from its own thread only, no lock held; may sleep. 0, -ENOENT
 * (gone), -EIO. In a test build groups on a GPU of test.c are answered by that.
 */
int ghost_rm_begin(void);
void ghost_rm_end(void);
int ghost_rm_set_slice(u32 gpu, u32 client, u32 handle, u64 slice_us);
int ghost_rm_stop(u32 gpu, u32 client, u32 handle);
int ghost_rm_start(u32 gpu, u32 client, u32 handle);
bool ghost_rm_is_own(void);		/* whether the call in progress is our thread's */

#ifdef GHOST_TEST
/* test.c */
int ghost_test(struct ghost_test *test);	/* the request; process context, nothing held */
bool ghost_test_owns(u32 gpu);			/* no driver knows this GPU */
int ghost_test_control(void);			/* its answer to a control of a group there: 0, -EIO */
void ghost_test_end(void);
/* The GPU to which a test build charges memory of class 0x90ce, which needs none. */
#define GHOST_TEST_HOST_GPU	0xfffffff0U
#endif

#endif /* GHOST_CORE_H */
