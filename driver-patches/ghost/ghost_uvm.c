// SPDX-License-Identifier: GPL-2.0 OR MIT
/* ghost_uvm.c - placeholder to prove the linkage. */
#include "hooks_uvm.h"

void __wrap_uvm_va_space_destroy(uvm_va_space_t *va_space)
{
	pr_info("ghost: va space gone\n");
	__real_uvm_va_space_destroy(va_space);
}

void __wrap_uvm_pmm_gpu_free(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk, uvm_tracker_t *tracker)
{
	__real_uvm_pmm_gpu_free(pmm, chunk, tracker);
}

#ifdef GHOST_HOOK_uvm_pmm_gpu_alloc
NV_STATUS __wrap_uvm_pmm_gpu_alloc(uvm_pmm_gpu_t *pmm, size_t n, uvm_chunk_size_t s, uvm_pmm_gpu_memory_type_t t, uvm_pmm_alloc_flags_t f, uvm_gpu_chunk_t **c, uvm_tracker_t *tr)
{
	return __real_uvm_pmm_gpu_alloc(pmm, n, s, t, f, c, tr);
}
#endif
#ifdef GHOST_HOOK_uvm_pmm_gpu_alloc_user
NV_STATUS __wrap_uvm_pmm_gpu_alloc_user(uvm_pmm_gpu_t *pmm, size_t n, uvm_chunk_size_t s, uvm_pmm_alloc_flags_t f, uvm_gpu_chunk_t **c, uvm_tracker_t *tr)
{
	return __real_uvm_pmm_gpu_alloc_user(pmm, n, s, f, c, tr);
}
#endif
