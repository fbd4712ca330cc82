/* SPDX-License-Identifier: BSD-3-Clause */
/* Concurrent requests on the passthrough device: no acknowledged byte is lost. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support.h"

#define BLOCKS	4
#define ROUNDS	300
#define WRITERS 4
#define SLICE	64

struct crowd {
	struct device device;
	uint32_t block;
	_Atomic bool stop;
	_Atomic int lost; /* reads that did not show what had been written */
	_Atomic int failed;
};

struct member {
	struct crowd *crowd;
	unsigned number;
	pthread_t thread;
};

static void note(struct crowd *c, int r)
{
	if (r && r != -EOPNOTSUPP)
		atomic_fetch_add(&c->failed, 1);
}

/* Writes its own slice of every block over and over, and finds it as it left it. */
static void *write_slices(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;
	char mine[SLICE], back[SLICE];

	for (unsigned round = 1; round <= ROUNDS; round++)
		for (unsigned block = 0; block < BLOCKS; block++) {
			uint64_t offset = (uint64_t)block * c->block + m->number * SLICE;

			memset(mine, (int)(round * 7 + block + m->number), SLICE);
			note(c, device_write(&c->device, mine, SLICE, offset,
					round % 64 ? 0 : BACKEND_FUA));
			note(c, device_read(&c->device, back, SLICE, offset));
			if (memcmp(mine, back, SLICE))
				atomic_fetch_add(&c->lost, 1);
		}
	return NULL;
}

/* Disturbs the beginning of the blocks that one other thread writes whole; one of two durably. */
static void *write_beginnings(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;
	char mine[100];

	memset(mine, 0xbb, sizeof mine);
	while (!c->stop)
		for (unsigned block = 0; block < BLOCKS; block++)
			note(c, device_write(&c->device, mine, sizeof mine,
					(uint64_t)block * c->block, m->number ? BACKEND_FUA : 0));
	return NULL;
}

/*
 * Writes whole blocks, aligned in memory and not, and zeroes and trims them.
 * Nobody else writes the second half of a block, so that it stays as it is.
 */
static void *write_wholes(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;
	size_t length = BLOCKS * (size_t)c->block;
	char *memory = aligned_alloc(4096, 2 * length + 4096), *back = malloc(length);

	for (unsigned round = 1; round <= ROUNDS; round++) {
		char *from = memory + (round % 2 ? 0 : 1);
		char expected = (char)(round | 1);
		int r = 0;

		if (round % 5 == 0) {
			r = backend_zero(
				c->device.backend, 0, length, round % 2 ? BACKEND_MAY_TRIM : 0);
			note(c, r);
			if (round % 25 == 0)
				note(c, backend_flush(c->device.backend));
			expected = 0;
		} else {
			memset(from, expected, length);
			note(c, device_write(&c->device, from, length, 0, 0));
		}
		note(c, device_read(&c->device, back, length, 0));
		for (unsigned block = 0; r == 0 && block < BLOCKS; block++)
			for (size_t i = c->block / 2; i < c->block; i++)
				if (back[block * c->block + i] != expected) {
					atomic_fetch_add(&c->lost, 1);
					break;
				}
	}
	c->stop = true;
	free(back);
	free(memory);
	return NULL;
}

static void start(struct crowd *c, struct member *m, unsigned number, void *(*what)(void *))
{
	*m = (struct member){.crowd = c, .number = number};
	assert_int_equal(pthread_create(&m->thread, NULL, what, m), 0);
}

static void open_crowd(struct crowd *c, const char *parameters)
{
	struct backend_info info;

	memset(c, 0, sizeof *c);
	device_open(&c->device, &passthrough_backend, "%s", parameters);
	assert_int_equal(backend_info(c->device.backend, &info), 0);
	/* With direct=off there are no blocks; any size will do. */
	c->block = info.block_size < 512 ? 512 : info.block_size;
}

static void close_crowd(struct crowd *c)
{
	int lost = c->lost, failed = c->failed;

	device_close(&c->device);
	assert_int_equal(failed, 0);
	assert_int_equal(lost, 0);
}

