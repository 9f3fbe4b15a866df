// SPDX-License-Identifier: Apache-2.0
/* Fills of one, two and four bytes, of a box, at odd places, on a stream. */
#include "check.h"

int main(void)
{
	enum { N = 4096 };
	static unsigned char out[N], want[N];
	unsigned int sum = 0;
	unsigned short half = 0x1234;
	CUstream stream;
	CUdeviceptr p;

	start();
	CHECK(cuStreamCreate(&stream, 0));
	CHECK(cuMemAlloc(&p, N));
	CHECK(cuMemsetD8(p, 0xaa, N));
	CHECK(cuMemsetD8(p + 3, 0x55, 5));
	CHECK(cuMemsetD16(p + 100, half, 20));
	CHECK(cuMemsetD32(p + 200, 0xdeadbeef, 10));
	/* 3 rows of 2 words, 64 bytes from row to row. */
	CHECK(cuMemsetD2D32(p + 1024, 64, 0x01020304, 2, 3));
	CHECK(cuMemsetD8Async(p + 4000, 1, 96, stream));
	CHECK(cuMemsetD32Async(p + 4000, 0, 4, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyDtoH(out, p, N));

	memset(want, 0xaa, N);
	memset(want + 3, 0x55, 5);
	for (int i = 0; i < 20; i++)
		memcpy(want + 100 + 2 * i, &half, 2);
	for (int i = 0; i < 10; i++)
		memcpy(want + 200 + 4 * i, &(unsigned int){ 0xdeadbeef }, 4);
	for (int row = 0; row < 3; row++)
		for (int i = 0; i < 2; i++)
			memcpy(want + 1024 + 64 * row + 4 * i, &(unsigned int){ 0x01020304 }, 4);
	memset(want + 4000, 1, 96);
	memset(want + 4000, 0, 16);
	WANT(memcmp(out, want, N) == 0);
	for (int i = 0; i < N; i++)
		sum += out[i];
	printf("memsets: sum %u\n", sum);
	return 0;
}
