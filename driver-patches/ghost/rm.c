// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * rm.c - what Ghost's thread asks of the resource manager: timeslices of channel groups, and that their
 * channels stop and run.
 *
 * It goes through the entry that the driver has for other kernel modules (nvidia-modeset.ko): calls as
 * user space makes them, with the kernel's privilege and parameters in kernel memory. The entry takes the
 * driver's locks itself. So: process context, no lock held, may sleep.
 */
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/mutex.h>
#include <linux/sched.h>

#include "controls.h"
#include "core.h"
#include "hooks.h"

/* Calls, as the driver's public header numbers them. */
#define RM_FREE		0x00
#define RM_ALLOC	0x15
#define RM_CONTROL	0x36

#define RM_OK			0x00
#define RM_INVALID_CHANNEL	0x21
#define RM_INVALID_CLIENT	0x23
#define RM_INVALID_HANDLE	0x33
#define RM_OBJECT_NOT_FOUND	0x57

/* The driver answers none of these. */
#define RM_NO_ANSWER		0xffffffffU

#define CLASS_ROOT		0x0
#define CLASS_DEVICE		0x80
#define CLASS_SUBDEVICE		0x2080

#define ROOT_GPU_INSTANCES	0x205
#define SUBDEVICE_GPU_ID	0x20800142
#define SUBDEVICE_MEMORY_INFO	0x20801301
#define GROUP_SET_TIMESLICE	0xa06c0103

/* The driver's public structures; of a call that is made here no other member is read. */
struct rm_call {
	u32 op;
	u32 pad;
	union {
		struct {
			u32 client;
			u32 parent;
			u32 object;
			u32 status;
		} free;
		/*
		 * Before 580 the structure ends with size and status after the address; since then it is
		 * the longer one. All of both is 0 but for the longer one's status, which tells which
		 * it was. A size of 0 is that of the class.
		 */
		struct {
			u32 client;
			u32 parent;
			u32 object;
			u32 class;
			u64 params;
			u32 size;
			u32 status;
			u32 long_size;
			u32 flags;
			u32 long_status;
			u32 pad;
		} alloc;
		struct {
			u32 client;
			u32 object;
			u32 command;
			u32 flags;
			u64 params;
			u32 size;
			u32 status;
		} control;
	};
};

struct device_params {
	u32 instance;
	u32 unused[13];
};

struct gpu_instances {
	u32 gpu;
	u32 flags;
	u32 device;
	u32 subdevice;
	u32 sli;
	u32 board;
	u32 instance;
	s32 numa;
};

struct memory_info {
	u32 count;
	u32 pad;
	u64 list;		/* of { u32 index, value } */
};

#define MEMORY_INFO_TOTAL	9	/* KiB that tenants can have */

/* Our own client, made when it is first needed; 0: there is none. Only the thread comes here, and
 * ghost_rm_end() when that has ended. */
static u32 own;
/* GPUs on which it has objects, or had: with the last file of a GPU the driver frees them. */
static u32 gpus[GHOST_GPUS_MAX];
static u32 gpu_count;

/* Handles of the objects on the GPU of that index. */
#define DEVICE(index)		(0x60000000U + 2 * (index))
#define SUBDEVICE(index)	(DEVICE(index) + 1)

static struct task_struct *asking;

bool ghost_rm_is_own(void)
{
	return READ_ONCE(asking) == current;
}

static void ask(struct rm_call *call)
{
	WRITE_ONCE(asking, current);
	rm_kernel_rmapi_op(NULL, call);
	WRITE_ONCE(asking, NULL);
}

static u32 control(u32 client, u32 object, u32 command, void *params, u32 size)
{
	struct rm_call call = {
		.op = RM_CONTROL,
		.control = {
			.client = client,
			.object = object,
			.command = command,
			.params = (uintptr_t)params,
			.size = size,
			.status = RM_NO_ANSWER,
		},
	};

	ask(&call);
	return call.control.status;
}

static u32 alloc(u32 client, u32 parent, u32 object, u32 class, void *params)
{
	struct rm_call call = {
		.op = RM_ALLOC,
		.alloc = {
			.client = client,
			.parent = parent,
			.object = object,
			.class = class,
			.params = (uintptr_t)params,
			.long_status = RM_NO_ANSWER,
		},
	};

	ask(&call);
	return call.alloc.long_status != RM_NO_ANSWER ? call.alloc.long_status : call.alloc.status;
}

static void free_object(u32 parent, u32 object)
{
	struct rm_call call = {
		.op = RM_FREE,
		.free = {
			.client = own,
			.parent = parent,
			.object = object,
		},
	};

	ask(&call);
}

