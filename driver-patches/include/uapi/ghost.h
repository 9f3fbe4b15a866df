/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * ghost.h - GPU containers in NVIDIA's kernel module: the contract between the module and user
 * space.
 *
 * A container is a node of a tree. A process belongs to the container that it was attached to,
 * else to that of the deepest of its cgroups (v2) that is bound to one, else to GHOST_SYSTEM. What
 * a client of the driver takes of a GPU is charged to the container that its process belonged to
 * when the client was made, and to all containers above it. Limits stay when whoever set them has
 * gone; pauses, timeslices set by hand and the lead end with the file that they were asked on.
 *
 * /dev/nvidia-ghost, mode 0600. Reading needs the file open for reading; every request that
 * changes something needs it open for writing by a holder of CAP_SYS_ADMIN (in the initial user
 * namespace), and a caller who holds it too, else EPERM.
 *
 * Every request is an ioctl whose argument points to a structure that begins with its size:
 *
 *	size	in: sizeof the structure as the caller knows it. A shorter one is taken as if zeros
 *		followed; a longer one is fine if what follows is zero, else E2BIG. Out: what the
 *		module knows; nothing beyond the caller's size is written.
 *	flags	must be 0 unless flags are named, else EINVAL.
 *
 * Structures grow at their end only, hold no padding that is not named, and are the same for 32-
 * and 64-bit callers on either. Reserved fields must be 0, else EINVAL. Errors that any request
 * may give: EFAULT (argument not readable or writable), EINVAL (size below that of version 1,
 * flags, reserved fields), E2BIG, ENOTTY (no such request in this version), EPERM, ENODEV (the
 * hooks are off: what only reads is answered, and containers can be removed), ENOMEM, EINTR. A
 * request that fails has changed nothing.
 */
#ifndef _UAPI_GHOST_H
#define _UAPI_GHOST_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Raised when a structure grows, a flag or a request is added. Nothing is ever taken away. */
#define GHOST_ABI		1

#define GHOST_DEVICE		"nvidia-ghost"

/* No container: the parent of those at the top. */
#define GHOST_NONE		0ULL
/* The container of processes that nobody put anywhere. It is always there, at the top. */
#define GHOST_SYSTEM		1ULL
/* Every GPU, those that are found later included. Other values are the driver's own gpu_id. */
#define GHOST_ALL_GPUS		0xffffffffU
/* No limit, of bytes or microseconds. */
#define GHOST_MAX		0xffffffffffffffffULL

/* The last part of a container's name with its NUL: letters, digits, '.', '_', '-', not
 * beginning with '.' or '-'. */
#define GHOST_NAME_LEN		65
/* Containers above one another at most. */
#define GHOST_DEPTH_MAX		8
/* Containers at most, GHOST_SYSTEM included. */
#define GHOST_CONTAINERS_MAX	4096
/* GPUs at most. */
#define GHOST_GPUS_MAX		32
/* Weights, as cgroup v2 has them. */
#define GHOST_WEIGHT_MIN	1
#define GHOST_WEIGHT_MAX	10000
#define GHOST_WEIGHT_DEFAULT	100
/* Periods of a budget, microseconds. */
#define GHOST_PERIOD_MIN	1000
#define GHOST_PERIOD_MAX	1000000
#define GHOST_PERIOD_DEFAULT	100000
/* Timeslices, microseconds. */
#define GHOST_SLICE_MIN		100
#define GHOST_SLICE_MAX		200000

/* What the module is. Changes nothing. */
struct ghost_version {
	__u32 size;
	__u32 flags;		/* 0 */
	__u32 abi;		/* out: GHOST_ABI */
	__u32 hooks;		/* out: GHOST_HOOKS_*: what is held */
	__u32 features;		/* out: GHOST_FEATURE_* */
	__u32 gpus;		/* out: GPUs seen so far */
	char build[64];		/* out: Ghost's version, NUL-terminated */
	char driver[64];	/* out: the driver's version, NUL-terminated */
};

/* Device memory of the resource manager is charged and limited. */
#define GHOST_HOOKS_MEMORY	(1U << 0)
/* Managed memory is. */
#define GHOST_HOOKS_UVM		(1U << 1)
/* Tenants' own scheduling controls are refused or clamped, and timeslices kept by weight. */
#define GHOST_HOOKS_TIME	(1U << 2)

/* The test-only entry is there: this is no release. */
#define GHOST_FEATURE_TEST	(1U << 0)

/* Makes a container. EEXIST: its parent has one of this name. ENOENT: no such parent. ENOSPC:
 * GHOST_CONTAINERS_MAX. EOVERFLOW: GHOST_DEPTH_MAX. EINVAL: the name. */
