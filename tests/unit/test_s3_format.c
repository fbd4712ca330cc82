/* SPDX-License-Identifier: BSD-3-Clause */
/* What the S3 device stores, one kind after the other: read back as written, with its limits. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/s3_readers.h"
#include "tests/unit/s3_samples.h"
#include "tests/unit/support.h"

static void test_crc(void **state)
{
	(void)state;
	/* The check value of CRC-32C, and RFC 3720 B.4: 32 bytes of zeroes. */
	assert_int_equal(s3_crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(s3_crc32c(0, (uint8_t[32]){0}, 32), 0x8a9136aa);
	assert_int_equal(s3_crc32c(s3_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
	assert_int_equal(s3_crc32c_join(s3_crc32c(0, "1234", 4), s3_crc32c(0, "56789", 5),
				 s3_crc32c_shift(5)),
		0xe3069283);
	assert_int_equal(s3_crc32c_join(0, 0xe3069283, s3_crc32c_shift(9)), 0xe3069283);
}

static void test_varints(void **state)
{
	static const int64_t numbers[] = {
		0, 1, -1, 63, 64, -64, -65, 1 << 20, INT64_MAX, INT64_MIN};
	struct s3_buffer b = {0};
	struct s3_reader r;

	(void)state;
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		s3_buffer_varint(&b, (uint64_t)numbers[i]);
		s3_buffer_signed(&b, numbers[i]);
	}
	r = (struct s3_reader){.next = b.data, .end = b.data + b.length};
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		assert_true(s3_read_varint(&r) == (uint64_t)numbers[i]);
		assert_true(s3_read_signed(&r) == numbers[i]);
	}
	assert_false(r.bad);
	assert_int_equal(s3_read_left(&r), 0);
	assert_int_equal(s3_read_varint(&r), 0);
	assert_true(r.bad);
	/* Longer than needed, and more than 64 bits. */
	r = (struct s3_reader){.next = (const uint8_t *)"\x80\x00", .end = NULL};
	r.end = r.next + 2;
	s3_read_varint(&r);
	assert_true(r.bad);
	r = (struct s3_reader){
		.next = (const uint8_t *)"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", .end = NULL};
	r.end = r.next + 10;
	s3_read_varint(&r);
	assert_true(r.bad);
	s3_buffer_free(&b);
}

static void test_names(void **state)
{
	static const char *const good[] = {
		"super",
		"deleted",
		"log/ef/0123456789abcdef",
		"gc/01/0000000000000001",
		"chunk/00/0000000000000000",
		"ckpt/0000000000000010/root",
		"ckpt/0000000000000010/summary",
		"ckpt/0000000000000010/00ff",
		"snap/daily.2026-11-21_x/root",
		"snap/a/root-000000000000002a",
		"snap/a/child/0123456789abcdef0123456789abcdef",
		"probe/0123456789abcdef0123456789abcdef",
	};
	static const char *const bad[] = {
		"",
		"supe",
		"super/",
		"Super",
		"log",
		"log/",
		"log/ef/0123456789abcde",
		"log/ef/0123456789abcdef0",
		"log/ee/0123456789abcdef",
		"log/EF/0123456789abcdEF",
		"log/ef/8123456789abcdef",
		"gc/01/8000000000000001",
		"log/ef//123456789abcdef",
		"ckpt/0000000000000010",
		"ckpt/0000000000000010/",
		"ckpt/0000000000000010/roots",
		"ckpt/0000000000000010/0ff",
		"ckpt/0000000000000010/000ff",
		"ckpt/8000000000000010/root",
		"snap//root",
		"snap/a/root-",
		"snap/a/root-0000000000000000",
		"snap/a/root-8000000000000001",
		"snap/a/root-000000000000002a1",
		"snap/.a/root",
		"snap/A/root",
		"snap/a",
		"snap/a/",
		"snap/a/child/",
		"snap/a/child/0123456789abcdef0123456789abcde",
		"snap/a/../root",
		"probe/0123456789abcdef0123456789abcdeg",
		"log/ef/0123456789abcdef/x",
		"snap/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/root",
	};
	struct s3_name name;
	char key[S3_KEY_ROOM];

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		assert_true(s3_name_parse(good[i], &name));
		s3_name_format(&name, key);
		assert_string_equal(key, good[i]);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (s3_name_parse(bad[i], &name))
			fail_msg("taken for a key: %s", bad[i]);
	s3_name_object(S3_GC | 0x1ff, key);
	assert_string_equal(key, "gc/ff/00000000000001ff");
	assert_true(s3_name_parse(key, &name));
	assert_true(name.number == (S3_GC | 0x1ff));
	s3_name_object(0x1ff, key);
	assert_string_equal(key, "log/ff/00000000000001ff");
}

