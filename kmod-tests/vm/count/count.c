// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * count.c - a plugin of QEMU that counts the instructions of a guest's requests, and those that some of
 * its kernel's functions take, with all that they call. The guest (guest/test_cost.c) says which by
 * instructions that do nothing, "nopl NUMBER(%rax)": NUMBER is FUNCTION plus an index, and the next one
 * has the function's address; or OPEN plus a request's index, or CLOSE. One processor only.
 *
 * A string instruction counts once, as on a processor, however often it is repeated.
 *
 * At the end, in the file that the argument out= names, a line for each:
 *	request INDEX TIMES INSTRUCTIONS INSTRUCTIONS-IN-FUNCTIONS	(medians)
 *	function INDEX TIMES INSTRUCTIONS MOST				(median)
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

/* What is used of the first version of QEMU's interface for plugins. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info_t;
enum { NO_REGISTERS = 0, ADD = 0 };
typedef void (*translated)(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void (*executed)(unsigned int processor, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated callback);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, executed callback, int registers, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn, int operation, void *to, uint64_t value);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*callback)(qemu_plugin_id_t, void *), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
SHOWN int qemu_plugin_version = 1;

#define MARK	 0x67680000
#define FUNCTION (MARK | 0x100)
#define OPEN	 (MARK | 0x200)
#define CLOSE	 (MARK | 0x300)
#define INDICES	 16
#define TIMES	 4096

struct series {
	size_t times;
	uint64_t values[TIMES];
	uint64_t within[TIMES];
};
static struct series requests[INDICES], functions[INDICES];
static uint64_t addresses[INDICES];
static const char *out;

static uint64_t count;
/* The last instruction that may be repeated, and the count after it. */
static void *repeated;
static uint64_t repeated_count;
/* Of calls that have not returned, since the guest began. */
static int64_t depth;
/* The function that is counted, or -1; those that it calls are part of it. */
static int64_t function = -1, function_depth;
static uint64_t function_from;
/* The request, or -1. */
static int64_t request = -1;
static uint64_t request_from, request_within;

static void record(struct series *series, uint64_t value, uint64_t within)
{
	if (series->times == TIMES)
		return;
	series->values[series->times] = value;
	series->within[series->times++] = within;
}

static void at_call(unsigned int processor, void *data)
{
	(void)processor, (void)data;
	depth++;
}

static void at_return(unsigned int processor, void *data)
{
	(void)processor, (void)data;
	depth--;
	if (function < 0 || depth >= function_depth)
		return;
	record(&functions[function], count - function_from, 0);
	request_within += count - function_from;
	function = -1;
}

static void at_function(unsigned int processor, void *data)
{
	(void)processor;
	if (function >= 0)
		return;
	function = (intptr_t)data;
	function_depth = depth;
	function_from = count;
}

static void at_open(unsigned int processor, void *data)
{
	(void)processor;
	request = (intptr_t)data;
	request_from = count;
	request_within = 0;
}

static void at_close(unsigned int processor, void *data)
{
	(void)processor, (void)data;
	if (request >= 0)
		record(&requests[request], count - request_from, request_within);
	request = -1;
}

/* Repetitions are emulated one by one. */
static void at_repeated(unsigned int processor, void *address)
{
	(void)processor;
	if (repeated == address && repeated_count == count)
		return;
	repeated = address;
	repeated_count = ++count;
}

/* The number of a nopl, or 0. */
static uint32_t number_of(const struct qemu_plugin_insn *insn)
{
	static const uint8_t nopl[] = { 0x0f, 0x1f, 0x80 };
	const uint8_t *bytes = qemu_plugin_insn_data(insn);
	uint32_t number;

	if (qemu_plugin_insn_size(insn) != sizeof(nopl) + sizeof(number) || memcmp(bytes, nopl, sizeof(nopl)))
		return 0;
	memcpy(&number, bytes + sizeof(nopl), sizeof(number));
	return number;
}

/* The first byte that is no prefix, of those that are given to calls, returns and string instructions. */
static uint8_t opcode_of(const struct qemu_plugin_insn *insn, uint8_t *next, bool *repeats)
{
	const uint8_t *bytes = qemu_plugin_insn_data(insn);
	size_t at = 0, size = qemu_plugin_insn_size(insn);

	*repeats = false;
	for (; at + 1 < size; at++) {
		bool repeat = bytes[at] == 0xf2 || bytes[at] == 0xf3;

		if (!repeat && bytes[at] != 0x2e && bytes[at] != 0x3e && bytes[at] != 0x66 && (bytes[at] & 0xf0) != 0x40)
			break;
		*repeats |= repeat;
	}
	*next = at + 1 < size ? bytes[at + 1] : 0;
	return bytes[at];
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
	uint32_t last = 0;

	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
		uint32_t number = number_of(insn);
		bool repeats;
		uint8_t next, opcode = opcode_of(insn, &next, &repeats);
		bool is_call = opcode == 0xe8 || (opcode == 0xff && (next >> 3 & 7) == 2);
		bool is_return = opcode == 0xc3 || opcode == 0xc2;
		bool is_string = (opcode >= 0xa4 && opcode <= 0xa7) || (opcode >= 0xaa && opcode <= 0xaf);

		for (intptr_t index = 0; index < INDICES; index++) {
			void *data = (void *)index;

			if (last == (FUNCTION | index))
				/* The kernel is in the upper two GiB. */
				addresses[index] = 0xffffffff00000000 | number;
			if (addresses[index] && addresses[index] == qemu_plugin_insn_vaddr(insn))
				qemu_plugin_register_vcpu_insn_exec_cb(insn, at_function, NO_REGISTERS, data);
			if (number == (OPEN | index))
				qemu_plugin_register_vcpu_insn_exec_cb(insn, at_open, NO_REGISTERS, data);
		}
		if (number == CLOSE)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_close, NO_REGISTERS, NULL);
		if (is_call || is_return)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, is_call ? at_call : at_return, NO_REGISTERS, NULL);
		if (is_string && repeats)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_repeated, NO_REGISTERS,
							       (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn));
		else
			qemu_plugin_register_vcpu_insn_exec_inline(insn, ADD, &count, 1);
		last = number;
	}
}

static int by_size(const void *one, const void *two)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)two;

	return (a > b) - (a < b);
}

static void write_series(FILE *file, const char *name, struct series *series, bool with_within)
{
	for (int i = 0; i < INDICES; i++) {
		struct series *one = &series[i];

		if (!one->times)
			continue;
		qsort(one->values, one->times, sizeof(*one->values), by_size);
		qsort(one->within, one->times, sizeof(*one->within), by_size);
		fprintf(file, "%s %d %zu %llu %llu\n", name, i, one->times,
			(unsigned long long)one->values[one->times / 2],
			(unsigned long long)(with_within ? one->within[one->times / 2] : one->values[one->times - 1]));
	}
}

static void end(qemu_plugin_id_t id, void *data)
{
	FILE *file = fopen(out, "w");

	(void)id, (void)data;
	if (!file)
		return;
	write_series(file, "request", requests, true);
	write_series(file, "function", functions, false);
	fclose(file);
}

SHOWN int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
	}
	if (!out)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, end, NULL);
	return 0;
}