struct ghost_create {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 parent;		/* GHOST_NONE: at the top */
	__u64 id;		/* out: never used twice while the module is loaded */
	char name[GHOST_NAME_LEN];
	__u8 reserved[7];
};

/* Removes a container. ENOENT. ENOTEMPTY: containers below it. EBUSY: clients, memory or channel
 * groups are charged to it, or it is GHOST_SYSTEM. Cgroups bound and processes attached are unbound
 * with it. */
struct ghost_delete {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 id;
};

/*
 * Sets what a container may have of one GPU, or of all: those whose bit is in `set`, at once.
 * Setting for GHOST_ALL_GPUS replaces what single GPUs had. Memory that is in use already is never
 * a reason to refuse a limit. ENOENT: no such container. EINVAL: a value out of range, named in
 * `wrong` (one bit of GHOST_SET_*; 0 otherwise), nothing is set then.
 */
struct ghost_limit {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 id;
	__u32 gpu;
	__u32 set;		/* GHOST_SET_* */
	__u32 wrong;		/* out */
	__u32 weight;		/* GHOST_WEIGHT_MIN .. GHOST_WEIGHT_MAX */
	__u64 max_us;		/* GPU time in each period: 1 .. period, or GHOST_MAX */
	__u64 period_us;	/* GHOST_PERIOD_MIN .. GHOST_PERIOD_MAX */
	__u64 memory_min;	/* bytes that others cannot take */
	__u64 memory_low;	/* bytes that others are counted for taking */
	__u64 memory_high;	/* bytes beyond which it has a tenth of its weight */
	__u64 memory_max;	/* bytes beyond which allocations fail */
};

#define GHOST_SET_WEIGHT	(1U << 0)
#define GHOST_SET_MAX		(1U << 1)	/* max_us and period_us */
#define GHOST_SET_MEMORY_MIN	(1U << 2)
#define GHOST_SET_MEMORY_LOW	(1U << 3)
#define GHOST_SET_MEMORY_HIGH	(1U << 4)
#define GHOST_SET_MEMORY_MAX	(1U << 5)

/* How often something happened, as in cgroup v2's memory.events. */
struct ghost_events {
	__u64 low;		/* somebody took memory that memory_low protects */
	__u64 high;		/* use went beyond memory_high */
	__u64 max;		/* an allocation would have gone beyond memory_max */
	__u64 fail;		/* an allocation failed, for whichever reason */
};

/* What a container is and holds of one GPU. ENOENT: no such container. ENODEV: no such GPU. */
struct ghost_stat {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 id;
	__u32 gpu;		/* not GHOST_ALL_GPUS */
	__u32 weight;
	__u64 max_us;
	__u64 period_us;
	__u64 memory_min;
	__u64 memory_low;
	__u64 memory_high;
	__u64 memory_max;
	__u64 memory_current;	/* bytes, containers below included */
	__u64 memory_managed;	/* of these: taken by UVM */
	__u64 memory_peak;
	struct ghost_events events;		/* containers below included */
	struct ghost_events events_local;
	__u64 nr_periods;	/* periods with something to run, while the module held max_us */
	__u64 nr_throttled;	/* of these: those in which the budget ran out */
	__u64 throttled_us;
	__u64 slice_us;		/* of each of its channel groups; 0: it has none */
	__u32 clients;		/* charged to it, containers below not included */
	__u32 groups;		/* compute channel groups on this GPU, likewise */
	__u32 paused;		/* GHOST_PAUSED_* */
	__u32 reserved;
};

#define GHOST_PAUSED_ASKED	(1U << 0)	/* by GHOST_IOC_PAUSE, of it or one above */
#define GHOST_PAUSED_MAX	(1U << 1)	/* its budget, or that of one above, is used up */

/*
 * Lists. `items` points to room for `count` items of `item_size` bytes; out: as many as there are,
 * though no more than fit are written, in rising order of their key. `after` continues a list: only
 * items of a greater key come. Items grow as other structures do: the rest of a larger one is zero.
 * EINVAL: item_size below that of version 1, or above 4096.
 */
struct ghost_list {
	__u32 size;
	__u32 flags;		/* 0 */
	__u32 what;		/* GHOST_LIST_* */
	__u32 item_size;
	__u64 after;		/* key: an id; 0: from the first */
	__u64 items;		/* pointer */
	__u32 count;		/* in: room; out: items that there are after `after` */
	__u32 written;		/* out */
};

