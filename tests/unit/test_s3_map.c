/* SPDX-License-Identifier: BSD-3-Clause */
/* The map of the S3 device and its table of objects: single cases, and what they take of memory. */
#include <errno.h>
#include <stdlib.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "tests/unit/s3_map_world.h"

/* An object that snapshots hold is not worth moving; one that is small is, when that is asked. */
static void test_sparse(void **state)
{
	struct world w;
	struct model_object *large, *small, *full;
	uint32_t slots[8];

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	large = object_add(&w, 1, 1, TARGET);
	do_write(&w, 0, 200, large, 0);
	s3_objects_seal(w.objects, large->slot, 1);
	w.seq = 2;
	small = object_add(&w, 2, 2, 1);
	do_write(&w, 2000, 1, small, 0);
	s3_objects_seal(w.objects, small->slot, 2);
	w.seq = 3;
	full = object_add(&w, 3, 3, TARGET);
	do_write(&w, 1000, TARGET - 200, full, 0);
	do_write(&w, 2100, 200, full, TARGET - 200);
	s3_objects_seal(w.objects, full->slot, 3);
	assert_int_equal(s3_objects_take_sparse(w.objects, 18, false, slots, 8), 0);
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, false, slots, 8), 1);
	assert_int_equal(slots[0], large->slot);
	/* It is taken. */
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, false, slots, 8), 0);
	s3_objects_put_back(w.objects, large->slot);
	assert_int_equal(s3_objects_take_sparse(w.objects, 30, true, slots, 8), 2);
	assert_int_equal(slots[1], small->slot);
	s3_objects_put_back(w.objects, large->slot);
	s3_objects_put_back(w.objects, small->slot);
	assert_int_equal(s3_objects_snapshot(w.objects, 3), 0);
	assert_int_equal(s3_objects_take_sparse(w.objects, 100, true, slots, 8), 0);
	world_free(&w);
}

/* A read that is under way keeps its object; a dead one that nobody reads goes. */
static void test_pins(void **state)
{
	struct world w;
	struct model_object *m;
	struct s3_run run;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	m = object_add(&w, 1, 1, TARGET);
	do_write(&w, 0, 10, m, 0);
	s3_objects_seal(w.objects, m->slot, 1);
	assert_int_equal(s3_map_lookup(w.map, BASE, 10, true, &run, 1), 1);
	w.seq = 2;
	do_punch(&w, 0, 10);
	assert_int_equal(s3_objects_take_dead(w.objects, 2, &slot, 1), 0);
	assert_int_equal(s3_objects_remove(w.objects, m->slot), -EBUSY);
	s3_objects_unpin(w.objects, run.slot);
	assert_int_equal(s3_objects_take_dead(w.objects, 1, &slot, 1), 0);
	assert_int_equal(s3_objects_take_dead(w.objects, 2, &slot, 1), 1);
	assert_int_equal(s3_objects_remove(w.objects, slot), 0);
	assert_int_equal(s3_objects_find(w.objects, 0, 1), S3_NO_SLOT);
	world_free(&w);
}

/* A clone's table: everything is the parent's, and may be forgotten but not deleted. */
/* A clone begins without what its parent's snapshot knew as dead, and can be read again all the
 * same. */
static void test_inherit_dead(void **state)
{
	struct world w;
	struct s3_objects *again = s3_objects_new(TARGET);
	struct s3_buffer out = {0};
	struct s3_object object;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 7;
	slot = object_add(&w, 7, 7, 0)->slot; /* it made a number for the snapshot */
	s3_objects_seal(w.objects, slot, 7);
	assert_int_equal(s3_objects_inherit(w.objects), 0);
	s3_objects_get(w.objects, slot, &object);
	assert_int_equal(object.death, 1);
	s3_objects_encode(w.objects, 0, &out);
	assert_int_equal(s3_objects_decode(again, out.data, out.length), S3_GOOD);
	s3_objects_settle(again, 9);
	s3_objects_get(again, slot, &object);
	assert_int_equal(object.death, 1);
	s3_objects_free(again);
	/* As older programs stored it. */
	again = s3_objects_new(TARGET);
	assert_int_equal(out.data[out.length - 2], 1);
	out.data[out.length - 2] = 0;
	assert_int_equal(s3_objects_decode(again, out.data, out.length), S3_GOOD);
	s3_objects_settle(again, 9);
	s3_objects_get(again, slot, &object);
	assert_int_equal(object.death, 9);
	s3_objects_free(again);
	s3_buffer_free(&out);
	world_free(&w);
}

