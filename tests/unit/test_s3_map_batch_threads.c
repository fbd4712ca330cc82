/* SPDX-License-Identifier: BSD-3-Clause */
/* Changes of the S3 device's map that are applied together are as those made one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/support.h"

#define TARGET	1024u
#define BLOCKS	(3 * (uint64_t)S3_REGION_BLOCKS)
#define OBJECTS 4096u

static uint64_t random_state = 20261122;

/* splitmix64 */
static uint64_t below(uint64_t n)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % n;
}

/* One of two volumes to which the same happens. */
struct volume {
	struct s3_objects *objects;
	struct s3_map *map;
	struct s3_map_batch *batch; /* NULL: one by one */
};

struct pair {
	struct volume one, all;
	uint64_t seq, gc;
	uint32_t slots[OBJECTS]; /* the same in both */
	size_t n;
	/* Where the writes go: a window of so many blocks, which moves. */
	uint64_t first, span;
};

static void make(struct volume *v, size_t bytes)
{
	v->objects = s3_objects_new(TARGET);
	v->map = s3_map_new(v->objects, BLOCKS);
	assert_non_null(v->map);
	if (bytes) {
		v->batch = s3_map_batch_new(v->map, bytes);
		assert_non_null(v->batch);
	}
}

static void unmake(struct volume *v)
{
	s3_map_batch_free(v->batch);
	s3_map_free(v->map);
	s3_objects_free(v->objects);
}

static uint32_t add(struct pair *p, uint64_t id, uint32_t blocks)
{
	const struct s3_object object = {.id = id,
		.birth = p->seq,
		.bytes = 4096 + blocks * 4096,
		.header_bytes = 4096,
		.blocks = blocks};
	uint32_t slot = s3_objects_add(p->one.objects, &object);

	assert_int_not_equal(slot, S3_NO_SLOT);
	assert_int_equal(s3_objects_add(p->all.objects, &object), slot);
	assert_true(p->n < OBJECTS);
	p->slots[p->n++] = slot;
	return slot;
}

static void seal(struct pair *p, uint32_t slot)
{
	s3_objects_seal(p->one.objects, slot, p->seq);
	s3_objects_seal(p->all.objects, slot, p->seq);
}

static uint64_t somewhere(const struct pair *p, uint64_t count)
{
	uint64_t lba = (p->first + below(p->span)) % BLOCKS;

	return lba + count > BLOCKS ? BLOCKS - count : lba;
}

static void punch(struct pair *p, uint64_t lba, uint64_t count)
{
	assert_int_equal(s3_map_punch(p->one.map, p->seq, lba, count), 0);
	assert_int_equal(s3_map_batch_punch(p->all.batch, p->seq, lba, count), 0);
}

/* An object of the log, of runs of up to most blocks. */
static void write_object(struct pair *p, uint32_t most)
{
	uint32_t slot, used = 0;

	p->seq++;
	slot = add(p, p->seq, TARGET);
	while (used < TARGET) {
		uint32_t count = 1 + (uint32_t)below(most);
		uint64_t lba;

		if (count > TARGET - used)
			count = TARGET - used;
		lba = somewhere(p, count);
		if (below(10) == 0) {
			punch(p, lba, count);
			continue;
		}
		assert_int_equal(s3_map_update(p->one.map, p->seq, lba, count, slot, used), 0);
		assert_int_equal(
			s3_map_batch_update(p->all.batch, p->seq, lba, count, slot, used), 0);
		used += count;
	}
	seal(p, slot);
}

/* Some blocks are moved, of which a part has been overwritten since they were looked up. */
static void relocate(struct pair *p)
{
	struct s3_run runs[64];
	uint64_t lba = somewhere(p, 4096);
	size_t n = s3_map_lookup(p->one.map, lba, 4096, false, runs, 64);
	uint32_t slot, used = 0;

	write_object(p, 40);
	p->seq++;
	slot = add(p, S3_GC | ++p->gc, 4096);
	for (size_t i = 0; i < n; i++) {
		uint32_t count = (uint32_t)runs[i].count;

		if (!runs[i].slot)
			continue;
		assert_int_equal(s3_map_relocate(p->one.map, p->seq, runs[i].lba, count,
					 runs[i].slot, runs[i].offset, slot, used, NULL),
			0);
		assert_int_equal(s3_map_batch_relocate(p->all.batch, p->seq, runs[i].lba, count,
					 runs[i].slot, runs[i].offset, slot, used),
			0);
		used += count;
	}
	seal(p, slot);
}

