// SPDX-License-Identifier: Apache-2.0
/* NVML has the device that CUDA has, whatever CUDA_VISIBLE_DEVICES says. Ends with 2 where NVML
 * can't begin.
 */
#include "../check.h"
#include <dlfcn.h>
#include <sys/wait.h>

struct memory {
	unsigned long long total, free, used;
};

struct memory2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct pci {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char text[32];
};

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gi, ci;
};

static void *nvml;

/* Calls the function of this name; each takes at most four words. */
#define NVML(name, ...) \
	(((int (*)())look(#name))(__VA_ARGS__))

static void *look(const char *name)
{
	void *function = dlsym(nvml, name);

	if (!function) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return function;
}

static void memory_of(void *device, struct memory *memory)
{
	WANT(NVML(nvmlDeviceGetMemoryInfo, device, memory) == 0);
	WANT(memory->total && memory->free + memory->used == memory->total);
}

int main(void)
{
	struct memory2 memory2 = { .version = 1 };
	struct process processes[4] = { { 0 } };
	char name[96], uuid[96], text[64];
	unsigned int count = 0, value = 99, listed = 0;
	int version = 0, major = 0, minor = 0, status, driver = 0;
	struct memory memory;
	void *device, *same;
	struct pci pci;
	CUdevice cuda;
	size_t total;
	CUuuid id;

	nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	WANT(nvml);
	WANT(NVML(nvmlDeviceGetCount_v2, &count) == 1 && NVML(nvmlShutdown) == 1);
	status = NVML(nvmlInit_v2);
	if (status) {
		printf("nvmlInit: %d\n", status);
		return 2;
	}
	WANT(NVML(nvmlInitWithFlags, 0) == 0);
	WANT(NVML(nvmlDeviceGetCount_v2, &count) == 0);
	WANT(NVML(nvmlDeviceGetHandleByIndex_v2, count, &device) == 2);
	WANT(NVML(nvmlDeviceGetHandleByIndex_v2, 0, &device) == 0);
	WANT(NVML(nvmlDeviceGetName, device, name, 4) == 7);
	WANT(NVML(nvmlDeviceGetName, device, name, sizeof(name)) == 0);
	WANT(NVML(nvmlDeviceGetUUID, device, uuid, sizeof(uuid)) == 0);
	WANT(NVML(nvmlDeviceGetHandleByUUID, uuid, &same) == 0 && same == device);
	WANT(NVML(nvmlDeviceGetHandleByUUID, "GPU-0", &same) == 6);
	WANT(NVML(nvmlDeviceGetPciInfo_v3, device, &pci) == 0);
	WANT(NVML(nvmlDeviceGetHandleByPciBusId_v2, pci.text, &same) == 0 && same == device);
	WANT(NVML(nvmlDeviceGetIndex, device, &value) == 0 && value == 0);
	WANT(NVML(nvmlDeviceGetIndex, NULL, &value) == 2);
	WANT(NVML(nvmlDeviceGetIndex, device, NULL) == 2);
	memory_of(device, &memory);
	WANT(NVML(nvmlDeviceGetMemoryInfo_v2, device, &memory2) == 25);
	memory2.version = sizeof(memory2) | 2 << 24;
	WANT(NVML(nvmlDeviceGetMemoryInfo_v2, device, &memory2) == 0);
	WANT(memory2.total == memory.total);
	WANT(NVML(nvmlDeviceGetCudaComputeCapability, device, &major, &minor) == 0);
	/* What the CPU device has none of. */
	WANT(NVML(nvmlDeviceGetTemperature, device, 0, &value) == 3);
	WANT(NVML(nvmlDeviceGetUtilizationRates, device, text) == 3);
	WANT(NVML(nvmlSystemGetDriverVersion, text, sizeof(text)) == 3);
	WANT(NVML(nvmlSystemGetCudaDriverVersion, &version) == 0);
	WANT(!dlsym(nvml, "nvmlDeviceSetPersistenceMode"));
	/* Nor private tables. */
	same = device;
	WANT(NVML(nvmlInternalGetExportTable, &same, text) == 3 && !same);
	WANT(NVML(nvmlInternalGetExportTable, NULL, text) == 2);
	printf("nvml: %u devices, the first a %s", count, name);
	fflush(stdout);
	if (cuInit(0) == CUDA_SUCCESS) {
		char other[96];

		CHECK(cuDeviceGet(&cuda, 0));
		CHECK(cuDeviceGetName(other, sizeof(other), cuda));
		CHECK(cuDeviceTotalMem(&total, cuda));
		CHECK(cuDeviceGetUuid_v2(&id, cuda));
		CHECK(cuDriverGetVersion(&driver));
		WANT(!strcmp(name, other) && total == memory.total && driver <= version);
		snprintf(text, sizeof(text), "GPU-%02x%02x", (unsigned char)id.bytes[0],
			 (unsigned char)id.bytes[1]);
		WANT(!strncmp(uuid, text, strlen(text)));
		CHECK(cuDeviceGetAttribute(&status, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
					   cuda));
		WANT(status == major);
		WANT(NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, &listed, NULL) == 7);
		WANT(listed == 1);
		listed = 4;
		WANT(NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, &listed, processes) == 0);
		WANT(listed == 1 && processes[0].pid == (unsigned int)getpid());
		printf("; as CUDA has it");
		fflush(stdout);
	}
	/* A child asks for itself, and leaves its parent's connection alone. */
	if (!fork()) {
		memory_of(device, &memory);
		_exit(0);
	}
	WANT(wait(&status) > 0 && status == 0);
	memory_of(device, &memory);
	WANT(NVML(nvmlShutdown) == 0 && NVML(nvmlDeviceGetCount_v2, &count) == 0);
	WANT(NVML(nvmlShutdown) == 0 && NVML(nvmlDeviceGetCount_v2, &count) == 1);
	printf("\n");
	return 0;
}
