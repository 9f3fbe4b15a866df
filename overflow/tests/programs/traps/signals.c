// SPDX-License-Identifier: Apache-2.0
/* A timer's signals interrupt calls all the time; they reach the program's thread, no other. */
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include "../check.h"

static volatile sig_atomic_t ticks, elsewhere;

static void tick(int signal)
{
	(void)signal;
	ticks++;
	if (syscall(SYS_gettid) != getpid())
		elsewhere++;
}

int main(void)
{
	enum { N = 200000, LEAST = 50 };
	struct sigaction action = { .sa_handler = tick };
	struct itimerval each = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
	static unsigned int in[N], out[N];
	CUdeviceptr p;
	int turns = 0;

	start();
	CHECK(cuMemAlloc(&p, sizeof(in)));
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &each, NULL);
	while (ticks < LEAST || turns < 5) {
		turns++;
		for (int i = 0; i < N; i++)
			in[i] = (unsigned int)(i * turns);
		CHECK(cuMemcpyHtoD(p, in, sizeof(in)));
		CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
		WANT(memcmp(in, out, sizeof(in)) == 0);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	WANT(elsewhere == 0);
	printf("signals: none lost, none elsewhere\n");
	return 0;
}
