// SPDX-License-Identifier: Apache-2.0
/*
 * A thread hands a buffer to another as soon as its large copy has returned; the other's small
 * copies and launches come after it nevertheless.
 */
#include <pthread.h>
#include "../check.h"

enum { BIG = 8 << 20, TURNS = 12 };

static CUcontext context;
static CUdeviceptr buffer;
static pthread_barrier_t barrier;
static unsigned char *big;

static void *small(void *arg)
{
	CUfunction add;
	unsigned int one = 1, n = 1, last, before = 0xfefefefe;

	(void)arg;
	CHECK(cuCtxSetCurrent(context));
	add = kernel("add_to");
	for (int turn = 0; turn < TURNS; turn++) {
		CUdeviceptr end = buffer + BIG - 4;

		pthread_barrier_wait(&barrier);
		if (turn % 2) {
			CHECK(cuMemcpyHtoD(end, &before, 4));
			CHECK(launch(add, 1, 0, (void *[]){ &end, &one, &n }));
		} else {
			CHECK(launch(add, 1, 0, (void *[]){ &end, &one, &n }));
		}
		CHECK(cuMemcpyDtoH(&last, end, 4));
		if (turn % 2)
			WANT(last == before + 1);
		else
			WANT(last == 0x01010101u * (unsigned int)(turn + 1) + 1);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;

	context = start();
	kernel("add_to");
	big = malloc(BIG);
	CHECK(cuMemAlloc(&buffer, BIG));
	pthread_barrier_init(&barrier, NULL, 2);
	WANT(pthread_create(&thread, NULL, small, NULL) == 0);
	for (int turn = 0; turn < TURNS; turn++) {
		memset(big, turn + 1, BIG);
		CHECK(cuMemcpyHtoDAsync(buffer, big, BIG, 0));
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
	}
	pthread_join(thread, NULL);
	printf("overtake: %d turns in order\n", TURNS);
	return 0;
}