#define GHOST_LIST_CONTAINERS	0	/* struct ghost_container */
#define GHOST_LIST_CLIENTS	1	/* struct ghost_client */
#define GHOST_LIST_GROUPS	2	/* struct ghost_group */
#define GHOST_LIST_GPUS		3	/* struct ghost_gpu */
#define GHOST_LIST_CGROUPS	4	/* struct ghost_cgroup */

struct ghost_container {
	__u64 id;
	__u64 parent;
	char name[GHOST_NAME_LEN];
	__u8 reserved[7];
};

/* A client of the driver; a process may have several, and a client may outlive it. */
struct ghost_client {
	__u64 id;		/* the module's own number */
	__u64 container;
	__u32 handle;		/* the driver's */
	__u32 pid;		/* in the initial pid namespace */
	__u64 memory;		/* bytes on all GPUs that it was the first to name */
};

/* A compute channel group: the unit to which the GPU gives timeslices. */
struct ghost_group {
	__u64 id;		/* the module's own number, never used twice */
	__u64 container;
	__u32 gpu;
	__u32 pid;
	__u32 client;		/* the driver's handles */
	__u32 handle;
	__u64 slice_us;		/* in force */
	__u32 paused;		/* GHOST_PAUSED_*: its channels are disabled */
	__u32 reserved;
};

struct ghost_gpu {
	__u64 id;		/* 1, 2, ... in the order in which they were found */
	__u32 gpu;		/* the driver's gpu_id */
	__u32 reserved;
	__u64 memory_total;	/* bytes that can be charged; 0: not known */
	__u64 memory_charged;	/* of all containers together */
};

struct ghost_cgroup {
	__u64 id;		/* cgroup id: the inode number of its directory */
	__u64 container;
};

/* Binds a cgroup (v2) and all below it to a container, or with GHOST_NONE to none. Clients that
 * are there stay where they are charged. ENOENT: no such container. EBADF, EINVAL: not a
 * directory of a cgroup2 file system. */
struct ghost_bind {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 id;
	__s32 cgroup_fd;
	__u32 reserved;
};

/* Puts a process into a container, whatever its cgroup, or with GHOST_NONE back by its cgroup.
 * Children are not put there. Clients that are there stay where they are charged. ENOENT: no such
 * container. EBADF: not a pidfd. ESRCH: the process has ended. */
struct ghost_attach {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 id;
	__s32 pidfd;
	__u32 reserved;
};

/*
 * Stops, or lets run, the channel groups of a container and of all below it, those that appear
 * later included. A container runs if no file and no budget has it stopped. Returns when it is so.
 * What a file has stopped runs again when the file is closed, or when its lease lapses. ENOENT: no
 * such container. ENODEV: no such GPU. EIO: the driver refused. A pause that fails is undone; what
 * was let run stays so, and is tried until the driver does it.
 */
struct ghost_pause {
	__u32 size;
	__u32 flags;		/* GHOST_PAUSE_RESUME */
	__u64 id;
	__u32 gpu;
	__u32 reserved;
};

#define GHOST_PAUSE_RESUME	(1U << 0)

/*
 * Takes the lead: until the file is closed, or the lease lapses, the module keeps no timeslices by
 * weight and no budgets; they are as the leader sets them. EBUSY: another file leads. Done again it
 * renews the lease. A lease covers the file's pauses also where it does not lead.
 */
struct ghost_lead {
	__u32 size;
	__u32 flags;		/* GHOST_LEAD_* */
	__u64 lease_us;		/* 0: as long as the file is open */
};

#define GHOST_LEAD_RENEW	(1U << 0)	/* only renew the lease, lead or not */
#define GHOST_LEAD_RESIGN	(1U << 1)

/* Sets a channel group's timeslice, which a leader may. EACCES: this file does not lead. ENOENT:
 * no such group. EIO: the driver refused. */
struct ghost_slice {
	__u32 size;
	__u32 flags;		/* 0 */
	__u64 group;
	__u64 slice_us;		/* GHOST_SLICE_MIN .. GHOST_SLICE_MAX */
};

/*
 * What happened, by read(): whole records of GHOST_EVENT_SIZE bytes, as many as fit and are there;
 * EAGAIN without any where O_NONBLOCK is set; EINVAL for a buffer below one record. poll() says
 * POLLIN where there are any. A file sees what happened since it was opened. Where it read too
 * late, GHOST_EVENT_LOST tells how many are missing.
 */
