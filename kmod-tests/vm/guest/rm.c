// SPDX-License-Identifier: GPL-2.0 OR MIT
/* rm.c - the calls of NVIDIA's resource manager that work without a GPU. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define RM_CALL(number, type) _IOWR('F', number, type)
#define NVIDIA_MAJOR 195
#define CTL_MINOR 255

struct rm_alloc {
	uint32_t client, parent, handle, class;
	uint64_t params, rights;
	uint32_t size, flags, status, pad;
};

struct rm_free {
	uint32_t client, parent, handle, status;
};

struct rm_dup {
	uint32_t client, parent, handle, from_client, from, flags, status;
};

struct rm_control {
	uint32_t client, object, command, flags;
	uint64_t params;
	uint32_t size, status;
};

/* Parameters of memory classes; 535 has all but the last eight bytes. */
struct rm_memory {
	uint32_t owner, type, flags, width, height, pitch, attr, attr2, format, compression, zcull, pad;
	uint64_t low, high, size, alignment, offset, limit, address;
	uint32_t ctag, va_space, internal, tag;
	uint32_t numa_node, pad2;
};

int rm_open(void)
{
	mknod("/dev/nvidiactl", S_IFCHR | 0666, makedev(NVIDIA_MAJOR, CTL_MINOR));
	int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int64_t rm_alloc(int fd, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class,
		 void *params, uint32_t size)
{
	struct rm_alloc call = {
		.client = client,
		.parent = parent,
		.handle = *handle,
		.class = class,
		.params = (uintptr_t)params,
		.size = size,
	};

	if (ioctl(fd, RM_CALL(0x2b, struct rm_alloc), &call))
		return -errno;
	*handle = call.handle;
	return call.status;
}

int64_t rm_free(int fd, uint32_t client, uint32_t parent, uint32_t handle)
{
	struct rm_free call = { .client = client, .parent = parent, .handle = handle };

	return ioctl(fd, RM_CALL(0x29, struct rm_free), &call) ? -errno : (int64_t)call.status;
}

int64_t rm_dup(int fd, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t from_client,
	       uint32_t from)
{
	struct rm_dup call = {
		.client = client,
		.parent = parent,
		.handle = *handle,
		.from_client = from_client,
		.from = from,
	};

	if (ioctl(fd, RM_CALL(0x34, struct rm_dup), &call))
		return -errno;
	*handle = call.handle;
	return call.status;
}

int64_t rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
		   uint32_t size)
{
	struct rm_control call = {
		.client = client,
		.object = object,
		.command = command,
		.params = (uintptr_t)params,
		.size = size,
	};

	return ioctl(fd, RM_CALL(0x2a, struct rm_control), &call) ? -errno : (int64_t)call.status;
}

int64_t rm_client(int fd, uint32_t *client)
{
	*client = 0;
	return rm_alloc(fd, 0, 0, client, 0, NULL, 0);
}

int64_t rm_memory(int fd, uint32_t client, uint32_t *handle, uint64_t bytes)
{
	struct rm_memory params = { .owner = client, .size = bytes };

	*handle = 0;
	return rm_alloc(fd, client, client, handle, RM_MEMORY_DEVICELESS, &params,
			driver_branch() == 535 ? offsetof(struct rm_memory, numa_node) : sizeof(params));
}