static void test_super(void **state)
{
	struct s3_buffer b = {0}, again = {0};
	struct s3_super super;

	(void)state;
	sample_super(&b);
	assert_int_equal(s3_super_decode(b.data, b.length, &super), S3_GOOD);
	assert_int_equal(super.blocks, 1ull << 28);
	assert_int_equal(super.features, S3_FEATURES);
	assert_int_equal(super.n_parents, 2);
	assert_string_equal(super.parents[1].path, "userblk/grand-parent");
	assert_string_equal(super.parents[0].snapshot, "daily.1");
	assert_string_equal((char *)super.write_back, "instanceinstanc");
	s3_super_encode(&super, &again);
	assert_int_equal(again.length, b.length);
	assert_memory_equal(again.data, b.data, b.length);
	assert_string_equal((char *)super.wrapped, "keys");
	/* Without a write-back log and wrapped keys it is as those that knew none wrote it. */
	memset(super.write_back, 0, S3_UUID);
	again.length = 0;
	s3_super_encode(&super, &again);
	assert_int_equal(again.length, b.length - S3_UUID);
	free(super.wrapped);
	super.wrapped = NULL;
	again.length = 0;
	s3_super_encode(&super, &again);
	assert_int_equal(again.length, b.length - S3_UUID - S3_WRAPPED(2));
	s3_super_free(&super);
	assert_int_equal(s3_super_decode(again.data, again.length, &super), S3_GOOD);
	assert_null(super.wrapped);
	s3_super_free(&super);
	s3_buffer_free(&again);
	s3_buffer_free(&b);
}

/* What is decoded has all that was encoded: encoded again, it is the same bytes. */
static void test_header(void **state)
{
	(void)state;
	for (uint32_t flags = 0; flags <= S3_FEATURES; flags += S3_FEATURES) {
		struct s3_buffer b = {0};
		struct s3_object_header header;
		struct s3_header_writer w;
		struct s3_record rec;
		uint8_t *again;
		size_t cursor = 0, n = 0;

		sample_header(&b, 5, flags);
		assert_int_equal(s3_header_decode(b.data, b.length, sample_uuid, &header), S3_GOOD);
		assert_int_equal(header.header_bytes, b.length);
		again = malloc(b.length);
		s3_header_begin(&w, &header, again, b.length);
		for (; s3_header_next(&header, &cursor, &rec); n++)
			s3_header_add(&w, &rec);
		assert_int_equal(n, header.n_records);
		if (flags) {
			struct s3_unit units[3];

			for (uint32_t i = 0; i < 3; i++)
				units[i] = s3_header_unit(&header, i);
			assert_true(units[0].raw && !units[1].raw);
			assert_int_equal(s3_header_finish_units(&w, units), b.length);
		} else {
			uint32_t crcs[40];

			for (uint32_t i = 0; i < 40; i++)
				crcs[i] = s3_header_crc(&header, i);
			assert_int_equal(s3_header_finish(&w, crcs), b.length);
		}
		assert_memory_equal(again, b.data, b.length);
		/* Less than the header: how much to read. */
		assert_int_equal(s3_header_decode(b.data, 1000, sample_uuid, &header), S3_SHORT);
		assert_int_equal(header.header_bytes, b.length);
		free(again);
		s3_buffer_free(&b);
	}
}

static void test_header_room(void **state)
{
	struct s3_object_header header = {.type = S3_TYPE_DATA, .block_shift = 12, .id = 1};
	struct s3_record zero = {.op = S3_RECORD_ZERO, .lba = 0, .count = 1};
	struct s3_header_writer w;
	uint8_t buffer[4096];

	(void)state;
	s3_header_begin(&w, &header, buffer, sizeof buffer);
	for (int i = 0; i < (4096 - 160) / 16; i++)
		s3_header_add(&w, &zero);
	assert_int_equal(s3_header_finish(&w, NULL), 4096);
	s3_header_begin(&w, &header, buffer, sizeof buffer);
	for (int i = 0; i < (4096 - 160) / 16 + 1; i++)
		s3_header_add(&w, &zero);
	assert_int_equal(s3_header_finish(&w, NULL), 0);
}

static void test_root(void **state)
{
	(void)state;
	for (int light = 0; light < 2; light++) {
		struct s3_buffer b = {0}, again = {0};
		struct s3_root root;

		sample_root(&b, light);
		assert_int_equal(s3_root_decode(b.data, b.length, sample_uuid, &root), S3_GOOD);
		assert_int_equal(root.n_regions, light ? 0 : 3);
		assert_int_equal(root.n_summaries, light ? 2 : 0);
		assert_string_equal(root.snapshots[1].name, "daily.1");
		if (light)
			assert_int_equal(root.summaries[1].first, 111);
		else
			assert_int_equal(root.regions[2].region, 65535);
		s3_root_encode(&root, &again);
		assert_int_equal(again.length, b.length);
		assert_memory_equal(again.data, b.data, b.length);
		/* Light ones say that older programs cannot read them; theirs did not. */
		assert_int_equal(root.packed, light);
		again.length = 0;
		root.packed = false;
		s3_root_encode(&root, &again);
		assert_int_equal(read_root(again.data, again.length), S3_GOOD);
		s3_root_free(&root);
		s3_buffer_free(&again);
		s3_buffer_free(&b);
	}
}

