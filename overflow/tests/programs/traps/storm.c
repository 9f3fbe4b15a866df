// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that do what chance says (the argument is its seed): copies of all sizes, fills and kernels
 * on one of two streams of their own, waits of every kind; each keeps account in a copy of its buffer.
 */
#include <pthread.h>
#include "../check.h"

enum { THREADS = 4, STEPS = 300, N = 100000 };

static CUcontext context;
static CUfunction add;
static unsigned int seed;

static unsigned int chance(unsigned int *state, unsigned int below)
{
	*state = *state * 1664525u + 1013904223u;
	return (unsigned int)((uint64_t)(*state >> 4) * below >> 28);
}

static unsigned int some(unsigned int *state)
{
	return chance(state, 4) ? 1 + chance(state, 64) : 1 + chance(state, N / 2);
}

static void *work(void *arg)
{
	unsigned int state = seed * 977 + (unsigned int)(uintptr_t)arg * 31 + 1;
	unsigned int *want = malloc(N * 4), *source = malloc(N * 4);
	unsigned int *pageable = malloc(N * 4), *pinned, *expected = malloc(N * 4);
	unsigned int landed_from = 0, landed = 0;
	CUstream s[2], on;
	CUevent event;
	CUdeviceptr p;

	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc(&p, N * 4));
	CHECK(cuMemAllocHost((void **)&pinned, N * 4));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < 2; i++)
		CHECK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
	on = s[0];
	CHECK(cuMemsetD32Async(p, 0, N, on));
	memset(want, 0, N * 4);
	for (int step = 0; step < STEPS; step++) {
		unsigned int n = some(&state), at = chance(&state, N - n), v = chance(&state, 1000);
		CUdeviceptr where = p + 4 * (CUdeviceptr)at;

		switch (chance(&state, 8)) {
		case 0:
		case 1:
			for (unsigned int i = 0; i < n; i++)
				source[i] = want[at + i] = v + i;
			CHECK(cuMemcpyHtoDAsync(where, source, n * 4, on));
			memset(source, 0xcc, n * 4);
			break;
		case 2:
			CHECK(cuMemsetD32Async(where, v, n, on));
			for (unsigned int i = 0; i < n; i++)
				want[at + i] = v;
			break;
		case 3:
		case 4:
			n = n > 200 ? 200 : n;
			CHECK(launch(add, n, on, (void *[]){ &where, &v, &n }));
			for (unsigned int i = 0; i < n; i++)
				want[at + i] += v;
			break;
		case 5:
			CHECK(cuMemcpyDtoHAsync(pageable, where, n * 4, on));
			CHECK(cuStreamSynchronize(on));
			WANT(memcmp(pageable, want + at, n * 4) == 0);
			landed = 0;
			break;
		case 6:
			/* Looked at after a later wait. */
			if (landed) {
				CHECK(cuStreamSynchronize(on));
				WANT(memcmp(pinned + landed_from, expected, landed * 4) == 0);
			}
			CHECK(cuMemcpyDtoHAsync(pinned + at, where, n * 4, on));
			memcpy(expected, want + at, n * 4);
			landed_from = at;
			landed = n;
			break;
		case 7:
			/* On to the other stream. */
			CHECK(cuEventRecord(event, on));
			on = on == s[0] ? s[1] : s[0];
			CHECK(cuStreamWaitEvent(on, event, 0));
			break;
		}
	}
	CHECK(chance(&state, 2) ? cuCtxSynchronize() : cuStreamSynchronize(on));
	if (landed)
		WANT(memcmp(pinned + landed_from, expected, landed * 4) == 0);
	CHECK(cuMemcpyDtoH(pageable, p, N * 4));
	WANT(memcmp(pageable, want, N * 4) == 0);
	CHECK(cuMemFree(p));
	CHECK(cuMemFreeHost(pinned));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	seed = number(argc, argv, 1);
	context = start();
	add = kernel("add_to");
	for (uintptr_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("storm: %d threads, %d steps\n", THREADS, STEPS);
	return 0;
}
