/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a writer may store with any of its parameters a reader takes with any other: a volume of the
 * S3 device at its limits, over a store in this process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/keeper/keeper.h"
#include "backends/s3/keeper/snapshot.h"
#include "tests/unit/s3_fake_store.h"
#include "tests/unit/s3_volume_device.h"
#include "tests/unit/support.h"

#define BLOCK  512u
#define COMMON "endpoint=http://127.0.0.1;bucket=abc;uploads=1;memory=256M;"
#define LARGE  "batch-size=16M;"
#define SMALL  "batch-size=1M;"

/* Block i of a volume as write number n leaves it. */
static void fill(uint8_t *block, uint32_t i, uint32_t n)
{
	for (size_t at = 0; at < BLOCK; at += 8) {
		memcpy(block + at, &i, 4);
		memcpy(block + at + 4, &n, 4);
	}
}

static void check_block(struct device *d, uint32_t i, uint32_t n)
{
	uint8_t expected[BLOCK], block[BLOCK];

	fill(expected, i, n);
	assert_int_equal(device_read(d, block, BLOCK, (uint64_t)i * BLOCK), 0);
	assert_memory_equal(block, expected, BLOCK);
}

/* An object that is being put together for a volume. */
struct made {
	struct s3_header_writer writer;
	uint8_t *header, *data;
	uint32_t *crcs;
};

static void begin(struct made *m, const struct s3_volume *v, enum s3_type type, uint64_t id,
	uint64_t epoch, uint32_t blocks)
{
	size_t room = s3_header_room(S3_RECORDS_MAX, blocks, v->shift, 0);
	struct s3_object_header header = {
		.type = type,
		.block_shift = v->shift,
		.id = id,
		.epoch = epoch,
		.batch = id & ~S3_GC,
		.blocks = blocks,
	};

	*m = (struct made){.header = malloc(room),
		.data = calloc(blocks + 1, BLOCK),
		.crcs = calloc(blocks + 1, sizeof *m->crcs)};
	memcpy(header.uuid, v->super.uuid, S3_UUID);
	memcpy(header.instance, v->instance, S3_UUID);
	s3_header_begin(&m->writer, &header, m->header, room);
}

static void store(struct made *m, const struct s3_volume *v)
{
	uint32_t blocks = m->writer.header.blocks;
	char key[S3_KEY_MAX + 1];
	uint8_t *object;
	size_t length;

	for (uint32_t i = 0; i < blocks; i++)
		m->crcs[i] = s3_crc32c(0, m->data + (size_t)i * BLOCK, BLOCK);
	length = s3_header_finish(&m->writer, m->crcs);
	assert_true(length > 0 && length <= S3_HEADER_MAX);
	object = malloc(length + (size_t)blocks * BLOCK);
	assert_non_null(object);
	memcpy(object, m->header, length);
	memcpy(object + length, m->data, (size_t)blocks * BLOCK);
	s3_volume_object_key(v, m->writer.header.id, key);
	fake_store_set(key, object, length + (size_t)blocks * BLOCK);
	free(object);
	free(m->header);
	free(m->data);
	free(m->crcs);
}

/* Everything in one object of the largest size. */
static void create(struct device *d, uint32_t blocks, const char *more)
{
	uint8_t *data = malloc((size_t)blocks * BLOCK);

	assert_non_null(data);
	fake_store_reset();
	device_open(
		d, &s3_backend, COMMON LARGE "volume=v;create=on;size=64M;block-size=512;%s", more);
	for (uint32_t i = 0; i < blocks; i++)
		fill(data + (size_t)i * BLOCK, i, 1);
	assert_int_equal(device_write(d, data, (size_t)blocks * BLOCK, 0, BACKEND_FUA), 0);
	free(data);
}

/*
 * A writer that compacts into small objects enters them in one large header: each is described and
 * then referred to. Replayed as a header, and once more as a part of a summary.
 */
