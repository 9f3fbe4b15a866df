// SPDX-License-Identifier: Apache-2.0
/*
 * Calls during and after the exit handlers return, whatever they say: from a handler that runs
 * after the library's own, from a destructor, and from a thread that does not stop.
 */
#include <pthread.h>
#include "../check.h"

static CUcontext context;
static CUdeviceptr p;

static void handler(void)
{
	cuCtxSynchronize();
	cuMemFree(p);
	printf("exit: the handler's calls returned\n");
	fflush(stdout);
}

__attribute__((destructor)) static void destructor(void)
{
	cuMemFree(p);
	cuCtxSynchronize();
	printf("exit: the destructor's calls returned\n");
	fflush(stdout);
}

static void *busy(void *arg)
{
	(void)arg;
	cuCtxSetCurrent(context);
	for (;;) {
		cuMemsetD8(p, 1, 16);
		cuCtxSynchronize();
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;

	atexit(handler);
	context = start();
	CHECK(cuMemAlloc(&p, 64));
	CHECK(cuCtxSynchronize());
	WANT(pthread_create(&thread, NULL, busy, NULL) == 0);
	CHECK(cuMemsetD8(p, 1, 16));
	return 0;
}
