// SPDX-License-Identifier: Apache-2.0
/*
 * Pinned memory that only the program writes is never written by anybody else, while kernels and
 * waits go on: neither where the device can't see it nor where it only reads it.
 */
#include <pthread.h>
#include "../check.h"

enum { N = 4096, TURNS = 60 };

static unsigned int *plain, *mapped;
static volatile int end;
static volatile unsigned int wrong;

static void *writer(void *arg)
{
	unsigned int round = 1;

	(void)arg;
	for (; !end; round++) {
		for (int i = 0; i < N; i++) {
			__atomic_store_n(&plain[i], round, __ATOMIC_RELAXED);
			__atomic_store_n(&mapped[i], round, __ATOMIC_RELAXED);
		}
		for (int i = 0; i < N; i++) {
			wrong += __atomic_load_n(&plain[i], __ATOMIC_RELAXED) != round;
			wrong += __atomic_load_n(&mapped[i], __ATOMIC_RELAXED) != round;
		}
	}
	return NULL;
}

int main(void)
{
	unsigned int n = 256;
	pthread_t thread;
	CUfunction reduce;
	CUdeviceptr at, out;

	start();
	reduce = kernel("reduce");
	out = words(1, 0);
	CHECK(cuMemAllocHost((void **)&plain, N * 4));
	CHECK(cuMemHostAlloc((void **)&mapped, N * 4, CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemHostGetDevicePointer(&at, mapped, 0));
	WANT(pthread_create(&thread, NULL, writer, NULL) == 0);
	for (int turn = 0; turn < TURNS; turn++) {
		CHECK(launch(reduce, n, 0, (void *[]){ &at, &out, &n }));
		CHECK(cuCtxSynchronize());
	}
	end = 1;
	pthread_join(thread, NULL);
	WANT(wrong == 0);
	printf("pinned: only the program wrote\n");
	return 0;
}
