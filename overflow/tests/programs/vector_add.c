// SPDX-License-Identifier: Apache-2.0
/* Vector addition. */
#include "check.h"

int main(void)
{
	enum { N = 20000 };
	static float a[N], b[N], c[N];
	CUdeviceptr da, db, dc;
	unsigned int n = N;
	double sum = 0;

	for (int i = 0; i < N; i++) {
		a[i] = (float)i;
		b[i] = 2.0f * (float)i;
	}
	start();
	CHECK(cuMemAlloc(&da, sizeof(a)));
	CHECK(cuMemAlloc(&db, sizeof(b)));
	CHECK(cuMemAlloc(&dc, sizeof(c)));
	CHECK(cuMemcpyHtoD(da, a, sizeof(a)));
	CHECK(cuMemcpyHtoD(db, b, sizeof(b)));
	CHECK(launch(kernel("vadd"), N, 0, (void *[]){ &da, &db, &dc, &n }));
	CHECK(cuMemcpyDtoH(c, dc, sizeof(c)));
	for (int i = 0; i < N; i++) {
		WANT(c[i] == 3.0f * (float)i);
		sum += c[i];
	}
	CHECK(cuMemFree(da));
	CHECK(cuMemFree(db));
	CHECK(cuMemFree(dc));
	printf("vector add of %d: sum %.0f\n", N, sum);
	return 0;
}
