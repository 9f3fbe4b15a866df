// SPDX-License-Identifier: Apache-2.0
/* Copies of every direction and of sizes around what travels inside a command; boxes. */
#include "check.h"

static void flat(size_t bytes)
{
	unsigned char *in = malloc(bytes), *out = malloc(bytes);
	CUdeviceptr a, b;

	for (size_t i = 0; i < bytes; i++)
		in[i] = (unsigned char)(i * 31 >> 3 ^ bytes);
	CHECK(cuMemAlloc(&a, bytes));
	CHECK(cuMemAlloc(&b, bytes));
	CHECK(cuMemcpyHtoD(a, in, bytes));
	CHECK(cuMemcpyDtoD(b, a, bytes));
	CHECK(cuMemcpyDtoH(out, b, bytes));
	WANT(memcmp(in, out, bytes) == 0);
	/* By the kind of the addresses. */
	memset(out, 0, bytes);
	CHECK(cuMemsetD8(a, 0, bytes));
	CHECK(cuMemcpy(a, (CUdeviceptr)in, bytes));
	CHECK(cuMemcpy((CUdeviceptr)out, a, bytes));
	WANT(memcmp(in, out, bytes) == 0);
	CHECK(cuMemFree(a));
	CHECK(cuMemFree(b));
	free(in);
	free(out);
}

static void boxes(void)
{
	enum { W = 70, H = 9, HOST = 100 };
	static unsigned char in[H][HOST], out[H][HOST];
	CUDA_MEMCPY2D copy = { 0 };
	CUdeviceptr p, q;
	size_t pitch;
	CUstream stream;

	CHECK(cuStreamCreate(&stream, 0));
	for (int y = 0; y < H; y++)
		for (int x = 0; x < HOST; x++)
			in[y][x] = (unsigned char)(y * 17 + x);
	CHECK(cuMemAllocPitch(&p, &pitch, W, H, 4));
	WANT(pitch >= W);
	CHECK(cuMemAlloc(&q, 200 * H));
	copy.srcMemoryType = CU_MEMORYTYPE_HOST;
	copy.srcHost = in;
	copy.srcPitch = HOST;
	copy.srcXInBytes = 5;
	copy.srcY = 1;
	copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.dstDevice = p;
	copy.dstPitch = pitch;
	copy.WidthInBytes = W - 10;
	copy.Height = H - 1;
	CHECK(cuMemcpy2D(&copy));

	copy = (CUDA_MEMCPY2D){ 0 };
	copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.srcDevice = p;
	copy.srcPitch = pitch;
	copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.dstDevice = q;
	copy.dstPitch = 200;
	copy.dstXInBytes = 3;
	copy.WidthInBytes = W - 10;
	copy.Height = H - 1;
	CHECK(cuMemcpy2DAsync(&copy, stream));

	memset(out, 0xee, sizeof(out));
	copy = (CUDA_MEMCPY2D){ 0 };
	copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.srcDevice = q;
	copy.srcPitch = 200;
	copy.srcXInBytes = 3;
	copy.dstMemoryType = CU_MEMORYTYPE_HOST;
	copy.dstHost = out;
	copy.dstPitch = HOST;
	copy.dstXInBytes = 5;
	copy.dstY = 1;
	copy.WidthInBytes = W - 10;
	copy.Height = H - 1;
	CHECK(cuMemcpy2DAsync(&copy, stream));
	CHECK(cuStreamSynchronize(stream));
	for (int y = 0; y < H; y++)
		for (int x = 0; x < HOST; x++) {
			int inside = y >= 1 && x >= 5 && x < 5 + W - 10;

			WANT(out[y][x] == (inside ? in[y][x] : 0xee));
		}
	CHECK(cuMemFree(p));
	CHECK(cuMemFree(q));
}

int main(void)
{
	static const size_t sizes[] = { 1, 7, 4096, (64 << 10) - 1, 64 << 10, (64 << 10) + 1,
					4 << 20, (4 << 20) + 1, (9 << 20) + 13 };

	start();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		flat(sizes[i]);
	boxes();
	printf("copies: %zu sizes and a box\n", sizeof(sizes) / sizeof(*sizes));
	return 0;
}
