// SPDX-License-Identifier: Apache-2.0
/*
 * Bulk copies and the latency of a call that is waited for: "in BYTES_A_SECOND", "out ...",
 * "waited SECONDS". The argument is the copies' size in MiB.
 */
#include <time.h>
#include "../check.h"

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	enum { WAITS = 5000, TIMES = 8 };
	size_t bytes = (size_t)number(argc, argv, 64) << 20;
	static double took[WAITS];
	double best[2] = { 0, 0 };
	unsigned char *host;
	CUdeviceptr p;

	start();
	CHECK(cuMemAllocHost((void **)&host, bytes));
	memset(host, 7, bytes);
	CHECK(cuMemAlloc(&p, bytes));
	for (int i = 0; i < 2 * TIMES; i++) {
		double from = now(), rate;

		if (i % 2)
			CHECK(cuMemcpyDtoH(host, p, bytes));
		else
			CHECK(cuMemcpyHtoD(p, host, bytes));
		CHECK(cuCtxSynchronize());
		rate = (double)bytes / (now() - from);
		if (rate > best[i % 2])
			best[i % 2] = rate;
	}
	for (int i = 0; i < WAITS; i++) {
		double from = now();

		CHECK(cuCtxSynchronize());
		took[i] = now() - from;
	}
	qsort(took, WAITS, sizeof(*took), ascending);
	printf("in %f\nout %f\nwaited %.9f\n", best[0], best[1], took[WAITS / 2]);
	return 0;
}
