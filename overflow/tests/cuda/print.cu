// SPDX-License-Identifier: Apache-2.0
/*
 * What a kernel prints comes out, in its order, after what the program printed before it, flushed
 * or not, and before what the program prints after a wait.
 */
#include "check.cuh"

__global__ void speak(int from)
{
	for (int i = 0; i < 3; i++)
		printf("line %d of the device: %s %.2f\n", from + i, "text", 0.5 * i);
}

int main()
{
	printf("not flushed\n");
	speak<<<1, 1>>>(1);
	speak<<<1, 1>>>(4);
	CHECK(cudaDeviceSynchronize());
	printf("the program\n");
	fflush(stdout);
	speak<<<1, 1>>>(7);
	CHECK(cudaDeviceSynchronize());
	return 0;
}
