/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* controls.h - the driver's public controls that Ghost both sends and hooks. */
#ifndef GHOST_CONTROLS_H
#define GHOST_CONTROLS_H

#include <linux/types.h>

/* Stops channels, or lets them run; a channel group's handle stands for all of its channels. */
#define SUBDEVICE_DISABLE_CHANNELS	0x2080110b

struct disable_channels {
	u8 disable;
	u8 pad[3];
	u32 count;
	u8 only_scheduling;
	u8 rewind;
	u8 pad2[6];
	u64 event;
	u32 clients[64];
	u32 channels[64];
};

#endif /* GHOST_CONTROLS_H */
