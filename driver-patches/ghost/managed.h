/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* managed.h - what nvidia-uvm.ko calls in nvidia.ko: memory.c. */
#ifndef GHOST_MANAGED_H
#define GHOST_MANAGED_H

#include <linux/types.h>

/*
 * Managed memory, of a process (in the initial pid namespace) instead of a client; 0: nobody's. Any
 * context. Charge: 0, or -ENOMEM, counted and told as an event; `must` charges beyond limits too,
 * and counts it.
 */
int ghost_managed_charge(const void *key, u32 pid, u32 gpu, u64 bytes, bool must);
/* Whether that much could be charged; counted if not. */
bool ghost_managed_room(u32 pid, u32 gpu, u64 bytes);
/* That much of it, or all; whether there was any. */
bool ghost_managed_uncharge(const void *key, u64 bytes);
/* The driver has made it: from now on it has that name and that size, which is beyond no limit. */
void ghost_memory_settle(const void *key, const void *as, u64 bytes);

#endif /* GHOST_MANAGED_H */
