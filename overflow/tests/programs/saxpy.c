// SPDX-License-Identifier: Apache-2.0
/* y = a x + y, a hundred times without a wait. */
#include "check.h"

int main(void)
{
	enum { N = 1000, TIMES = 100 };
	static float x[N], y[N];
	CUdeviceptr dx, dy;
	CUfunction saxpy;
	unsigned int n = N;
	float a = 0.5f;

	for (int i = 0; i < N; i++) {
		x[i] = (float)(i % 16);
		y[i] = 1.0f;
	}
	start();
	saxpy = kernel("saxpy");
	CHECK(cuMemAlloc(&dx, sizeof(x)));
	CHECK(cuMemAlloc(&dy, sizeof(y)));
	CHECK(cuMemcpyHtoD(dx, x, sizeof(x)));
	CHECK(cuMemcpyHtoD(dy, y, sizeof(y)));
	for (int i = 0; i < TIMES; i++)
		CHECK(launch(saxpy, N, 0, (void *[]){ &n, &a, &dx, &dy }));
	CHECK(cuMemcpyDtoH(y, dy, sizeof(y)));
	for (int i = 0; i < N; i++)
		WANT(y[i] == 1.0f + TIMES * 0.5f * (float)(i % 16));
	printf("saxpy %d times: y[15] = %.1f\n", TIMES, y[15]);
	return 0;
}
