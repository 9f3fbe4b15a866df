// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * hooks.c - where NVIDIA's driver calls Ghost: that it begins and ends, clients, channel groups, device
 * memory, controls of scheduling. Ghost's functions have the driver's names, and theirs are __real_NAME;
 * see the table, hooks, and docs/driver.md.
 *
 * Of the driver's structures nothing is known here but where a few members are: layout.h.
 */
#include <linux/align.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/overflow.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/sizes.h>

#include "controls.h"
#include "core.h"
#include "hooks.h"
#include "layout.h"

#define NV_OK				0
#define NV_ERR_INSUFFICIENT_PERMISSIONS	0x1b
#define NV_ERR_NO_MEMORY		0x51

/* The member of a structure of the driver, by layout.h. */
#define AT(pointer, type, member) (*(type *)((char *)(pointer) + GHOST_AT_##member))

bool ghost_on = true;
/* Ghost's files have begun, and have not ended. Changes only while nothing can reach a hook. */
static bool begun;

static int set_on(const char *value, const struct kernel_param *parameter)
{
	int result = param_set_bool(value, parameter);

	if (!result && begun)
		ghost_time_changed();
	return result;
}

static const struct kernel_param_ops on_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = set_on,
	.get = param_get_bool,
};
module_param_cb(ghost_hooks, &on_ops, &ghost_on, 0644);
MODULE_PARM_DESC(ghost_hooks, "containers are charged, limited and scheduled (default: yes)");

static bool ghost_no_gpu;
module_param(ghost_no_gpu, bool, 0444);
MODULE_PARM_DESC(ghost_no_gpu, "load where there is no GPU, for tests (default: no)");

/* Begin and end: insmod and rmmod, nothing is held, may sleep. */

static int begin(void)
{
	int result = ghost_core_begin();

	if (result)
		return result;
	result = ghost_rm_begin();
	if (result)
		goto end_core;
	result = ghost_time_begin();
	if (result)
		goto end_rm;
	result = ghost_device_begin();
	if (result)
		goto end_time;
	return 0;
end_time:
	ghost_time_end();
end_rm:
	ghost_rm_end();
end_core:
	ghost_core_end();
	return result;
}

/* The thread and the files before the resource manager, which they ask; the books after it, which frees
 * all clients when it ends. */
static void end(nvidia_stack_t *stack, void (*shut_down)(nvidia_stack_t *))
{
	if (begun) {
		ghost_device_end();
		ghost_time_end();
		ghost_rm_end();
	}
	if (shut_down)
		shut_down(stack);
	if (begun) {
		begun = false;
		ghost_core_end();
	}
}

/* Before the resource manager, for it makes a client of its own when it begins. */
NvBool __wrap_rm_init_rm(nvidia_stack_t *stack)
{
	int result = begin();
	NvBool good;

	begun = !result;
	if (result) {
		ghost_on = false;
		pr_err("ghost: cannot begin (%d): the driver runs without containers\n", result);
	}
	good = __real_rm_init_rm(stack);
	if (!good)
		end(stack, NULL);
	return good;
}

void __wrap_rm_shutdown_rm(nvidia_stack_t *stack)
{
	end(stack, __real_rm_shutdown_rm);
}

/* insmod. The driver loads on hosts that have switches and no GPU. */
NvBool __wrap_os_is_nvswitch_present(void)
{
	return ghost_no_gpu || __real_os_is_nvswitch_present();
}

/* Who calls. */

/* Levels of privilege, the first member of the driver's security information. */
#define PRIVILEGE_KERNEL 2

static bool is_kernel(const void *security)
{
	return *(const u32 *)security >= PRIVILEGE_KERNEL;
}

/* Clients. Process context, the API lock is held for writing, may sleep. */

/*
 * Refused before the driver makes it: when its constructor has failed the driver takes for granted that
 * nothing is there to be undone, and calls no destructor.
 */
NV_STATUS rmclientConstruct_IMPL(struct RmClient *client, struct PORT_MEM_ALLOCATOR *allocator,
				 struct RS_RES_ALLOC_PARAMS_INTERNAL *params)
{
	void *security = AT(params, void *, RS_RES_ALLOC_PARAMS_INTERNAL_pSecInfo);
	NvHandle handle = AT(params, NvHandle, RS_RES_ALLOC_PARAMS_INTERNAL_hClient);
	NV_STATUS status;

	if (!begun)
		return __real_rmclientConstruct_IMPL(client, allocator, params);
	if (ghost_client_made(client, handle, is_kernel(security) ? 0 : task_tgid_nr(current)))
		return NV_ERR_NO_MEMORY;
	status = __real_rmclientConstruct_IMPL(client, allocator, params);
	if (status != NV_OK)
		ghost_client_gone(client);
	return status;
}

