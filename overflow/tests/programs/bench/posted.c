// SPDX-License-Identifier: Apache-2.0
/*
 * What the client's process spends on a call that is not waited for, all its threads together:
 * "posted NAME NANOSECONDS" for fills and for launches.
 */
#include <sys/resource.h>
#include <time.h>
#include "../check.h"

static double spent(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e9 +
	       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e3;
}

int main(int argc, char **argv)
{
	unsigned int calls = number(argc, argv, 200000), rounds = 10;
	unsigned int n = 1, one = 1;
	CUfunction add;
	CUdeviceptr p;

	start();
	add = kernel("add_to");
	p = words(64, 0);
	for (int what = 0; what < 2; what++) {
		double best = 1e18;

		for (unsigned int round = 0; round < rounds; round++) {
			double from, each;

			CHECK(cuCtxSynchronize());
			from = spent();
			for (unsigned int i = 0; i < calls / rounds; i++)
				if (what)
					CHECK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, 0,
							     (void *[]){ &p, &one, &n }, NULL));
				else
					CHECK(cuMemsetD8Async(p, 1, 4, 0));
			each = (spent() - from) / (calls / rounds);
			best = each < best ? each : best;
		}
		CHECK(cuCtxSynchronize());
		printf("posted %s %f\n", what ? "launch" : "fill", best);
	}
	return 0;
}
