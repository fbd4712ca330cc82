/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of the S3 device's map: pieces do not overlap, and what is not needed is given back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/base/slab.h"
#include "tests/unit/support.h"

#define PIECES 20000u
#define STEPS  400000u

struct piece {
	uint8_t *p;
	size_t room;
	uint8_t mark;
};

static uint32_t state = 20261121;

static uint32_t draw(void)
{
	state = state * 1664525 + 1013904223;
	return state >> 8;
}

/* Bytes that this process has in memory. */
static double resident(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
	fclose(file);
	return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void take(struct s3_slab *s, struct piece *piece, size_t bytes)
{
	piece->p = s3_slab_take(s, bytes, &piece->room);
	assert_non_null(piece->p);
	assert_true(piece->room >= bytes && piece->room <= S3_SLAB_MAX);
	assert_true(piece->room % 24 == 0 || piece->room == S3_SLAB_MAX);
	assert_int_equal((uintptr_t)piece->p % 8, 0);
	piece->mark = (uint8_t)draw();
	memset(piece->p, piece->mark, piece->room);
}

static void give(struct s3_slab *s, struct piece *piece)
{
	if (!piece->p)
		return;
	for (size_t i = 0; i < piece->room; i++)
		assert_int_equal(piece->p[i], piece->mark);
	s3_slab_give(s, piece->p);
	piece->p = NULL;
}

/* Every size that can be asked for, in any order, through many arenas. */
static void test_pieces(void **unused)
{
	struct piece *pieces = calloc(PIECES, sizeof *pieces);
	struct s3_slab *s = s3_slab_new();

	(void)unused;
	assert_non_null(s);
	for (size_t bytes = 1; bytes <= S3_SLAB_MAX; bytes++)
		take(s, &pieces[bytes], bytes);
	for (size_t i = 0; i < STEPS; i++) {
		struct piece *piece = &pieces[draw() % PIECES];

		if (piece->p)
			give(s, piece);
		else
			take(s, piece, 1 + draw() % (draw() % 2 ? S3_SLAB_MAX : 64));
	}
	for (size_t i = 0; i < PIECES; i++)
		give(s, &pieces[i]);
	s3_slab_give(s, NULL);
	s3_slab_free(s);
	free(pieces);
}

/*
 * What it says is what the process has (a sanitizer's shadow is an eighth more), also after pieces
 * have grown step by step, and nearly nothing when all are given.
 */
static void test_memory(void **unused)
{
	struct piece *pieces = calloc(PIECES, sizeof *pieces);
	struct s3_slab *s = s3_slab_new();
	double before = resident(), most = 0;

	(void)unused;
	memset(pieces, 0, PIECES * sizeof *pieces);
	/* Each grows at its own times. */
	for (size_t step = 0; step < 400; step++)
		for (size_t i = 0; i < PIECES; i++) {
			struct piece *piece = &pieces[i];
			size_t bytes = piece->p ? piece->room + 1 : 24;

			if (draw() % 8 || bytes > S3_SLAB_MAX)
				continue;
			s3_slab_give(s, piece->p);
			take(s, piece, bytes);
			if ((double)s3_slab_memory(s) > most)
				most = (double)s3_slab_memory(s);
		}
	for (size_t i = 0; i < PIECES; i++)
		assert_int_equal(pieces[i].room, S3_SLAB_MAX);
	assert_true(most < PIECES * S3_SLAB_MAX * 1.02);
	assert_true(resident() - before < most * 1.2);
	for (size_t i = 0; i < PIECES; i++)
		give(s, &pieces[i]);
	assert_true((double)s3_slab_memory(s) < most / 20);
	assert_true(resident() - before < most / 4);
	s3_slab_free(s);
	free(pieces);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory), /* first, while nothing else has been taken */
		cmocka_unit_test(test_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
