// SPDX-License-Identifier: Apache-2.0
/* Page-locked memory that a kernel gets as it is, and that each run of a graph copies. */
#include "check.cuh"

__global__ void twice(int *p)
{
	p[threadIdx.x] *= 2;
}

int main()
{
	const int n = 256;
	int *host, *out, *p;
	long sum = 0;
	cudaStream_t s;
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	CHECK(cudaMallocHost(&host, n * sizeof(int)));
	CHECK(cudaMallocHost(&out, n * sizeof(int)));
	CHECK(cudaMalloc(&p, n * sizeof(int)));
	for (int i = 0; i < n; i++)
		host[i] = i;
	twice<<<1, n>>>(host);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < n; i++)
		WANT(host[i] == 2 * i);

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaMemcpyAsync(p, host, n * sizeof(int), cudaMemcpyHostToDevice, s));
	twice<<<1, n, 0, s>>>(p);
	CHECK(cudaMemcpyAsync(out, p, n * sizeof(int), cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	for (int run = 1; run <= 5; run++) {
		for (int i = 0; i < n; i++)
			host[i] = run * i;
		CHECK(cudaGraphLaunch(exec, s));
		CHECK(cudaStreamSynchronize(s));
		for (int i = 0; i < n; i++) {
			WANT(out[i] == 2 * run * i);
			sum += out[i];
		}
	}
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaFreeHost(host));
	CHECK(cudaFreeHost(out));
	printf("host memory: %ld\n", sum);
	return 0;
}
