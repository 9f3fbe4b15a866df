// SPDX-License-Identifier: Apache-2.0
/* A texture over an array, read between its points; a surface that is written. */
#include <vector>
#include "check.cuh"

__global__ void read(cudaTextureObject_t texture, float *out, int w, int h)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x < w && y < h)
		out[y * w + x] = tex2D<float>(texture, x + 1.0f, y + 0.5f);
}

__global__ void write(cudaSurfaceObject_t surface, int w, int h)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x < w && y < h)
		surf2Dwrite((float)(x - y), surface, x * 4, y);
}

int main()
{
	const int w = 64, h = 32;
	std::vector<float> in(w * h), out(w * h);
	cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaResourceDesc resource = {};
	cudaTextureDesc description = {};
	cudaTextureObject_t texture;
	cudaSurfaceObject_t surface;
	cudaArray_t array;
	double sum = 0;
	dim3 grid(w / 16, h / 16), block(16, 16);
	float *p;

	for (int i = 0; i < w * h; i++)
		in[i] = i;
	CHECK(cudaMallocArray(&array, &format, w, h, cudaArraySurfaceLoadStore));
	CHECK(cudaMemcpy2DToArray(array, 0, 0, in.data(), w * 4, w * 4, h, cudaMemcpyHostToDevice));
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = array;
	description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
	description.filterMode = cudaFilterModeLinear;
	CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
	CHECK(cudaCreateSurfaceObject(&surface, &resource));
	CHECK(cudaMalloc(&p, w * h * 4));
	read<<<grid, block>>>(texture, p, w, h);
	CHECK(cudaMemcpy(out.data(), p, w * h * 4, cudaMemcpyDeviceToHost));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++) {
			WANT(out[y * w + x] == y * w + x + (x < w - 1 ? 0.5f : 0));
			sum += out[y * w + x];
		}
	write<<<grid, block>>>(surface, w, h);
	CHECK(cudaMemcpy2DFromArray(out.data(), w * 4, array, 0, 0, w * 4, h, cudaMemcpyDeviceToHost));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			WANT(out[y * w + x] == x - y);
	CHECK(cudaDestroyTextureObject(texture));
	CHECK(cudaDestroySurfaceObject(surface));
	CHECK(cudaFreeArray(array));
	printf("%.1f\n", sum);
	return 0;
}
