// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_time.c - channel groups: timeslices by weight, tenants' own, events of them. */
#include "groups.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool has_slice(struct tenant *t, uint64_t slice_us)
{
	return group_of(t).slice_us == slice_us &&
	       ghost_stat_of(t->fd, t->container, GPU).slice_us == slice_us;
}

TEST(timeslices_go_by_weight)
{
	int fd = ghost_open();
	struct tenant one = tenant(fd, GHOST_NONE, "one"), two = tenant(fd, GHOST_NONE, "two");
	struct ghost_group group;

	set_weight(&one, 100);
	set_weight(&two, 200);
	add_group(&one, GPU, 1);
	add_group(&two, GPU, 2);
	EVENTUALLY(has_slice(&one, 10000) && has_slice(&two, 20000));
	group = group_of(&two);
	REQUIRE_EQ(group.gpu, GPU);
	REQUIRE_EQ(group.pid, getpid());
	REQUIRE_EQ(group.client, two.client);
	REQUIRE_EQ(group.paused, 0);
	REQUIRE_EQ(ghost_stat_of(fd, two.container, GPU).groups, 1);
	/* 40 ms will do as a round: nobody else's slice changes. */
	set_weight(&two, 300);
	EVENTUALLY(has_slice(&two, 30000));
	REQUIRE(has_slice(&one, 10000));
	/* 110 ms will not. */
	set_weight(&two, 1000);
	EVENTUALLY(has_slice(&one, 2727) && has_slice(&two, 27272));
	set_weight(&two, 100);
	EVENTUALLY(group_of(&two).slice_us == group_of(&one).slice_us);
	remove_group(&two, 2);
	REQUIRE_EQ(ghost_stat_of(fd, two.container, GPU).groups, 0);
	REQUIRE_EQ(ghost_stat_of(fd, two.container, GPU).slice_us, 0);
	leave();
}

TEST(groups_of_a_container_share)
{
	int fd = ghost_open();
	struct tenant one = tenant(fd, GHOST_NONE, "one"), two = tenant(fd, GHOST_NONE, "two");

	add_group(&one, GPU, 1);
	for (uint64_t object = 2; object < 5; object++)
		add_group(&two, GPU, object);
	/* The round is 30 or 35 ms, as the module saw the last of them. */
	EVENTUALLY(group_of(&one).slice_us >= 15000 && group_of(&one).slice_us / 3 == group_of(&two).slice_us);
	/* Each GPU has its own time. */
	add_group(&two, OTHER_GPU, 9);
	EVENTUALLY(group_on(&two, OTHER_GPU).slice_us == 30000);
	REQUIRE(group_of(&one).slice_us < 30000);
	leave();
}

TEST(three_levels)
{
	int fd = ghost_open();
	struct tenant top = tenant(fd, GHOST_NONE, "top"), beside = tenant(fd, GHOST_NONE, "beside");
	struct tenant middle = tenant(fd, top.container, "middle");
	struct tenant low = tenant(fd, middle.container, "low");

	add_group(&beside, GPU, 1);
	add_group(&low, GPU, 2);
	add_group(&low, GPU, 3);
	EVENTUALLY(has_slice(&beside, 15000) && has_slice(&low, 7500));
	/* Its own stand beside the containers below it. */
	add_group(&top, GPU, 4);
	EVENTUALLY(has_slice(&top, 7500) && has_slice(&low, 3750));
	set_weight(&middle, 400);
	EVENTUALLY(has_slice(&top, 3000) && has_slice(&low, 6000));
	REQUIRE(has_slice(&beside, 15000));
	remove_group(&top, 4);
	EVENTUALLY(has_slice(&low, 7500));
	leave();
}

TEST(beyond_memory_high_a_weight_is_a_tenth)
{
	int fd = ghost_open();
	struct tenant one = tenant(fd, GHOST_NONE, "one"), two = tenant(fd, GHOST_NONE, "two");
	uint64_t bytes = 2 << 20;

	add_group(&one, GPU, 1);
	add_group(&two, GPU, 2);
	EVENTUALLY(has_slice(&one, 15000) && has_slice(&two, 15000));
	set_limit(&two, (struct ghost_limit){ .set = GHOST_SET_MEMORY_HIGH, .memory_high = 1 << 20 });
	REQUIRE_EQ(entry(&two, GHOST_TEST_MEMORY, GPU, 1, &bytes), 0);
	EVENTUALLY(group_of(&one).slice_us / 10 == group_of(&two).slice_us);
	REQUIRE_EQ(entry(&two, GHOST_TEST_MEMORY_GONE, GPU, 1, NULL), 0);
	EVENTUALLY(group_of(&one).slice_us == group_of(&two).slice_us);
	leave();
}

TEST(a_tenant_cannot_set_its_timeslice)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	uint64_t asked = 1000000;

	add_group(&t, GPU, 1);
	EVENTUALLY(has_slice(&t, 30000));
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, GPU, 1, &asked), 0);
	REQUIRE_EQ(asked, 30000);
	REQUIRE(has_slice(&t, 30000));
	leave();
}

TEST(a_refused_timeslice_is_set_later)
{
	int fd = ghost_open();
	struct tenant one = tenant(fd, GHOST_NONE, "one"), two = tenant(fd, GHOST_NONE, "two");

	add_group(&one, GPU, 1);
	EVENTUALLY(has_slice(&one, 30000));
	let_fail(&one, 5);
	add_group(&two, GPU, 2);
	EVENTUALLY(has_slice(&one, 15000) && has_slice(&two, 15000));
	leave();
}

