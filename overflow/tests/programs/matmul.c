// SPDX-License-Identifier: Apache-2.0
/* A product of two matrices in tiles of 16 x 16. */
#include "check.h"

int main(void)
{
	enum { N = 48 };
	static float a[N][N], b[N][N], c[N][N];
	CUdeviceptr da, db, dc;
	unsigned int n = N;
	double trace = 0;

	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			a[i][j] = (float)((i + j) % 7);
			b[i][j] = (float)((i * j) % 5) - 2.0f;
		}
	start();
	CHECK(cuMemAlloc(&da, sizeof(a)));
	CHECK(cuMemAlloc(&db, sizeof(b)));
	CHECK(cuMemAlloc(&dc, sizeof(c)));
	CHECK(cuMemcpyHtoD(da, a, sizeof(a)));
	CHECK(cuMemcpyHtoD(db, b, sizeof(b)));
	CHECK(cuLaunchKernel(kernel("matmul"), N / 16, N / 16, 1, 16, 16, 1, 0, 0,
			     (void *[]){ &da, &db, &dc, &n }, NULL));
	CHECK(cuMemcpyDtoH(c, dc, sizeof(c)));
	/* Small whole numbers: exact in whatever order they are added. */
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			float want = 0;

			for (int k = 0; k < N; k++)
				want += a[i][k] * b[k][j];
			WANT(c[i][j] == want);
			trace += i == j ? want : 0;
		}
	printf("matmul of %d: trace %.0f\n", N, trace);
	return 0;
}
