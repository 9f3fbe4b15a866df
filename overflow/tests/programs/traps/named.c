// SPDX-License-Identifier: Apache-2.0
/*
 * A primary context that is current and that nobody has retained, as the CUDA runtime has it when
 * it loads its first library: work in it is done all the same, and its state stays what the
 * program made it.
 */
#include "../check.h"

static int active(void)
{
	unsigned int flags;
	int active;

	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	return active;
}

static void work(void)
{
	CUlibrary library;
	CUdeviceptr tally;
	size_t bytes;

	CHECK(cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetManaged(&tally, &bytes, library, "tally"));
	WANT(((unsigned int *)tally)[0] == 0);
	CHECK(cuLibraryUnload(library));
}

int main(void)
{
	CUcontext context, same;
	CUdeviceptr at, mine;
	CUlibrary library;
	size_t bytes;

	/* The handle, and not more. */
	context = start();
	CHECK(cuDevicePrimaryCtxRelease(0));

	/* No context at all: the runtime loads its first library so. */
	CHECK(cuCtxSetCurrent(NULL));
	work();
	WANT(!active());
	CHECK(cuCtxSetCurrent(context));
	WANT(!active());
	work();
	WANT(!active());
	at = words(256, 3);

	/* Retained in earnest it is the same, with what is in it. */
	CHECK(cuDevicePrimaryCtxRetain(&same, 0));
	WANT(same == context && active());
	CHECK(cuMemFree(at));
	work();
	CHECK(cuDevicePrimaryCtxRelease(0));
	WANT(!active());
	work();

	/* Ended, with its memory, and begun again: a library is there in each of its lives. */
	CHECK(cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0));
	for (int i = 0; i < 3; i++) {
		CHECK(cuLibraryGetManaged(&at, &bytes, library, "step"));
		WANT(*(unsigned int *)at == 5);
		*(unsigned int *)at = 6;
		CHECK(cuMemAllocManaged(&mine, 4096, CU_MEM_ATTACH_GLOBAL));
		*(unsigned int *)mine = 1;
		CHECK(cuCtxSynchronize());
		CHECK(cuDevicePrimaryCtxReset(0));
		WANT(!active());
		*(unsigned int *)mine = 2;
		work();
		WANT(cuMemFree(mine) == CUDA_ERROR_INVALID_VALUE);
	}
	CHECK(cuLibraryUnload(library));
	CHECK(cuCtxSynchronize());
	printf("named: active when retained\n");
	return 0;
}
