// SPDX-License-Identifier: Apache-2.0
/* Very many copies of four bytes; the argument says how many. */
#include "../check.h"

int main(int argc, char **argv)
{
	enum { N = 4096 };
	unsigned int times = number(argc, argv, 1000000);
	static unsigned int out[N];
	CUdeviceptr p;

	start();
	p = words(N, 0);
	for (unsigned int i = 0; i < times; i++)
		CHECK(cuMemcpyHtoD(p + i % N * 4, &i, 4));
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	for (unsigned int i = 0; i < N; i++)
		WANT(out[i] % N == i && out[i] >= times - N);
	printf("tiny: %u copies\n", times);
	return 0;
}
