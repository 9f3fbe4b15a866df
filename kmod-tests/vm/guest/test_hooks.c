// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * test_hooks.c - whom the hooks take for whom: clients of each class, the kernel's own, processes of UVM;
 * a module that is loaded with its hooks off. What needs a GPU is reached by no call here: controls of
 * channel groups end in the driver before the hooks, for there is no object that knows them.
 */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/ghost.h>

#define HOOKS "/sys/module/nvidia/parameters/ghost_hooks"
#define UVM_INITIALIZE 0x30000001
#define CLASS_ROOT 0x0
#define CLASS_ROOT_NON_PRIV 0x1
#define CLASS_ROOT_CLIENT 0x41
#define MIB (1ULL << 20)
#define PROCESSES 8

static uint32_t clients(int fd)
{
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CLIENTS,
		.item_size = sizeof(struct ghost_client),
	};

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	return list.count;
}

static uint32_t hooks(int fd)
{
	struct ghost_version version = { .size = sizeof(version) };

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &version), 0);
	return version.hooks;
}

static void load_anew(const char *parameters)
{
	EVENTUALLY(unload_driver() == 0);
	REQUIRE_EQ(load_driver(parameters), 0);
}

/* A file of nvidia-uvm's, initialized, or -errno. */
static int uvm_open(void)
{
	struct {
		uint64_t flags;
		uint32_t status;
	} initialize = { 0 };
	const char *line;
	int major, fd;

	line = strstr(text_of("/proc/devices"), " nvidia-uvm\n");
	REQUIRE(line);
	while (line[-1] >= '0' && line[-1] <= '9')
		line--;
	REQUIRE_EQ(sscanf(line, "%d", &major), 1);
	mknod("/dev/nvidia-uvm", S_IFCHR | 0666, makedev(major, 0));
	fd = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	REQUIRE_EQ(ioctl(fd, UVM_INITIALIZE, &initialize), 0);
	REQUIRE_EQ(initialize.status, RM_OK);
	return fd;
}

TEST(clients_of_each_class_are_tenants)
{
	static const uint32_t classes[] = { CLASS_ROOT, CLASS_ROOT_NON_PRIV, CLASS_ROOT_CLIENT };
	struct ghost_client seen;
	int fd, rm;

	load_anew("ghost_no_gpu=1");
	fd = ghost_open();
	rm = rm_open();
	for (int i = 0; i < 3; i++) {
		uint32_t handle = 0;

		REQUIRE_EQ(rm_alloc(rm, 0, 0, &handle, classes[i], NULL, 0), RM_OK);
		REQUIRE(ghost_client_of(fd, handle, &seen));
		REQUIRE_EQ(seen.pid, getpid());
		REQUIRE_EQ(seen.container, GHOST_SYSTEM);
		REQUIRE_EQ(clients(fd), 1);
		REQUIRE_EQ(rm_free(rm, handle, handle, handle), RM_OK);
		REQUIRE_EQ(clients(fd), 0);
	}
	close(rm);
}

TEST(the_kernels_clients_are_nobodys)
{
	int fd;

	load_anew("ghost_no_gpu=1");
	fd = ghost_open();
	/* The driver's own, nvidia-uvm's, and that of a process's UVM file. */
	REQUIRE_EQ(clients(fd), 0);
	REQUIRE_EQ(load_uvm(), 0);
	REQUIRE_EQ(clients(fd), 0);
	close(uvm_open());
	REQUIRE_EQ(clients(fd), 0);
	REQUIRE_EQ(unload_uvm(), 0);
}

static void use_uvm(void)
{
	for (;;)
		close(uvm_open());
}

TEST(processes_that_use_uvm_are_killed)
{
	pid_t pids[PROCESSES];

	REQUIRE_EQ(load_uvm(), 0);
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			use_uvm();
	}
	pause_ms(300);
	for (int i = 0; i < PROCESSES; i++) {
		kill(pids[i], SIGKILL);
		REQUIRE_EQ(waitpid(pids[i], NULL, 0), pids[i]);
	}
	EVENTUALLY(unload_uvm() == 0);
}

TEST(hooks_are_off_from_the_first)
{
	struct ghost_limit limit = {
		.size = sizeof(limit),
		.id = GHOST_SYSTEM,
		.gpu = GHOST_ALL_GPUS,
		.set = GHOST_SET_MEMORY_MAX,
		.memory_max = MIB,
	};
	uint32_t client, memory;
	int fd, rm;

	load_anew("ghost_no_gpu=1 ghost_hooks=0");
	fd = ghost_open();
	rm = rm_open();
	REQUIRE_EQ(hooks(fd), 0);
	REQUIRE_EQ(rm_client(rm, &client), RM_OK);
	REQUIRE_EQ(rm_memory(rm, client, &memory, 2 * MIB), RM_OK);
	REQUIRE_EQ(rm_free(rm, client, client, memory), RM_OK);
	/* A client of that time is a tenant like others when they are on. */
	REQUIRE_EQ(write_text(HOOKS, "1"), 0);
	REQUIRE(hooks(fd) & GHOST_HOOKS_MEMORY);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIMIT, &limit), 0);
	REQUIRE_EQ(rm_memory(rm, client, &memory, 2 * MIB), RM_NO_MEMORY);
	REQUIRE_EQ(rm_memory(rm, client, &memory, MIB), RM_OK);
	close(rm);
	close(fd);
	EVENTUALLY(unload_driver() == 0);
}
