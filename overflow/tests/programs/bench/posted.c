// SPDX-License-Identifier: Apache-2.0
/*
 * What the client's process spends on a call that is not waited for, all its threads together, until
 * everything is done: "posted NAME NANOSECONDS" for fills and for launches.
 */
#include <sys/resource.h>
#include "../check.h"

enum { ROUNDS = 15 };

static double spent(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e9 +
	       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	unsigned int calls = number(argc, argv, 50000), n = 1, one = 1;
	double each[ROUNDS];
	CUfunction add;
	CUdeviceptr p;

	start();
	add = kernel("add_to");
	p = words(64, 0);
	for (int what = 0; what < 2; what++) {
		for (int round = 0; round < ROUNDS; round++) {
			double from;

			CHECK(cuCtxSynchronize());
			from = spent();
			for (unsigned int i = 0; i < calls; i++)
				if (what)
					CHECK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, 0,
							     (void *[]){ &p, &one, &n }, NULL));
				else
					CHECK(cuMemsetD8Async(p, 1, 4, 0));
			CHECK(cuCtxSynchronize());
			each[round] = (spent() - from) / calls;
		}
		qsort(each, ROUNDS, sizeof(*each), ascending);
		printf("posted %s %f\n", what ? "launch" : "fill", each[ROUNDS / 2]);
	}
	return 0;
}
