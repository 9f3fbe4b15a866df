// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_module.c - the module comes, says what it is, works as the driver does, and goes. */
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(patches_names_ghost)
{
	const char *text = text_of("/proc/driver/nvidia/patches/ghost");

	if (!strstr(text, "GPU containers"))
		fail(__FILE__, __LINE__, "/proc/driver/nvidia/patches/ghost says: %s", text);
}

TEST(device_is_roots_alone)
{
	struct stat status;

	REQUIRE_EQ(stat("/dev/nvidia-ghost", &status), 0);
	REQUIRE(S_ISCHR(status.st_mode));
	REQUIRE_EQ(status.st_mode & 0777, 0600);
}

TEST(clients_and_memory_come_and_go)
{
	uint32_t client, memory;
	int fd;

	/* Whatever GPUs other tests have made known. */
	EVENTUALLY(unload_driver() == 0);
	REQUIRE_EQ(load_driver("ghost_no_gpu=1"), 0);
	fd = rm_open();
	REQUIRE(fd >= 0);
	REQUIRE_EQ(rm_client(fd, &client), RM_OK);
	REQUIRE_EQ(rm_memory(fd, client, &memory, 1 << 20), RM_OK);
	REQUIRE_EQ(rm_free(fd, client, client, memory), RM_OK);
	REQUIRE_EQ(rm_free(fd, client, client, client), RM_OK);
	close(fd);
}

TEST(uvm_loads_over_it)
{
	REQUIRE_EQ(load_uvm(), 0);
	REQUIRE_EQ(unload_driver(), -EAGAIN);
	REQUIRE_EQ(unload_uvm(), 0);
}

TEST(unload_and_load_again)
{
	for (int i = 0; i < 3; i++) {
		EVENTUALLY(unload_driver() == 0);
		REQUIRE_EQ(access("/dev/nvidia-ghost", F_OK), -1);
		REQUIRE_EQ(load_driver("ghost_no_gpu=1"), 0);
		REQUIRE_EQ(access("/dev/nvidia-ghost", F_OK), 0);
	}
}

TEST(without_a_gpu_the_driver_does_not_load)
{
	EVENTUALLY(unload_driver() == 0);
	REQUIRE_EQ(load_driver(""), -ENODEV);
}
