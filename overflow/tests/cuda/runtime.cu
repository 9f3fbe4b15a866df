// SPDX-License-Identifier: Apache-2.0
/* Vector addition by the runtime, also with memory of a pool; an error that a call returns. */
#include <vector>
#include "check.cuh"

__global__ void add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		c[i] = a[i] + b[i];
}

int main()
{
	const int n = 1 << 20;
	std::vector<float> a(n), b(n), c(n);
	cudaDeviceProp properties;
	float *da, *db, *dc;
	double sum = 0;

	for (int i = 0; i < n; i++) {
		a[i] = i;
		b[i] = 2 * i;
	}
	CHECK(cudaGetDeviceProperties(&properties, 0));
	CHECK(cudaMalloc(&da, n * 4));
	CHECK(cudaMallocAsync(&db, n * 4, 0));
	CHECK(cudaMallocAsync(&dc, n * 4, 0));
	CHECK(cudaMemcpy(da, a.data(), n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpyAsync(db, b.data(), n * 4, cudaMemcpyDefault));
	add<<<n / 256, 256>>>(da, db, dc, n);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(c.data(), dc, n * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++) {
		WANT(c[i] == 3.0f * i);
		sum += c[i];
	}
	CHECK(cudaFreeAsync(db, 0));
	CHECK(cudaFreeAsync(dc, 0));
	CHECK(cudaFree(da));
	WANT(cudaMemset((void *)1, 0, 16) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess);
	cudaGetLastError();
	printf("%s, %d.%d: sum %.0f\n", properties.name, properties.major, properties.minor, sum);
	return 0;
}
