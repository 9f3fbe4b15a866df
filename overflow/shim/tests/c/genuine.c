// SPDX-License-Identifier: Apache-2.0
// A driver for tests: three calls, each with an answer of its own. With DEVICES also how many devices
// it has, and private tables that are all alike: entry 2 hands out a primary context.
#include <stddef.h>

int cuInit(unsigned int flags)
{
	return flags ? 1 : 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 12345;
	return 0;
}

int cuLaunchKernel_ptsz(void *function)
{
	return function ? 77 : 400;
}

#ifdef DEVICES
static int primary(void **context, int device)
{
	*context = (void *)(0xabc000ul + device);
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = DEVICES;
	return DEVICES ? 0 : 3;
}

int cuGetExportTable(const void **table, const void *id)
{
	static const struct {
		size_t size;
		void *entry[63];
	} all = { sizeof(all), { [1] = primary } };

	*table = &all;
	return id ? 0 : 1;
}
#endif