static int result_of(u32 status)
{
	switch (status) {
	case RM_OK:
		return 0;
	case RM_INVALID_CHANNEL:
	case RM_INVALID_CLIENT:
	case RM_INVALID_HANDLE:
	case RM_OBJECT_NOT_FOUND:
		return -ENOENT;
	}
	return -EIO;
}

static int make_client(void)
{
	u32 handle = 0;

	if (!own && alloc(0, 0, 0, CLASS_ROOT, &handle) == RM_OK)
		own = handle;
	return own ? 0 : -EIO;
}

static int index_of(u32 gpu)
{
	u32 i;

	for (i = 0; i < gpu_count; i++) {
		if (gpus[i] == gpu)
			return i;
	}
	if (gpu_count == GHOST_GPUS_MAX)
		return -EIO;
	gpus[gpu_count] = gpu;
	return gpu_count++;
}

/* What the GPU has for tenants. Without an answer it stays unknown. */
static void find_memory(u32 gpu, u32 subdevice)
{
	u32 entry[2] = { MEMORY_INFO_TOTAL };
	struct memory_info info = { .count = 1, .list = (uintptr_t)entry };

	if (control(own, subdevice, SUBDEVICE_MEMORY_INFO, &info, sizeof(info)) == RM_OK)
		ghost_gpu_found(gpu, (u64)entry[1] << 10);
}

/*
 * Our subdevice of a GPU, its handle, or -EIO. It keeps no GPU awake or initialised: with the GPU's last file
 * the driver frees what is on it, and here it is made anew.
 */
static int subdevice_of(u32 gpu, u32 *handle)
{
	struct gpu_instances instances = { .gpu = gpu };
	struct device_params device = {};
	int index, result = make_client();
	u32 id = 0;

	if (result)
		return result;
	index = index_of(gpu);
	if (index < 0)
		return index;
	*handle = SUBDEVICE(index);
	if (control(own, *handle, SUBDEVICE_GPU_ID, &id, sizeof(id)) == RM_OK && id == gpu)
		return 0;
	free_object(own, DEVICE(index));
	if (control(own, own, ROOT_GPU_INSTANCES, &instances, sizeof(instances)) != RM_OK)
		return -EIO;
	device.instance = instances.device;
	if (alloc(own, own, DEVICE(index), CLASS_DEVICE, &device) != RM_OK)
		return -EIO;
	if (alloc(own, DEVICE(index), *handle, CLASS_SUBDEVICE, &instances.subdevice) != RM_OK)
		return -EIO;
	find_memory(gpu, *handle);
	return 0;
}

#ifdef GHOST_TEST
/* A group of test.c: all is asked of the driver up to what needs a GPU. It must take us for the kernel in
 * the tenant's client, and find no such group in it. */
static int ask_for_test(u32 client, u32 handle)
{
	u32 attached[32];
	u64 slice_us = GHOST_SLICE_MIN;
	int result = make_client();

	if (!result)
		result = result_of(control(own, own, 0x201, attached, sizeof(attached)));
	if (!result && result_of(control(client, handle, GROUP_SET_TIMESLICE, &slice_us,
					 sizeof(slice_us))) != -ENOENT)
		result = -EIO;
	return result ?: ghost_test_control();
}
#else
static bool ghost_test_owns(u32 gpu)
{
	return false;
}

static int ask_for_test(u32 client, u32 handle)
{
	return -EIO;
}
#endif

int ghost_rm_set_slice(u32 gpu, u32 client, u32 handle, u64 slice_us)
{
	u32 subdevice;

	if (ghost_test_owns(gpu))
		return ask_for_test(client, handle);
	/* So that the GPU's memory is known as soon as it has a group. */
	subdevice_of(gpu, &subdevice);
	return result_of(control(client, handle, GROUP_SET_TIMESLICE, &slice_us, sizeof(slice_us)));
}

static int disable(u32 gpu, u32 client, u32 handle, bool disable)
{
	struct disable_channels params = {
		.disable = disable,
		.count = 1,
		.clients = { client },
		.channels = { handle },
	};
	u32 subdevice;
	int result;

	if (ghost_test_owns(gpu))
		return ask_for_test(client, handle);
	result = subdevice_of(gpu, &subdevice);
	return result ?: result_of(control(own, subdevice, SUBDEVICE_DISABLE_CHANNELS, &params, sizeof(params)));
}

int ghost_rm_stop(u32 gpu, u32 client, u32 handle)
{
	return disable(gpu, client, handle, true);
}

int ghost_rm_start(u32 gpu, u32 client, u32 handle)
{
	return disable(gpu, client, handle, false);
}

int ghost_rm_begin(void)
{
	/* No build of the open module has one; we would have to bring it. */
	return rm_is_altstack_in_use() ? -EOPNOTSUPP : 0;
}

void ghost_rm_end(void)
{
	if (own)
		free_object(own, own);
	own = 0;
	gpu_count = 0;
}