static void test_header_of_gc_objects_alone(void **state)
{
	const uint32_t n = S3_RECORDS_MAX / 2, blocks = S3_BATCH_MAX / BLOCK;
	const uint32_t looked_at[] = {0, 1, 127, 128, 129, n - 1};
	const uint64_t first = S3_GC | 1000;
	struct s3_volume *v;
	struct made m;
	struct device d;

	(void)state;
	create(&d, blocks, "");
	v = volume_of(&d);
	for (size_t i = 0; i < sizeof looked_at / sizeof looked_at[0]; i++) {
		uint32_t at = looked_at[i];

		begin(&m, v, S3_TYPE_GC, first + at, v->epoch, 1);
		s3_header_add(&m.writer,
			&(struct s3_record){.op = S3_RECORD_WRITE, .lba = at, .count = 1});
		fill(m.data, at, 1);
		store(&m, v);
	}
	begin(&m, v, S3_TYPE_DATA, v->applied + 1, v->epoch, 0);
	for (uint32_t i = 0; i < n; i++) {
		s3_header_add(&m.writer, &(struct s3_record){.op = S3_RECORD_GC_OBJECT,
						 .object = first + i,
						 .bytes = S3_ALIGN + BLOCK,
						 .blocks = 1,
						 .header_bytes = S3_ALIGN});
		s3_header_add(&m.writer, &(struct s3_record){.op = S3_RECORD_RELOCATE,
						 .lba = i,
						 .count = 1,
						 .source = v->applied,
						 .source_offset = i,
						 .object = first + i});
	}
	store(&m, v);
	crash(&d);
	for (int light = 0; light < 2; light++) {
		device_open(&d, &s3_backend, COMMON SMALL "volume=v;gc-delay=0");
		v = volume_of(&d);
		assert_int_equal(device_counter(&d, "replayed"), light ? 1 : 4);
		for (size_t i = 0; i < sizeof looked_at / sizeof looked_at[0]; i++)
			check_block(&d, looked_at[i], 1);
		check_block(&d, n, 1);
		assert_true(device_counter(&d, "reads_store") >= 7);
		assert_int_equal(try_checkpoint(&d), 0);
		assert_int_equal(device_counter(&d, "light_roots"), 1);
		crash(&d);
	}
	fake_store_reset();
}

/* A writer that had larger batches was fenced and left an object where ours belongs. */
static void test_stale_object_with_a_large_header(void **state)
{
	const uint32_t blocks = S3_BATCH_MAX / BLOCK;
	uint8_t block[BLOCK];
	struct s3_volume *v;
	struct made m;
	struct device d;
	unsigned puts;

	(void)state;
	create(&d, 8, "");
	crash(&d);
	device_open(&d, &s3_backend, COMMON SMALL "volume=v");
	v = volume_of(&d);
	begin(&m, v, S3_TYPE_DATA, v->applied + 1, v->epoch - 1, blocks);
	for (uint32_t i = 0; i < S3_RECORDS_MAX; i++)
		s3_header_add(&m.writer,
			&(struct s3_record){
				.op = S3_RECORD_WRITE, .lba = i, .count = 1, .offset = i % blocks});
	store(&m, v);
	/* It cannot be read at first, up to the deadline. */
	fake_store_fail(S3_GET, "/log/", -EIO, 1);
	fill(block, 0, 3);
	assert_int_equal(device_write(&d, block, BLOCK, 0, BACKEND_FUA), -EIO);
	assert_int_equal(device_write(&d, block, BLOCK, 0, BACKEND_FUA), 0);
	/* Those that come after it replace nothing. */
	puts = fake_store_requests(S3_PUT, "/log/");
	for (unsigned i = 1; i <= 2 * v->max_batches; i++)
		assert_int_equal(device_write(&d, block, BLOCK, i * BLOCK, BACKEND_FUA), 0);
	assert_int_equal(fake_store_requests(S3_PUT, "/log/"), puts + 2 * v->max_batches);
	device_close(&d);
	fake_store_reset();
}

