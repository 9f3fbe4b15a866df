// SPDX-License-Identifier: Apache-2.0
/* Streams that wait for a value in the device's memory, and others that write it. */
#include "check.h"

int main(void)
{
	enum { N = 1000 };
	CUstream waits, writes;
	CUdeviceptr flags, data;
	uint64_t wide;
	uint32_t found[N];

	start();
	flags = words(4, 0);
	data = words(N, 1);
	CHECK(cuCtxSynchronize());
	CHECK(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&writes, CU_STREAM_NON_BLOCKING));

	CHECK(cuStreamWaitValue32_v2(waits, flags, 7, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuStreamWaitValue64_v2(waits, flags + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK(cuMemcpyDtoHAsync(found, data, sizeof(found), writes));
	CHECK(cuStreamWriteValue32_v2(waits, data, 3, 0));
	WANT(cuStreamQuery(waits) == CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWriteValue32_v2(writes, flags, 7, 0));
	CHECK(cuStreamSynchronize(writes));
	WANT(all(found, N, 1));
	WANT(cuStreamQuery(waits) == CUDA_ERROR_NOT_READY);
	CHECK(cuStreamWriteValue64_v2(writes, flags + 8, (1ull << 40) + 5, 0));
	CHECK(cuStreamSynchronize(waits));
	CHECK(cuMemcpyDtoH(found, data, 8));
	WANT(found[0] == 3 && found[1] == 1);
	CHECK(cuMemcpyDtoH(&wide, flags + 8, 8));
	WANT(wide == (1ull << 40) + 5);
	printf("values: %u\n", found[0]);
	return 0;
}