TEST(events)
{
	struct ghost_event events[64];
	uint64_t asked = 1, lost = 0;
	int fd = ghost_open(), reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	struct pollfd waiting = { .fd = reader, .events = POLLIN };
	ssize_t got;
	bool client = false, group = false, clamped = false;
	struct tenant t;

	REQUIRE(reader >= 0);
	REQUIRE_EQ(poll(&waiting, 1, 0), 0);
	REQUIRE_EQ(read(reader, events, sizeof(events)), -1);
	REQUIRE_EQ(errno, EAGAIN);
	t = tenant(fd, GHOST_NONE, "one");
	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).slice_us);
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, GPU, 1, &asked), 0);
	REQUIRE_EQ(poll(&waiting, 1, 1000), 1);
	REQUIRE_EQ(read(reader, events, GHOST_EVENT_SIZE - 1), -1);
	REQUIRE_EQ(errno, EINVAL);
	got = read(reader, events, sizeof(events));
	REQUIRE(got > 0 && got % GHOST_EVENT_SIZE == 0);
	for (int i = 0; i < got / GHOST_EVENT_SIZE; i++) {
		REQUIRE(i == 0 || events[i].seq == events[i - 1].seq + 1);
		client |= events[i].type == GHOST_EVENT_CLIENT && events[i].container == t.container &&
			  events[i].pid == (uint32_t)getpid();
		group |= events[i].type == GHOST_EVENT_GROUP && events[i].object == group_of(&t).id;
		clamped |= events[i].type == GHOST_EVENT_CLAMPED && events[i].value == 1;
		lost += events[i].type == GHOST_EVENT_LOST;
	}
	REQUIRE(client);
	REQUIRE(group);
	REQUIRE(clamped);
	REQUIRE_EQ(lost, 0);
	/* More than are kept: the reader is told how many it missed. */
	for (int i = 0; i < 100000; i++) {
		asked = 1;
		entry(&t, GHOST_TEST_TIMESLICE, GPU, 1, &asked);
	}
	got = read(reader, events, sizeof(events));
	REQUIRE(got > 0);
	REQUIRE_EQ(events[0].type, GHOST_EVENT_LOST);
	REQUIRE(events[0].value > 0);
	leave();
}

#define CREATORS     4
#define GROUPS_EACH  250
#define CONTAINERS   5

/* Makes groups and ends them at random in a container that others use too; it may be killed. */
static void make_groups(int fd, uint64_t container, unsigned int seed)
{
	struct tenant t = tenant(fd, container, seed % 2 ? "odd" : "even");
	uint64_t first = (uint64_t)getpid() << 32, made = 0, gone = 0, asked;

	while (made < GROUPS_EACH || gone < made) {
		bool more = made < GROUPS_EACH && (made == gone || rand_r(&seed) % 3);

		if (more)
			add_group(&t, rand_r(&seed) % 2 ? GPU : OTHER_GPU, first + made++);
		else
			remove_group(&t, first + gone++);
		asked = rand_r(&seed);
		if (made > gone)
			entry(&t, GHOST_TEST_TIMESLICE, GPU, first + gone, &asked);
	}
}

TEST(groups_come_and_go_while_limits_change)
{
	int fd = ghost_open(), pauses = ghost_open(), running = CREATORS, status;
	unsigned int seed = 20261202;
	struct tenant all[CONTAINERS];
	pid_t pid;

	for (int i = 0; i < CONTAINERS; i++) {
		char name[2] = { 'a' + i };

		all[i] = tenant(fd, i ? all[(i - 1) / 2].container : GHOST_NONE, name);
	}
	for (int i = 0; i < CREATORS; i++) {
		pid = fork();
		REQUIRE(pid >= 0);
		if (pid == 0) {
			make_groups(fd, all[1 + i].container, i);
			_exit(0);
		}
	}
	while (running) {
		struct tenant *t = &all[rand_r(&seed) % CONTAINERS];

		set_weight(t, 1 + rand_r(&seed) % 10000);
		set_limit(t, (struct ghost_limit){ .set = GHOST_SET_MAX,
						   .max_us = rand_r(&seed) % 2 ? 1ULL + rand_r(&seed) % 1000 : GHOST_MAX,
						   .period_us = 1000 });
		/* The driver refuses now and then: that is told, and changes nothing. */
		if (rand_r(&seed) % 8 == 0)
			let_fail(t, 3);
		status = set_paused(pauses, t->container, GHOST_ALL_GPUS, rand_r(&seed) % 2);
		REQUIRE(status == 0 || status == -EIO);
		pid = waitpid(-1, &status, WNOHANG);
		if (pid > 0) {
			REQUIRE_EQ(status, 0);
			running--;
		}
	}
	/* Nothing is left, and what comes now is as if nothing had been. */
	close(pauses);
	for (int i = 0; i < CONTAINERS; i++) {
		REQUIRE_EQ(ghost_stat_of(fd, all[i].container, GPU).groups, 0);
		set_limit(&all[i], (struct ghost_limit){ .set = GHOST_SET_WEIGHT | GHOST_SET_MAX, .weight = 100,
							 .max_us = GHOST_MAX, .period_us = 100000 });
	}
	let_fail(&all[0], 0);
	add_group(&all[0], GPU, 1);
	add_group(&all[1], GPU, 2);
	EVENTUALLY(group_of(&all[0]).slice_us && group_of(&all[0]).slice_us == group_of(&all[1]).slice_us);
	REQUIRE_EQ(group_of(&all[1]).paused, 0);
	leave();
}
