/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libFuzzer on the decoders of what the S3 device stores. The first byte says which decoder. A
 * checksum would keep the fuzzer out, so it is made to match first. Started with --seeds DIR it
 * writes the corpus to begin with instead.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/s3_samples.h"

enum target { SUPER, HEADER, SUMMARY, ROOT, TABLE, REGION, NAME, TARGETS };

static const size_t crc_at[TARGETS] = {
	[SUPER] = 20, [HEADER] = 20, [SUMMARY] = 12, [ROOT] = 12, [REGION] = 20};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void require(bool holds)
{
	if (!holds)
		abort();
}

static void fix_crc(uint8_t *p, size_t length, size_t at)
{
	if (!at || length < at + 4)
		return;
	s3_le_store(p + at, 0, 4);
	s3_le_store(p + at, s3_crc32c(0, p, length), 4);
}

/* What is accepted is encoded again as the same bytes. */
static void fuzz_super(const uint8_t *p, size_t length)
{
	struct s3_buffer again = {0};
	struct s3_super super;

	if (s3_super_decode(p, length, &super))
		return;
	s3_super_encode(&super, &again);
	require(again.length == length && !memcmp(again.data, p, length));
	s3_buffer_free(&again);
	s3_super_free(&super);
}

static void fuzz_header(const uint8_t *p, size_t length)
{
	struct s3_object_header header;
	struct s3_record record;
	size_t cursor = 0;
	uint32_t n = 0;
	uint64_t bytes = 0;

	if (s3_header_decode(p, length, NULL, &header))
		return;
	while (s3_header_next(&header, &cursor, &record))
		n++;
	require(n == header.n_records);
	for (uint32_t i = 0; i < header.n_crc; i++)
		bytes +=
			header.flags ? s3_header_unit(&header, i).bytes : s3_header_crc(&header, i);
	require(!header.flags || bytes == header.data_bytes);
}

static int see_header(void *opaque, const struct s3_object_header *header)
{
	(void)opaque;
	require(header->id && !(header->id & S3_GC));
	return 0;
}

static int see_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	(void)opaque;
	require(s3_record_valid(record, header));
	return 0;
}

static void fuzz_summary(const uint8_t *p, size_t length)
{
	const struct s3_summary_visitor visitor = {see_header, see_record, NULL};
	struct s3_summary summary;
	int stopped;

	s3_summary_decode(p, length, NULL, &visitor, &summary, &stopped);
}

static void fuzz_root(const uint8_t *p, size_t length)
{
	struct s3_buffer again = {0};
	struct s3_root root;

	if (s3_root_decode(p, length, NULL, &root))
		return;
	s3_root_encode(&root, &again);
	require(again.length == length && !memcmp(again.data, p, length));
	s3_buffer_free(&again);
	s3_root_free(&root);
}

/* What is accepted can be used. */
static void fuzz_table(const uint8_t *p, size_t length)
{
	struct s3_objects *objects = s3_objects_new(1024);
	uint32_t slots[64];

	if (!s3_objects_decode(objects, p, length)) {
		struct s3_buffer again = {0};
		size_t n;

		s3_objects_settle(objects, 1000);
		s3_objects_encode(objects, 0, &again);
		s3_buffer_free(&again);
		n = s3_objects_take_dead(objects, UINT64_MAX, slots, 64);
		while (n)
			require(!s3_objects_remove(objects, slots[--n]));
		s3_objects_snapshot(objects, 1ull << 50);
		while (!s3_objects_snapshot_delete(objects, 1ull << 50, 1ull << 51))
			;
	}
	s3_objects_free(objects);
}

