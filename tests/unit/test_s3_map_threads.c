/* SPDX-License-Identifier: BSD-3-Clause */
/* The S3 device's map while everything happens at once: nobody sees what was never there. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/support.h"

/*
 * Writers write "page" p, 8 blocks at p * 8, always as blocks p * 8 of an object, so that what a
 * lookup shows can be checked without knowing what was written last.
 */
#define PAGES	  4096u
#define PAGE	  8u
#define BLOCKS	  (PAGES * PAGE)
#define OBJECTS	  1000u
#define WRITERS	  2
#define FIRST_LBA (S3_REGION_BLOCKS - BLOCKS / 2)

struct crowd {
	struct s3_objects *objects;
	struct s3_map *map;
	pthread_rwlock_t changes; /* as the device's: captures exclude changes */
	_Atomic uint64_t seq;
	_Atomic uint64_t captured; /* limit of what may be removed */
	_Atomic unsigned writing;
	_Atomic int wrong;
	_Atomic uint64_t lookups, removed, captures;
};

struct member {
	struct crowd *crowd;
	uint64_t random;
	pthread_t thread;
};

static uint64_t draw(struct member *m)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return m->random;
}

static void *write_pages(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;

	for (unsigned i = 0; i < OBJECTS; i++) {
		uint64_t seq = atomic_fetch_add(&c->seq, 1) + 1;
		uint32_t slot;

		pthread_rwlock_rdlock(&c->changes);
		slot = s3_objects_add(c->objects, &(struct s3_object){.id = seq,
							  .birth = seq,
							  .bytes = 8192,
							  .header_bytes = 4096,
							  .blocks = BLOCKS});
		for (unsigned j = 0; slot && j < 64; j++) {
			uint32_t page = (uint32_t)(draw(m) % PAGES);

			if (draw(m) % 8 == 0) {
				if (s3_map_punch(c->map, seq, FIRST_LBA + page * PAGE, PAGE))
					atomic_fetch_add(&c->wrong, 1);
			} else if (s3_map_update(c->map, seq, FIRST_LBA + page * PAGE, PAGE, slot,
					   page * PAGE)) {
				atomic_fetch_add(&c->wrong, 1);
			}
		}
		s3_objects_seal(c->objects, slot, seq);
		pthread_rwlock_unlock(&c->changes);
	}
	atomic_fetch_sub(&c->writing, 1);
	return NULL;
}

/* What is pinned is what it was when it was looked up, and is where it has to be. */
static void *read_pages(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;

	while (atomic_load(&c->writing)) {
		uint64_t first = draw(m) % BLOCKS, count = 1 + draw(m) % 64;
		struct s3_run runs[16];
		size_t n;

		if (count > BLOCKS - first)
			count = BLOCKS - first;
		n = s3_map_lookup(c->map, FIRST_LBA + first, count, true, runs, 16);
		for (size_t i = 0; i < n; i++) {
			struct s3_object object;

			if (!runs[i].slot)
				continue;
			s3_objects_get(c->objects, runs[i].slot, &object);
			if (!object.id || object.blocks != BLOCKS ||
				runs[i].lba - FIRST_LBA != runs[i].offset)
				atomic_fetch_add(&c->wrong, 1);
			s3_objects_unpin(c->objects, runs[i].slot);
		}
		atomic_fetch_add(&c->lookups, 1);
	}
	return NULL;
}

/* Captures, loads what was captured, and compares live counts with the table of that moment. */
static void *capture(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;

	while (atomic_load(&c->writing)) {
		struct s3_objects *objects = s3_objects_new(1024);
		struct s3_map *map = s3_map_new(objects, FIRST_LBA + BLOCKS);
		struct s3_buffer table = {0}, regions[2] = {0};
		uint64_t seq, mapped;
		uint32_t *list;
		size_t n;

		pthread_rwlock_wrlock(&c->changes);
		seq = atomic_load(&c->seq);
		mapped = s3_map_mapped(c->map);
		s3_objects_encode(c->objects, 0, &table);
		if (s3_map_capture(c->map, true, &list, &n))
			atomic_fetch_add(&c->wrong, 1);
		pthread_rwlock_unlock(&c->changes);
		for (size_t i = 0; i < n; i++)
			if (s3_map_capture_region(c->map, list[i], &regions[list[i]]))
				atomic_fetch_add(&c->wrong, 1);
		s3_map_capture_end(c->map, true);
		if (s3_objects_decode(objects, table.data, table.length))
			atomic_fetch_add(&c->wrong, 1);
		for (uint32_t i = 0; i < 2; i++) {
			if (regions[i].length &&
				s3_map_load(map, i, regions[i].data, regions[i].length))
				atomic_fetch_add(&c->wrong, 1);
			s3_buffer_free(&regions[i]);
		}
		if (s3_map_mapped(map) != mapped)
			atomic_fetch_add(&c->wrong, 1);
		atomic_store(&c->captured, seq);
		atomic_fetch_add(&c->captures, 1);
		s3_buffer_free(&table);
		s3_map_free(map);
		s3_objects_free(objects);
		free(list);
	}
	return NULL;
}

static void *collect(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;

	while (atomic_load(&c->writing)) {
		uint32_t slots[16];
		size_t n = s3_objects_take_dead(c->objects, atomic_load(&c->captured), slots, 16);

		for (size_t i = 0; i < n; i++)
			if (s3_objects_remove(c->objects, slots[i]))
				atomic_fetch_add(&c->wrong, 1);
		atomic_fetch_add(&c->removed, n);
		n = s3_objects_take_sparse(c->objects, 20, true, slots, 16);
		while (n)
			s3_objects_put_back(c->objects, slots[--n]);
	}
	return NULL;
}

static int count_live(void *opaque, uint32_t slot, const struct s3_object *object)
{
	(void)slot;
	*(uint64_t *)opaque += object->live;
	return 0;
}

static void test_all_at_once(void **state)
{
	static void *(*const roles[])(void *) = {
		write_pages, write_pages, read_pages, read_pages, capture, collect};
	const size_t n = sizeof roles / sizeof roles[0];
	struct crowd c = {.changes = PTHREAD_RWLOCK_INITIALIZER, .writing = WRITERS};
	struct member members[6];
	struct s3_objects_totals totals;
	uint64_t live = 0;

	(void)state;
	c.objects = s3_objects_new(1024);
	c.map = s3_map_new(c.objects, FIRST_LBA + BLOCKS);
	for (size_t i = 0; i < n; i++) {
		members[i] = (struct member){.crowd = &c, .random = 88172645463325252u + i};
		assert_int_equal(
			pthread_create(&members[i].thread, NULL, roles[i], &members[i]), 0);
	}
	for (size_t i = 0; i < n; i++)
		pthread_join(members[i].thread, NULL);
	print_message("%llu lookups, %llu captures, %llu objects removed\n",
		(unsigned long long)c.lookups, (unsigned long long)c.captures,
		(unsigned long long)c.removed);
	assert_int_equal(c.wrong, 0);
	s3_objects_walk(c.objects, count_live, &live);
	s3_objects_totals(c.objects, &totals);
	assert_int_equal(live, s3_map_mapped(c.map));
	assert_int_equal(live, totals.live);
	s3_map_free(c.map);
	s3_objects_free(c.objects);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
