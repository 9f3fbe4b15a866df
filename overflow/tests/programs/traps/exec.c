// SPDX-License-Identifier: Apache-2.0
/* A process with work under way becomes another program, which begins afresh. */
#include <unistd.h>
#include "../check.h"

int main(int argc, char **argv)
{
	unsigned int n = 64, one = 1, out[64];
	CUdeviceptr p;
	CUfunction add;

	start();
	add = kernel("add_to");
	p = words(n, 0);
	CHECK(launch(add, n, 0, (void *[]){ &p, &one, &n }));
	if (argc < 2) {
		execv(argv[0], (char *[]){ argv[0], "again", NULL });
		return 1;
	}
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	WANT(all(out, n, 1));
	printf("exec: the second began afresh\n");
	return 0;
}
