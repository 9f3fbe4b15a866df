// SPDX-License-Identifier: Apache-2.0
/*
 * A launch that can't be: its error is told exactly once, by the launch itself or by a later call,
 * and what was not refused goes on. The argument is the call that is to tell it at the latest.
 */
#include "../check.h"

static unsigned int told;
static CUresult first;

static CUresult note(CUresult result)
{
	if (result != CUDA_SUCCESS && !told++)
		first = result;
	return result;
}

int main(int argc, char **argv)
{
	const char *by = argc > 1 ? argv[1] : "context";
	unsigned int n = 64, one = 1, out[64], runs = 0;
	CUfunction add;
	CUstream stream;
	CUevent event;
	CUdeviceptr p;

	start();
	add = kernel("add_to");
	p = words(n, 0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuCtxSynchronize());

	/* More threads than a block may have. */
	note(cuLaunchKernel(add, 1, 1, 1, 2048, 1, 1, 0, stream, (void *[]){ &p, &one, &n }, NULL));
	if (!strcmp(by, "context"))
		note(cuCtxSynchronize());
	else if (!strcmp(by, "stream"))
		note(cuStreamSynchronize(stream));
	else if (!strcmp(by, "copy"))
		note(cuMemcpyDtoH(out, p, sizeof(out)));
	else if (!strcmp(by, "event")) {
		note(cuEventRecord(event, stream));
		note(cuEventSynchronize(event));
	}
	WANT(told == 1);
	/* Never again. */
	note(cuCtxSynchronize());
	note(cuStreamSynchronize(stream));
	for (int i = 0; i < 20; i++)
		runs += note(launch(add, n, stream, (void *[]){ &p, &one, &n })) == CUDA_SUCCESS;
	note(cuStreamSynchronize(stream));
	WANT(told == 1 && runs == 20);
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	WANT(all(out, n, runs));
	printf("late: told %u time, %d\n", told, first);
	return 0;
}
