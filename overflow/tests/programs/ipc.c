// SPDX-License-Identifier: Apache-2.0
/* Memory and events that two processes share: forked before the driver is used. */
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

enum { N = 5000, TURNS = 10 };

struct offer {
	CUipcMemHandle memory;
	CUipcEventHandle theirs, mine;
	size_t bytes;
};

static unsigned int n = N, out[N];

static void put(int fd, const void *what, size_t len)
{
	WANT(write(fd, what, len) == (ssize_t)len);
}

static void get(int fd, void *what, size_t len)
{
	for (size_t had = 0; had < len;) {
		ssize_t more = read(fd, (char *)what + had, len - had);

		WANT(more > 0);
		had += more;
	}
}

static void add(CUdeviceptr p, unsigned int v, CUstream s)
{
	CHECK(launch(kernel("add_to"), N, s, (void *[]){ &p, &v, &n }));
}

static int is(CUdeviceptr p, unsigned int v)
{
	CHECK(cuMemcpyDtoH(out, p, sizeof(out)));
	return all(out, N, v);
}

static int capable(CUdeviceptr p)
{
	int is = -1;

	CHECK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
	return is & 0xff;
}

static int child(int in, int up)
{
	const unsigned int lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
	CUipcMemHandle other;
	CUipcEventHandle none;
	CUdeviceptr p, q, base, own;
	CUevent theirs, mine;
	struct offer offer;
	unsigned int type = 0, rounds = 1000;
	size_t bytes;
	CUstream s;
	char word = 0;

	get(in, &offer, sizeof(offer));
	start();
	CHECK(cuIpcOpenMemHandle(&p, offer.memory, lazy));
	CHECK(cuIpcOpenEventHandle(&theirs, offer.theirs));
	CHECK(cuIpcOpenEventHandle(&mine, offer.mine));
	CHECK(cuMemGetAddressRange(&base, &bytes, p + 4));
	WANT(base == p && bytes == offer.bytes);
	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	WANT(type == CU_MEMORYTYPE_DEVICE && !capable(p));
	CHECK(cuEventQuery(mine));

	/* What a call has done when it has returned: a copy comes after what is before it. */
	own = words(1, 0);
	for (unsigned int turn = 0; turn < TURNS; turn++) {
		get(in, &word, 1);
		WANT(is(p, turn));
		for (int i = 0; i < N; i++)
			out[i] += 100;
		CHECK(launch(kernel("spin"), 1, NULL, (void *[]){ &own, &rounds }));
		CHECK(cuMemcpyHtoD(p, out, sizeof(out)));
		put(up, &word, 1);
	}

	/* In the events' order. */
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (unsigned int turn = 0; turn < TURNS; turn++) {
		get(in, &word, 1);
		CHECK(cuStreamWaitEvent(s, theirs, 0));
		add(p, 1, s);
		CHECK(cuEventRecord(mine, s));
		put(up, &word, 1);
	}
	CHECK(cuEventSynchronize(mine));
	CHECK(cuEventQuery(mine));

	/* As often as it was opened. */
	get(in, &word, 1);
	CHECK(cuIpcOpenMemHandle(&q, offer.memory, lazy));
	WANT(q == p);
	CHECK(cuIpcCloseMemHandle(q));
	WANT(is(p, 10 * (TURNS - 1) + 6));
	CHECK(cuMemGetAddressRange(&base, &bytes, p));
	WANT(cuMemFree(p) != CUDA_SUCCESS);
	CHECK(cuIpcCloseMemHandle(p));
	WANT(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
	WANT(cuMemGetAddressRange(&base, &bytes, p) == CUDA_ERROR_NOT_FOUND);
	CHECK(cuIpcOpenMemHandle(&p, offer.memory, lazy));
	WANT(is(p, 10 * (TURNS - 1) + 6));
	CHECK(cuIpcCloseMemHandle(p));

	/* Handles of nothing; the CPU device's begin with what names the memory. */
	memset(&none, 0xa5, sizeof(none));
	WANT(cuIpcOpenEventHandle(&theirs, none) == CUDA_ERROR_INVALID_HANDLE);
	for (size_t at = 0; at < 24; at++) {
		other = offer.memory;
		other.reserved[at] ^= 0x40;
		WANT(cuIpcOpenMemHandle(&p, other, lazy) != CUDA_SUCCESS);
	}
	WANT(cuIpcOpenMemHandle(&p, offer.memory, 0) == CUDA_ERROR_INVALID_VALUE);
	WANT(cuIpcOpenMemHandle(NULL, offer.memory, lazy) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventDestroy(theirs));
	CHECK(cuEventDestroy(mine));
	CHECK(cuCtxSynchronize());
	put(up, &word, 1);
	return 0;
}

static void parent(int in, int down)
{
	CUdeviceptr before, p, after, q;
	CUevent mine, theirs, plain;
	struct offer offer = { .bytes = sizeof(out) };
	CUstream s;
	char word = '!';

	start();
	CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	before = words(N, 11);
	p = words(N, 22);
	after = words(N, 33);
	CHECK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&mine, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	CHECK(cuEventCreate(&theirs, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	WANT(capable(p));
	CHECK(cuIpcGetMemHandle(&offer.memory, p));
	CHECK(cuIpcGetEventHandle(&offer.theirs, mine));
	CHECK(cuIpcGetEventHandle(&offer.mine, theirs));
	WANT(cuIpcGetEventHandle(&offer.mine, plain) == CUDA_ERROR_INVALID_HANDLE);
	WANT(cuIpcGetMemHandle(&offer.memory, 4096) == CUDA_ERROR_INVALID_VALUE);
	WANT(is(before, 11) && is(p, 22) && is(after, 33));
	put(down, &offer, sizeof(offer));
	for (unsigned int turn = 0; turn < TURNS; turn++) {
		CHECK(cuMemsetD32(p, turn, N));
		CHECK(cuCtxSynchronize());
		put(down, &word, 1);
		get(in, &word, 1);
		WANT(is(p, turn + 100));
	}
	for (unsigned int turn = 0; turn < TURNS; turn++) {
		CHECK(cuMemsetD32Async(p, 10 * turn, N, s));
		CHECK(cuEventRecord(mine, s));
		put(down, &word, 1);
		get(in, &word, 1);
		CHECK(cuStreamWaitEvent(s, theirs, 0));
		add(p, 5, s);
		CHECK(cuStreamSynchronize(s));
		CHECK(cuEventQuery(theirs));
		WANT(is(p, 10 * turn + 6));
	}
	put(down, &word, 1);
	get(in, &word, 1);
	WANT(cuIpcOpenMemHandle(&q, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
	     CUDA_ERROR_INVALID_CONTEXT);
	WANT(is(before, 11) && is(after, 33));
	CHECK(cuMemFree(p));
	CHECK(cuMemFree(before));
	CHECK(cuMemFree(after));
}

int main(void)
{
	int down[2], up[2], status = -1;
	pid_t pid;

	WANT(pipe(down) == 0 && pipe(up) == 0);
	pid = fork();
	WANT(pid >= 0);
	if (pid == 0) {
		close(down[1]);
		close(up[0]);
		return child(down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	parent(up[0], down[1]);
	WANT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	printf("ipc: %d turns by events, %d by the host\n", TURNS, TURNS);
	return 0;
}
