// SPDX-License-Identifier: Apache-2.0
/* A kernel that writes where nothing is: the next wait says so, and so does every call after it. */
#include "../check.h"

int main(void)
{
	unsigned int n = 64, one = 1;
	CUdeviceptr nowhere = 0x10000;
	const char *name = "?";
	CUfunction add;
	CUresult result;

	start();
	add = kernel("add_to");
	CHECK(cuCtxSynchronize());
	CHECK(launch(add, n, 0, (void *[]){ &nowhere, &one, &n }));
	result = cuCtxSynchronize();
	WANT(result != CUDA_SUCCESS);
	cuGetErrorName(result, &name);
	WANT(cuCtxSynchronize() == result);
	printf("fault: %s\n", name);
	return 0;
}
