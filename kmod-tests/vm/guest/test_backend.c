// SPDX-License-Identifier: GPL-2.0 OR MIT
/* test_backend.c - ghostd's backend for this module, by the cases that every backend passes. */
#include "guest.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(the_backend_conforms)
{
	int status;
	pid_t pid;

	if (access("/conformance", X_OK))
		skip("ghost-conformance was not built");
	/* Makes the node, which nobody else does here. */
	close(rm_open());
	pid = fork();
	if (!pid) {
		execl("/conformance", "/conformance", (char *)NULL);
		_exit(127);
	}
	REQUIRE_EQ(waitpid(pid, &status, 0), pid);
	REQUIRE_EQ(status, 0);
}