/* Also by whoever closes the file last, or when the driver ends. All that the client had is freed. */
void rmclientDestruct_IMPL(struct RmClient *client)
{
	if (begun)
		ghost_client_gone(client);
	__real_rmclientDestruct_IMPL(client);
}

/* Channel groups. */

static u32 gpu_id(const void *gpu)
{
	return gpu ? AT(gpu, u32, OBJGPU_gpuId) : GHOST_ALL_GPUS;
}

/* Engines of a group: 0 is told on GPUs (Turing) where a group is not bound to one, 1 to 8 are those
 * that compute, all others copy or work on video. */
#define ENGINE_LAST_GRAPHICS 8

/*
 * Process context, the API lock is held, the GPU's lock is not (the driver takes and leaves it within),
 * may sleep. A duplicate is one more group: it has the same channels, and its timeslice is theirs.
 */
NV_STATUS kchangrpapiConstruct_IMPL(struct KernelChannelGroupApi *group, struct CALL_CONTEXT *context,
				    struct RS_RES_ALLOC_PARAMS_INTERNAL *params)
{
	NV_STATUS status = __real_kchangrpapiConstruct_IMPL(group, context, params);
	void *channels, *resource;
	u32 gpu;

	if (!begun || status != NV_OK)
		return status;
	channels = AT(group, void *, KernelChannelGroupApi_pKernelChannelGroup);
	resource = AT(group, void *, KernelChannelGroupApi___nvoc_pbase_GpuResource);
	gpu = gpu_id(AT(resource, void *, GpuResource_pGpu));
	if (channels && gpu != GHOST_ALL_GPUS &&
	    AT(channels, u32, KernelChannelGroup_engineType) <= ENGINE_LAST_GRAPHICS)
		ghost_group_made(group, AT(params, u32, RS_RES_ALLOC_PARAMS_INTERNAL_hClient),
				 AT(params, u32, RS_RES_ALLOC_PARAMS_INTERNAL_hResource), gpu);
	return status;
}

/* Process context, the API lock is held and the GPU's lock may be. */
void kchangrpapiDestruct_IMPL(struct KernelChannelGroupApi *group)
{
	if (begun)
		ghost_group_gone(group);
	__real_kchangrpapiDestruct_IMPL(group);
}

/* Process context, the API lock and the GPU's lock are held. `params` is the driver's copy: the caller
 * gets back what it asked for only if the driver writes it back, which it does not. */
NV_STATUS kchangrpapiCtrlCmdSetTimeslice_IMPL(struct KernelChannelGroupApi *group,
					      NVA06C_CTRL_TIMESLICE_PARAMS *params)
{
	u64 asked = *(u64 *)params, instead;

	if (begun && !ghost_rm_is_own()) {
		instead = ghost_group_clamp(group, asked);
		if (instead)
			return __real_kchangrpapiCtrlCmdSetTimeslice_IMPL(group, (void *)&instead);
	}
	return __real_kchangrpapiCtrlCmdSetTimeslice_IMPL(group, params);
}

/* Controls of scheduling. */

#define SUBDEVICE_SET_SCHED_POLICY	0x20801115
#define SUBDEVICE_ROTATE_DISABLE	0x2080111a	/* as SUBDEVICE_DISABLE_CHANNELS, for confidential computing */
#define SUBDEVICE_OBJSCHED_SET_STATE	0x20801121
#define SUBDEVICE_SET_PREEMPTION_MODE	0x20801210
#define SUBDEVICE_PREEMPTION_BIND	0x20801211
#define DEVICE_START_CHANNELS		0x801705
#define DEVICE_CHANNEL_PROPERTIES	0x80170f
#define GROUP_PREEMPT			0xa06c0105
#define GROUP_SET_INTERLEAVE		0xa06c0107
#define GROUP_MAKE_REALTIME		0xa06c0110
#define CHANNEL_SET_INTERLEAVE		0xa06f0109
#define CHANNEL_RESTART_RUNLIST		0xa06f0111

/* DEVICE_CHANNEL_PROPERTIES: { u32 channel, u32 property, u64 value }; these are of timeslices. */
#define PROPERTY_LAST_TIMESLICE 3

/*
 * Both set how compute work is preempted: { u32 flags; ...; u32 graphics, compute; 16 bytes }, or for
 * SUBDEVICE_SET_PREEMPTION_MODE { u32 flags, channel, graphics, compute; 16 bytes }. Waiting until the
 * work has ended is no preemption: a kernel would run for as long as it likes.
 */
#define PREEMPTION_SETS_COMPUTE		1
#define PREEMPTION_COMPUTE_WAITS	0

static bool stops_preemption(const u32 *params, u32 size)
{
	return size >= 32 && (params[0] & PREEMPTION_SETS_COMPUTE) &&
	       params[size / 4 - 5] == PREEMPTION_COMPUTE_WAITS;
}

