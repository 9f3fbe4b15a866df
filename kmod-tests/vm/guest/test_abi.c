// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_abi.c - what fails has changed nothing; reserved fields; readers of events. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/ghost.h>

static uint32_t containers(int fd)
{
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CONTAINERS,
		.item_size = sizeof(struct ghost_container),
	};

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 0);
	return list.count;
}

TEST(what_cannot_be_answered_is_not_done)
{
	struct ghost_create *create;
	long page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = ghost_open();
	uint32_t before = containers(fd);

	REQUIRE(memory != MAP_FAILED);
	create = (struct ghost_create *)memory;
	*create = (struct ghost_create){ .size = sizeof(*create), .name = "unseen" };
	REQUIRE_EQ(mprotect(memory, page, PROT_READ), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, create), -EFAULT);
	/* Its end in a page that cannot be read, then in one that cannot be written. */
	REQUIRE_EQ(mprotect(memory, page, PROT_READ | PROT_WRITE), 0);
	memory += page - sizeof(*create) + 8;
	memcpy(memory, create, sizeof(*create));
	create = (struct ghost_create *)memory;
	memory -= page - sizeof(*create) + 8;
	REQUIRE_EQ(mprotect(memory + page, page, PROT_NONE), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, create), -EFAULT);
	REQUIRE_EQ(mprotect(memory + page, page, PROT_READ), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, create), -EFAULT);
	REQUIRE_EQ(containers(fd), before);
}

TEST(nothing_beyond_the_callers_size_is_written)
{
	struct {
		struct ghost_version version;
		uint64_t beyond;
	} room;
	int fd = ghost_open();

	memset(&room, 0x5a, sizeof(room));
	room.version.size = sizeof(room.version);
	room.version.flags = 0;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_VERSION, &room.version), 0);
	REQUIRE_EQ(room.beyond, 0x5a5a5a5a5a5a5a5a);
	/* Text ends, and nothing of the caller's is behind it. */
	for (size_t i = strlen(room.version.build); i < sizeof(room.version.build); i++)
		REQUIRE_EQ(room.version.build[i], 0);
}

TEST(reserved_fields)
{
	struct ghost_create create = { .size = sizeof(create), .name = "a", .reserved = { [6] = 1 } };
	struct ghost_stat stat = { .size = sizeof(stat), .id = GHOST_SYSTEM, .reserved = 1 };
	struct ghost_bind bind = { .size = sizeof(bind), .id = GHOST_SYSTEM, .reserved = 1 };
	struct ghost_attach attach = { .size = sizeof(attach), .id = GHOST_SYSTEM, .reserved = 1 };
	struct ghost_pause pause = { .size = sizeof(pause), .id = GHOST_SYSTEM, .reserved = 1 };
	int fd = ghost_open();

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_CREATE, &create), -EINVAL);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_STAT, &stat), -EINVAL);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_BIND, &bind), -EINVAL);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_ATTACH, &attach), -EINVAL);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_PAUSE, &pause), -EINVAL);
}

TEST(rights_of_files)
{
	struct ghost_version version = { .size = sizeof(version) };
	char event[GHOST_EVENT_SIZE];
	int writer = open("/dev/" GHOST_DEVICE, O_WRONLY);

	REQUIRE(writer >= 0);
	REQUIRE_EQ(ghost_call(writer, GHOST_IOC_VERSION, &version), -EPERM);
	REQUIRE_EQ(read(writer, event, sizeof(event)), -1);
	REQUIRE_EQ(errno, EBADF);
}

TEST(sizes_of_items)
{
	struct ghost_list list = { .size = sizeof(list), .what = GHOST_LIST_CONTAINERS };
	int fd = ghost_open();

	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), -EINVAL);
	list.item_size = sizeof(struct ghost_container) - 1;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), -EINVAL);
	list.item_size = UINT32_MAX;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), -EINVAL);
	/* Beyond the last key there is. */
	list.item_size = sizeof(struct ghost_container);
	list.after = UINT64_MAX;
	for (list.what = 0; list.what <= GHOST_LIST_CGROUPS; list.what++) {
		list.item_size = sizeof(struct ghost_container);
		list.count = 1;
		REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
		REQUIRE_EQ(list.count, 0);
	}
}

