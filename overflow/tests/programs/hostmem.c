// SPDX-License-Identifier: Apache-2.0
/* Memory of the program's that the device sees: pinned, mapped, registered, managed. */
#include "check.h"

int main(void)
{
	enum { N = 3000 };
	unsigned int n = N, two = 2, type = 0;
	unsigned int *pinned, *mapped, *registered, *managed;
	CUmemLocation here = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
	CUdevice device;
	CUfunction add;
	CUdeviceptr p, at;
	int can = 0;

	start();
	add = kernel("add_to");
	p = words(N, 0);

	/* Pinned: only a faster end of copies. */
	CHECK(cuMemAllocHost((void **)&pinned, N * 4));
	for (int i = 0; i < N; i++)
		pinned[i] = 11;
	CHECK(cuMemcpyHtoDAsync(p, pinned, N * 4, 0));
	CHECK(launch(add, N, 0, (void *[]){ &p, &two, &n }));
	CHECK(cuMemcpyDtoHAsync(pinned, p, N * 4, 0));
	CHECK(cuStreamSynchronize(0));
	WANT(all(pinned, N, 13));

	/* Mapped: the kernel works on it, and the program sees that after a wait. */
	CHECK(cuMemHostAlloc((void **)&mapped, N * 4, CU_MEMHOSTALLOC_DEVICEMAP));
	for (int i = 0; i < N; i++)
		mapped[i] = 5;
	CHECK(cuMemHostGetDevicePointer(&at, mapped, 0));
	CHECK(launch(add, N, 0, (void *[]){ &at, &two, &n }));
	CHECK(cuCtxSynchronize());
	WANT(all(mapped, N, 7));
	/* And what the program writes between two launches is seen by the second. */
	mapped[17] = 100;
	CHECK(launch(add, N, 0, (void *[]){ &at, &two, &n }));
	CHECK(cuCtxSynchronize());
	WANT(mapped[17] == 102 && mapped[16] == 9);

	/* Registered. */
	registered = aligned_alloc(4096, 16384);
	for (int i = 0; i < N; i++)
		registered[i] = 1;
	CHECK(cuMemHostRegister(registered, 16384, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuMemHostGetDevicePointer(&at, registered, 0));
	CHECK(launch(add, N, 0, (void *[]){ &at, &two, &n }));
	CHECK(cuCtxSynchronize());
	WANT(all(registered, N, 3));
	CHECK(cuMemHostUnregister(registered));
	free(registered);

	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	WANT(type == CU_MEMORYTYPE_DEVICE);
	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
	WANT(type == CU_MEMORYTYPE_HOST);

	/* Managed. */
	CHECK(cuCtxGetDevice(&device));
	CHECK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device));
	if (can) {
		CHECK(cuMemAllocManaged(&at, N * 4, CU_MEM_ATTACH_GLOBAL));
		managed = (unsigned int *)at;
		CHECK(cuMemAdvise_v2(at, N * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
		CHECK(cuMemPrefetchAsync_v2(at, N * 4, here, 0, 0));
		for (int i = 0; i < N; i++)
			managed[i] = 20;
		CHECK(launch(add, N, 0, (void *[]){ &at, &two, &n }));
		CHECK(cuCtxSynchronize());
		WANT(all(managed, N, 22));
		CHECK(cuMemFree(at));
	}

	/* Pinned memory and nothing else: all addresses are in one space. */
	at = (CUdeviceptr)(pinned + 1);
	n = N - 1;
	CHECK(launch(add, n, 0, (void *[]){ &at, &two, &n }));
	CHECK(cuCtxSynchronize());
	WANT(pinned[0] == 13 && all(pinned + 1, n, 15));
	pinned[N - 1] = 1;
	CHECK(launch(add, n, 0, (void *[]){ &at, &two, &n }));
	CHECK(cuCtxSynchronize());
	WANT(pinned[N - 1] == 3 && all(pinned + 1, n - 1, 17));
	CHECK(cuMemFreeHost(pinned));
	CHECK(cuMemFreeHost(mapped));
	printf("host memory: pinned, mapped, registered%s\n", can ? ", managed" : "");
	return 0;
}