static bool alters_scheduling(const struct RS_RES_CONTROL_PARAMS_INTERNAL *call)
{
	const u32 *params = AT(call, void *, RS_RES_CONTROL_PARAMS_INTERNAL_pParams);
	u32 size = AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_paramsSize);

	switch (AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_cmd)) {
	case SUBDEVICE_SET_SCHED_POLICY:
	case SUBDEVICE_ROTATE_DISABLE:
	case SUBDEVICE_OBJSCHED_SET_STATE:
	case DEVICE_START_CHANNELS:
	case GROUP_PREEMPT:
	case GROUP_SET_INTERLEAVE:
	case GROUP_MAKE_REALTIME:
	case CHANNEL_SET_INTERLEAVE:
	case CHANNEL_RESTART_RUNLIST:
		return true;
	case DEVICE_CHANNEL_PROPERTIES:
		return params && size >= 8 && params[1] <= PROPERTY_LAST_TIMESLICE;
	case SUBDEVICE_SET_PREEMPTION_MODE:
	case SUBDEVICE_PREEMPTION_BIND:
		return params && stops_preemption(params, size);
	}
	return false;
}

/* Under ghost_lock. */
static NV_STATUS refuse(u32 client, u32 command)
{
	struct ghost_tenant *tenant = ghost_tenant_of(client);

	if (tenant)
		ghost_event(GHOST_EVENT_REFUSED, tenant->node, tenant->pid, GHOST_ALL_GPUS, tenant->id,
			    command);
	return NV_ERR_INSUFFICIENT_PERMISSIONS;
}

/*
 * Before any control of an object, in the context of its caller; what is held is the control's to say: the
 * API lock and the GPU's for those that are refused here. Most of these the driver hands on to the GPU's
 * firmware after this function, so that there is no later place.
 */
NV_STATUS rmresControl_Prologue_IMPL(struct RmResource *resource, struct CALL_CONTEXT *context,
				     struct RS_RES_CONTROL_PARAMS_INTERNAL *call)
{
	unsigned long flags;
	NV_STATUS status;

	if (!begun || !READ_ONCE(ghost_on) || !alters_scheduling(call) ||
	    is_kernel(&AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_secInfo)))
		return __real_rmresControl_Prologue_IMPL(resource, context, call);
	spin_lock_irqsave(&ghost_lock, flags);
	status = refuse(AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_hClient),
			AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_cmd));
	spin_unlock_irqrestore(&ghost_lock, flags);
	return status;
}

/*
 * Under ghost_lock. A tenant may stop what is its own process's. It may let run again what Ghost has not
 * stopped: for the driver a stop is a stop, whoever asked for it.
 */
static bool may_disable(const struct disable_channels *params, u32 caller)
{
	struct ghost_tenant *tenant = ghost_tenant_of(caller), *other;
	struct ghost_channels *group;
	u32 i;

	for (i = 0; i < min_t(u32, params->count, ARRAY_SIZE(params->clients)); i++) {
		other = ghost_tenant_of(params->clients[i]);
		if (!tenant || !other || other->process != tenant->process)
			return false;
		if (params->disable)
			continue;
		list_for_each_entry(group, ghost_groups(), all) {
			if (group->client == other->handle &&
			    (group->stop || group->stopped || group->doubt))
				return false;
		}
	}
	return true;
}

/* Process context, or that of the GPU's interrupt for a deferred call; the GPU's lock is held. */
NV_STATUS subdeviceCtrlCmdFifoDisableChannels_IMPL(struct Subdevice *subdevice,
						   NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *params)
{
	struct CALL_CONTEXT *context = resservGetTlsCallContext();
	NV_STATUS status = NV_OK;
	unsigned long flags;
	void *call;
	u32 client;

	if (begun && READ_ONCE(ghost_on) && context && !is_kernel(&AT(context, u32, CALL_CONTEXT_secInfo))) {
		call = AT(context, void *, CALL_CONTEXT_pControlParams);
		client = call ? AT(call, u32, RS_RES_CONTROL_PARAMS_INTERNAL_hClient) : 0;
		spin_lock_irqsave(&ghost_lock, flags);
		if (!may_disable((void *)params, client))
			status = refuse(client, SUBDEVICE_DISABLE_CHANNELS);
		spin_unlock_irqrestore(&ghost_lock, flags);
	}
	return status == NV_OK ? __real_subdeviceCtrlCmdFifoDisableChannels_IMPL(subdevice, params) : status;
}

/* Device memory. */

/* What class 0x40, and 0x90ce, are allocated with: the driver's public structure, in its copy. */
struct memory_params {
	u32 owner;
	u32 type;
	u32 flags;
	u32 width;
	u32 height;
	u32 pitch;
	u32 attr;
	u32 attr2;
	u32 format;
	u32 compression;
	u32 zcull;
	u32 pad;
	u64 low;
	u64 high;
	u64 size;
};

