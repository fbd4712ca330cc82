/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of a checkpoint of the S3 device, fetched several at a time. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/snapshot.h"
#include "backends/s3/recovery/parts.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=2;memory=64M;"
#define BLOCK  4096u
#define SIZE   (UINT64_C(1) << 40)
#define BASE   "userblk/v/"

/* ---- alone ------------------------------------------------------------------------------- */

#define PARTS 50u

static void key_of(const struct s3_name *name, char key[S3_KEY_MAX + 1])
{
	strcpy(key, BASE);
	s3_name_format(name, key + strlen(key));
}

/* Part i: so many bytes, which are all i. */
static void put_part(struct s3_root_part *part, unsigned i, uint32_t bytes)
{
	uint8_t *data = malloc(bytes);
	char key[S3_KEY_MAX + 1];

	memset(data, (int)i, bytes);
	*part = (struct s3_root_part){
		.name = {.kind = S3_NAME_REGION, .number = 1, .region = i},
		.bytes = bytes,
		.crc = s3_crc32c(0, data, bytes),
	};
	key_of(&part->name, key);
	fake_store_set(key, data, bytes);
	free(data);
}

struct takers {
	struct s3_parts *parts;
	const struct s3_root_part *all;
	_Atomic unsigned taken, times[PARTS];
};

static void *take_parts(void *opaque)
{
	struct takers *t = opaque;
	size_t i;
	void *data;

	while (s3_parts_next(t->parts, &i, &data) == 1) {
		t->taken++;
		t->times[i]++;
		for (uint32_t j = 0; j < t->all[i].bytes; j++)
			if (((uint8_t *)data)[j] != i)
				t->times[i] = 1000;
		free(data);
	}
	return NULL;
}

static void test_each_once_to_several_threads(void **state)
{
	struct s3_root_part all[PARTS];
	struct takers t = {.all = all};
	pthread_t threads[3];
	struct device d;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	/* Some alone take more than may be on its way. */
	for (unsigned i = 0; i < PARTS; i++)
		put_part(&all[i], i, i % 20 == 10 ? 40u << 20 : i % 7 == 0 ? 9u << 20 : 1 + i);
	t.parts = s3_parts_new(volume_of(&d), BASE, all, PARTS);
	assert_non_null(t.parts);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_parts, &t), 0);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(t.taken, PARTS);
	for (unsigned i = 0; i < PARTS; i++)
		assert_int_equal(t.times[i], 1);
	s3_parts_free(t.parts);
	device_close(&d);
	fake_store_reset();
}

/* While the first is waited for the next are asked for, but not all. */
static void test_so_many_ahead(void **state)
{
	struct s3_root_part all[PARTS];
	struct s3_parts *parts;
	struct device d;
	size_t i = PARTS;
	void *data;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	for (unsigned j = 0; j < PARTS; j++)
		put_part(&all[j], j, 100);
	parts = s3_parts_new(volume_of(&d), BASE, all, PARTS);
	assert_int_equal(s3_parts_next(parts, &i, &data), 1);
	assert_int_equal(i, 0);
	free(data);
	s3_parts_free(parts);
	assert_int_equal(fake_store_requests(S3_GET, "/ckpt/"), 17);
	device_close(&d);
	fake_store_reset();
}

/* Part 3 is other bytes in the store, or a request fails with result (length SIZE_MAX). */
static void check_bad(const void *bytes, size_t length, int result)
{
	char key[S3_KEY_MAX + 1];
	struct s3_root_part all[PARTS];
	struct s3_parts *parts;
	struct device d;
	size_t i;
	void *data;
	int r = 1;

	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=64M");
	for (unsigned j = 0; j < PARTS; j++)
		put_part(&all[j], j, 2);
	key_of(&all[3].name, key);
	if (length != SIZE_MAX)
		fake_store_set(key, bytes, length);
	else
		fake_store_fail(S3_GET, "/ckpt/", result, 1);
	parts = s3_parts_new(volume_of(&d), BASE, all, PARTS);
	while (r == 1) {
		r = s3_parts_next(parts, &i, &data);
		if (r == 1)
			free(data);
	}
	assert_int_equal(r, result);
	s3_parts_free(parts);
	device_close(&d);
	fake_store_reset();
}

static void test_bad_parts(void **state)
{
	(void)state;
	check_bad("\3\3", 2, 0);
	check_bad(NULL, 0, -ENOENT);
	check_bad("\3\4", 2, -ENOENT);
	check_bad("\3", 1, -ENOENT);
	check_bad("\3\3\3", 3, -ENOENT);
	check_bad(NULL, SIZE_MAX, -EIO);
}

/* ---- of a volume --------------------------------------------------------------------------- */

/* Blocks in all regions: block number i holds i and more. */
static void write_blocks(struct device *d, unsigned n, unsigned more)
{
	uint8_t block[BLOCK];

	for (unsigned i = 0; i < n; i++) {
		memset(block, (int)(i + more), BLOCK);
		assert_int_equal(
			device_write(d, block, BLOCK, i * (UINT64_C(12345677) * BLOCK) % SIZE, 0),
			0);
	}
}

static void check_blocks(struct device *d, unsigned n, unsigned more)
{
	uint8_t block[BLOCK];

	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(
			device_read(d, block, BLOCK, i * (UINT64_C(12345677) * BLOCK) % SIZE), 0);
		for (unsigned j = 0; j < BLOCK; j++)
			assert_int_equal(block[j], (uint8_t)(i + more));
	}
}

/* A root of many regions; when one of them is damaged, the one before it and the log. */
static void test_regions(void **state)
{
	struct s3_volume *v;
	struct device d;
	char key[S3_KEY_MAX + 1];
	uint64_t replayed;

	(void)state;
	fake_store_reset();
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=1T");
	write_blocks(&d, 300, 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "s"), 0);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	assert_int_equal(device_counter(&d, "replayed"), 1); /* its fence */
	check_blocks(&d, 300, 0);
	write_blocks(&d, 300, 7);
	assert_int_equal(s3_snapshot_create(volume_of(&d), "t"), 0);
	v = volume_of(&d);
	assert_true(v->n_regions > 100);
	key_of(&(struct s3_name){.kind = S3_NAME_REGION,
		       .number = v->regions[90].seq,
		       .region = v->regions[90].region},
		key);
	crash(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	check_blocks(&d, 300, 7);
	replayed = device_counter(&d, "replayed");
	crash(&d);
	fake_store_set(key, "x", 1);
	device_open(&d, &s3_backend, COMMON "volume=v");
	/* More than another fence. */
	assert_true(device_counter(&d, "replayed") > replayed + 1);
	check_blocks(&d, 300, 7);
	device_close(&d);
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_once_to_several_threads),
		cmocka_unit_test(test_so_many_ahead),
		cmocka_unit_test(test_bad_parts),
		cmocka_unit_test(test_regions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
