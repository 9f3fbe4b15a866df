// SPDX-License-Identifier: Apache-2.0
/* cuBLAS: products whose results are whole numbers, in single and in half precision. */
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <vector>
#include "check.cuh"

#define BLAS(call) WANT((call) == CUBLAS_STATUS_SUCCESS)

int main()
{
	const int n = 512;
	std::vector<float> a(n * n), b(n * n), c(n * n);
	std::vector<__half> ha(n * n), hb(n * n), hc(n * n);
	const float one = 1, zero = 0;
	cublasHandle_t handle;
	float *da, *db, *dc;
	__half *dha, *dhb, *dhc;
	double sum = 0;

	for (int i = 0; i < n * n; i++) {
		a[i] = (i * 7 % 5) - 2;
		b[i] = (i * 3 % 7) - 3;
		ha[i] = __float2half(a[i]);
		hb[i] = __float2half(b[i]);
	}
	CHECK(cudaMalloc(&da, n * n * 4));
	CHECK(cudaMalloc(&db, n * n * 4));
	CHECK(cudaMalloc(&dc, n * n * 4));
	CHECK(cudaMalloc(&dha, n * n * 2));
	CHECK(cudaMalloc(&dhb, n * n * 2));
	CHECK(cudaMalloc(&dhc, n * n * 2));
	CHECK(cudaMemcpy(da, a.data(), n * n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(db, b.data(), n * n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(dha, ha.data(), n * n * 2, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(dhb, hb.data(), n * n * 2, cudaMemcpyHostToDevice));
	BLAS(cublasCreate(&handle));
	BLAS(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, da, n, db, n, &zero, dc, n));
	BLAS(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, dha, CUDA_R_16F, n, dhb,
			  CUDA_R_16F, n, &zero, dhc, CUDA_R_16F, n, CUBLAS_COMPUTE_32F,
			  CUBLAS_GEMM_DEFAULT));
	CHECK(cudaMemcpy(c.data(), dc, n * n * 4, cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(hc.data(), dhc, n * n * 2, cudaMemcpyDeviceToHost));
	for (int j = 0; j < n; j++)
		for (int i = 0; i < n; i += 37) {
			float want = 0;

			for (int k = 0; k < n; k++)
				want += a[k * n + i] * b[j * n + k];
			WANT(c[j * n + i] == want);
			WANT(__half2float(hc[j * n + i]) == __half2float(__float2half(want)));
		}
	for (float v : c)
		sum += v * v;
	BLAS(cublasDestroy(handle));
	printf("%.0f\n", sum);
	return 0;
}