/* Entries of the largest batches are replayed by one who has the smallest. */
static void test_write_back_of_larger_batches(void **state)
{
	const uint32_t blocks = S3_BATCH_MAX / BLOCK, step = 4;
	const char *path = scratch_path("write-back");
	uint8_t block[BLOCK];
	char more[300];
	struct device d;

	(void)state;
	snprintf(more, sizeof more, "write-back=%s;write-back-size=128M", path);
	create(&d, 8, more);
	fake_store_hold(S3_PUT, "/log/");
	/* No two of them make one record. */
	for (uint32_t i = 0; i < blocks; i++) {
		fill(block, i * step % blocks + i * step / blocks, 2);
		assert_int_equal(
			device_write(&d, block, BLOCK,
				(uint64_t)(i * step % blocks + i * step / blocks) * BLOCK, 0),
			0);
	}
	assert_int_equal(device_write(&d, "x", 1, (UINT64_C(64) << 20) - 1, BACKEND_FUA), 0);
	crash(&d);
	fake_store_hold(S3_PUT, NULL);
	device_open(&d, &s3_backend, COMMON SMALL "volume=v;%s", more);
	for (uint32_t i = 0; i < blocks; i += 97)
		check_block(&d, i, 2);
	crash(&d);
	device_open(&d, &s3_backend, COMMON SMALL "volume=v;%s", more);
	for (uint32_t i = 0; i < blocks; i += 97)
		check_block(&d, i, 2);
	device_close(&d);
	fake_store_reset();
}

/* The longest names of all, of a volume, its snapshot, and its clone. */
static void test_longest_names(void **state)
{
	char prefix[201], volume[64], snapshot[64], clone[64];
	struct s3_snapshot_info *list;
	struct device d;
	size_t n;

	(void)state;
	fake_store_reset();
	for (size_t i = 0; i < 200; i++)
		prefix[i] = i % 10 == 9 && i < 199 ? '/' : 'p';
	prefix[200] = '\0';
	memset(volume, 'v', 63);
	memset(snapshot, 's', 63);
	memset(clone, 'c', 63);
	volume[63] = snapshot[63] = clone[63] = '\0';
	device_open(
		&d, &s3_backend, COMMON "volume=%s;prefix=%s;create=on;size=64M", volume, prefix);
	assert_int_equal(device_write(&d, "a", 1, 0, 0), 0);
	assert_int_equal(s3_snapshot_create(volume_of(&d), snapshot), 0);
	assert_int_equal(s3_volume_clone(volume_of(&d), snapshot, prefix, clone), 0);
	assert_int_equal(s3_snapshot_list(volume_of(&d), &list, &n), 0);
	assert_int_equal(n, 1);
	assert_string_equal(list[0].name, snapshot);
	assert_int_equal(list[0].children, 1);
	free(list);
	device_close(&d);
	for (int i = 0; i < 2; i++) {
		uint8_t byte;

		device_open(&d, &s3_backend, COMMON "volume=%s;prefix=%s", clone, prefix);
		assert_int_equal(device_read(&d, &byte, 1, 0), 0);
		assert_int_equal(byte, 'a');
		if (i == 0)
			assert_int_equal(s3_snapshot_create(volume_of(&d), snapshot), 0);
		device_close(&d);
	}
	fake_store_reset();
}

/* What is too large to be opened is not created. */
static void test_largest_size(void **state)
{
	struct device d;

	(void)state;
	fake_store_reset();
	assert_int_equal(
		device_try(&d, &s3_backend, 0, COMMON "volume=v;create=on;size=513T"), -EINVAL);
	assert_holds(d.reported.error, "give at most 562949953421312");
	assert_int_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	assert_int_equal(
		device_try(&d, &s3_backend, 0, COMMON "volume=v;create=on;block-size=512;size=65T"),
		-EINVAL);
	assert_int_equal(fake_store_object("/v/super", NULL, 0), SIZE_MAX);
	device_open(&d, &s3_backend, COMMON "volume=v;create=on;size=512T");
	device_close(&d);
	device_open(&d, &s3_backend, COMMON "volume=v");
	assert_int_equal(d.backend->size, UINT64_C(512) << 40);
	device_close(&d);
	fake_store_reset();
}

