// SPDX-License-Identifier: Apache-2.0
/*
 * A limit is asked for once in each life of a context, and once after it was set; that of the stack,
 * which a driver makes larger for a kernel that needs it, once more after a kernel's first launch.
 */
#include "../check.h"

static size_t stack(void)
{
	size_t first, again;

	CHECK(cuCtxGetLimit(&first, CU_LIMIT_STACK_SIZE));
	for (int i = 0; i < 100; i++) {
		CHECK(cuCtxGetLimit(&again, CU_LIMIT_STACK_SIZE));
		WANT(again == first);
	}
	return first;
}

int main(void)
{
	unsigned int rounds = 10;
	size_t before, none;
	CUdeviceptr at;

	start();
	before = stack();
	at = words(256, 3);
	for (int i = 0; i < 2; i++) {
		CHECK(launch(kernel("spin"), 1, NULL, (void *[]){ &at, &rounds }));
		WANT(stack() == before);
	}
	CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	WANT(stack() == 4096);
	WANT(cuCtxGetLimit(&none, 99) == CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(cuDevicePrimaryCtxReset(0));
	start();
	WANT(stack() == before);
	printf("limits: as they were set\n");
	return 0;
}
