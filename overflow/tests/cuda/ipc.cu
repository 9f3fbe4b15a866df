// SPDX-License-Identifier: Apache-2.0
/* Memory and events that two processes share: forked before CUDA is used. */
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
#include "check.cuh"

static const int n = 1 << 20, turns = 20;

struct Offer {
	cudaIpcMemHandle_t memory, small;
	cudaIpcEventHandle_t theirs, mine;
};

__global__ void fill(int *p, int n, int v, long long spin)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	long long begun = clock64();

	while (clock64() - begun < spin)
		;
	if (i < n)
		p[i] = v + i;
}

__global__ void add(int *p, int n, int v, long long spin)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	long long begun = clock64();

	while (clock64() - begun < spin)
		;
	if (i < n)
		p[i] += v;
}

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

static void tell(int fd)
{
	put(fd, "!", 1);
}

static void hear(int fd)
{
	char word;

	get(fd, &word, 1);
}

static int is(const int *p, int v)
{
	std::vector<int> out(n);

	CHECK(cudaMemcpy(out.data(), p, n * 4, cudaMemcpyDefault));
	for (int i = 0; i < n; i++)
		if (out[i] != v + i)
			return 0;
	return 1;
}

static cudaEvent_t event(void)
{
	cudaEvent_t made;

	CHECK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventInterprocess));
	return made;
}

/* What a call says that is to fail; it is no error of the next one. */
static const char *name(cudaError_t said)
{
	cudaGetLastError();
	return cudaGetErrorName(said);
}

static int child(int in, int out)
{
	int *p, *again, *small, value = -1, right = 0;
	cudaPointerAttributes attributes;
	cudaEvent_t theirs, mine;
	cudaIpcMemHandle_t none;
	cudaStream_t s;
	Offer offer;

	get(in, &offer, sizeof(offer));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaIpcOpenMemHandle((void **)&p, offer.memory, cudaIpcMemLazyEnablePeerAccess));
	CHECK(cudaIpcOpenEventHandle(&theirs, offer.theirs));
	CHECK(cudaIpcOpenEventHandle(&mine, offer.mine));
	CHECK(cudaPointerGetAttributes(&attributes, p));
	WANT(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == p);

	/* In the order of the events: what each turn adds is right only after the turn before. */
	for (int turn = 0; turn < turns; turn++) {
		hear(in);
		CHECK(cudaStreamWaitEvent(s, theirs, 0));
		add<<<n / 256, 256, 0, s>>>(p, n, 1, 20000);
		CHECK(cudaGetLastError());
		CHECK(cudaEventRecord(mine, s));
		tell(out);
	}
	CHECK(cudaEventSynchronize(mine));
	printf("child: %d turns\n", turns);

	/* By the host: a call that has returned is seen by the other process. */
	for (int turn = 0; turn < turns; turn++) {
		hear(in);
		CHECK(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost));
		right += value == turn;
		value += 1000;
		CHECK(cudaMemcpy(p + 1, &value, 4, cudaMemcpyHostToDevice));
		CHECK(cudaDeviceSynchronize());
		tell(out);
	}
	printf("child: %d values\n", right);

	CHECK(cudaIpcOpenMemHandle((void **)&again, offer.memory, cudaIpcMemLazyEnablePeerAccess));
	WANT(again == p);
	CHECK(cudaIpcCloseMemHandle(again));
	fill<<<n / 256, 256, 0, s>>>(p, n, 77, 0);
	CHECK(cudaStreamSynchronize(s));
	WANT(is(p, 77));
	CHECK(cudaIpcCloseMemHandle(p));
	printf("child: closed once more: %s\n", name(cudaIpcCloseMemHandle(p)));
	CHECK(cudaIpcOpenMemHandle((void **)&p, offer.memory, cudaIpcMemLazyEnablePeerAccess));
	WANT(is(p, 77));
	CHECK(cudaIpcCloseMemHandle(p));
	printf("child: opened twice, closed twice, opened anew\n");

	CHECK(cudaIpcOpenMemHandle((void **)&small, offer.small, cudaIpcMemLazyEnablePeerAccess));
	CHECK(cudaMemcpy(&value, small, 4, cudaMemcpyDefault));
	CHECK(cudaIpcCloseMemHandle(small));
	CHECK(cudaEventDestroy(theirs));
	CHECK(cudaEventDestroy(mine));
	memset(&none, 0, sizeof(none));
	printf("child: a handle of nothing: %s\n",
	       name(cudaIpcOpenMemHandle((void **)&p, none, cudaIpcMemLazyEnablePeerAccess)));
	CHECK(cudaDeviceSynchronize());
	fflush(stdout);
	tell(out);
	return 0;
}

static void parent(int in, int out)
{
	int *p, *small[2], *own, value;
	cudaEvent_t mine = event(), theirs = event();
	cudaStream_t s;
	Offer offer;

	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaMalloc(&p, n * 4));
	for (int **one : {small, small + 1}) {
		CHECK(cudaMalloc(one, 512));
		CHECK(cudaMemset(*one, 7, 512));
	}
	CHECK(cudaIpcGetMemHandle(&offer.memory, p));
	CHECK(cudaIpcGetMemHandle(&offer.small, small[1]));
	CHECK(cudaIpcGetEventHandle(&offer.theirs, mine));
	CHECK(cudaIpcGetEventHandle(&offer.mine, theirs));
	CHECK(cudaDeviceSynchronize());
	put(out, &offer, sizeof(offer));
	for (int turn = 0; turn < turns; turn++) {
		fill<<<n / 256, 256, 0, s>>>(p, n, 10 * turn, 20000);
		CHECK(cudaGetLastError());
		CHECK(cudaEventRecord(mine, s));
		tell(out);
		hear(in);
		CHECK(cudaStreamWaitEvent(s, theirs, 0));
		add<<<n / 256, 256, 0, s>>>(p, n, 5, 0);
		CHECK(cudaStreamSynchronize(s));
		WANT(is(p, 10 * turn + 6));
		CHECK(cudaEventQuery(theirs));
	}
	printf("parent: %d turns\n", turns);
	for (int turn = 0; turn < turns; turn++) {
		CHECK(cudaMemcpy(p, &turn, 4, cudaMemcpyHostToDevice));
		CHECK(cudaDeviceSynchronize());
		tell(out);
		hear(in);
		CHECK(cudaMemcpy(&value, p + 1, 4, cudaMemcpyDeviceToHost));
		WANT(value == turn + 1000);
	}
	hear(in);
	WANT(is(p, 77));
	printf("parent: its own handle: %s\n",
	       name(cudaIpcOpenMemHandle((void **)&own, offer.memory,
					 cudaIpcMemLazyEnablePeerAccess)));
	CHECK(cudaFree(p));
	CHECK(cudaFree(small[0]));
	CHECK(cudaFree(small[1]));
	CHECK(cudaEventDestroy(mine));
	CHECK(cudaEventDestroy(theirs));
}

int main()
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
	printf("ok\n");
	return 0;
}
