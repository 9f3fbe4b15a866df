// SPDX-License-Identifier: Apache-2.0
/* What the runtime programs share: a call that must succeed. */
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                    \
	do {                                                                           \
		cudaError_t check_ = (call);                                           \
		if (check_ != cudaSuccess) {                                           \
			fflush(stdout);                                                \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,  \
				cudaGetErrorString(check_));                           \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

#define WANT(what)                                                                     \
	do {                                                                           \
		if (!(what)) {                                                         \
			fflush(stdout);                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,     \
				#what);                                                \
			exit(1);                                                       \
		}                                                                      \
	} while (0)
