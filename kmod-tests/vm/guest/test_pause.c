// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_pause.c - what stops channel groups: files and budgets. */
#include "groups.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int stop(int fd, struct tenant *t)
{
	return set_paused(fd, t->container, GHOST_ALL_GPUS, false);
}

static int resume(int fd, struct tenant *t)
{
	return set_paused(fd, t->container, GHOST_ALL_GPUS, true);
}

TEST(pauses_nest_over_files)
{
	int fd = ghost_open(), one = ghost_open(), two = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	add_group(&t, GPU, 1);
	REQUIRE_EQ(stop(one, &t), 0);
	/* It is so when the request returns. */
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(stop(two, &t), 0);
	/* Twice on one file is once. */
	REQUIRE_EQ(stop(two, &t), 0);
	REQUIRE_EQ(resume(two, &t), 0);
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(resume(one, &t), 0);
	REQUIRE_EQ(group_of(&t).paused, 0);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, 0);
	/* What is not paused is let run as well. */
	REQUIRE_EQ(resume(two, &t), 0);
	REQUIRE_EQ(group_of(&t).paused, 0);
	REQUIRE_EQ(set_paused(two, 1ULL << 60, GPU, false), -ENOENT);
	REQUIRE_EQ(set_paused(two, t.container, 12345, false), -ENODEV);
	leave();
}

TEST(pauses_nest_over_containers)
{
	int fd = ghost_open();
	struct tenant top = tenant(fd, GHOST_NONE, "top"), other = tenant(fd, GHOST_NONE, "other");
	struct tenant low = tenant(fd, top.container, "low");

	add_group(&low, GPU, 1);
	add_group(&other, GPU, 2);
	REQUIRE_EQ(stop(fd, &top), 0);
	REQUIRE_EQ(stop(fd, &low), 0);
	REQUIRE_EQ(group_of(&low).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(group_of(&other).paused, 0);
	/* One that appears later, and not on that GPU alone. */
	add_group(&low, OTHER_GPU, 3);
	EVENTUALLY(group_on(&low, OTHER_GPU).paused == GHOST_PAUSED_ASKED);
	REQUIRE_EQ(resume(fd, &top), 0);
	REQUIRE_EQ(group_of(&low).paused, GHOST_PAUSED_ASKED);
	/* Of all GPUs, one. */
	REQUIRE_EQ(set_paused(fd, low.container, OTHER_GPU, true), 0);
	REQUIRE_EQ(group_on(&low, OTHER_GPU).paused, 0);
	REQUIRE_EQ(group_of(&low).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(resume(fd, &low), 0);
	REQUIRE_EQ(group_of(&low).paused, 0);
	leave();
}

TEST(a_pause_ends_with_its_file)
{
	int fd = ghost_open(), holder = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	add_group(&t, GPU, 1);
	REQUIRE_EQ(stop(holder, &t), 0);
	close(holder);
	EVENTUALLY(group_of(&t).paused == 0);
	leave();
}

TEST(a_killed_daemon_leaves_nothing_paused)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	pid_t pid;

	add_group(&t, GPU, 1);
	pid = fork();
	if (pid == 0) {
		REQUIRE_EQ(stop(ghost_open(), &t), 0);
		pause();
	}
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_ASKED);
	kill(pid, SIGKILL);
	REQUIRE_EQ(waitpid(pid, NULL, 0), pid);
	EVENTUALLY(group_of(&t).paused == 0);
	leave();
}

TEST(a_container_goes_with_its_pauses)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	struct ghost_delete delete = { .size = sizeof(delete), .id = t.container };

	add_group(&t, GPU, 1);
	REQUIRE_EQ(stop(fd, &t), 0);
	remove_group(&t, 1);
	close(t.rm);
	EVENTUALLY(ghost_call(fd, GHOST_IOC_DELETE, &delete) == 0);
	REQUIRE_EQ(resume(fd, &t), -ENOENT);
	leave();
}

TEST(what_the_driver_refuses_is_undone)
{
	int fd = ghost_open(), holder = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	for (uint64_t object = 1; object < 4; object++)
		add_group(&t, GPU, object);
	EVENTUALLY(group_of(&t).slice_us == 10000);
	let_fail(&t, 2);
	REQUIRE_EQ(stop(holder, &t), -EIO);
	EVENTUALLY(group_of(&t).paused == 0);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, 0);
	REQUIRE_EQ(stop(holder, &t), 0);
	/* What was to run again is tried until it does. */
	let_fail(&t, 7);
	REQUIRE_EQ(resume(holder, &t), -EIO);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, 0);
	EVENTUALLY(group_of(&t).paused == 0);
	leave();
}

/* So many that stopping them takes longer than the timer, or nearly always. */
#define MANY 500

static volatile sig_atomic_t rang;

static void ring(int signal)
{
	(void)signal;
	rang = 1;
}

static uint32_t paused_groups(struct tenant *t)
{
	static struct ghost_group groups[MANY];
	struct ghost_list list = {
		.size = sizeof(list),
		.what = GHOST_LIST_GROUPS,
		.item_size = sizeof(*groups),
		.count = MANY,
		.items = (uintptr_t)groups,
	};
	uint32_t paused = 0;

	REQUIRE_EQ(ghost_call(t->fd, GHOST_IOC_LIST, &list), 0);
	REQUIRE_EQ(list.written, MANY);
	for (int i = 0; i < MANY; i++)
		paused += groups[i].paused != 0;
	return paused;
}

