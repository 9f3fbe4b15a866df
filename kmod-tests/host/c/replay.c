// SPDX-License-Identifier: GPL-2.0 OR MIT
/* replay.c COUNT FILE... - feeds sequence.c with what the fuzzer found, and with COUNT random inputs,
 * the same each time. */
#include <stdint.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t random_bits(void)
{
	static uint64_t state;
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

int main(int argc, char **argv)
{
	uint8_t input[4096];

	CHECK(argc > 1);
	for (int i = 2; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		size_t size;

		CHECK(file);
		size = fread(input, 1, sizeof(input), file);
		fclose(file);
		fprintf(stderr, "%s\n", argv[i]);
		LLVMFuzzerTestOneInput(input, size);
	}
	for (long i = 0; i < atol(argv[1]); i++) {
		size_t size = random_bits() % 256;

		for (size_t at = 0; at < size; at++)
			input[at] = random_bits();
		LLVMFuzzerTestOneInput(input, size);
	}
	return 0;
}
