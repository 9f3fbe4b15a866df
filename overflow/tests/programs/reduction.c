// SPDX-License-Identifier: Apache-2.0
/* A sum in two steps: within blocks through shared memory and barriers, then over the blocks. */
#include "check.h"

int main(void)
{
	enum { N = 10000, BLOCKS = (N + 255) / 256 };
	static unsigned int in[N];
	CUdeviceptr din, part, out;
	CUfunction reduce;
	unsigned int n = N, blocks = BLOCKS, want = 0, got = 0;

	for (unsigned int i = 0; i < N; i++) {
		in[i] = i * 2654435761u >> 20;
		want += in[i];
	}
	start();
	reduce = kernel("reduce");
	CHECK(cuMemAlloc(&din, sizeof(in)));
	CHECK(cuMemAlloc(&part, BLOCKS * 4));
	CHECK(cuMemAlloc(&out, 4));
	CHECK(cuMemcpyHtoD(din, in, sizeof(in)));
	CHECK(launch(reduce, N, 0, (void *[]){ &din, &part, &n }));
	CHECK(launch(reduce, BLOCKS, 0, (void *[]){ &part, &out, &blocks }));
	CHECK(cuMemcpyDtoH(&got, out, 4));
	WANT(got == want);
	printf("reduction of %d: %u\n", N, got);
	return 0;
}