/* Stops it while a timer rings, until it has rung in between: what that request said. */
static int stop_while_it_rings(int holder, struct tenant *t, int flags)
{
	struct sigaction action = { .sa_handler = ring, .sa_flags = flags };
	int result;

	REQUIRE_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	for (long us = 1000; us < 101000; us += 1000) {
		struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
		struct itimerspec when = { .it_value.tv_nsec = us * 1000 };
		timer_t timer;

		rang = 0;
		REQUIRE_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
		REQUIRE_EQ(timer_settime(timer, 0, &when, NULL), 0);
		result = stop(holder, t);
		timer_delete(timer);
		if (result || (flags && rang))
			return result;
		REQUIRE_EQ(resume(holder, t), 0);
	}
	fail(__FILE__, __LINE__, "no signal came while it was stopped");
}

TEST(a_pause_that_a_signal_interrupts_is_undone)
{
	int fd = ghost_open(), holder = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	for (uint64_t object = 1; object <= MANY; object++)
		add_group(&t, GPU, object);
	REQUIRE_EQ(stop_while_it_rings(holder, &t, 0), -EINTR);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).paused, 0);
	EVENTUALLY(paused_groups(&t) == 0);
	/* A handler that asks for it has the request made again. */
	REQUIRE_EQ(stop_while_it_rings(holder, &t, SA_RESTART), 0);
	REQUIRE_EQ(paused_groups(&t), MANY);
	REQUIRE_EQ(resume(holder, &t), 0);
	REQUIRE_EQ(paused_groups(&t), 0);
	leave();
}

TEST(a_budget_stops_and_lets_run)
{
	int fd = ghost_open();
	struct tenant top = tenant(fd, GHOST_NONE, "top");
	struct tenant low = tenant(fd, top.container, "low");
	struct ghost_stat before, after;
	uint64_t periods, throttled;

	set_limit(&top, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = 30000, .period_us = 100000 });
	add_group(&low, GPU, 1);
	EVENTUALLY(group_of(&low).paused == GHOST_PAUSED_MAX);
	REQUIRE_EQ(ghost_stat_of(fd, low.container, GPU).nr_periods, 0);
	EVENTUALLY(group_of(&low).paused == 0);
	/* By the module's own account: what it was not stopped for is no more than 30 ms of each. */
	EVENTUALLY(ghost_stat_of(fd, top.container, GPU).nr_throttled > 1);
	before = ghost_stat_of(fd, top.container, GPU);
	EVENTUALLY(ghost_stat_of(fd, top.container, GPU).nr_periods >= before.nr_periods + 10);
	after = ghost_stat_of(fd, top.container, GPU);
	periods = after.nr_periods - before.nr_periods;
	/* Where the machine is slow, the thread may wake after a period's end: that one was not stopped in. */
	throttled = after.nr_throttled - before.nr_throttled;
	REQUIRE(throttled <= periods && throttled + 3 >= periods);
	/* Both were read within a period, whose beginning is not known. */
	REQUIRE(after.throttled_us - before.throttled_us >= (throttled - 1) * 70000);
	REQUIRE(after.throttled_us - before.throttled_us <= (periods + 1) * 100000);
	/* No limit. */
	set_limit(&top, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = GHOST_MAX, .period_us = 100000 });
	EVENTUALLY(group_of(&low).paused == 0);
	REQUIRE_EQ(ghost_stat_of(fd, top.container, GPU).paused, 0);
	leave();
}

TEST(a_file_and_a_budget)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	uint64_t periods;

	set_limit(&t, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = 1000, .period_us = 20000 });
	add_group(&t, GPU, 1);
	EVENTUALLY(ghost_stat_of(fd, t.container, GPU).nr_throttled > 1);
	REQUIRE_EQ(stop(fd, &t), 0);
	/* It does not run, so that it uses nothing: periods without anything to run are not counted. */
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_ASKED);
	EVENTUALLY(ghost_stat_of(fd, t.container, GPU).paused == GHOST_PAUSED_ASKED);
	pause_ms(50);
	periods = ghost_stat_of(fd, t.container, GPU).nr_periods;
	pause_ms(100);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).nr_periods, periods);
	REQUIRE_EQ(resume(fd, &t), 0);
	EVENTUALLY(ghost_stat_of(fd, t.container, GPU).nr_periods > periods + 2);
	leave();
}

TEST(the_module_goes_while_a_budget_has_stopped)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	set_limit(&t, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = 1, .period_us = 1000000 });
	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_MAX);
	REQUIRE_EQ(unload_driver(), -EAGAIN);
	leave();
}

TEST(without_hooks_all_run)
{
	const char *hooks = "/sys/module/nvidia/parameters/ghost_hooks";
	int fd = ghost_open();
	struct tenant one = tenant(fd, GHOST_NONE, "one"), two = tenant(fd, GHOST_NONE, "two");

	set_limit(&one, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = 1, .period_us = 1000000 });
	add_group(&one, GPU, 1);
	add_group(&two, GPU, 2);
	REQUIRE_EQ(stop(fd, &two), 0);
	EVENTUALLY(group_of(&one).paused == GHOST_PAUSED_MAX);
	REQUIRE_EQ(write_text(hooks, "0"), 0);
	EVENTUALLY(group_of(&one).paused == 0 && group_of(&two).paused == 0);
	REQUIRE_EQ(write_text(hooks, "1"), 0);
	EVENTUALLY(group_of(&one).paused == GHOST_PAUSED_MAX && group_of(&two).paused == GHOST_PAUSED_ASKED);
	leave();
}
