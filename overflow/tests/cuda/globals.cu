// SPDX-License-Identifier: Apache-2.0
/* Variables of the program's on the device: constant, plain, managed; memory that both see. */
#include <cstring>
#include "check.cuh"

__constant__ int factors[4] = { 1, 2, 3, 4 };
__device__ int counter = 5;
__managed__ int both[256];

__global__ void work()
{
	both[threadIdx.x] += factors[threadIdx.x % 4];
	atomicAdd(&counter, 1);
}

__global__ void twice(int *p)
{
	p[threadIdx.x] *= 2;
}

int main()
{
	int changed[4] = { 10, 20, 30, 40 }, count = 0, *managed, *mapped, *at;
	long sum = 0;

	for (int i = 0; i < 256; i++)
		both[i] = i;
	work<<<1, 256>>>();
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < 256; i++)
		WANT(both[i] == i + i % 4 + 1);
	CHECK(cudaMemcpyToSymbol(factors, changed, sizeof(changed)));
	both[0] = 1000;
	work<<<1, 256>>>();
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < 256; i++) {
		WANT(both[i] == (i ? i + i % 4 + 1 : 1000) + 10 * (i % 4 + 1));
		sum += both[i];
	}
	CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof(count)));
	WANT(count == 5 + 512);

	CHECK(cudaMallocManaged(&managed, 1024));
	CHECK(cudaHostAlloc(&mapped, 1024, cudaHostAllocMapped));
	CHECK(cudaHostGetDevicePointer(&at, mapped, 0));
	for (int turn = 1; turn <= 3; turn++) {
		for (int i = 0; i < 256; i++)
			managed[i] = mapped[i] = turn * i;
		twice<<<1, 256>>>(managed);
		twice<<<1, 256>>>(at);
		CHECK(cudaDeviceSynchronize());
		for (int i = 0; i < 256; i++)
			WANT(managed[i] == 2 * turn * i && mapped[i] == 2 * turn * i);
		sum += managed[255] + mapped[255];
	}
	printf("%ld, counter %d\n", sum, count);
	return 0;
}
