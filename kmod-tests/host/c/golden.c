// SPDX-License-Identifier: GPL-2.0 OR MIT
/* golden.c TABLE FILE - checks the arithmetic against a table of whole numbers, prints its rows. */
#include <string.h>

#include "check.h"
#include "ghost_math.h"

#define COLUMNS_MAX 8

static void budget(const long long *row)
{
	__s64 level = ghost_refill(row[1], row[0], row[3]) - row[4];

	CHECK(level == row[5]);
	CHECK(ghost_may_run(level, row[0], row[2]) == !row[6]);
}

static void share(const long long *row)
{
	CHECK(ghost_part(row[0], row[1], row[2]) == (__u64)row[3]);
}

static void slice(const long long *row)
{
	CHECK(ghost_slice_of(row[0], row[1], row[2]) == (__u64)row[3]);
}

static void weight(const long long *row)
{
	CHECK(ghost_counts(row[0], row[1]) == (__u64)row[2]);
}

static const struct {
	const char *name, *columns;
	int count;
	void (*check)(const long long *row);
} tables[] = {
	{ "budgets", "max,level,throttled,periods,used,level_after,throttled_after\n", 7, budget },
	{ "shares", "whole,weight,sum,part\n", 4, share },
	{ "slices", "length,factor,groups,slice\n", 4, slice },
	{ "weights", "weight,beyond,counts\n", 3, weight },
};

int main(int argc, char **argv)
{
	char line[256];
	FILE *file;
	int rows = 0;
	size_t t = 0;

	CHECK(argc == 3);
	while (t < sizeof(tables) / sizeof(*tables) && strcmp(tables[t].name, argv[1]))
		t++;
	CHECK(t < sizeof(tables) / sizeof(*tables));
	file = fopen(argv[2], "r");
	CHECK(file);
	CHECK(fgets(line, sizeof(line), file) && !strcmp(line, tables[t].columns));
	while (fgets(line, sizeof(line), file)) {
		long long row[COLUMNS_MAX];
		char *at = line;

		for (int i = 0; i < tables[t].count; i++) {
			row[i] = strtoll(at, &at, 10);
			CHECK(*at == (i + 1 < tables[t].count ? ',' : '\n'));
			at++;
		}
		tables[t].check(row);
		rows++;
	}
	fclose(file);
	printf("%d\n", rows);
	return 0;
}
