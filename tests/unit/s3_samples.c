/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"
#include "tests/unit/s3_samples.h"

const uint8_t sample_uuid[S3_UUID] = "0123456789abcdef";

void sample_super(struct s3_buffer *out)
{
	char near[] = "userblk/parent", far[] = "userblk/grand-parent";
	struct s3_parent parents[2] = {
		{.uuid = "parentparentpar", .last_seq = 77, .snapshot = "daily.1", .path = near},
		{.uuid = "grandgrandgrand", .last_seq = 5, .snapshot = "gold", .path = far},
	};
	uint8_t wrapped[S3_WRAPPED(2)] = "keys";
	struct s3_super super = {
		.features = S3_FEATURE_AES | S3_FEATURE_ZSTD,
		.block_shift = 12,
		.blocks = 1ull << 28,
		.epoch = 3,
		.created = 1700000000,
		.checkpoint = 4711,
		.key_check = "check",
		.write_back = "instanceinstanc",
		.n_parents = 2,
		.parents = parents,
		.wrapped = wrapped,
	};

	memcpy(super.uuid, sample_uuid, S3_UUID);
	s3_super_encode(&super, out);
}

void sample_header(struct s3_buffer *out, uint64_t id, uint32_t flags)
{
	static const struct s3_record records[] = {
		{.op = S3_RECORD_WRITE, .lba = 1000, .count = 16, .offset = 0},
		{.op = S3_RECORD_WRITE, .lba = 5, .count = 24, .offset = 16},
		{.op = S3_RECORD_ZERO, .lba = 1ull << 36, .count = 1ull << 33},
		{.op = S3_RECORD_DISCARD, .lba = 0, .count = 1},
		{.op = S3_RECORD_GC_OBJECT,
			.object = S3_GC | 9,
			.bytes = 8192,
			.blocks = 1,
			.header_bytes = 4096},
		{.op = S3_RECORD_RELOCATE,
			.lba = 99,
			.count = 1,
			.offset = 0,
			.source = S3_GC | 3,
			.source_origin = 2,
			.source_offset = 65535,
			.object = S3_GC | 9},
		{.op = S3_RECORD_RESET, .seq = 2},
	};
	struct s3_object_header header = {
		.type = S3_TYPE_DATA,
		.flags = flags,
		.block_shift = 12,
		.id = id,
		.epoch = 3,
		.instance = "instanceinstanc",
		.batch = 12,
		.frontier = id - 1,
		.checkpoint = 4,
		.cache_record = 8,
		.time = 1700000000000000,
		.blocks = 40,
	};
	const size_t n = sizeof records / sizeof records[0];
	size_t room = s3_header_room(n, header.blocks, header.block_shift, flags);
	uint8_t *p = s3_buffer_grow(out, room);
	struct s3_header_writer w;

	memcpy(header.uuid, sample_uuid, S3_UUID);
	s3_header_begin(&w, &header, p, room);
	for (size_t i = 0; i < n; i++)
		s3_header_add(&w, &records[i]);
	if (flags) {
		struct s3_unit units[3] = {{65552, true, 1}, {100, false, 2}, {5000, false, 3}};

		out->length -= room - s3_header_finish_units(&w, units);
	} else {
		uint32_t crcs[40];

		for (uint32_t i = 0; i < 40; i++)
			crcs[i] = i * 0x01010101;
		out->length -= room - s3_header_finish(&w, crcs);
	}
}

void sample_summary(struct s3_buffer *out)
{
	struct s3_summary_writer w = {0};
	struct s3_summary summary = {.epoch = 3};

	memcpy(summary.uuid, sample_uuid, S3_UUID);
	for (uint64_t id = 5; id < 9; id++) {
		struct s3_buffer b = {0};
		struct s3_object_header header;

		sample_header(&b, id, id & 1 ? S3_FEATURES : 0);
		if (s3_header_decode(b.data, b.length, sample_uuid, &header) ||
			s3_summary_add(&w, &header))
			abort();
		s3_buffer_free(&b);
	}
	s3_summary_finish(&w, &summary, out);
}

static void new_map(struct s3_objects **objects, struct s3_map **map)
{
	*objects = s3_objects_new(1024);
	*map = s3_map_new(*objects, 2 * S3_REGION_BLOCKS);
	for (uint64_t i = 1; i <= 100; i++) {
		uint64_t id = i % 10 ? i : S3_GC | i;
		uint32_t slot = s3_objects_add(*objects, &(struct s3_object){.id = id,
								 .birth = i,
								 .origin = i % 7 == 0,
								 .bytes = 4096 + 1024 * 4096,
								 .header_bytes = 4096,
								 .blocks = 1024});

		if (s3_map_update(*map, i, S3_REGION_BLOCKS + i * i % 2000, 1024, slot, 0))
			abort();
		s3_objects_seal(*objects, slot, i);
		if (i % 30 == 0 && s3_objects_snapshot(*objects, i))
			abort();
	}
}

void sample_map(struct s3_buffer *table, struct s3_buffer *region)
{
	struct s3_objects *objects;
	struct s3_map *map;
	uint32_t *regions;
	size_t n;

	new_map(&objects, &map);
	s3_objects_encode(objects, 0, table);
	if (s3_map_capture(map, true, &regions, &n) || n != 1 ||
		s3_map_capture_region(map, regions[0], region))
		abort();
	s3_map_capture_end(map, true);
	free(regions);
	s3_map_free(map);
	s3_objects_free(objects);
}

void sample_root(struct s3_buffer *out, bool light)
{
	struct s3_root_region regions[] = {{0, 90, 100, 1}, {7, 100, 2000, 2}, {65535, 3, 1, 3}};
	struct s3_root_summary summaries[] = {{101, 110, 100, 1}, {111, 111, 200, 2}};
	struct s3_root_snapshot snapshots[] = {
		{"gold", 30, 1700000000, 1ull << 30},
		{"daily.1", 60, 1700000100, S3_BLOCKS_MAX},
	};
	struct s3_buffer table = {0}, region = {0};
	struct s3_root root = {
		.instance = "instanceinstanc",
		.epoch = 3,
		.seq = light ? 111 : 100,
		.base = 100,
		.blocks = S3_BLOCKS_MAX,
		.next_gc = S3_GC | 12,
		.time = 1700000200,
		.packed = light,
		.n_regions = light ? 0 : 3,
		.regions = regions,
		.n_summaries = light ? 2 : 0,
		.summaries = summaries,
		.n_snapshots = 2,
		.snapshots = snapshots,
	};

	memcpy(root.uuid, sample_uuid, S3_UUID);
	sample_map(&table, &region);
	if (!light) {
		root.table = table.data;
		root.table_bytes = table.length;
	}
	s3_root_encode(&root, out);
	s3_buffer_free(&table);
	s3_buffer_free(&region);
}
