// SPDX-License-Identifier: Apache-2.0
/*
 * A forked child may not use its parent's connection: each call of its own fails, its end does not
 * touch its parent, and what it starts has a connection of its own.
 */
#include <sys/wait.h>
#include <unistd.h>
#include "../check.h"

int main(int argc, char **argv)
{
	unsigned int n = 64, one = 1, out[64];
	CUfunction add;
	CUdeviceptr p, q;
	int status;

	(void)argc;
	start();
	add = kernel("add_to");
	p = words(n, 0);
	for (int i = 0; i < 2; i++) {
		pid_t child;

		CHECK(launch(add, n, 0, (void *[]){ &p, &one, &n }));
		child = fork();
		if (!child) {
			int bad = cuMemAlloc(&q, 64) == CUDA_SUCCESS;

			bad += cuCtxSynchronize() == CUDA_SUCCESS;
			bad += cuMemcpyHtoD(p, out, sizeof(out)) == CUDA_SUCCESS;
			if (bad)
				_exit(1);
			if (i == 0)
				exit(0);
			execv(argv[1], (char *[]){ argv[1], NULL });
			_exit(1);
		}
		WANT(waitpid(child, &status, 0) == child);
		WANT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	CHECK(launch(add, n, 0, (void *[]){ &p, &one, &n }));
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	WANT(all(out, n, 3));
	printf("fork: the parent's work is whole\n");
	return 0;
}
