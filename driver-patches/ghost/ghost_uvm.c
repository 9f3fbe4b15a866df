// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ghost_uvm.c - managed memory: what nvidia-uvm.ko takes of a GPU is charged to the process whose address
 * space it is for. See docs/driver.md for what a refusal becomes.
 */
#include <linux/hashtable.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "hooks_uvm.h"
#include "managed.h"

/* The process that a UVM address space was made by. */
struct owner {
	struct hlist_node by_space;
	const uvm_va_space_t *space;
	u32 pid;		/* in the initial pid namespace */
};

/* A thread that works for an address space, on its stack. */
struct work {
	struct list_head list;
	const struct task_struct *task;
	u32 pid;
};

/* Guards both. Taken for a few steps, in process context only, nothing is taken within it. */
static DEFINE_SPINLOCK(lock);
static DEFINE_HASHTABLE(owners, 8);
static LIST_HEAD(works);

/* Under the lock. */
static struct owner *owner_of(const uvm_va_space_t *space)
{
	struct owner *owner;

	hash_for_each_possible(owners, owner, by_space, (unsigned long)space) {
		if (owner->space == space)
			return owner;
	}
	return NULL;
}

static u32 pid_of(const uvm_va_space_t *space)
{
	struct owner *owner;
	u32 pid;

	spin_lock(&lock);
	owner = owner_of(space);
	pid = owner ? owner->pid : 0;
	spin_unlock(&lock);
	return pid;
}

/* By the process that opens UVM, nothing is held, may sleep. */
NV_STATUS __wrap_uvm_va_space_create(struct address_space *mapping, uvm_va_space_t **space, NvU64 flags)
{
	struct owner *owner = kzalloc(sizeof(*owner), GFP_KERNEL);
	NV_STATUS status;

	if (!owner)
		return NV_ERR_NO_MEMORY;
	status = __real_uvm_va_space_create(mapping, space, flags);
	if (status != NV_OK) {
		kfree(owner);
		return status;
	}
	owner->space = *space;
	owner->pid = task_tgid_nr(current);
	spin_lock(&lock);
	hash_add(owners, &owner->by_space, (unsigned long)owner->space);
	spin_unlock(&lock);
	return status;
}

/* At the last close, or when the driver ends; may sleep. Gives back all memory of it. */
void __wrap_uvm_va_space_destroy(uvm_va_space_t *space)
{
	struct owner *owner;

	__real_uvm_va_space_destroy(space);
	spin_lock(&lock);
	owner = owner_of(space);
	if (owner)
		hash_del(&owner->by_space);
	spin_unlock(&lock);
	kfree(owner);
}

/* Who memory is for: where a GPU's fault is served the thread is the kernel's. */

static void begin_work(struct work *work, uvm_va_block_t *block)
{
	uvm_va_space_t *space = uvm_va_block_get_va_space_maybe_dead(block);

	work->task = current;
	work->pid = space ? pid_of(space) : 0;
	spin_lock(&lock);
	list_add(&work->list, &works);
	spin_unlock(&lock);
}

static void end_work(struct work *work)
{
	spin_lock(&lock);
	list_del(&work->list);
	spin_unlock(&lock);
}

static u32 pid_of_work(void)
{
	const struct work *work;
	u32 pid = 0;

	spin_lock(&lock);
	list_for_each_entry(work, &works, list) {
		if (work->task == current) {
			pid = work->pid;
			break;
		}
	}
	spin_unlock(&lock);
	return pid ?: current->flags & PF_KTHREAD ? 0 : task_tgid_nr(current);
}

/* Pages move to where they were faulted on. The block's lock is held, may sleep. */
NV_STATUS __wrap_uvm_va_block_service_locked(uvm_processor_id_t processor, uvm_va_block_t *block,
					     uvm_va_block_retry_t *retry,
					     uvm_service_block_context_t *context)
{
	struct work work;
	NV_STATUS status;

	begin_work(&work, block);
	status = __real_uvm_va_block_service_locked(processor, block, retry, context);
	end_work(&work);
	return status;
}

