// SPDX-License-Identifier: Apache-2.0
/* A source that the program overwrites directly after each call. */
#include "../check.h"

int main(void)
{
	static const size_t sizes[] = { 4, 1000, 64 << 10, (64 << 10) + 4, 3 << 20 };
	enum { TIMES = 4, MOST = 3 << 20 };
	unsigned char *source = malloc(MOST), *out = malloc(MOST);
	CUdeviceptr p[TIMES];
	CUstream stream;

	start();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < TIMES; i++)
		CHECK(cuMemAlloc(&p[i], MOST));
	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		for (int i = 0; i < TIMES; i++) {
			memset(source, (int)(s * TIMES) + i + 1, sizes[s]);
			if (i % 2)
				CHECK(cuMemcpyHtoD(p[i], source, sizes[s]));
			else
				CHECK(cuMemcpyHtoDAsync(p[i], source, sizes[s], stream));
			memset(source, 0xff, sizes[s]);
		}
		CHECK(cuStreamSynchronize(stream));
		for (int i = 0; i < TIMES; i++) {
			memset(source, (int)(s * TIMES) + i + 1, sizes[s]);
			CHECK(cuMemcpyDtoH(out, p[i], sizes[s]));
			WANT(memcmp(source, out, sizes[s]) == 0);
		}
	}
	printf("reuse: %zu sizes\n", sizeof(sizes) / sizeof(*sizes));
	return 0;
}
