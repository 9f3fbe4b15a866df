// SPDX-License-Identifier: Apache-2.0
/* Holds memory until it is ended: by its standard input, or otherwise. */
#include <unistd.h>
#include "../check.h"

int main(void)
{
	CUdeviceptr p;
	char c;

	start();
	CHECK(cuMemAlloc(&p, 64 << 20));
	CHECK(cuMemsetD8(p, 1, 64 << 20));
	CHECK(cuCtxSynchronize());
	printf("ready\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	CHECK(cuCtxSynchronize());
	printf("still here\n");
	return 0;
}