/* A region of the sample's table: what is accepted can be changed and captured. */
static void fuzz_region(const uint8_t *p, size_t length)
{
	static struct s3_buffer table, region;
	struct s3_objects *objects = s3_objects_new(1024);
	struct s3_map *map = s3_map_new(objects, 2 * S3_REGION_BLOCKS);

	if (!table.length)
		sample_map(&table, &region);
	require(!s3_objects_decode(objects, table.data, table.length));
	if (!s3_map_load(map, 1, p, length)) {
		struct s3_buffer again = {0};
		uint32_t *regions;
		size_t n;

		s3_objects_settle(objects, 100);
		require(!s3_map_capture(map, true, &regions, &n) && n == 1);
		require(!s3_map_punch(map, 101, S3_REGION_BLOCKS, S3_REGION_BLOCKS));
		require(!s3_map_capture_region(map, 1, &again));
		s3_map_capture_end(map, true);
		free(regions);
		require(s3_map_mapped(map) == 0);
		s3_buffer_free(&again);
	}
	s3_map_free(map);
	s3_objects_free(objects);
}

static void fuzz_name(const uint8_t *p, size_t length)
{
	char *text = malloc(length + 1), key[S3_KEY_ROOM];
	struct s3_name name;

	memcpy(text, p, length);
	text[length] = '\0';
	if (s3_name_parse(text, &name)) {
		s3_name_format(&name, key);
		require(!strcmp(key, text));
	}
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const fuzz[TARGETS])(const uint8_t *p, size_t length) = {
		[SUPER] = fuzz_super,
		[HEADER] = fuzz_header,
		[SUMMARY] = fuzz_summary,
		[ROOT] = fuzz_root,
		[TABLE] = fuzz_table,
		[REGION] = fuzz_region,
		[NAME] = fuzz_name,
	};
	enum target target;
	uint8_t *copy;

	if (!size)
		return 0;
	target = data[0] % TARGETS;
	/* Exactly that size, so that a byte too many is seen. */
	copy = malloc(size - 1 ? size - 1 : 1);
	memcpy(copy, data + 1, size - 1);
	fix_crc(copy, size - 1, crc_at[target]);
	if (target == HEADER && size - 1 >= 24) {
		size_t header = s3_le_load(copy + 16, 4);

		if (header <= size - 1)
			fix_crc(copy, header, crc_at[HEADER]);
	}
	fuzz[target](copy, size - 1);
	free(copy);
	return 0;
}

static void write_seed(
	const char *directory, const char *name, enum target target, const struct s3_buffer *b)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	file = fopen(path, "w");
	require(file && putc((int)target, file) != EOF &&
		fwrite(b->data, 1, b->length, file) == b->length);
	fclose(file);
}

static void write_seeds(const char *directory)
{
	struct s3_buffer b = {0}, region = {0};

	sample_super(&b);
	write_seed(directory, "super", SUPER, &b);
	b.length = 0;
	sample_header(&b, 5, 0);
	write_seed(directory, "header", HEADER, &b);
	b.length = 0;
	sample_header(&b, 5, S3_FEATURES);
	write_seed(directory, "header-units", HEADER, &b);
	b.length = 0;
	sample_summary(&b);
	write_seed(directory, "summary", SUMMARY, &b);
	b.length = 0;
	sample_root(&b, false);
	write_seed(directory, "root", ROOT, &b);
	b.length = 0;
	sample_root(&b, true);
	write_seed(directory, "root-light", ROOT, &b);
	b.length = 0;
	sample_map(&b, &region);
	write_seed(directory, "table", TABLE, &b);
	write_seed(directory, "region", REGION, &region);
	b.length = 0;
	s3_buffer_bytes(&b, "ckpt/0000000000000010/00ff", 26);
	write_seed(directory, "name-region", NAME, &b);
	b.length = 0;
	s3_buffer_bytes(&b, "snap/a.b/child/0123456789abcdef0123456789abcdef", 47);
	write_seed(directory, "name-child", NAME, &b);
	s3_buffer_free(&b);
	s3_buffer_free(&region);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	if (*argc == 3 && !strcmp((*argv)[1], "--seeds")) {
		write_seeds((*argv)[2]);
		exit(0);
	}
	return 0;
}