/* As many of everything as a writer may come to store. */
static void test_most_of_everything(void **state)
{
	static struct s3_root_region regions[65536];
	static struct s3_root_summary summaries[4097];
	static struct s3_root_snapshot snapshots[5000];
	static struct s3_parent parents[S3_PARENTS_MAX];
	static char path[S3_PATH_MAX + 1];
	static const uint8_t table[] = {0, 0};
	struct s3_super super = {.block_shift = S3_BLOCK_MIN,
		.blocks = S3_BLOCKS_MAX,
		.n_parents = S3_PARENTS_MAX,
		.parents = parents};
	struct s3_buffer b = {0};

	(void)state;
	memset(path, 'p', S3_PATH_MAX);
	for (unsigned i = 0; i < S3_PARENTS_MAX; i++) {
		parents[i] = (struct s3_parent){.last_seq = ~S3_GC, .path = path};
		memset(parents[i].snapshot, 's', S3_NAME_MAX);
	}
	s3_super_encode(&super, &b);
	assert_int_equal(read_super(b.data, b.length), S3_GOOD);
	for (uint32_t i = 0; i < 65536; i++)
		regions[i] = (struct s3_root_region){i, ~S3_GC, UINT32_MAX, i};
	for (uint32_t i = 0; i < 4097; i++)
		summaries[i] = (struct s3_root_summary){
			~S3_GC - 4096 + i, ~S3_GC - 4096 + i, UINT32_MAX, i};
	for (uint32_t i = 0; i < 5000; i++) {
		snapshots[i] = (struct s3_root_snapshot){
			.seq = i + 1, .time = UINT64_MAX, .blocks = S3_BLOCKS_MAX};
		memset(snapshots[i].name, 's', S3_NAME_MAX);
	}
	for (int light = 0; light < 2; light++) {
		struct s3_root root = {
			.epoch = UINT64_MAX,
			.seq = ~S3_GC,
			.base = light ? ~S3_GC - 4097 : ~S3_GC,
			.blocks = S3_BLOCKS_MAX,
			.next_gc = UINT64_MAX,
			.time = UINT64_MAX,
			.packed = light,
			.n_regions = light ? 0 : 65536,
			.regions = regions,
			.n_summaries = light ? 4097 : 0,
			.summaries = summaries,
			.n_snapshots = 5000,
			.snapshots = snapshots,
			.table = light ? NULL : table,
			.table_bytes = light ? 0 : sizeof table,
		};

		memcpy(root.uuid, sample_uuid, S3_UUID);
		b.length = 0;
		s3_root_encode(&root, &b);
		assert_int_equal(read_root(b.data, b.length), S3_GOOD);
	}
	s3_buffer_free(&b);
}

/* Before the first full root there is nothing, and so no snapshot either. */
static void test_root_upon_nothing(void **state)
{
	struct s3_root_summary summary = {1, 5, 100, 1};
	struct s3_root_snapshot snapshot = {"gold", 3, 1700000000, 1000};
	struct s3_root root = {
		.epoch = 3,
		.seq = 5,
		.blocks = 1000,
		.next_gc = S3_GC | 1,
		.packed = true,
		.n_summaries = 1,
		.summaries = &summary,
	};
	struct s3_buffer b = {0};

	(void)state;
	memcpy(root.uuid, sample_uuid, S3_UUID);
	s3_root_encode(&root, &b);
	assert_int_equal(read_root(b.data, b.length), S3_GOOD);
	b.length = 0;
	root.n_snapshots = 1;
	root.snapshots = &snapshot;
	s3_root_encode(&root, &b);
	assert_int_equal(read_root(b.data, b.length), S3_INVALID);
	s3_buffer_free(&b);
}

static void test_table(void **state)
{
	struct s3_buffer table = {0}, region = {0}, again = {0};
	struct s3_objects *objects = s3_objects_new(1024);
	struct s3_map *map = s3_map_new(objects, 2 * S3_REGION_BLOCKS);

	(void)state;
	sample_map(&table, &region);
	assert_int_equal(s3_objects_decode(objects, table.data, table.length), S3_GOOD);
	assert_int_equal(s3_map_load(map, 1, region.data, region.length), S3_GOOD);
	s3_objects_settle(objects, 100);
	s3_objects_encode(objects, 0, &again);
	assert_int_equal(again.length, table.length);
	assert_memory_equal(again.data, table.data, table.length);
	s3_map_free(map);
	s3_objects_free(objects);
	for (size_t length = 0; length < table.length; length++) {
		uint8_t *copy = malloc(length + 1);

		memcpy(copy, table.data, length);
		objects = s3_objects_new(1024);
		assert_int_not_equal(s3_objects_decode(objects, copy, length), S3_GOOD);
		s3_objects_free(objects);
		free(copy);
	}
	s3_buffer_free(&table);
	s3_buffer_free(&region);
	s3_buffer_free(&again);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc),
		cmocka_unit_test(test_varints),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_super),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_header_room),
		cmocka_unit_test(test_root),
		cmocka_unit_test(test_most_of_everything),
		cmocka_unit_test(test_root_upon_nothing),
		cmocka_unit_test(test_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