static void test_inherit(void **state)
{
	struct world w;
	struct model_object *m;
	struct s3_object object;
	struct s3_objects_totals totals;
	uint32_t slot;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 7;
	m = object_add(&w, 7, 7, TARGET);
	do_write(&w, 0, 10, m, 0);
	s3_objects_seal(w.objects, m->slot, 7);
	assert_int_equal(s3_objects_snapshot(w.objects, 7), 0);
	assert_int_equal(s3_objects_inherit(w.objects), 0);
	assert_int_equal(s3_objects_find(w.objects, 1, 7), m->slot);
	s3_objects_totals(w.objects, &totals);
	assert_int_equal(totals.bytes + totals.blocks + totals.live + totals.small, 0);
	assert_int_equal(totals.objects, 1);
	/* A number of the clone's own. */
	w.seq = 1;
	assert_int_equal(s3_map_punch(w.map, 1, BASE, 10), 0);
	assert_int_equal(s3_objects_take_dead(w.objects, 1, &slot, 1), 1);
	s3_objects_get(w.objects, slot, &object);
	assert_int_equal(object.origin, 1);
	assert_int_equal(s3_objects_remove(w.objects, slot), 0);
	world_free(&w);
}

/* ---- size ----------------------------------------------------------------------------- */

/* Writes all blocks in extents of count at random places (1: each once), objects of 4 MiB. */
static double mib_per_tib(uint64_t blocks, uint32_t count, bool in_order)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, blocks);
	struct s3_objects_totals totals;
	uint64_t extents = blocks / count, seq = 0;
	uint32_t used = TARGET, slot = 0;
	double bytes = 0;

	for (uint64_t i = 0; i < extents; i++) {
		/* An odd factor meets every extent of a power of two of them once. */
		uint64_t lba = (in_order ? i : (i * 0x9e3779b1u) % extents) * count;
		uint32_t done = 0;

		while (done < count) {
			uint32_t n;

			if (used == TARGET) {
				double now = (double)s3_map_memory(map);

				bytes = now > bytes ? now : bytes;
				if (slot)
					s3_objects_seal(objects, slot, seq);
				seq++;
				slot = s3_objects_add(objects, &(struct s3_object){.id = seq,
								       .birth = seq,
								       .bytes = 4 << 20,
								       .header_bytes = 4096,
								       .blocks = TARGET});
				used = 0;
				/* Sequential writes begin anywhere in a leaf. */
				if (in_order && seq == 1)
					used = 100;
			}
			n = count - done < TARGET - used ? count - done : TARGET - used;
			assert_int_equal(s3_map_update(map, seq, lba + done, n, slot, used), 0);
			done += n;
			used += n;
		}
	}
	s3_objects_totals(objects, &totals);
	assert_int_equal(s3_map_mapped(map), blocks);
	if ((double)s3_map_memory(map) > bytes)
		bytes = (double)s3_map_memory(map);
	bytes += (double)totals.memory;
	s3_map_free(map);
	s3_objects_free(objects);
	return bytes / (1 << 20) * ((double)(1ull << 28) / (double)blocks);
}

/* At 1/64 of the scale, 16 GiB, of which what does not grow with it is left out. */
static void test_memory(void **state)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, 1ull << 32);
	struct s3_objects_totals totals;
	double random, sequential;

	(void)state;
	s3_objects_totals(objects, &totals);
	/* 16 TiB, nothing written. */
	assert_true(s3_map_memory(map) + totals.memory < 256 << 10);
	s3_map_free(map);
	s3_objects_free(objects);
	random = mib_per_tib(1 << 22, 1, false);
	sequential = mib_per_tib(1 << 22, 1024, true);
	print_message("MiB per TiB: %.1f written at random in 4 KiB, %.1f sequentially\n", random,
		sequential);
	assert_true(random <= 2.1 * 1024);
	assert_true(sequential <= 50);
}

/* A block that was written again within its object is not where it was; nor is what an aborted
 * checkpoint left out written. */