static void compare(struct pair *p)
{
	struct s3_objects_totals one, all;
	uint32_t dead_one[64], dead_all[64];
	uint32_t *regions_one, *regions_all;
	size_t n_one, n_all;

	assert_int_equal(s3_map_batch_apply(p->all.batch), 0);
	s3_objects_settle(p->all.objects, p->seq);
	assert_int_equal(s3_map_mapped(p->all.map), s3_map_mapped(p->one.map));
	for (uint64_t lba = 0; lba < BLOCKS;) {
		struct s3_run a[64], b[64];
		size_t n = s3_map_lookup(p->one.map, lba, BLOCKS - lba, false, a, 64);

		assert_int_equal(s3_map_lookup(p->all.map, lba, BLOCKS - lba, false, b, 64), n);
		for (size_t i = 0; i < n; i++)
			assert_true(a[i].lba == b[i].lba && a[i].count == b[i].count &&
				    a[i].slot == b[i].slot && a[i].offset == b[i].offset);
		lba = a[n - 1].lba + a[n - 1].count;
	}
	for (size_t i = 0; i < p->n; i++) {
		struct s3_object a, b;

		s3_objects_get(p->one.objects, p->slots[i], &a);
		s3_objects_get(p->all.objects, p->slots[i], &b);
		assert_int_equal(a.live, b.live);
		assert_int_equal(a.held, b.held);
		assert_int_equal(a.death, b.death);
	}
	s3_objects_totals(p->one.objects, &one);
	s3_objects_totals(p->all.objects, &all);
	assert_memory_equal(&one, &all, sizeof one);
	/* The dead are in the order of their deaths in both, those of one death in any. */
	n_one = s3_objects_take_dead(p->one.objects, UINT64_MAX, dead_one, 64);
	n_all = s3_objects_take_dead(p->all.objects, UINT64_MAX, dead_all, 64);
	assert_int_equal(n_one, n_all);
	for (size_t i = 0; i < n_one; i++) {
		struct s3_object a, b;

		s3_objects_get(p->one.objects, dead_one[i], &a);
		s3_objects_get(p->all.objects, dead_all[i], &b);
		assert_int_equal(a.death, b.death);
	}
	for (size_t i = 0; i < n_one; i++) {
		s3_objects_put_back(p->one.objects, dead_one[i]);
		s3_objects_put_back(p->all.objects, dead_all[i]);
	}
	/* The same regions have changed since. */
	assert_int_equal(s3_map_capture(p->one.map, false, &regions_one, &n_one), 0);
	assert_int_equal(s3_map_capture(p->all.map, false, &regions_all, &n_all), 0);
	assert_int_equal(n_one, n_all);
	assert_memory_equal(regions_one, regions_all, n_one * sizeof *regions_one);
	s3_map_capture_end(p->one.map, true);
	s3_map_capture_end(p->all.map, true);
	free(regions_one);
	free(regions_all);
}

static void live_through(size_t bytes, uint64_t span, unsigned rounds)
{
	struct pair *p = calloc(1, sizeof *p);

	p->span = span;
	p->first = S3_REGION_BLOCKS - span / 2;
	make(&p->one, 0);
	make(&p->all, bytes);
	for (unsigned i = 0; i < rounds; i++) {
		unsigned what = (unsigned)below(100);
		uint64_t most[] = {1, 8, 300, TARGET};

		if (what < 70)
			write_object(p, (uint32_t)most[below(4)]);
		else if (what < 80)
			relocate(p);
		else if (what < 84)
			punch(p, somewhere(p, 20000), 20000);
		else if (what < 86)
			punch(p, below(BLOCKS / 2), BLOCKS / 2);
		else if (what < 90)
			p->first = below(BLOCKS);
		else
			compare(p);
		if (what == 99) {
			assert_int_equal(s3_objects_snapshot(p->one.objects, p->seq), 0);
			assert_int_equal(s3_objects_snapshot(p->all.objects, p->seq), 0);
		}
	}
	compare(p);
	unmake(&p->one);
	unmake(&p->all);
	free(p);
}

/* So dense that leaves are of every kind, and so little memory that batches are many. */
static void test_dense(void **state)
{
	(void)state;
	live_through(0x10000, 5000, 1500);
}

static void test_wide(void **state)
{
	(void)state;
	live_through(1 << 20, 200000, 600);
}

/* Enough at once for more than one thread, and for several slices of one region. */
static void test_much(void **state)
{
	struct pair *p = calloc(1, sizeof *p);

	(void)state;
	p->span = BLOCKS;
	make(&p->one, 0);
	make(&p->all, 64 << 20);
	for (unsigned i = 0; i < 300; i++) {
		p->span = i < 200 ? BLOCKS : 100000;
		if (i % 8)
			write_object(p, 1);
		else
			relocate(p);
	}
	compare(p);
	unmake(&p->one);
	unmake(&p->all);
	free(p);
}

/* Relocations of what is no longer there change nothing, wherever they are among the changes. */
static void test_relocated_too_late(void **state)
{
	struct pair *p = calloc(1, sizeof *p);
	uint32_t first, second, moved;

	(void)state;
	make(&p->one, 0);
	make(&p->all, 64 << 20);
	p->seq = 1;
	first = add(p, 1, TARGET);
	assert_int_equal(s3_map_update(p->one.map, 1, 0, 1, first, 0), 0);
	assert_int_equal(s3_map_batch_update(p->all.batch, 1, 0, 1, first, 0), 0);
	seal(p, first);
	p->seq = 2;
	second = add(p, 2, TARGET);
	assert_int_equal(s3_map_update(p->one.map, 2, 0, 1, second, 0), 0);
	assert_int_equal(s3_map_batch_update(p->all.batch, 2, 0, 1, second, 0), 0);
	seal(p, second);
	compare(p);
	p->seq = 3;
	moved = add(p, S3_GC | 1, S3_OBJECT_MAX);
	/* One change of a hole, so that of the pairs that follow the first are at odd places. */
	punch(p, 1, 1);
	for (uint32_t i = 0; i < S3_OBJECT_MAX; i++)
		assert_int_equal(
			s3_map_batch_relocate(p->all.batch, 3, 0, 1, first, 0, moved, i), 0);
	seal(p, moved);
	/* Nor does the region count as changed. */
	compare(p);
	unmake(&p->one);
	unmake(&p->all);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dense),
		cmocka_unit_test(test_wide),
		cmocka_unit_test(test_much),
		cmocka_unit_test(test_relocated_too_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
