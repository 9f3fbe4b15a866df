// SPDX-License-Identifier: Apache-2.0
/* Grids that synchronise as a whole, and clusters that read each other's shared memory. */
#include <cooperative_groups.h>
#include <vector>
#include "check.cuh"

namespace cg = cooperative_groups;

__global__ void turns(int *p, int n, int times)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, size = gridDim.x * blockDim.x;

	for (int turn = 0; turn < times; turn++) {
		int *from = p + turn % 2 * n, *to = p + (turn + 1) % 2 * n;

		for (int at = i; at < n; at += size)
			to[at] = from[(at + 1) % n] + 1;
		cg::this_grid().sync();
	}
}

__global__ void neighbours(int *out)
{
	__shared__ int mine;
	cg::cluster_group cluster = cg::this_cluster();
	unsigned int rank = cluster.block_rank(), size = cluster.num_blocks();

	if (threadIdx.x == 0)
		mine = 100 + blockIdx.x;
	cluster.sync();
	if (threadIdx.x == 0)
		out[blockIdx.x] = *cluster.map_shared_rank(&mine, (rank + 1) % size);
	cluster.sync();
}

int main()
{
	int n = 100000, times = 11, blocks = 0, multiprocessors = 0;
	const int clusters = 8, size = 4;
	std::vector<int> in(n), out(n), ranks(clusters * size);
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute attribute = {};
	long sum = 0;
	int *p, *q;

	CHECK(cudaMalloc(&p, 2 * n * 4));
	CHECK(cudaMalloc(&q, clusters * size * 4));
	for (int i = 0; i < n; i++)
		in[i] = i;
	CHECK(cudaMemcpy(p, in.data(), n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, turns, 256, 0));
	WANT(blocks > 0);
	void *params[] = { &p, &n, &times };
	CHECK(cudaLaunchCooperativeKernel((void *)turns, dim3(multiprocessors), dim3(256), params));
	CHECK(cudaMemcpy(out.data(), p + times % 2 * n, n * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++) {
		WANT(out[i] == (i + times) % n + times);
		sum += out[i];
	}
	/* More blocks than fit is refused, by the launch or by the next wait. */
	if (cudaLaunchCooperativeKernel((void *)turns, dim3(blocks * multiprocessors + 1), dim3(256),
					params) == cudaSuccess)
		WANT(cudaDeviceSynchronize() != cudaSuccess);
	cudaGetLastError();

	attribute.id = cudaLaunchAttributeClusterDimension;
	attribute.val.clusterDim.x = size;
	attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
	config.gridDim = dim3(clusters * size);
	config.blockDim = dim3(64);
	config.attrs = &attribute;
	config.numAttrs = 1;
	CHECK(cudaLaunchKernelEx(&config, neighbours, q));
	CHECK(cudaMemcpy(ranks.data(), q, ranks.size() * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < clusters * size; i++)
		WANT(ranks[i] == 100 + i / size * size + (i + 1) % size);
	printf("%ld, %d\n", sum, ranks[0]);
	return 0;
}
