// SPDX-License-Identifier: Apache-2.0
/* Functions of the program's in a stream's order: what was before is there, what is after waits. */
#include <unistd.h>
#include "check.h"

enum { N = 500, TURNS = 10 };

static unsigned int *pinned;
static volatile int called, with_status, wrong;

static void function(void *data)
{
	unsigned int turn = (unsigned int)(uintptr_t)data;

	/* The copy out before has landed; the copy in after takes what is written here. */
	if (!all(pinned, N, turn * 10 + 1))
		wrong++;
	usleep(1000);
	for (int i = 0; i < N; i++)
		pinned[i] = (turn + 1) * 10;
	called++;
}

static void callback(CUstream stream, CUresult status, void *data)
{
	(void)stream;
	if (status != CUDA_SUCCESS || data != &with_status)
		wrong++;
	with_status++;
}

int main(void)
{
	unsigned int n = N, one = 1;
	CUfunction add;
	CUstream stream;
	CUdeviceptr p;

	start();
	add = kernel("add_to");
	p = words(N, 0);
	CHECK(cuMemAllocHost((void **)&pinned, N * 4));
	CHECK(cuStreamCreate(&stream, 0));
	for (uintptr_t turn = 0; turn < TURNS; turn++) {
		CHECK(launch(add, N, stream, (void *[]){ &p, &one, &n }));
		CHECK(cuMemcpyDtoHAsync(pinned, p, N * 4, stream));
		CHECK(cuLaunchHostFunc(stream, function, (void *)turn));
		CHECK(cuMemcpyHtoDAsync(p, pinned, N * 4, stream));
		CHECK(cuStreamAddCallback(stream, callback, (void *)&with_status, 0));
	}
	CHECK(cuStreamSynchronize(stream));
	WANT(called == TURNS && with_status == TURNS && wrong == 0);
	CHECK(cuMemcpyDtoH(pinned, p, N * 4));
	WANT(all(pinned, N, TURNS * 10));
	printf("callbacks: %d and %d\n", called, with_status);
	return 0;
}
