// SPDX-License-Identifier: Apache-2.0
/* Eight threads, each with its own stream, its own per-thread default stream and its own data. */
#include <pthread.h>
#include "check.h"

enum { THREADS = 8, TURNS = 60, N = 100 };

static CUcontext context;
static CUfunction add;

static void *work(void *arg)
{
	unsigned int id = (unsigned int)(uintptr_t)arg, n = N, v = id + 1;
	unsigned int out[N];
	CUstream stream;
	CUdeviceptr p;
	CUcontext now;

	CHECK(cuCtxGetCurrent(&now));
	WANT(now == NULL);
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&p, sizeof(out)));
	for (unsigned int turn = 1; turn <= TURNS; turn++) {
		CUstream on = turn % 2 ? stream : CU_STREAM_PER_THREAD;

		CHECK(cuMemsetD32Async(p, turn, N, on));
		for (int i = 0; i < 3; i++)
			CHECK(launch(add, N, on, (void *[]){ &p, &v, &n }));
		CHECK(cuMemcpyDtoHAsync(out, p, sizeof(out), on));
		CHECK(cuStreamSynchronize(on));
		WANT(all(out, N, turn + 3 * v));
	}
	CHECK(cuMemFree(p));
	CHECK(cuStreamDestroy(stream));
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	context = start();
	add = kernel("add_to");
	for (uintptr_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("threads: %d times %d turns\n", THREADS, TURNS);
	return 0;
}