/* The same for memory that is the system's (HMM). */
NV_STATUS __wrap_uvm_va_block_service_copy(uvm_processor_id_t processor, uvm_processor_id_t residency,
					   uvm_va_block_t *block, uvm_va_block_retry_t *retry,
					   uvm_service_block_context_t *context)
{
	struct work work;
	NV_STATUS status;

	begin_work(&work, block);
	status = __real_uvm_va_block_service_copy(processor, residency, block, retry, context);
	end_work(&work);
	return status;
}

/* As the resource manager makes its gpu_id of the place on the bus. */
static u32 gpu_id(const uvm_gpu_t *gpu)
{
	const struct pci_dev *device = gpu->parent->pci_dev;

	return (u32)pci_domain_nr(device->bus) << 16 | device->bus->number << 8 | PCI_SLOT(device->devfn);
}

#ifdef GHOST_HOOK_uvm_pmm_gpu_alloc
static const uvm_gpu_t *gpu_of(uvm_va_space_t *space, uvm_gpu_id_t id)
{
	return uvm_va_space_get_gpu(space, id);
}
#else
static const uvm_gpu_t *gpu_of(uvm_va_space_t *space, uvm_gpu_id_t id)
{
	return uvm_gpu_get(id);
}
#endif

/*
 * Where a page goes that a GPU faulted on. Served by a thread of the kernel for all processes of the GPU, and
 * a refusal when its memory is taken would leave the fault and stop all of them. So it is sent where it can
 * be had: a GPU reads and writes the system's memory as it does where it has none of its own. Atomic accesses
 * may need the GPU's memory, and get it.
 */
static uvm_processor_id_t where(uvm_va_block_t *block, uvm_processor_id_t wanted, NvU32 accesses,
				bool *read_duplicate)
{
	uvm_va_space_t *space = uvm_va_block_get_va_space_maybe_dead(block);

	if (!UVM_ID_IS_GPU(wanted) || !space ||
	    uvm_fault_access_type_mask_highest(accesses) > UVM_FAULT_ACCESS_TYPE_WRITE ||
	    ghost_managed_room(pid_of(space), gpu_id(gpu_of(space, wanted)),
			       UVM_CHUNK_SIZE_MAX))
		return wanted;
	*read_duplicate = false;
	return UVM_ID_CPU;
}

#if GHOST_HOOK_uvm_va_block_select_residency == 9
uvm_processor_id_t __wrap_uvm_va_block_select_residency(uvm_va_block_t *block,
							uvm_va_block_context_t *context,
							uvm_page_index_t page,
							uvm_processor_id_t processor, NvU32 accesses,
							const uvm_va_policy_t *policy,
							const uvm_perf_thrashing_hint_t *hint,
							uvm_service_operation_t operation,
							bool *read_duplicate)
{
	return where(block,
		     __real_uvm_va_block_select_residency(block, context, page, processor, accesses, policy,
							  hint, operation, read_duplicate),
		     accesses, read_duplicate);
}
#else
uvm_processor_id_t __wrap_uvm_va_block_select_residency(uvm_va_block_t *block,
							uvm_va_block_context_t *context,
							uvm_page_index_t page,
							uvm_processor_id_t processor, NvU32 accesses,
							const uvm_va_policy_t *policy,
							const uvm_perf_thrashing_hint_t *hint,
							uvm_service_operation_t operation,
							const bool hmm_migratable, bool *read_duplicate)
{
	return where(block,
		     __real_uvm_va_block_select_residency(block, context, page, processor, accesses, policy,
							  hint, operation, hmm_migratable, read_duplicate),
		     accesses, read_duplicate);
}
#endif

/* Chunks. The name of a charge is the place in the GPU: chunks are split, and then given back in parts. */
static const void *key_of(const uvm_gpu_t *gpu, u64 address)
{
	return (const void *)((u64)uvm_id_value(gpu->id) << 52 | address);
}