/* ---- blocks of many pages, which only other programs make ------------------------------------ */

#define PAGE  4096u
#define PAGES 64u

static void make_with_blocks(unsigned shift, const char *more)
{
	uint8_t super_data[4096];
	struct s3_buffer out = {0};
	struct s3_super super;
	struct device d;
	size_t length;

	fake_store_reset();
	device_open(&d, &s3_backend, COMMON SMALL "volume=v;create=on;size=64M;%s", more);
	device_close(&d);
	length = fake_store_object("userblk/v/super", super_data, sizeof super_data);
	assert_int_equal(s3_super_decode(super_data, length, &super), S3_GOOD);
	super.blocks = super.blocks << super.block_shift >> shift;
	super.block_shift = shift;
	s3_super_encode(&super, &out);
	assert_false(out.failed);
	fake_store_reset();
	fake_store_set("userblk/v/super", out.data, out.length);
	s3_buffer_free(&out);
	s3_super_free(&super);
}

/* Each page holds its number. */
static void fill_pages(uint8_t *data)
{
	for (unsigned i = 0; i < PAGES; i++)
		memset(data + (size_t)i * PAGE, (int)i + 1, PAGE);
}

static void check_pages(struct device *d)
{
	static uint8_t expected[PAGES * PAGE], data[PAGES * PAGE];

	fill_pages(expected);
	assert_int_equal(device_read(d, data, sizeof data, 0), 0);
	assert_memory_equal(data, expected, sizeof data);
}

/* Another byte in what the cache file has of a page. */
static void damage_page(const char *path, unsigned number)
{
	uint8_t page[PAGE], wanted[PAGE];
	FILE *file = fopen(path, "r+");

	assert_non_null(file);
	memset(wanted, (int)number + 1, sizeof wanted);
	do
		assert_int_equal(fread(page, 1, sizeof page, file), sizeof page);
	while (memcmp(page, wanted, sizeof page) != 0);
	assert_int_equal(fseek(file, -100, SEEK_CUR), 0);
	fputc(0, file);
	assert_int_equal(fclose(file), 0);
}

/* One page of a block is damaged in the cache file: the store has the block. */
static void test_a_damaged_page_of_a_large_block(void **state)
{
	static const char *const more[] = {"", "compress=zstd"};
	static uint8_t data[PAGES * PAGE];

	(void)state;
	fill_pages(data);
	for (unsigned i = 0; i < 4; i++) {
		char path[256], config[512];
		struct device d;

		make_with_blocks(i / 2 ? S3_BLOCK_MAX : 13, more[i % 2]);
		snprintf(path, sizeof path, "%s", scratch_path("cache"));
		remove(path);
		snprintf(config, sizeof config,
			COMMON SMALL "volume=v;cache-file=%s;cache-size=16M", path);
		device_open(&d, &s3_backend, COMMON SMALL "volume=v");
		assert_int_equal(device_write(&d, data, sizeof data, 0, BACKEND_FUA), 0);
		device_close(&d);
		device_open(&d, &s3_backend, config);
		check_pages(&d);
		while (device_counter(&d, "cache_file_written_bytes") < sizeof data)
			usleep(1000);
		device_close(&d);
		damage_page(path, 17);
		device_open(&d, &s3_backend, config);
		for (unsigned j = 0; j < 3; j++)
			check_pages(&d);
		device_close(&d);
		device_open(&d, &s3_backend, config);
		check_pages(&d);
		device_close(&d);
	}
	fake_store_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_header_of_gc_objects_alone),
		cmocka_unit_test(test_stale_object_with_a_large_header),
		cmocka_unit_test(test_write_back_of_larger_batches),
		cmocka_unit_test(test_longest_names),
		cmocka_unit_test(test_largest_size),
		cmocka_unit_test(test_a_damaged_page_of_a_large_block),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
