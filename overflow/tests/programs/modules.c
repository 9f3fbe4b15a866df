// SPDX-License-Identifier: Apache-2.0
/* The same kernel as a module's function and as a library's kernel; names that are not there. */
#include "check.h"

static unsigned int run(CUfunction function)
{
	unsigned int n = 64, v = 5, out[64];
	CUdeviceptr p = words(n, 1);

	CHECK(launch(function, n, 0, (void *[]){ &p, &v, &n }));
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	WANT(all(out, n, 6));
	CHECK(cuMemFree(p));
	return out[0];
}

int main(void)
{
	CUmodule module, second;
	CUlibrary library;
	CUkernel handle;
	CUfunction function, other;
	CUdeviceptr counter, its;
	size_t offset, size, bytes;
	unsigned int count = 0, sum = 0, value = 100;

	start();
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&function, module, "add_to"));
	CHECK(cuModuleGetFunction(&other, module, "add_to"));
	WANT(cuModuleGetFunction(&other, module, "no_such") == CUDA_ERROR_NOT_FOUND);
	WANT(cuModuleGetFunction(&other, module, "") != CUDA_SUCCESS);
	sum += run(function);
	for (size_t i = 0; i < 3; i++) {
		CHECK(cuFuncGetParamInfo(function, i, &offset, &size));
		WANT(offset == (i == 0 ? 0 : 4 + 4 * i) && size == (i == 0 ? 8 : 4));
	}
	WANT(cuFuncGetParamInfo(function, 3, &offset, &size) == CUDA_ERROR_INVALID_VALUE);

	CHECK(cuLibraryLoadData(&library, kernels, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernelCount(&count, library));
	CHECK(cuLibraryGetKernel(&handle, library, "add_to"));
	WANT(cuLibraryGetKernel(&handle, library, "no_such") == CUDA_ERROR_NOT_FOUND);
	CHECK(cuLibraryGetKernel(&handle, library, "add_to"));
	CHECK(cuKernelGetFunction(&function, handle));
	sum += run(function);
	/* A kernel may stand where a function is asked for. */
	sum += run((CUfunction)handle);

	/* Two loads of one image are two modules: each has variables of its own. */
	CHECK(cuModuleLoadData(&second, kernels));
	CHECK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
	CHECK(cuModuleGetGlobal(&its, &bytes, second, "counter"));
	WANT(counter != its && bytes == 4);
	CHECK(cuMemcpyHtoD(counter, &value, 4));
	CHECK(cuMemcpyDtoH(&value, its, 4));
	WANT(value == 7);
	CHECK(cuModuleUnload(module));
	CHECK(cuModuleGetFunction(&function, second, "add_to"));
	sum += run(function);
	CHECK(cuModuleUnload(second));
	CHECK(cuLibraryUnload(library));
	printf("modules: %u kernels, %u\n", count, sum);
	return 0;
}
