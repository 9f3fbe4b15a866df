// SPDX-License-Identifier: Apache-2.0
// Opens the library that it is given, makes the calls that it is told to, and prints what each
// answers: `name=code` or `name=code:value`.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *lib;

static int call(const char *name, void *arg)
{
	int (*function)(void *) = dlsym(lib, name);

	if (!function) {
		printf("%s=missing\n", name);
		exit(1);
	}
	return function(arg);
}

static void at_exit(void)
{
	printf("late=%d\n", call("cuCtxSynchronize", NULL));
	printf("late=%d\n", call("cuInit", NULL));
	fflush(stdout);
}

/* Work on the thread's own stream, by both of its names. */
static void own_stream(void)
{
	int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = dlsym(lib, "cuCtxSetCurrent");
	int (*write)(void *, unsigned long long, unsigned int, unsigned int) =
		dlsym(lib, "cuStreamWriteValue32_v2");
	int (*write_own)(void *, unsigned long long, unsigned int, unsigned int) =
		dlsym(lib, "cuStreamWriteValue32_v2_ptsz");
	void *context;
	int codes[6];

	codes[0] = write_own(NULL, 4096, 1, 0);
	codes[1] = retain(&context, 1);
	codes[2] = set(context);
	codes[3] = write_own(NULL, 4096, 1, 0);
	codes[4] = write((void *)2, 4096, 1, 0);
	codes[5] = write((void *)0x1234, 4096, 1, 0);
	printf("own=%d,%d,%d,%d,%d,%d\n", codes[0], codes[1], codes[2], codes[3], codes[4],
	       codes[5]);
}

/* Copies between page-locked memory and the device's that a graph is to make. */
static void captured(void)
{
	typedef unsigned long long word;
	int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = dlsym(lib, "cuCtxSetCurrent");
	int (*pinned)(void **, size_t) = dlsym(lib, "cuMemAllocHost_v2");
	int (*create)(void **, unsigned int) = dlsym(lib, "cuStreamCreate");
	int (*begin)(void *, int) = dlsym(lib, "cuStreamBeginCapture_v2");
	int (*in)(word, void *, size_t, void *) = dlsym(lib, "cuMemcpyHtoDAsync_v2");
	int (*out)(void *, word, size_t, void *) = dlsym(lib, "cuMemcpyDtoHAsync_v2");
	int (*graph)(void **, unsigned int) = dlsym(lib, "cuGraphCreate");
	int (*add)(void **, void *, void **, size_t, word *, void *) =
		dlsym(lib, "cuGraphAddMemcpyNode");
	/* Source: host, kind, address. Destination: device. A row of 64 bytes. */
	word copy[25] = { [4] = 1, [15] = 2, [17] = 4096, [22] = 64, [23] = 1, [24] = 1 };
	void *context, *host, *stream, *made, *node, *pageable = copy;
	int codes[9];

	codes[0] = retain(&context, 0) | set(context);
	codes[1] = pinned(&host, 4096);
	codes[2] = create(&stream, 1);
	codes[3] = begin(stream, 0);
	codes[4] = in(4096, host, 64, stream);
	codes[5] = out((char *)host + 64, 4096, 64, stream);
	codes[6] = graph(&made, 0);
	copy[5] = (word)host;
	codes[7] = add(&node, made, NULL, 0, copy, context);
	copy[5] = (word)pageable;
	codes[8] = add(&node, made, NULL, 0, copy, context);
	printf("captured=%d", codes[0]);
	for (int i = 1; i < 9; i++)
		printf(",%d", codes[i]);
	printf("\n");
}

/* The same question twice, and another. */
static void peers(void)
{
	int (*can)(int *, int, int) = dlsym(lib, "cuDeviceCanAccessPeer");
	int i;

	for (i = 0; i < 3; i++) {
		int value = 0;
		int code = can(&value, 0, i < 2 ? 1 : 2);

		printf("peer=%d:%d\n", code, value);
	}
	printf("peer=%d\n", can(NULL, 0, 1));
}

/* An attribute of a kernel: set, the same again, another, and the first. */
static void attributes(void)
{
	int (*set)(int, int, unsigned long, int) = dlsym(lib, "cuKernelSetAttribute");
	static const int values[] = { 100, 100, 200, 100 };

	for (int i = 0; i < 4; i++)
		printf("set=%d\n", set(8, values[i], 0x6806000000000010, 0));
}

/* Variables that are where the program has something: their names say where. */
static void taken(void)
{
	static char own[1 << 13] = { 1 };
	int (*global)(void **, size_t *, unsigned long, const char *) =
		dlsym(lib, "cuLibraryGetGlobal");
	int (*managed)(void **, size_t *, unsigned long, const char *) =
		dlsym(lib, "cuLibraryGetManaged");
	unsigned long library = 0x6805000000000010;
	void *at = own;
	size_t len;
	char name[32];

	snprintf(name, sizeof(name), "%p", at);
	printf("taken=%d,%d", global(&at, &len, library, name),
	       managed(&at, &len, library, name));
	printf(",%d at %p: %d\n", global(&at, &len, library, name), at, own[0]);
}

/* The private tables that the CUDA runtime asks for, by the beginnings of their names, and one that
 * no driver has; of each the code, and whether there is a table.
 */
static void tables(void)
{
	static const unsigned char names[][16] = {
		{ 0xf8, 0xcf, 0xf9, 0x51 },
		{ 0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12,
		  0xfd, 0x9d, 0xf9 },
		{ 0xa0, 0x94, 0x79, 0x8c },
		{ 0x42, 0xd8, 0x5a, 0x81 },
		{ 0x21, 0x31, 0x8c, 0x60 },
		{ 0xc6, 0x93, 0x33, 0x6e },
		{ 0x26, 0x3e, 0x88, 0x60 },
		{ 0xd4, 0x08, 0x20, 0x55 },
		{ 0x12, 0x34, 0x56, 0x78 },
	};
	int (*ask)(const void **, const void *) = dlsym(lib, "cuGetExportTable");

	printf("tables=");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const void *table = &table;
		int code = ask(&table, names[i]);

		printf("%s%d:%d", i ? "," : "", code, table != NULL);
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	int value = 0, i;

	lib = dlopen(argv[1], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (i = 2; i < argc; i++) {
		const char *what = argv[i];

		value = 0;
		if (!strcmp(what, "exit")) {
			atexit(at_exit);
		} else if (!strcmp(what, "close")) {
			dlclose(lib);
			lib = dlopen(argv[1], RTLD_NOW);
		} else if (!strcmp(what, "fork")) {
			fflush(stdout);
			if (!fork()) {
				printf("child=%d\n", call("cuInit", NULL));
				printf("child=%d\n", call("cuDeviceGetCount", &value));
				fflush(stdout);
				exit(0);
			}
			wait(NULL);
		} else if (!strcmp(what, "orphan")) {
			if (!fork()) {
				char c;

				while (read(0, &c, 1) > 0)
					;
				_exit(0);
			}
		} else if (!strcmp(what, "own")) {
			own_stream();
		} else if (!strcmp(what, "captured")) {
			captured();
		} else if (!strcmp(what, "taken")) {
			taken();
		} else if (!strcmp(what, "tables")) {
			tables();
		} else if (!strcmp(what, "peers")) {
			peers();
		} else if (!strcmp(what, "attributes")) {
			attributes();
		} else if (strstr(what, "Get")) {
			int code = call(what, &value);

			printf("%s=%d:%d\n", what, code, value);
		} else {
			printf("%s=%d\n", what, call(what, NULL));
		}
	}
	fflush(stdout);
	return 0;
}
