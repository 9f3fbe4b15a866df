/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the test programs share: a call that must succeed, a context and the kernels. A program
 * prints what it found and ends with 0 only if that was right.
 */
#ifndef GHOST_TEST_CHECK_H
#define GHOST_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda.h"

/* The text of kernels.ptx, with a NUL behind it. */
__asm__(".pushsection .rodata\n"
	".globl kernels\n"
	"kernels: .incbin \"" KERNELS "\"\n"
	".byte 0\n"
	".popsection\n");
extern const char kernels[];

#define CHECK(call)                                                                    \
	do {                                                                           \
		CUresult check_ = (call);                                              \
		if (check_ != CUDA_SUCCESS) {                                          \
			const char *name_ = "?";                                       \
			cuGetErrorName(check_, &name_);                                \
			fflush(stdout);                                                \
			fprintf(stderr, "%s:%d: %s: %s (%d)\n", __FILE__, __LINE__,    \
				#call, name_, check_);                                 \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

#define WANT(what)                                                                     \
	do {                                                                           \
		if (!(what)) {                                                         \
			fflush(stdout);                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,     \
				#what);                                                \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

/* The first device's primary context, current. */
static inline CUcontext start(void)
{
	CUdevice device;
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	return context;
}

/* A kernel of kernels.ptx, loaded into the current context once a process. */
static inline CUfunction kernel(const char *name)
{
	static CUmodule module;
	CUfunction function;

	if (!module)
		CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* Launches over n threads in blocks of 256. */
static inline CUresult launch(CUfunction function, unsigned int n, CUstream stream, void **params)
{
	return cuLaunchKernel(function, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

/* n words of device memory, all of them v. */
static inline CUdeviceptr words(size_t n, unsigned int v)
{
	CUdeviceptr address;

	CHECK(cuMemAlloc(&address, n * 4));
	CHECK(cuMemsetD32(address, v, n));
	return address;
}

/* Whether all n words at p are v. */
static inline int all(const unsigned int *p, size_t n, unsigned int v)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != v)
			return 0;
	return 1;
}

/* The first argument as a number, or what stands for it. */
static inline unsigned int number(int argc, char **argv, unsigned int otherwise)
{
	return argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : otherwise;
}

#endif
