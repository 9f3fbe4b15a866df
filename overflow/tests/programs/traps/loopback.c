// SPDX-License-Identifier: Apache-2.0
/* Sets the loopback of its network namespace up or down. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (argc > 1 && !strcmp(argv[1], "up"))
		request.ifr_flags = IFF_UP;
	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0) {
		perror("lo");
		return 1;
	}
	return 0;
}
