// SPDX-License-Identifier: Apache-2.0
/* What a program asks before it begins. Ends with 2 where there is no device. */
#include "check.h"

int main(void)
{
	char name[256] = "";
	int count = -1, threads = 0, warp = 0, major = 0, version = 0, status = -1;
	size_t memory = 0, free = 0, total = 0;
	void *function = NULL;
	CUdevice device;
	CUuuid uuid = { { 0 } }, none = { { 0 } };
	CUresult begun = cuInit(0);

	if (begun == CUDA_ERROR_NO_DEVICE || (cuDeviceGetCount(&count) == CUDA_SUCCESS && !count)) {
		printf("no device\n");
		return 2;
	}
	CHECK(begun);
	start();
	CHECK(cuDriverGetVersion(&version));
	WANT(version >= 11040);
	CHECK(cuDeviceGet(&device, 0));
	WANT(cuDeviceGet(&device, count) != CUDA_SUCCESS);
	CHECK(cuDeviceGetName(name, sizeof(name), device));
	CHECK(cuDeviceGetUuid_v2(&uuid, device));
	WANT(name[0] && memcmp(&uuid, &none, sizeof(uuid)) != 0);
	CHECK(cuDeviceTotalMem(&memory, device));
	CHECK(cuMemGetInfo(&free, &total));
	WANT(free <= total && total == memory && memory > 0);
	CHECK(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device));
	CHECK(cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
	CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
	WANT(threads >= 256 && warp == 32 && major >= 6);
	/* The probe of the runtime: an empty name fails cleanly. */
	WANT(cuGetProcAddress("", &function, 12000, 0, &status) != CUDA_SUCCESS || !function);
	CHECK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &status));
	WANT(function && status == 0);
	printf("%d devices, the first a %s\n", count, name);
	return 0;
}
