// SPDX-License-Identifier: Apache-2.0
/* Calls that are many: operations on values, copies of bytes and of boxes. */
#include "../check.h"

static CUmemcpy3DOperand operand(const void *at, size_t row)
{
	CUmemcpy3DOperand operand = { .type = 1, .ptr = (CUdeviceptr)at, .rowLength = row };

	return operand;
}

int main(void)
{
	uint32_t found[4] = { 0 }, in[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, out[8] = { 0 };
	CUdeviceptr p, q, to[2], from[2];
	size_t bytes[2] = { 8, 4 };
	CUstream stream;
	CUDA_MEMCPY3D_BATCH_OP copies[2];
	/* Write 5, wait for it, a barrier; write 6 and 8 as one, wait for that. */
	uint64_t values[][6] = {
		{ 2, 0, 5 },
		{ 1, 0, 5, CU_STREAM_WAIT_VALUE_EQ },
		{ 6 },
		{ 5, 8, (8ull << 32) | 6 },
		{ 4, 8, 1, CU_STREAM_WAIT_VALUE_GEQ },
	};

	start();
	p = words(4, 0);
	q = words(8, 9);
	for (int i = 0; i < 5; i++)
		values[i][1] += p;
	CHECK(cuCtxSynchronize());
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBatchMemOp_v2(stream, 5, values, 0));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyDtoH(found, p, 16));
	WANT(found[0] == 5 && found[1] == 0 && found[2] == 6 && found[3] == 8);
	values[0][0] = 9;
	WANT(cuStreamBatchMemOp_v2(stream, 1, values, 0) == CUDA_ERROR_INVALID_VALUE);

	/* In, on the device, out. */
	to[0] = p, to[1] = p + 12, from[0] = (CUdeviceptr)(in + 1), from[1] = q;
	CHECK(cuMemcpyBatchAsync_v2(to, from, bytes, 2, NULL, NULL, 0, stream));
	to[0] = (CUdeviceptr)found, from[0] = p, bytes[0] = 16;
	CHECK(cuMemcpyBatchAsync_v2(to, from, bytes, 1, NULL, NULL, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	WANT(found[0] == 1 && found[1] == 2 && found[2] == 6 && found[3] == 9);

	/* Two rows of eight bytes of four words each, in and out. */
	memset(copies, 0, sizeof(copies));
	for (int i = 0; i < 2; i++) {
		copies[i].extent.width = 8;
		copies[i].extent.height = 2;
		copies[i].extent.depth = 1;
		copies[i].srcAccessOrder = 1;
	}
	copies[0].src = operand(in, 16);
	copies[0].dst = operand((void *)q, 8);
	copies[1].src = operand((void *)q, 8);
	copies[1].dst = operand(out, 16);
	CHECK(cuMemcpy3DBatchAsync_v2(2, copies, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	WANT(out[0] == 0 && out[1] == 1 && out[2] == 0 && out[4] == 4 && out[5] == 5 && !out[7]);
	copies[0].src.type = 2;
	WANT(cuMemcpy3DBatchAsync_v2(2, copies, 0, stream) == CUDA_ERROR_NOT_SUPPORTED);
	printf("batches: of values, of copies\n");
	return 0;
}