/* Several threads write different bytes of the same blocks. */
static void share_blocks(const char *parameters)
{
	struct crowd c;
	struct member members[WRITERS];

	open_crowd(&c, parameters);
	for (unsigned i = 0; i < WRITERS; i++)
		start(&c, &members[i], i, write_slices);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(members[i].thread, NULL);
	close_crowd(&c);
}

/* Whole-block changes while parts of the same blocks are written. */
static void mix_wholes_and_parts(const char *parameters)
{
	struct crowd c;
	struct member members[3];

	open_crowd(&c, parameters);
	start(&c, &members[0], 0, write_beginnings);
	start(&c, &members[1], 1, write_beginnings);
	start(&c, &members[2], 2, write_wholes);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(members[i].thread, NULL);
	close_crowd(&c);
}

static void on_file(void (*test)(const char *))
{
	char text[600];

	for (int direct = 0; direct < 2; direct++) {
		snprintf(text, sizeof text, "%s;direct=%s", scratch_file("shared", 1u << 20),
			direct ? "on" : "off");
		test(text);
	}
}

static void on_device(void (*test)(const char *))
{
	char device[64];

	loop_attach(scratch_file("disk", 1u << 20), 4096, device, sizeof device);
	test(device);
	loop_detach(device);
}

static void test_parts_of_blocks_on_file(void **state)
{
	(void)state;
	on_file(share_blocks);
}

static void test_parts_of_blocks_on_device(void **state)
{
	(void)state;
	on_device(share_blocks);
}

static void test_wholes_and_parts_on_file(void **state)
{
	(void)state;
	on_file(mix_wholes_and_parts);
}

static void test_wholes_and_parts_on_device(void **state)
{
	(void)state;
	on_device(mix_wholes_and_parts);
}

/* ---- more threads than the device keeps buffers for ------------------------- */

#define MANY 100

static pthread_barrier_t barrier;

static int ignore_extent(void *opaque, const struct backend_extent *extent)
{
	(void)opaque, (void)extent;
	return 0;
}

static void *read_unaligned(void *opaque)
{
	struct member *m = opaque;
	struct crowd *c = m->crowd;
	char *memory = malloc(4097), expected[4096];

	memset(expected, 'e', sizeof expected);
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 10; i++) {
		note(c, device_read(&c->device, memory + 1, 4096, 4096));
		if (memcmp(memory + 1, expected, 4096))
			atomic_fetch_add(&c->lost, 1);
		note(c, backend_extents(c->device.backend, 0, 8192, 0, ignore_extent, NULL));
		if (m->number % 10 == 0)
			note(c, backend_flush(c->device.backend));
	}
	free(memory);
	return NULL;
}

static void test_many_threads(void **state)
{
	static struct member members[MANY];
	struct crowd c;
	char *memory = malloc(4096);

	(void)state;
	pthread_barrier_init(&barrier, NULL, MANY);
	open_crowd(&c, scratch_file("many", 1u << 20));
	memset(memory, 'e', 4096);
	assert_int_equal(device_write(&c.device, memory, 4096, 4096, 0), 0);
	uint64_t before = device_counter(&c.device, "bounced_requests");
	for (unsigned i = 0; i < MANY; i++)
		start(&c, &members[i], i, read_unaligned);
	for (unsigned i = 0; i < MANY; i++)
		pthread_join(members[i].thread, NULL);
	assert_int_equal(device_counter(&c.device, "bounced_requests") - before, MANY * 10);
	close_crowd(&c);
	pthread_barrier_destroy(&barrier);
	free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_of_blocks_on_file),
		cmocka_unit_test(test_parts_of_blocks_on_device),
		cmocka_unit_test(test_wholes_and_parts_on_file),
		cmocka_unit_test(test_wholes_and_parts_on_device),
		cmocka_unit_test(test_many_threads),
	};

	return cmocka_run_group_tests_name("passthrough threads", tests, NULL, NULL);
}
