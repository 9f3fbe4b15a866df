// SPDX-License-Identifier: Apache-2.0
/*
 * Copies to the host that are not waited for: the data is there after whatever says that the
 * stream has got there.
 */
#include "../check.h"

enum { BY_STREAM, BY_CONTEXT, BY_EVENT, BY_OTHER_STREAM, BY_STREAM_QUERY, BY_EVENT_QUERY, BY_DEFAULT,
       BY_BLOCKING_COPY, WAYS };

int main(void)
{
	enum { N = 20000, PART = 500, TURNS = 2 };
	unsigned int n = PART, v = 0, word;
	unsigned int *pinned, *pageable = malloc(N * 4);
	CUstream stream, other, blocking;
	CUevent event;
	CUfunction add;
	CUdeviceptr p, q;

	start();
	add = kernel("add_to");
	p = words(N, 0);
	q = words(1, 0);
	CHECK(cuMemAllocHost((void **)&pinned, N * 4));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&blocking, 0));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuCtxSynchronize());
	for (int turn = 0; turn < TURNS * WAYS; turn++) {
		int way = turn % WAYS;
		CUstream on = way == BY_DEFAULT || way == BY_BLOCKING_COPY ? blocking : stream;
		CUresult state;

		v++;
		memset(pinned, 0, N * 4);
		memset(pageable, 0, N * 4);
		CHECK(cuMemsetD32Async(p, v, N, on));
		CHECK(launch(add, n, on, (void *[]){ &p, &v, &n }));
		CHECK(cuMemcpyDtoHAsync(pinned, p, N * 4, on));
		CHECK(cuMemcpyDtoHAsync(pageable, p, N * 4, on));
		switch (way) {
		case BY_STREAM:
			CHECK(cuStreamSynchronize(on));
			break;
		case BY_CONTEXT:
			CHECK(cuCtxSynchronize());
			break;
		case BY_EVENT:
			CHECK(cuEventRecord(event, on));
			CHECK(cuEventSynchronize(event));
			break;
		case BY_OTHER_STREAM:
			CHECK(cuEventRecord(event, on));
			CHECK(cuStreamWaitEvent(other, event, 0));
			CHECK(cuStreamSynchronize(other));
			break;
		case BY_STREAM_QUERY:
			while ((state = cuStreamQuery(on)) == CUDA_ERROR_NOT_READY)
				;
			CHECK(state);
			break;
		case BY_EVENT_QUERY:
			CHECK(cuEventRecord(event, on));
			while ((state = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
				;
			CHECK(state);
			break;
		case BY_DEFAULT:
			/* The default stream of old waits for the blocking ones before it does anything. */
			CHECK(cuMemsetD32Async(q, 0, 1, CU_STREAM_LEGACY));
			CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
			break;
		case BY_BLOCKING_COPY:
			CHECK(cuMemcpyDtoH(&word, q, 4));
			break;
		}
		WANT(all(pinned, PART, 2 * v) && all(pinned + PART, N - PART, v));
		WANT(all(pageable, PART, 2 * v) && all(pageable + PART, N - PART, v));
	}
	printf("out: %d ways\n", WAYS);
	return 0;
}