/* The pages that are asked for: bits 24:23 of attr, and for the largest bits 21:20 of attr2. */
static u64 page_size(const struct memory_params *params)
{
	switch (params->attr >> 23 & 3) {
	case 1:
		return SZ_4K;
	case 2:
		return SZ_64K;
	case 3:
		return (params->attr2 >> 20 & 3) == 2 ? SZ_512M : SZ_2M;
	}
	return params->size < SZ_2M ? SZ_64K : SZ_2M;
}

/* As the driver will round it; what it did is charged afterwards. */
static u64 rounded(const struct memory_params *params)
{
	u64 page = page_size(params), sum;

	return check_add_overflow(params->size, page - 1, &sum) ? params->size : ALIGN_DOWN(sum, page);
}

/*
 * Memory of class 0x40 and its kin. Process context, the API lock is held; the GPU's lock is not, the driver
 * takes it after it has the pages; may sleep. Refused before anything is taken.
 */
NV_STATUS vidmemConstruct_IMPL(struct VideoMemory *video, struct CALL_CONTEXT *context,
			       struct RS_RES_ALLOC_PARAMS_INTERNAL *call)
{
	struct memory_params *params = AT(call, void *, RS_RES_ALLOC_PARAMS_INTERNAL_pAllocParams);
	void *memory = AT(video, void *, VideoMemory___nvoc_pbase_Memory);
	void *gpu = AT(memory, void *, Memory_pGpu);
	NV_STATUS status;

	if (!begun || AT(call, void *, RS_RES_ALLOC_PARAMS_INTERNAL_pSrcRef) || !params || !gpu)
		return __real_vidmemConstruct_IMPL(video, context, call);
	if (ghost_memory_charge(video, AT(call, u32, RS_RES_ALLOC_PARAMS_INTERNAL_hClient), gpu_id(gpu),
				rounded(params)))
		return NV_ERR_NO_MEMORY;
	status = __real_vidmemConstruct_IMPL(video, context, call);
	if (status == NV_OK)
		ghost_memory_settle(video, AT(memory, void *, Memory_pMemDesc), params->size);
	else
		ghost_memory_failed(video);
	return status;
}

#ifdef GHOST_TEST
/* Memory that needs no GPU stands for a GPU's in the test build. */
#define NV01_MEMORY_DEVICELESS 0x90ce

static bool charge_test_memory(struct Memory *memory, struct RS_RES_ALLOC_PARAMS_INTERNAL *call)
{
	struct memory_params *params = AT(call, void *, RS_RES_ALLOC_PARAMS_INTERNAL_pAllocParams);

	return AT(call, u32, RS_RES_ALLOC_PARAMS_INTERNAL_externalClassId) != NV01_MEMORY_DEVICELESS ||
	       !params ||
	       !ghost_memory_charge(memory, AT(call, u32, RS_RES_ALLOC_PARAMS_INTERNAL_hClient),
				    GHOST_TEST_HOST_GPU, params->size);
}

void memDestruct_IMPL(struct Memory *memory)
{
	ghost_memory_uncharge(memory);
	__real_memDestruct_IMPL(memory);
}
#else
static bool charge_test_memory(struct Memory *memory, struct RS_RES_ALLOC_PARAMS_INTERNAL *call)
{
	return true;
}
#endif

/*
 * The base of memory of every class, before what its class does. Process context, the API lock is held.
 * A further name of memory is made: its descriptor is that of the first, and its pages are given back with
 * the last of them, whoever has it: another process, UVM, or an open file that it was exported to.
 */
NV_STATUS memConstruct_IMPL(struct Memory *memory, struct CALL_CONTEXT *context,
			    struct RS_RES_ALLOC_PARAMS_INTERNAL *call)
{
	bool is_name = AT(call, void *, RS_RES_ALLOC_PARAMS_INTERNAL_pSrcRef);
	NV_STATUS status;

	if (begun && !is_name && !charge_test_memory(memory, call))
		return NV_ERR_NO_MEMORY;
	status = __real_memConstruct_IMPL(memory, context, call);
	if (!begun)
		return status;
	if (status != NV_OK)
		ghost_memory_failed(memory);
	else if (is_name && AT(memory, NvBool, Memory_bConstructed))
		ghost_memory_share(AT(memory, void *, Memory_pMemDesc));
	return status;
}

/* A name of memory is gone. Process context, the API lock is held, the GPU's lock may be. Called twice for
 * some; the driver does nothing then either. */
void memDestructCommon_IMPL(struct Memory *memory)
{
	bool is_name = AT(memory, NvBool, Memory_bConstructed);
	void *descriptor = AT(memory, void *, Memory_pMemDesc);

	__real_memDestructCommon_IMPL(memory);
	if (begun && is_name)
		ghost_memory_uncharge(descriptor);
}