#ifdef __x86_64__
/* ioctl(2) as a program for 32 bits makes it; `argument` lies below 4 GiB. */
static int call_32(int fd, unsigned int request, void *argument)
{
	int result;

	asm volatile("int $0x80"
		     : "=a"(result)
		     : "a"(54), "b"(fd), "c"(request), "d"((unsigned int)(uintptr_t)argument)
		     : "memory", "r8", "r9", "r10", "r11");
	return result;
}

TEST(callers_of_32_bits)
{
	struct {
		struct ghost_list list;
		struct ghost_container container;
	} *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int fd = ghost_open();

	REQUIRE(low != MAP_FAILED);
	low->list = (struct ghost_list){
		.size = sizeof(low->list),
		.what = GHOST_LIST_CONTAINERS,
		.item_size = sizeof(low->container),
		.items = (uintptr_t)&low->container,
		.count = 1,
	};
	int result = call_32(fd, GHOST_IOC_LIST, &low->list);
	if (result == -ENOSYS)
		skip("this kernel runs no programs for 32 bits");
	REQUIRE_EQ(result, 0);
	REQUIRE_EQ(low->list.written, 1);
	REQUIRE_EQ(low->container.id, GHOST_SYSTEM);
	REQUIRE_EQ(strcmp(low->container.name, "system"), 0);
	REQUIRE_EQ(call_32(fd, _IO(GHOST_IOC_MAGIC, 62), &low->list), -ENOTTY);
}
#endif

/* Clients come and go: two events each. */
static void come_and_go(int times)
{
	for (int i = 0; i < times; i++) {
		uint32_t client;
		int rm = rm_open();

		REQUIRE_EQ(rm_client(rm, &client), RM_OK);
		REQUIRE_EQ(rm_free(rm, client, client, client), RM_OK);
		close(rm);
	}
}

static int reader(void)
{
	int fd = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);

	REQUIRE(fd >= 0);
	return fd;
}

TEST(readers_are_apart)
{
	struct ghost_event events[8];
	int first = reader(), second;
	void *nowhere;

	come_and_go(1);
	second = reader();
	come_and_go(1);
	/* Whole events, as many as fit. */
	REQUIRE_EQ(read(first, events, 3 * GHOST_EVENT_SIZE + 1), 3 * GHOST_EVENT_SIZE);
	REQUIRE_EQ(events[0].type, GHOST_EVENT_CLIENT);
	REQUIRE_EQ(events[1].type, GHOST_EVENT_CLIENT_GONE);
	REQUIRE_EQ(events[1].object, events[0].object);
	REQUIRE_EQ(events[1].pid, getpid());
	REQUIRE(events[1].at_ns >= events[0].at_ns);
	REQUIRE_EQ(events[2].seq, events[0].seq + 2);
	REQUIRE_EQ(read(first, events, sizeof(events)), GHOST_EVENT_SIZE);
	REQUIRE_EQ(read(second, events, sizeof(events)), 2 * GHOST_EVENT_SIZE);
	/* What cannot be given is not taken. */
	come_and_go(1);
	nowhere = mmap(NULL, sizeof(events), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(nowhere != MAP_FAILED);
	REQUIRE_EQ(read(first, nowhere, sizeof(events)), -1);
	REQUIRE_EQ(errno, EFAULT);
	REQUIRE_EQ(read(first, events, sizeof(events)), 2 * GHOST_EVENT_SIZE);
}

TEST(a_reader_waits)
{
	struct ghost_event event;
	int fd = open("/dev/" GHOST_DEVICE, O_RDONLY), polled = reader(), status;
	struct pollfd waiting = { .fd = polled, .events = POLLIN };
	pid_t pid;

	REQUIRE_EQ(poll(&waiting, 1, 0), 0);
	pid = fork();
	if (pid == 0) {
		pause_ms(100);
		come_and_go(1);
		_exit(0);
	}
	REQUIRE_EQ(read(fd, &event, sizeof(event)), GHOST_EVENT_SIZE);
	REQUIRE_EQ(event.type, GHOST_EVENT_CLIENT);
	REQUIRE_EQ(event.pid, pid);
	REQUIRE_EQ(poll(&waiting, 1, 10000), 1);
	REQUIRE(waiting.revents & POLLIN);
	REQUIRE_EQ(waitpid(pid, &status, 0), pid);
	REQUIRE_EQ(status, 0);
}
