/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * resize.h - lets nv-pci.c of 535 to 570 be built for kernels whose pci_resize_resource() has a
 * fourth argument, which stable kernels received too. Read before nv-pci.c, and for it alone.
 */
#ifndef GHOST_RESIZE_H
#define GHOST_RESIZE_H

#include <linux/pci.h>

typedef int (*ghost_resize_3)(struct pci_dev *, int, int);
typedef int (*ghost_resize_4)(struct pci_dev *, int, int, int);

#define ghost_resize_is(type) __builtin_types_compatible_p(typeof(&pci_resize_resource), type)
#define ghost_resize_as(type) \
	__builtin_choose_expr(ghost_resize_is(type), &pci_resize_resource, (type)NULL)

/* 0: no BAR is left out of what the kernel may move. */
#define ghost_resize(dev, bar, size)                                  \
	(ghost_resize_is(ghost_resize_4) ?                            \
		 ghost_resize_as(ghost_resize_4)(dev, bar, size, 0) : \
		 ghost_resize_as(ghost_resize_3)(dev, bar, size))

#define ghost_resize_pick(a, b, c, d, name, ...) name
#define pci_resize_resource(...) \
	ghost_resize_pick(__VA_ARGS__, pci_resize_resource, ghost_resize, , )(__VA_ARGS__)

#endif
