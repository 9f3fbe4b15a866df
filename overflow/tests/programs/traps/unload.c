// SPDX-License-Identifier: Apache-2.0
/* The library is opened, used, closed, and opened again. */
#include <dlfcn.h>
#include "../cuda.h"
#include <stdio.h>
#include <stdlib.h>

static int turn(unsigned int v)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CUresult (*init)(unsigned int), (*retain)(CUcontext *, CUdevice), (*set)(CUcontext),
		(*alloc)(CUdeviceptr *, size_t), (*fill)(CUdeviceptr, unsigned int, size_t),
		(*get)(void *, CUdeviceptr, size_t), (*release)(CUdeviceptr);
	CUcontext context;
	CUdeviceptr p;
	unsigned int out[16] = { 0 };
	int bad;

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(lib, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(lib, "cuMemAlloc_v2");
	*(void **)&fill = dlsym(lib, "cuMemsetD32_v2");
	*(void **)&get = dlsym(lib, "cuMemcpyDtoH_v2");
	*(void **)&release = dlsym(lib, "cuMemFree_v2");
	bad = init(0) || retain(&context, 0) || set(context) || alloc(&p, sizeof(out)) ||
	      fill(p, v, 16) || get(out, p, sizeof(out)) || release(p);
	for (int i = 0; i < 16; i++)
		bad |= out[i] != v;
	dlclose(lib);
	return bad;
}

int main(void)
{
	for (unsigned int i = 1; i <= 3; i++)
		if (turn(i))
			return 1;
	printf("unload: 3 turns\n");
	return 0;
}