static void uncharge(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	const uvm_gpu_t *gpu = uvm_pmm_to_gpu(pmm);
	u64 size = uvm_gpu_chunk_get_size(chunk), whole;

	for (whole = size; whole <= UVM_CHUNK_SIZE_MAX; whole <<= 1) {
		if (ghost_managed_uncharge(key_of(gpu, ALIGN_DOWN(chunk->address, whole)), size))
			return;
	}
}

/*
 * Before and after `count` chunks are taken: first charged by where their pointers will be. A thread of the
 * kernel is not refused, see above; a process that asked for it itself is, and told that there is no memory.
 */
static NV_STATUS charge(uvm_pmm_gpu_t *pmm, size_t count, u64 size, uvm_gpu_chunk_t **chunks)
{
	u32 pid = pid_of_work(), gpu = gpu_id(uvm_pmm_to_gpu(pmm));
	size_t i;

	for (i = 0; i < count; i++) {
		if (ghost_managed_charge(&chunks[i], pid, gpu, size, current->flags & PF_KTHREAD)) {
			while (i--)
				ghost_managed_uncharge(&chunks[i], size);
			return NV_ERR_NO_MEMORY;
		}
	}
	return NV_OK;
}

static NV_STATUS settle(uvm_pmm_gpu_t *pmm, size_t count, u64 size, uvm_gpu_chunk_t **chunks,
			NV_STATUS status)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (status == NV_OK)
			ghost_memory_settle(&chunks[i], key_of(uvm_pmm_to_gpu(pmm), chunks[i]->address), size);
		else
			ghost_managed_uncharge(&chunks[i], size);
	}
	return status;
}

/* Process context, of a process or of the kernel; UVM's locks are held, the resource manager's are not; may
 * sleep. Chunks of the kernel's are page tables and the like, and nobody's. */
#ifdef GHOST_HOOK_uvm_pmm_gpu_alloc
NV_STATUS __wrap_uvm_pmm_gpu_alloc(uvm_pmm_gpu_t *pmm, size_t count, uvm_chunk_size_t size,
				   uvm_pmm_gpu_memory_type_t type, uvm_pmm_alloc_flags_t flags,
				   uvm_gpu_chunk_t **chunks, uvm_tracker_t *tracker)
{
	NV_STATUS status;

	if (!uvm_pmm_gpu_memory_type_is_user(type))
		return __real_uvm_pmm_gpu_alloc(pmm, count, size, type, flags, chunks, tracker);
	status = charge(pmm, count, size, chunks);
	if (status != NV_OK)
		return status;
	status = __real_uvm_pmm_gpu_alloc(pmm, count, size, type, flags, chunks, tracker);
	return settle(pmm, count, size, chunks, status);
}
#else
NV_STATUS __wrap_uvm_pmm_gpu_alloc_user(uvm_pmm_gpu_t *pmm, size_t count, uvm_chunk_size_t size,
					uvm_pmm_alloc_flags_t flags, uvm_gpu_chunk_t **chunks,
					uvm_tracker_t *tracker)
{
	NV_STATUS status = charge(pmm, count, size, chunks);

	if (status != NV_OK)
		return status;
	status = __real_uvm_pmm_gpu_alloc_user(pmm, count, size, flags, chunks, tracker);
	return settle(pmm, count, size, chunks, status);
}
#endif

/* Process context, UVM's locks are held. */
void __wrap_uvm_pmm_gpu_free(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk, uvm_tracker_t *tracker)
{
	if (chunk)
		uncharge(pmm, chunk);
	__real_uvm_pmm_gpu_free(pmm, chunk, tracker);
}

/* UVM takes the chunk from its process, for another. As above. */
void __wrap_uvm_pmm_gpu_mark_chunk_evicted(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	uncharge(pmm, chunk);
	__real_uvm_pmm_gpu_mark_chunk_evicted(pmm, chunk);
}
