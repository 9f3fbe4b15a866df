// SPDX-License-Identifier: GPL-2.0 OR MIT
/* ghost.c - placeholder to prove the linkage: counters for each hook. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/atomic.h>
#include "hooks.h"
#include "layout.h"
#include <uapi/ghost.h>

static bool ghost_hooks = true;
module_param(ghost_hooks, bool, 0644);
static bool ghost_no_gpu;
module_param(ghost_no_gpu, bool, 0444);

static atomic_t n_client, n_client_gone, n_mem, n_mem_gone;
static u32 last_pid;

static int show(struct seq_file *m, void *v)
{
	seq_printf(m, "client %d client_gone %d mem %d mem_gone %d last_pid %u\n",
		   atomic_read(&n_client), atomic_read(&n_client_gone), atomic_read(&n_mem),
		   atomic_read(&n_mem_gone), last_pid);
	return 0;
}

static int ghost_open(struct inode *inode, struct file *file)
{
	return single_open(file, show, NULL);
}

static const struct file_operations fops = {
	.owner = THIS_MODULE, .open = ghost_open, .read = seq_read, .llseek = seq_lseek,
	.release = single_release,
};
static struct miscdevice dev = {
	.minor = MISC_DYNAMIC_MINOR, .name = GHOST_DEVICE, .fops = &fops, .mode = 0600,
};

NvBool __wrap_rm_init_rm(nvidia_stack_t *sp)
{
	NvBool ok = __real_rm_init_rm(sp);

	if (ok && misc_register(&dev))
		pr_err("ghost: no device\n");
	return ok;
}

void __wrap_rm_shutdown_rm(nvidia_stack_t *sp)
{
	misc_deregister(&dev);
	__real_rm_shutdown_rm(sp);
}

NV_STATUS rmclientConstruct_IMPL(struct RmClient *c, struct PORT_MEM_ALLOCATOR *a,
				 struct RS_RES_ALLOC_PARAMS_INTERNAL *p)
{
	NV_STATUS s = __real_rmclientConstruct_IMPL(c, a, p);

	if (ghost_hooks)
		atomic_inc(&n_client);
	last_pid = *(u32 *)((char *)c + GHOST_AT_RmClient_ProcID);
	return s;
}

void rmclientDestruct_IMPL(struct RmClient *c)
{
	atomic_inc(&n_client_gone);
	__real_rmclientDestruct_IMPL(c);
}

NV_STATUS memConstruct_IMPL(struct Memory *m, struct CALL_CONTEXT *c,
			    struct RS_RES_ALLOC_PARAMS_INTERNAL *p)
{
	atomic_inc(&n_mem);
	return __real_memConstruct_IMPL(m, c, p);
}

void memDestruct_IMPL(struct Memory *m)
{
	atomic_inc(&n_mem_gone);
	__real_memDestruct_IMPL(m);
}

#define PASS(type, name, params, args) type name params { return __real_##name args; }
PASS(NV_STATUS, kchangrpapiConstruct_IMPL, (struct KernelChannelGroupApi *g, struct CALL_CONTEXT *c, struct RS_RES_ALLOC_PARAMS_INTERNAL *p), (g, c, p))
PASS(void, kchangrpapiDestruct_IMPL, (struct KernelChannelGroupApi *g), (g))
PASS(NV_STATUS, kchangrpapiCtrlCmdSetTimeslice_IMPL, (struct KernelChannelGroupApi *g, NVA06C_CTRL_TIMESLICE_PARAMS *p), (g, p))
PASS(NV_STATUS, memConstructCommon_IMPL, (struct Memory *m, NvU32 a, NvU32 b, MEMORY_DESCRIPTOR *c, NvU32 d, struct Heap *e, NvU32 f, NvU32 g, NvU32 h, NvU32 i, NvU32 j, HWRESOURCE_INFO *k), (m,a,b,c,d,e,f,g,h,i,j,k))
PASS(void, memDestructCommon_IMPL, (struct Memory *m), (m))
PASS(NV_STATUS, vidmemConstruct_IMPL, (struct VideoMemory *g, struct CALL_CONTEXT *c, struct RS_RES_ALLOC_PARAMS_INTERNAL *p), (g, c, p))

NvBool __wrap_os_is_nvswitch_present(void)
{
	return ghost_no_gpu || __real_os_is_nvswitch_present();
}
