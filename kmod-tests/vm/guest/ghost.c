// SPDX-License-Identifier: GPL-2.0 OR MIT
/* ghost.c - requests of /dev/nvidia-ghost. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <uapi/ghost.h>

int ghost_open(void)
{
	int fd = open("/dev/" GHOST_DEVICE, O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0);
	return fd;
}

int ghost_call(int fd, unsigned long request, void *argument)
{
	return ioctl(fd, request, argument) ? -errno : 0;
}

uint64_t ghost_make(int fd, uint64_t parent, const char *name)
{
	struct ghost_create create = { .size = sizeof(create), .parent = parent };

	strncpy(create.name, name, sizeof(create.name) - 1);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, &create), 0);
	REQUIRE(create.id > GHOST_SYSTEM);
	return create.id;
}

struct ghost_stat ghost_stat_of(int fd, uint64_t id, uint32_t gpu)
{
	struct ghost_stat stat = { .size = sizeof(stat), .id = id, .gpu = gpu };

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_STAT, &stat), 0);
	return stat;
}

bool ghost_client_of(int fd, uint32_t handle, struct ghost_client *client)
{
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CLIENTS,
		.item_size = sizeof(*client),
		.items = (uintptr_t)client,
		.count = 1,
	};

	for (;;) {
		list.count = 1;
		REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
		if (!list.written)
			return false;
		if (client->handle == handle && client->pid == (uint32_t)getpid())
			return true;
		list.after = client->id;
	}
}

void in_child(void (*body)(void *), void *argument)
{
	pid_t pid = fork();
	int status;

	REQUIRE(pid >= 0);
	if (pid == 0) {
		body(argument);
		_exit(0);
	}
	REQUIRE_EQ(waitpid(pid, &status, 0), pid);
	REQUIRE_EQ(status, 0);
}

void pause_ms(unsigned int ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	nanosleep(&time, NULL);
}
