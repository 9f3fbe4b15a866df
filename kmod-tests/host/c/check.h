/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* check.h - ends the program where something is not so. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,    \
				#condition);                                          \
			abort();                                                      \
		}                                                                     \
	} while (0)

#endif
