// SPDX-License-Identifier: Apache-2.0
/*
 * Managed variables, of a module and of a library: the program reads and writes them where the
 * driver says that they are, and so does a kernel.
 */
#include "check.h"

enum { N = 2048 };

static void use(CUfunction add, CUdeviceptr step_at, CUdeviceptr tally_at)
{
	unsigned int *step = (unsigned int *)step_at, *tally = (unsigned int *)tally_at, n = N;

	WANT(*step == 5 && all(tally, N, 0));
	tally[7] = 100;
	CHECK(launch(add, N, 0, (void *[]){ &n }));
	CHECK(cuCtxSynchronize());
	WANT(tally[7] == 105 && tally[6] == 5 && tally[N - 1] == 5);
	/* What the program writes between two launches is seen by the second. */
	*step = 2;
	tally[N - 1] = 0;
	CHECK(launch(add, N, 0, (void *[]){ &n }));
	CHECK(cuStreamSynchronize(0));
	WANT(tally[7] == 107 && tally[6] == 7 && tally[N - 1] == 2 && *step == 2);
}

int main(void)
{
	CUmodule module;
	CUlibrary library;
	CUkernel kernel;
	CUfunction add;
	CUdeviceptr step, tally, again;
	size_t bytes;

	start();
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&add, module, "managed"));
	CHECK(cuModuleGetGlobal(&step, &bytes, module, "step"));
	WANT(bytes == 4);
	CHECK(cuModuleGetGlobal(&tally, &bytes, module, "tally"));
	WANT(bytes == N * 4);
	use(add, step, tally);
	CHECK(cuModuleUnload(module));

	CHECK(cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&kernel, library, "managed"));
	CHECK(cuKernelGetFunction(&add, kernel));
	CHECK(cuLibraryGetManaged(&step, &bytes, library, "step"));
	WANT(bytes == 4);
	CHECK(cuLibraryGetManaged(&tally, &bytes, library, "tally"));
	WANT(bytes == N * 4);
	use(add, step, tally);
	CHECK(cuLibraryGetManaged(&again, NULL, library, "tally"));
	WANT(again == tally && ((unsigned int *)again)[6] == 7);
	WANT(cuLibraryGetManaged(&again, &bytes, library, "table") == CUDA_ERROR_NOT_FOUND);
	CHECK(cuLibraryUnload(library));
	printf("managed variables: of a module, of a library\n");
	return 0;
}