struct ghost_event {
	__u64 seq;		/* 1, 2, ... without gaps over all files */
	__u64 at_ns;		/* CLOCK_MONOTONIC */
	__u32 type;		/* GHOST_EVENT_* */
	__u32 pid;		/* 0: none */
	__u32 gpu;		/* GHOST_ALL_GPUS: none */
	__u32 reserved;
	__u64 container;
	__u64 object;		/* see the type */
	__u64 value;		/* see the type */
	__u64 reserved2;
};

#define GHOST_EVENT_SIZE	64

#define GHOST_EVENT_LOST	0	/* value: records that are missing */
#define GHOST_EVENT_CLIENT	1	/* a client was made; object: its id */
#define GHOST_EVENT_CLIENT_GONE	2
#define GHOST_EVENT_GROUP	3	/* a channel group was made; object: its id */
#define GHOST_EVENT_GROUP_GONE	4
#define GHOST_EVENT_GPU		5	/* a GPU was found; object: its id */
#define GHOST_EVENT_MEMORY_MAX	6	/* an allocation of the container was refused; value: its bytes */
#define GHOST_EVENT_MEMORY_HIGH	7	/* the container's use went from within to beyond; value: bytes
					 * in use */
#define GHOST_EVENT_CLAMPED	8	/* a tenant's timeslice was replaced; object: the group;
					 * value: what it asked for, us */
#define GHOST_EVENT_REFUSED	9	/* a tenant's scheduling control was; value: its number */
#define GHOST_EVENT_LAPSED	10	/* a lease lapsed, or a leader closed its file */

#define GHOST_IOC_MAGIC		0xB6

/* Numbers carry no size, for structures grow. */
#define GHOST_IOC_VERSION	_IO(GHOST_IOC_MAGIC, 0)	/* struct ghost_version */
#define GHOST_IOC_CREATE	_IO(GHOST_IOC_MAGIC, 1)	/* struct ghost_create */
#define GHOST_IOC_DELETE	_IO(GHOST_IOC_MAGIC, 2)	/* struct ghost_delete */
#define GHOST_IOC_LIMIT		_IO(GHOST_IOC_MAGIC, 3)	/* struct ghost_limit */
#define GHOST_IOC_STAT		_IO(GHOST_IOC_MAGIC, 4)	/* struct ghost_stat */
#define GHOST_IOC_LIST		_IO(GHOST_IOC_MAGIC, 5)	/* struct ghost_list */
#define GHOST_IOC_BIND		_IO(GHOST_IOC_MAGIC, 6)	/* struct ghost_bind */
#define GHOST_IOC_ATTACH	_IO(GHOST_IOC_MAGIC, 7)	/* struct ghost_attach */
#define GHOST_IOC_PAUSE		_IO(GHOST_IOC_MAGIC, 8)	/* struct ghost_pause */
#define GHOST_IOC_LEAD		_IO(GHOST_IOC_MAGIC, 9)	/* struct ghost_lead */
#define GHOST_IOC_SLICE		_IO(GHOST_IOC_MAGIC, 10)	/* struct ghost_slice */

/*
 * The test-only entry, which no release has (GHOST_FEATURE_TEST): reaches hooks that need a GPU
 * with numbers in the driver's place. ENOENT, ENODEV, ENOMEM as the hook's refusal says.
 */
struct ghost_test {
	__u32 size;
	__u32 flags;		/* 0 */
	__u32 op;		/* GHOST_TEST_* */
	__u32 gpu;
	__u64 object;		/* in or out: a number of the caller's choice, as the driver's pointer */
	__u64 value;		/* bytes, microseconds, ... */
	__u32 client;		/* the driver's handle of a client of the caller */
	__u32 status;		/* out: the driver's status that a tenant would see */
};

#define GHOST_TEST_GPU		0	/* a GPU is found; value: its memory */
#define GHOST_TEST_GROUP	1	/* a channel group is made */
#define GHOST_TEST_GROUP_GONE	2
#define GHOST_TEST_TIMESLICE	3	/* a tenant sets a group's timeslice; out: value in force */
#define GHOST_TEST_MEMORY	4	/* device memory is made; value: bytes */
#define GHOST_TEST_MEMORY_DUP	5	/* a further name of it; value: the memory's object */
#define GHOST_TEST_MEMORY_GONE	6
#define GHOST_TEST_CHUNK	7	/* managed memory is taken; value: bytes */
#define GHOST_TEST_CHUNK_GONE	8
#define GHOST_TEST_FAIL		9	/* value: of the next driver controls, so many fail */

#define GHOST_IOC_TEST		_IO(GHOST_IOC_MAGIC, 63)	/* struct ghost_test */

#endif /* _UAPI_GHOST_H */
