// SPDX-License-Identifier: Apache-2.0
/* Two streams that hand a buffer to and fro by events; what an event says; elapsed time. */
#include "check.h"

int main(void)
{
	enum { N = 512, TURNS = 50 };
	static unsigned int out[N];
	CUstream s[2];
	CUevent e[2], first, last;
	CUfunction add;
	CUdeviceptr p;
	unsigned int n = N;
	float ms = -1;

	start();
	add = kernel("add_to");
	p = words(N, 0);
	CHECK(cuCtxSynchronize());
	for (int i = 0; i < 2; i++) {
		CHECK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
		CHECK(cuEventCreate(&e[i], CU_EVENT_DISABLE_TIMING));
	}
	CHECK(cuEventCreate(&first, 0));
	CHECK(cuEventCreate(&last, 0));
	/* Nothing was recorded: done, and no reason to wait. */
	CHECK(cuEventQuery(e[0]));
	CHECK(cuStreamWaitEvent(s[1], e[0], 0));
	CHECK(cuEventRecord(first, s[0]));
	for (unsigned int turn = 0; turn < TURNS; turn++) {
		int me = turn % 2;

		CHECK(launch(add, N, s[me], (void *[]){ &p, &turn, &n }));
		CHECK(cuEventRecord(e[me], s[me]));
		CHECK(cuStreamWaitEvent(s[!me], e[me], 0));
	}
	CHECK(cuEventRecord(last, s[0]));
	CHECK(cuMemcpyDtoHAsync(out, p, sizeof(out), s[0]));
	CHECK(cuStreamSynchronize(s[0]));
	WANT(all(out, N, TURNS * (TURNS - 1) / 2));
	CHECK(cuEventSynchronize(last));
	CHECK(cuEventQuery(last));
	CHECK(cuStreamQuery(s[0]));
	CHECK(cuEventElapsedTime(&ms, first, last));
	WANT(ms >= 0);
	WANT(cuEventElapsedTime(&ms, e[0], e[1]) == CUDA_ERROR_INVALID_HANDLE);
	for (int i = 0; i < 2; i++) {
		CHECK(cuEventDestroy(e[i]));
		CHECK(cuStreamDestroy(s[i]));
	}
	printf("streams: %u after %d turns\n", out[N - 1], TURNS);
	return 0;
}
