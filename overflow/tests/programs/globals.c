// SPDX-License-Identifier: Apache-2.0
/* Variables of a module: what they are at first, set by the program, changed by a kernel. */
#include "check.h"

int main(void)
{
	CUmodule module;
	CUfunction globals;
	CUdeviceptr counter, table, factor, out;
	size_t bytes;
	unsigned int v, t[4];

	start();
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&globals, module, "globals"));
	CHECK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
	WANT(bytes == 4);
	CHECK(cuModuleGetGlobal(&table, &bytes, module, "table"));
	WANT(bytes == sizeof(t));
	CHECK(cuModuleGetGlobal(&factor, &bytes, module, "factor"));
	WANT(cuModuleGetGlobal(&out, &bytes, module, "nothing") == CUDA_ERROR_NOT_FOUND);
	CHECK(cuMemcpyDtoH(t, table, sizeof(t)));
	WANT(t[0] == 1 && t[1] == 2 && t[2] == 3 && t[3] == 4);
	out = words(1, 0);
	CHECK(cuLaunchKernel(globals, 1, 1, 1, 1, 1, 1, 0, 0, (void *[]){ &out }, NULL));
	CHECK(cuMemcpyDtoH(&v, out, 4));
	WANT(v == 7 * 3 + 3);
	v = 10;
	CHECK(cuMemcpyHtoD(factor, &v, 4));
	t[2] = 1000;
	CHECK(cuMemcpyHtoD(table, t, sizeof(t)));
	CHECK(cuLaunchKernel(globals, 1, 1, 1, 1, 1, 1, 0, 0, (void *[]){ &out }, NULL));
	CHECK(cuMemcpyDtoH(&v, out, 4));
	WANT(v == 8 * 10 + 1000);
	CHECK(cuMemcpyDtoH(&v, counter, 4));
	WANT(v == 9);
	printf("globals: counter %u\n", v);
	return 0;
}
