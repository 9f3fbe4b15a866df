// SPDX-License-Identifier: GPL-2.0 OR MIT
/* ghost.c - placeholder of hooks.c, rm.c, time.c until these are there. */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include "hooks.h"
#include "layout.h"
#include "core.h"
bool ghost_on = true;
static int set_on(const char *v, const struct kernel_param *p) { int r = param_set_bool(v, p); ghost_time_changed(); return r; }
static const struct kernel_param_ops ops = { .set = set_on, .get = param_get_bool };
module_param_cb(ghost_hooks, &ops, &ghost_on, 0644);
static bool ghost_no_gpu;
module_param(ghost_no_gpu, bool, 0444);
NvBool __wrap_rm_init_rm(nvidia_stack_t *sp)
{
	NvBool ok;
	if (ghost_core_begin() || ghost_time_begin() || ghost_device_begin()) return 0;
	ok = __real_rm_init_rm(sp);
	return ok;
}
void __wrap_rm_shutdown_rm(nvidia_stack_t *sp)
{
	ghost_device_end();
	ghost_time_end();
	__real_rm_shutdown_rm(sp);
	ghost_core_end();
}
NV_STATUS rmclientConstruct_IMPL(struct RmClient *c, struct PORT_MEM_ALLOCATOR *a, struct RS_RES_ALLOC_PARAMS_INTERNAL *p)
{
	NV_STATUS s = __real_rmclientConstruct_IMPL(c, a, p);
	u32 pid = *(u32 *)((char *)c + GHOST_AT_RmClient_ProcID);
	u32 h = *(u32 *)p;
	if (current->flags & PF_KTHREAD || !current->mm) pid = 0;
	if (!s && ghost_client_made(c, h, pid)) { __real_rmclientDestruct_IMPL(c); return 0x51; }
	return s;
}
void rmclientDestruct_IMPL(struct RmClient *c) { ghost_client_gone(c); __real_rmclientDestruct_IMPL(c); }
NvBool __wrap_os_is_nvswitch_present(void) { return ghost_no_gpu || __real_os_is_nvswitch_present(); }
#define PASS(type, name, params, args) type name params { return __real_##name args; }
PASS(NV_STATUS, kchangrpapiConstruct_IMPL, (struct KernelChannelGroupApi *g, struct CALL_CONTEXT *c, struct RS_RES_ALLOC_PARAMS_INTERNAL *p), (g, c, p))
PASS(void, kchangrpapiDestruct_IMPL, (struct KernelChannelGroupApi *g), (g))
PASS(NV_STATUS, kchangrpapiCtrlCmdSetTimeslice_IMPL, (struct KernelChannelGroupApi *g, NVA06C_CTRL_TIMESLICE_PARAMS *p), (g, p))
PASS(NV_STATUS, memConstructCommon_IMPL, (struct Memory *m, NvU32 a, NvU32 b, MEMORY_DESCRIPTOR *c, NvU32 d, struct Heap *e, NvU32 f, NvU32 g, NvU32 h, NvU32 i, NvU32 j, HWRESOURCE_INFO *k), (m,a,b,c,d,e,f,g,h,i,j,k))
PASS(void, memDestructCommon_IMPL, (struct Memory *m), (m))
PASS(NV_STATUS, vidmemConstruct_IMPL, (struct VideoMemory *g, struct CALL_CONTEXT *c, struct RS_RES_ALLOC_PARAMS_INTERNAL *p), (g, c, p))
PASS(NV_STATUS, memConstruct_IMPL, (struct Memory *m, struct CALL_CONTEXT *c, struct RS_RES_ALLOC_PARAMS_INTERNAL *p), (m, c, p))
PASS(void, memDestruct_IMPL, (struct Memory *m), (m))

int __weak ghost_time_begin(void) { return 0; }
void __weak ghost_time_end(void) {}
void __weak ghost_group_made(const void *key, u32 client, u32 handle, u32 gpu) {}
void __weak ghost_group_gone(const void *key) {}
u64 __weak ghost_group_clamp(const void *key, u64 asked_us) { return 0; }
void __weak ghost_time_changed(void) {}
static LIST_HEAD(groups);
struct list_head *__weak ghost_groups(void) { return &groups; }
u32 __weak ghost_paused(const struct ghost_node *node, u32 slot) { return 0; }
u32 __weak ghost_group_paused(const struct ghost_channels *group) { return 0; }
void __weak ghost_budget_settle(struct ghost_line *line, u64 now_us) {}
void __weak ghost_time_forget(struct ghost_node *node) {}
struct ghost_owner *__weak ghost_owner_new(void) { return kzalloc(8, GFP_KERNEL); }
void __weak ghost_owner_free(struct ghost_owner *owner) { kfree(owner); }
int __weak ghost_owner_pause(struct ghost_owner *owner, u64 node, u32 gpu, bool resume) { return -EIO; }
int __weak ghost_owner_lead(struct ghost_owner *owner, u32 flags, u64 lease_us) { return -EBUSY; }
int __weak ghost_owner_slice(struct ghost_owner *owner, u64 group, u64 slice_us) { return -EACCES; }
#ifdef GHOST_TEST
#define CONTROL ghost_test_control()
#else
#define CONTROL 0
#endif
int __weak ghost_rm_set_slice(u32 gpu, u32 client, u32 handle, u64 slice_us) { return CONTROL; }
int __weak ghost_rm_stop(u32 gpu, u32 client, u32 handle) { return CONTROL; }
int __weak ghost_rm_start(u32 gpu, u32 client, u32 handle) { return CONTROL; }
