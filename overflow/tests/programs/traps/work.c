// SPDX-License-Identifier: Apache-2.0
/*
 * Works until a call fails; says the error's name and ends with 3. With "wait" it waits all the
 * time, else it launches without a wait.
 */
#include <unistd.h>
#include "../check.h"

int main(int argc, char **argv)
{
	unsigned int n = 256, one = 1;
	CUfunction add;
	CUdeviceptr p;
	const char *name = "?";
	CUresult result = CUDA_SUCCESS;

	start();
	add = kernel("add_to");
	p = words(n, 0);
	CHECK(cuCtxSynchronize());
	printf("ready\n");
	fflush(stdout);
	while (result == CUDA_SUCCESS) {
		if (argc > 1 && !strcmp(argv[1], "wait")) {
			result = cuCtxSynchronize();
		} else {
			result = launch(add, n, 0, (void *[]){ &p, &one, &n });
			usleep(10000);
		}
	}
	cuGetErrorName(result, &name);
	printf("%s\n", name);
	/* And from now on at once, whatever is asked. */
	WANT(cuMemAlloc(&p, 16) != CUDA_SUCCESS);
	WANT(cuCtxSynchronize() != CUDA_SUCCESS);
	return 3;
}
