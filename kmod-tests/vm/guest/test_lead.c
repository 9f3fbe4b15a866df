// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_lead.c - the lead and leases. */
#include "groups.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEASE_US 300000

static int set_slice(int fd, uint64_t group, uint64_t slice_us)
{
	struct ghost_slice slice = { .size = sizeof(slice), .group = group, .slice_us = slice_us };

	return ghost_call(fd, GHOST_IOC_SLICE, &slice);
}

TEST(one_file_leads)
{
	int fd = ghost_open(), other = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	uint64_t group;

	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).slice_us == 30000);
	group = group_of(&t).id;
	REQUIRE_EQ(set_slice(fd, group, 4321), -EACCES);
	REQUIRE_EQ(lead(fd, GHOST_LEAD_RESIGN, 0), -EACCES);
	REQUIRE_EQ(lead(fd, GHOST_LEAD_RENEW | GHOST_LEAD_RESIGN, 0), -EINVAL);
	REQUIRE_EQ(lead(fd, 0, 0), 0);
	REQUIRE_EQ(lead(fd, 0, 0), 0);
	REQUIRE_EQ(lead(other, 0, 0), -EBUSY);
	REQUIRE_EQ(set_slice(other, group, 4321), -EACCES);
	REQUIRE_EQ(set_slice(fd, group, 4321), 0);
	REQUIRE_EQ(group_of(&t).slice_us, 4321);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).slice_us, 4321);
	REQUIRE_EQ(set_slice(fd, group, GHOST_SLICE_MAX + 1), -EINVAL);
	REQUIRE_EQ(set_slice(fd, group, GHOST_SLICE_MIN - 1), -EINVAL);
	REQUIRE_EQ(set_slice(fd, group + 1000, GHOST_SLICE_MIN), -ENOENT);
	/* A change of weight is nothing to the module now. */
	set_weight(&t, 150);
	pause_ms(50);
	REQUIRE_EQ(group_of(&t).slice_us, 4321);
	/* What fails changes nothing. */
	let_fail(&t, 1);
	REQUIRE_EQ(set_slice(fd, group, 5000), -EIO);
	pause_ms(50);
	REQUIRE_EQ(group_of(&t).slice_us, 4321);
	REQUIRE_EQ(lead(fd, GHOST_LEAD_RESIGN, 0), 0);
	EVENTUALLY(group_of(&t).slice_us == 45000);
	REQUIRE_EQ(lead(other, 0, 0), 0);
	REQUIRE_EQ(lead(fd, 0, 0), -EBUSY);
	close(other);
	EVENTUALLY(lead(fd, 0, 0) == 0);
	leave();
}

TEST(a_tenants_timeslice_is_the_leaders)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	uint64_t asked = 7777;

	REQUIRE_EQ(lead(fd, 0, 0), 0);
	add_group(&t, GPU, 1);
	/* The leader has not said anything of it. */
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, GPU, 1, &asked), 0);
	REQUIRE_EQ(asked, 7777);
	REQUIRE_EQ(set_slice(fd, group_of(&t).id, 5000), 0);
	REQUIRE_EQ(entry(&t, GHOST_TEST_TIMESLICE, GPU, 1, &asked), 0);
	REQUIRE_EQ(asked, 5000);
	leave();
}

TEST(who_leads_has_the_budgets)
{
	int fd = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	struct ghost_stat stat;

	set_limit(&t, (struct ghost_limit){ .set = GHOST_SET_MAX, .max_us = 1000, .period_us = 1000000 });
	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_MAX);
	REQUIRE_EQ(lead(fd, 0, 0), 0);
	EVENTUALLY(group_of(&t).paused == 0);
	stat = ghost_stat_of(fd, t.container, GPU);
	REQUIRE_EQ(stat.paused, 0);
	REQUIRE_EQ(stat.max_us, 1000);
	/* Pauses are as ever. */
	REQUIRE_EQ(set_paused(fd, t.container, GPU, false), 0);
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	REQUIRE_EQ(set_paused(fd, t.container, GPU, true), 0);
	REQUIRE_EQ(group_of(&t).paused, 0);
	REQUIRE_EQ(ghost_stat_of(fd, t.container, GPU).throttled_us, stat.throttled_us);
	REQUIRE_EQ(lead(fd, GHOST_LEAD_RESIGN, 0), 0);
	EVENTUALLY(group_of(&t).paused == GHOST_PAUSED_MAX);
	leave();
}

static bool lapsed(int reader)
{
	struct ghost_event event;

	while (read(reader, &event, sizeof(event)) == sizeof(event)) {
		if (event.type == GHOST_EVENT_LAPSED)
			return true;
	}
	return false;
}

TEST(a_lease_lapses)
{
	int fd = ghost_open(), holder = ghost_open();
	int reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).slice_us == 30000);
	REQUIRE_EQ(lead(holder, 0, LEASE_US), 0);
	REQUIRE_EQ(set_slice(holder, group_of(&t).id, 4321), 0);
	REQUIRE_EQ(set_paused(holder, t.container, GPU, false), 0);
	/* The file stays open, as that of a daemon that hangs. */
	EVENTUALLY(group_of(&t).slice_us == 30000 && group_of(&t).paused == 0);
	EVENTUALLY(lapsed(reader));
	REQUIRE_EQ(set_slice(holder, group_of(&t).id, 4321), -EACCES);
	REQUIRE_EQ(lead(fd, 0, 0), 0);
	leave();
}

TEST(a_lease_without_the_lead)
{
	int fd = ghost_open(), holder = ghost_open();
	struct tenant t = tenant(fd, GHOST_NONE, "one");

	add_group(&t, GPU, 1);
	REQUIRE_EQ(lead(holder, GHOST_LEAD_RENEW, 3600 * 1000000ULL), 0);
	REQUIRE_EQ(lead(fd, 0, UINT64_MAX - 1), 0);
	REQUIRE_EQ(set_paused(holder, t.container, GPU, false), 0);
	/* Longer, and as long as the file is open. */
	REQUIRE_EQ(lead(holder, GHOST_LEAD_RENEW, 1), 0);
	EVENTUALLY(group_of(&t).paused == 0);
	REQUIRE_EQ(set_paused(holder, t.container, GPU, false), 0);
	REQUIRE_EQ(lead(holder, GHOST_LEAD_RENEW, 100000), 0);
	REQUIRE_EQ(lead(holder, GHOST_LEAD_RENEW, 0), 0);
	pause_ms(300);
	REQUIRE_EQ(group_of(&t).paused, GHOST_PAUSED_ASKED);
	leave();
}

TEST(a_leader_is_killed)
{
	int fd = ghost_open(), reader = open("/dev/" GHOST_DEVICE, O_RDONLY | O_NONBLOCK);
	struct tenant t = tenant(fd, GHOST_NONE, "one");
	pid_t pid;

	add_group(&t, GPU, 1);
	EVENTUALLY(group_of(&t).slice_us == 30000);
	pid = fork();
	if (pid == 0) {
		int leader = ghost_open();

		REQUIRE_EQ(lead(leader, 0, 0), 0);
		REQUIRE_EQ(set_slice(leader, group_of(&t).id, 4321), 0);
		pause();
	}
	EVENTUALLY(group_of(&t).slice_us == 4321);
	kill(pid, SIGKILL);
	REQUIRE_EQ(waitpid(pid, NULL, 0), pid);
	EVENTUALLY(group_of(&t).slice_us == 30000);
	EVENTUALLY(lapsed(reader));
	leave();
}
