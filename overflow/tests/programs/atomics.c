// SPDX-License-Identifier: Apache-2.0
/* Atomic add, max, add without an answer, compare and swap, by threads of many blocks. */
#include "check.h"

int main(void)
{
	enum { N = 8192 };
	unsigned int cells[4];
	CUdeviceptr d;

	start();
	d = words(4, 0);
	CHECK(launch(kernel("atomics"), N, 0, (void *[]){ &d }));
	CHECK(cuMemcpyDtoH(cells, d, sizeof(cells)));
	WANT(cells[0] == N && cells[1] == N - 1 && cells[2] == 2 * N && cells[3] == 5);
	printf("atomics: %u %u %u %u\n", cells[0], cells[1], cells[2], cells[3]);
	return 0;
}
