// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_members.c - processes that are attached, end, have threads and children; cgroups that go. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/ghost.h>

static int attach_fd(int fd, uint64_t id, int pidfd)
{
	struct ghost_attach request = { .size = sizeof(request), .id = id, .pidfd = pidfd };

	return ghost_call(fd, GHOST_IOC_ATTACH, &request);
}

static int attach(int fd, uint64_t id, pid_t pid)
{
	int pidfd = syscall(SYS_pidfd_open, pid, 0), result;

	REQUIRE(pidfd >= 0);
	result = attach_fd(fd, id, pidfd);
	close(pidfd);
	return result;
}

static int delete(int fd, uint64_t id)
{
	struct ghost_delete request = { .size = sizeof(request), .id = id };

	return ghost_call(fd, GHOST_IOC_DELETE, &request);
}

static int bind_path(int fd, uint64_t id, const char *path)
{
	struct ghost_bind request = { .size = sizeof(request), .id = id };
	int result;

	request.cgroup_fd = open(path, O_RDONLY | O_CLOEXEC);
	result = ghost_call(fd, GHOST_IOC_BIND, &request);
	close(request.cgroup_fd);
	return result;
}

/* Where a client that this process makes now is charged. */
static uint64_t container_now(int fd)
{
	struct ghost_client client;
	uint32_t handle;
	int rm = rm_open();

	REQUIRE_EQ(rm_client(rm, &handle), RM_OK);
	REQUIRE(ghost_client_of(fd, handle, &client));
	close(rm);
	return client.container;
}

TEST(not_a_pidfd)
{
	int fd = ghost_open();

	REQUIRE_EQ(attach_fd(fd, GHOST_SYSTEM, fd), -EBADF);
	REQUIRE_EQ(attach_fd(fd, GHOST_SYSTEM, open("/proc/self", O_RDONLY)), -EBADF);
	REQUIRE_EQ(attach_fd(fd, GHOST_SYSTEM, -1), -EBADF);
	REQUIRE_EQ(attach_fd(fd, GHOST_SYSTEM, 1000), -EBADF);
}

TEST(a_process_that_has_ended)
{
	int fd = ghost_open(), pidfd;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	REQUIRE(pidfd >= 0);
	/* A zombie, then nothing. */
	EVENTUALLY(attach_fd(fd, GHOST_SYSTEM, pidfd) == -ESRCH);
	REQUIRE_EQ(waitpid(pid, NULL, 0), pid);
	REQUIRE_EQ(attach_fd(fd, GHOST_SYSTEM, pidfd), -ESRCH);
	REQUIRE_EQ(attach_fd(fd, GHOST_NONE, pidfd), -ESRCH);
}

static void is_system(void *fd)
{
	REQUIRE_EQ(container_now(*(int *)fd), GHOST_SYSTEM);
}

struct in_thread {
	int fd;
	uint64_t container;
};

static void *thread(void *argument)
{
	struct in_thread *in = argument;

	in->container = container_now(in->fd);
	return NULL;
}

TEST(threads_are_in_it_and_children_are_not)
{
	int fd = ghost_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "threads");
	struct in_thread in = { .fd = fd };
	pthread_t other;

	REQUIRE_EQ(attach(fd, id, getpid()), 0);
	REQUIRE_EQ(pthread_create(&other, NULL, thread, &in), 0);
	pthread_join(other, NULL);
	REQUIRE_EQ(in.container, id);
	in_child(is_system, &fd);
	REQUIRE_EQ(container_now(fd), id);
	/* With its container goes the membership. */
	EVENTUALLY(delete(fd, id) == 0);
	REQUIRE_EQ(container_now(fd), GHOST_SYSTEM);
}

TEST(many_processes_come_and_go)
{
	int fd = ghost_open();
	uint64_t id = ghost_make(fd, GHOST_NONE, "many");

	for (int i = 0; i < 500; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			pause();
			_exit(0);
		}
		REQUIRE_EQ(attach(fd, id, pid), 0);
		/* Again, and elsewhere: the last one counts. */
		REQUIRE_EQ(attach(fd, i % 2 ? id : GHOST_SYSTEM, pid), 0);
		kill(pid, SIGKILL);
		REQUIRE_EQ(waitpid(pid, NULL, 0), pid);
	}
	REQUIRE_EQ(delete(fd, id), 0);
}

static void join(const char *path)
{
	char text[128];

	snprintf(text, sizeof(text), "%s/cgroup.procs", path);
	REQUIRE_EQ(write_text(text, "0"), 0);
}

static void join_and_see(void *argument)
{
	struct in_thread *in = argument;

	join("/sys/fs/cgroup/again");
	in->container = container_now(in->fd);
	REQUIRE_EQ(in->container, GHOST_SYSTEM);
}

TEST(a_cgroup_of_the_same_name_is_another)
{
	int fd = ghost_open();
	struct in_thread in = { .fd = fd };
	uint64_t id = ghost_make(fd, GHOST_NONE, "again");

	mkdir("/sys/fs/cgroup/again", 0755);
	REQUIRE_EQ(bind_path(fd, id, "/sys/fs/cgroup/again"), 0);
	REQUIRE_EQ(rmdir("/sys/fs/cgroup/again"), 0);
	mkdir("/sys/fs/cgroup/again", 0755);
	in_child(join_and_see, &in);
	REQUIRE_EQ(delete(fd, id), 0);
	rmdir("/sys/fs/cgroup/again");
}

TEST(bound_cgroups_are_listed)
{
	struct ghost_cgroup cgroups[8];
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_CGROUPS,
		.item_size = sizeof(*cgroups),
		.items = (uintptr_t)cgroups,
		.count = 8,
	};
	int fd = ghost_open();
	uint64_t one = ghost_make(fd, GHOST_NONE, "one"), two = ghost_make(fd, GHOST_NONE, "two");
	struct stat status;

	mkdir("/sys/fs/cgroup/one", 0755);
	mkdir("/sys/fs/cgroup/two", 0755);
	REQUIRE_EQ(bind_path(fd, two, "/sys/fs/cgroup/two"), 0);
	REQUIRE_EQ(bind_path(fd, one, "/sys/fs/cgroup/one"), 0);
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 2);
	REQUIRE(cgroups[0].id < cgroups[1].id);
	REQUIRE_EQ(stat("/sys/fs/cgroup/one", &status), 0);
	REQUIRE_EQ(cgroups[0].id, status.st_ino);
	REQUIRE_EQ(cgroups[0].container, one);
	/* Bound to another, and to none. */
	REQUIRE_EQ(bind_path(fd, one, "/sys/fs/cgroup/two"), 0);
	REQUIRE_EQ(bind_path(fd, GHOST_NONE, "/sys/fs/cgroup/one"), 0);
	list.count = 8;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, 1);
	REQUIRE_EQ(cgroups[0].container, one);
	/* A file of it is no directory. */
	REQUIRE_EQ(bind_path(fd, one, "/sys/fs/cgroup/one/cgroup.procs"), -EINVAL);
	REQUIRE_EQ(delete(fd, one), 0);
	REQUIRE_EQ(delete(fd, two), 0);
	list.count = 8;
	REQUIRE_EQ(ghost_call(fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.count, 0);
	rmdir("/sys/fs/cgroup/one");
	rmdir("/sys/fs/cgroup/two");
}
