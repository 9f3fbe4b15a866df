/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* patch-ghost.h - what /proc/driver/nvidia/patches/ghost says. */
#define NV_PATCH_ghost_DESCRIPTION \
	"GPU containers: shares of time and limits of memory, held by this module.\n" \
	"No line of the driver was changed; see /dev/nvidia-ghost.\n"
