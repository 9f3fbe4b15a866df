// SPDX-License-Identifier: Apache-2.0
/* cuFFT: a sum of waves, found at their frequencies; there and back. */
#include <cmath>
#include <cufft.h>
#include <vector>
#include "check.cuh"

#define FFT(call) WANT((call) == CUFFT_SUCCESS)

int main()
{
	const int n = 4096, batch = 8;
	std::vector<cufftComplex> in(n * batch), out(n * batch);
	cufftComplex *p;
	cufftHandle plan;
	double worst = 0;

	for (int b = 0; b < batch; b++)
		for (int i = 0; i < n; i++) {
			in[b * n + i].x = cosf(2 * (float)M_PI * (b + 3) * i / n);
			in[b * n + i].y = 0;
		}
	CHECK(cudaMalloc(&p, n * batch * sizeof(*p)));
	CHECK(cudaMemcpy(p, in.data(), n * batch * sizeof(*p), cudaMemcpyHostToDevice));
	FFT(cufftPlan1d(&plan, n, CUFFT_C2C, batch));
	FFT(cufftExecC2C(plan, p, p, CUFFT_FORWARD));
	CHECK(cudaMemcpy(out.data(), p, n * batch * sizeof(*p), cudaMemcpyDeviceToHost));
	for (int b = 0; b < batch; b++)
		for (int i = 0; i < n; i++) {
			double size = hypot(out[b * n + i].x, out[b * n + i].y);
			double want = i == b + 3 || i == n - b - 3 ? n / 2 : 0;

			WANT(fabs(size - want) < 1);
		}
	FFT(cufftExecC2C(plan, p, p, CUFFT_INVERSE));
	CHECK(cudaMemcpy(out.data(), p, n * batch * sizeof(*p), cudaMemcpyDeviceToHost));
	for (int i = 0; i < n * batch; i++)
		worst = fmax(worst, fabs(out[i].x / n - in[i].x));
	WANT(worst < 1e-5);
	FFT(cufftDestroy(plan));
	printf("%d waves, there and back\n", batch);
	return 0;
}