static void test_moved_and_aborted(void **state)
{
	struct world w;
	struct model_object *m, *gc;
	uint32_t *list;
	uint64_t moved;
	size_t n;

	(void)state;
	world_init(&w, SMALL_WORLD);
	w.seq = 1;
	m = object_add(&w, 1, 1, TARGET);
	gc = object_add(&w, S3_GC | 1, 2, TARGET);
	do_write(&w, 0, 1, m, 0);
	do_write(&w, 0, 1, m, 1);
	assert_int_equal(s3_map_relocate(w.map, 2, BASE, 1, m->slot, 0, gc->slot, 0, &moved), 0);
	assert_int_equal(moved, 0);
	compare(&w, 0, 10);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(s3_map_capture(w.map, false, &list, &n), 0);
		assert_int_equal(n, 1);
		free(list);
		s3_map_capture_end(w.map, i == 1);
	}
	assert_int_equal(s3_map_capture(w.map, false, &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	s3_map_capture_end(w.map, true);
	world_free(&w);
}

/* The last block of the largest object is not followed by the first of the next slot. */
static void test_slots_apart(void **state)
{
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, S3_REGION_BLOCKS);
	struct s3_object object = {
		.id = 1, .birth = 1, .header_bytes = 4096, .blocks = S3_OBJECT_MAX};
	uint32_t first = s3_objects_add(objects, &object), second;
	struct s3_run runs[2];

	(void)state;
	object.id = 2;
	second = s3_objects_add(objects, &object);
	assert_int_equal(second, first + 1);
	assert_int_equal(s3_map_update(map, 1, 0, 1, first, S3_OBJECT_MAX - 1), 0);
	assert_int_equal(s3_map_update(map, 2, 1, 1, second, 0), 0);
	assert_int_equal(s3_map_punch(map, 3, 0, 1), 0);
	assert_int_equal(s3_map_lookup(map, 1, 1, false, runs, 2), 1);
	assert_int_equal(s3_map_update(map, 4, 0, 1, first, S3_OBJECT_MAX - 1), 0);
	assert_int_equal(s3_map_punch(map, 5, 1, 1), 0);
	assert_int_equal(s3_map_update(map, 6, 1, 1, second, 0), 0);
	assert_int_equal(s3_map_lookup(map, 0, 2, false, runs, 2), 2);
	assert_int_equal(runs[1].slot, second);
	/* The object of each, not two blocks of the first. */
	assert_int_equal(s3_map_punch(map, 7, 0, 2), 0);
	s3_map_free(map);
	s3_objects_free(objects);
}

/* The whole of 16 TiB at once, of which some is written at both ends. */
static void test_discard_all(void **state)
{
	const uint64_t blocks = 1ull << 32;
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, blocks);
	uint32_t slot = s3_objects_add(objects,
		&(struct s3_object){
			.id = 1, .birth = 1, .bytes = 8192, .header_bytes = 4096, .blocks = 8});
	struct s3_run run;

	(void)state;
	assert_int_equal(s3_map_update(map, 1, 0, 4, slot, 0), 0);
	assert_int_equal(s3_map_update(map, 1, blocks - 4, 4, slot, 4), 0);
	s3_objects_seal(objects, slot, 1);
	assert_int_equal(s3_map_lookup(map, 0, blocks, false, &run, 1), 1);
	assert_int_equal(run.count, 4);
	assert_int_equal(s3_map_punch(map, 2, 0, blocks), 0);
	assert_int_equal(s3_map_lookup(map, 0, blocks, false, &run, 1), 1);
	assert_true(run.count == blocks && !run.slot);
	assert_int_equal(s3_objects_take_dead(objects, 2, &slot, 1), 1);
	s3_map_free(map);
	s3_objects_free(objects);
}

/* A region of one run, at the end of a leaf and in the next, loaded beside an object of blocks. */
static enum s3_check load_beside(uint32_t blocks, uint32_t slot_of_object)
{
	struct s3_object object = {
		.id = 1, .birth = 1, .bytes = 8192, .header_bytes = 4096, .blocks = 10};
	struct s3_objects *objects = s3_objects_new(TARGET);
	struct s3_map *map = s3_map_new(objects, 4096);
	struct s3_buffer region = {0};
	enum s3_check check;
	uint32_t *list, slot = 0;
	size_t n;

	for (uint32_t i = 0; i < slot_of_object; i++) {
		object.id = i + 1;
		slot = s3_objects_add(objects, &object);
	}
	assert_int_equal(s3_map_update(map, 1, 508, 10, slot, 0), 0);
	assert_int_equal(s3_map_capture(map, true, &list, &n), 0);
	assert_int_equal(s3_map_capture_region(map, list[0], &region), 0);
	s3_map_capture_end(map, true);
	free(list);
	s3_map_free(map);
	s3_objects_free(objects);

	objects = s3_objects_new(TARGET);
	map = s3_map_new(objects, 4096);
	object.id = 1;
	object.blocks = blocks;
	assert_int_equal(s3_objects_add(objects, &object), 1);
	check = s3_map_load(map, 0, region.data, region.length);
	s3_buffer_free(&region);
	s3_map_free(map);
	s3_objects_free(objects);
	return check;
}

static void test_load_of_what_no_object_has(void **state)
{
	(void)state;
	assert_int_equal(load_beside(10, 1), S3_GOOD);
	assert_int_equal(load_beside(9, 1), S3_INVALID); /* the last leaf */
	assert_int_equal(load_beside(3, 1), S3_INVALID);
	assert_int_equal(load_beside(10, 2), S3_INVALID);
	assert_int_equal(load_beside(10, 100), S3_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sparse),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_inherit),
		cmocka_unit_test(test_inherit_dead),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_moved_and_aborted),
		cmocka_unit_test(test_slots_apart),
		cmocka_unit_test(test_discard_all),
		cmocka_unit_test(test_load_of_what_no_object_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
