// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * init.c - the first and only program of the virtual machine: loads the driver, runs each test in a
 * process of its own, prints TAP, and turns the machine off. A test also fails if the kernel
 * complains while it runs.
 */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* By hand, on the kernel's command line, which hands them to init: seconds=3600, only=NAME. */
#define TEST_SECONDS 300
#define COMPLAINTS_SHOWN 5
#define DRIVER_PARAMETERS "ghost_no_gpu=1"

enum { PASSED = 0, FAILED = 1, SKIPPED = 2 };

static struct test *tests, **last = &tests;
static int count;
/* The process that runs a test. */
static pid_t runner;

void add_test(struct test *test)
{
	*last = test;
	last = &test->next;
	count++;
}

/* One write: what several processes say is not mixed. */
static void say(const char *format, ...)
{
	char line[1024];
	va_list args;

	va_start(args, format);
	int length = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (length > (int)sizeof(line) - 1)
		length = sizeof(line) - 1;
	if (write(STDOUT_FILENO, line, length) < 0)
		abort();
}

static void end(int result)
{
	/* The runner is told by its own exit; a child of it by a signal, since nobody else may wait. */
	if (getpid() != runner)
		kill(runner, SIGUSR1 + (result == SKIPPED));
	_exit(result);
}

void fail(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	say("# %s:%d: %s\n", file, line, text);
	end(FAILED);
	abort();
}

void skip(const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	say("# skipped: %s\n", text);
	end(SKIPPED);
	abort();
}

const char *text_of(const char *path)
{
	static char text[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;

	while (fd >= 0 && length < sizeof(text) - 1) {
		ssize_t got = read(fd, text + length, sizeof(text) - 1 - length);
		if (got <= 0)
			break;
		length += got;
	}
	if (fd >= 0)
		close(fd);
	text[length] = 0;
	return text;
}

int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int result = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return result;
}

static int load(const char *path, const char *parameters)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int result = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
	close(fd);
	return result;
}

static int unload(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? -errno : 0;
}

int load_driver(const char *parameters)
{
	return load("/nvidia.ko", parameters);
}

int load_uvm(void)
{
	return load("/nvidia-uvm.ko", "");
}

int unload_driver(void)
{
	return unload("nvidia");
}

int unload_uvm(void)
{
	return unload("nvidia_uvm");
}

int driver_branch(void)
{
	static int branch;

	if (!branch)
		branch = atoi(text_of("/sys/module/nvidia/version"));
	return branch;
}

/* What the kernel said since the last call: prints complaints, and says whether there were any. */
static bool kernel_complained(int kmsg)
{
	static const char *const complaints[] = {
		"BUG:", "WARNING:", "Oops", "general protection", "refcount_t", "possible recursive",
		"possible circular", "KASAN", "UBSAN", "unreferenced object", "hung task", "blocked for more",
	};
	char record[8192];
	int found = 0;
	ssize_t length;

	while ((length = read(kmsg, record, sizeof(record) - 1)) > 0 || errno == EPIPE) {
		if (length <= 0)
			continue;
		record[length] = 0;
		for (size_t i = 0; i < sizeof(complaints) / sizeof(*complaints); i++) {
			if (strstr(record, complaints[i]) && found++ < COMPLAINTS_SHOWN)
				say("# kernel: %s", record);
		}
	}
	return found;
}

/* Lockdep, where the kernel has it, checks nothing more after its first report, or when it is full. */
static bool lockdep_ended(void)
{
	const char *at = strstr(text_of("/proc/lockdep_stats"), "debug_locks:");

	return at && !atoi(at + strlen("debug_locks:"));
}

static int run(const struct test *test)
{
	const char *seconds = getenv("seconds");
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		setpgid(0, 0);
		runner = getpid();
		alarm(seconds ? atoi(seconds) : TEST_SECONDS);
		test->run();
		_exit(PASSED);
	}
	if (waitpid(pid, &status, 0) != pid)
		return FAILED;
	/* Whatever it left running. */
	kill(-pid, SIGKILL);
	while (waitpid(-pid, NULL, 0) > 0)
		;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	if (WTERMSIG(status) == SIGUSR2)
		return SKIPPED;
	if (WTERMSIG(status) != SIGUSR1)
		say("# ended by signal %d\n", WTERMSIG(status));
	return FAILED;
}

int main(void)
{
	const char *only = getenv("only");
	int kmsg, result, number = 0;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 01777);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	int console = open("/dev/console", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(console, fd);
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	say("TAP version 13\n1..%d\n", only ? 1 : count);
	result = load("/drm.ko", "");
	if (result && result != -ENOENT)
		say("# drm.ko: %s\n", strerror(-result));
	for (struct test *test = tests; test; test = test->next) {
		if (only && strcmp(only, test->name))
			continue;
		number++;
		result = load_driver(DRIVER_PARAMETERS);
		if (result && result != -EEXIST) {
			say("# nvidia.ko: %s\n", strerror(-result));
			result = FAILED;
		} else {
			result = run(test);
		}
		if (kernel_complained(kmsg))
			result = FAILED;
		if (!test->next && lockdep_ended()) {
			say("# lockdep did not come to the end\n");
			result = FAILED;
		}
		/* What a failed test left is none of the next one's. */
		if (result == FAILED) {
			unload_uvm();
			for (int tries = 0; unload_driver() == -EAGAIN && tries < 500; tries++)
				pause_ms(10);
		}
		say("%s %d - %s%s\n", result == FAILED ? "not ok" : "ok", number, test->name,
		    result == SKIPPED ? " # SKIP" : "");
	}
	sync();
	reboot(RB_POWER_OFF);
	return 0;
}
