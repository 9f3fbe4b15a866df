// SPDX-License-Identifier: Apache-2.0
/* Streams, events between them, functions of the host in a stream's order. */
#include <thread>
#include <vector>
#include "check.cuh"

__global__ void add(int *p, int n, int v)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += v;
}

static int seen, *pinned;

static void function(void *)
{
	seen += pinned[0];
	pinned[0] = 1000;
}

static void worker(int id, long *sum)
{
	const int n = 10000;
	std::vector<int> out(n);
	cudaStream_t stream;
	int *p;

	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaMalloc(&p, n * 4));
	for (int turn = 0; turn < 100; turn++) {
		CHECK(cudaMemsetAsync(p, 0, n * 4, stream));
		for (int i = 0; i < 10; i++)
			add<<<(n + 255) / 256, 256, 0, stream>>>(p, n, id);
		CHECK(cudaMemcpyAsync(out.data(), p, n * 4, cudaMemcpyDeviceToHost, stream));
		CHECK(cudaStreamSynchronize(stream));
		for (int v : out)
			WANT(v == 10 * id);
		*sum += out[0];
	}
	CHECK(cudaFree(p));
	CHECK(cudaStreamDestroy(stream));
}

int main()
{
	const int n = 100000, turns = 200;
	std::vector<int> out(n);
	std::vector<std::thread> threads;
	long sums[4] = {}, sum = 0;
	cudaStream_t s[2];
	cudaEvent_t e[2], first, last;
	float ms = -1;
	int *p;

	CHECK(cudaMalloc(&p, n * 4));
	CHECK(cudaMemset(p, 0, n * 4));
	CHECK(cudaMallocHost(&pinned, 4));
	CHECK(cudaEventCreate(&first));
	CHECK(cudaEventCreate(&last));
	for (int i = 0; i < 2; i++) {
		CHECK(cudaStreamCreate(&s[i]));
		CHECK(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming));
	}
	CHECK(cudaEventRecord(first, s[0]));
	for (int turn = 0; turn < turns; turn++) {
		int me = turn % 2;

		add<<<(n + 255) / 256, 256, 0, s[me]>>>(p, n, turn);
		CHECK(cudaEventRecord(e[me], s[me]));
		CHECK(cudaStreamWaitEvent(s[!me], e[me], 0));
	}
	CHECK(cudaMemcpyAsync(pinned, p, 4, cudaMemcpyDeviceToHost, s[0]));
	CHECK(cudaLaunchHostFunc(s[0], function, nullptr));
	CHECK(cudaMemcpyAsync(p, pinned, 4, cudaMemcpyHostToDevice, s[0]));
	CHECK(cudaEventRecord(last, s[0]));
	CHECK(cudaEventSynchronize(last));
	CHECK(cudaEventElapsedTime(&ms, first, last));
	CHECK(cudaMemcpy(out.data(), p, n * 4, cudaMemcpyDeviceToHost));
	WANT(seen == turns * (turns - 1) / 2 && out[0] == 1000 && out[n - 1] == seen && ms > 0);
	for (int i = 0; i < 4; i++)
		threads.emplace_back(worker, i + 1, &sums[i]);
	for (auto &thread : threads)
		thread.join();
	for (long one : sums)
		sum += one;
	printf("%d and %ld\n", seen, sum);
	return 0;
}
