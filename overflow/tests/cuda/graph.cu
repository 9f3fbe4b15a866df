// SPDX-License-Identifier: Apache-2.0
/* A graph by capture over two streams, run again and again without a wait; updated, run again. */
#include <vector>
#include "check.cuh"

__global__ void add(int *p, int n, int v)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += v;
}

static cudaGraph_t capture(cudaStream_t s, cudaStream_t t, int *p, int *q, int n, int v)
{
	cudaGraph_t graph;
	cudaEvent_t fork, join;

	CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	add<<<(n + 255) / 256, 256, 0, s>>>(p, n, v);
	add<<<(n + 255) / 256, 256, 0, t>>>(q, n, 2 * v);
	CHECK(cudaEventRecord(join, t));
	CHECK(cudaStreamWaitEvent(s, join, 0));
	for (int i = 0; i < 10; i++)
		add<<<(n + 255) / 256, 256, 0, s>>>(p, n, v);
	CHECK(cudaMemcpyAsync(q, p, 4, cudaMemcpyDeviceToDevice, s));
	CHECK(cudaMemsetAsync(q + 1, 0, 4, s));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaEventDestroy(fork));
	CHECK(cudaEventDestroy(join));
	return graph;
}

int main()
{
	const int n = 5000, replays = 3000;
	std::vector<int> a(n), b(n);
	cudaGraphExecUpdateResultInfo info;
	cudaGraph_t graph, second;
	cudaGraphExec_t exec;
	cudaStream_t s, t;
	size_t nodes = 0;
	int *p, *q;

	CHECK(cudaMalloc(&p, n * 4));
	CHECK(cudaMalloc(&q, n * 4));
	CHECK(cudaMemset(p, 0, n * 4));
	CHECK(cudaMemset(q, 0, n * 4));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	CHECK(cudaDeviceSynchronize());
	graph = capture(s, t, p, q, n, 1);
	CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < replays; i++)
		CHECK(cudaGraphLaunch(exec, s));
	CHECK(cudaStreamSynchronize(s));
	second = capture(s, t, p, q, n, 2);
	CHECK(cudaGraphExecUpdate(exec, second, &info));
	for (int i = 0; i < replays; i++)
		CHECK(cudaGraphLaunch(exec, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(a.data(), p, n * 4, cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(b.data(), q, n * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++) {
		int q_wanted = i == 0 ? 33 * replays : i == 1 ? 0 : 6 * replays;

		WANT(a[i] == 33 * replays && b[i] == q_wanted);
	}
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaGraphDestroy(second));
	printf("%zu nodes, %d and %d\n", nodes, a[0], b[2]);
	return 0;
}
