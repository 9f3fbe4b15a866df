// SPDX-License-Identifier: Apache-2.0
/* Says what NVML tells of its devices: how many, the first one's name, and its memory in bytes. */
#include <dlfcn.h>
#include <stdio.h>

#define NVML(name, ...) (((int (*)())dlsym(nvml, #name))(__VA_ARGS__))

int main(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
	struct { unsigned long long total, free, used; } memory;
	unsigned int count;
	char name[96];

	if (!nvml || NVML(nvmlInit_v2) || NVML(nvmlDeviceGetCount_v2, &count) ||
	    NVML(nvmlDeviceGetHandleByIndex_v2, 0, &device) ||
	    NVML(nvmlDeviceGetName, device, name, sizeof(name)) ||
	    NVML(nvmlDeviceGetMemoryInfo, device, &memory) || NVML(nvmlShutdown))
		return 1;
	printf("%u, %s, %llu\n", count, name, memory.total);
	return 0;
}
