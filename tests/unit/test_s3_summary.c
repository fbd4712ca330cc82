/* SPDX-License-Identifier: BSD-3-Clause */
/* Summaries of many headers of the log: read back as written, in both versions, and refused when a
 * column is wrong. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "tests/unit/s3_readers.h"
#include "tests/unit/s3_samples.h"
#include "tests/unit/support.h"

struct seen {
	unsigned headers, records;
};

static int see_header(void *opaque, const struct s3_object_header *header)
{
	struct seen *seen = opaque;
	struct s3_buffer b = {0};
	struct s3_object_header original;

	assert_int_equal(header->id, 5 + seen->headers);
	sample_header(&b, header->id, header->id & 1 ? S3_FEATURES : 0);
	assert_int_equal(s3_header_decode(b.data, b.length, NULL, &original), S3_GOOD);
	assert_int_equal(header->blocks, original.blocks);
	assert_int_equal(header->header_bytes, original.header_bytes);
	assert_int_equal(header->data_bytes, original.data_bytes);
	assert_int_equal(header->epoch, original.epoch);
	assert_memory_equal(header->instance, original.instance, S3_UUID);
	s3_buffer_free(&b);
	seen->headers++;
	seen->records = 0;
	return 0;
}

static int see_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	struct seen *seen = opaque;
	struct s3_buffer b = {0};
	struct s3_object_header original;
	struct s3_record rec = {0};
	size_t cursor = 0;

	sample_header(&b, header->id, header->id & 1 ? S3_FEATURES : 0);
	assert_int_equal(s3_header_decode(b.data, b.length, NULL, &original), S3_GOOD);
	for (unsigned i = 0; i <= seen->records; i++)
		assert_true(s3_header_next(&original, &cursor, &rec));
	assert_int_equal(rec.op, record->op);
	assert_int_equal(rec.lba, record->lba);
	assert_int_equal(rec.count, record->count);
	assert_int_equal(rec.offset, record->offset);
	assert_true(rec.source == record->source && rec.object == record->object);
	assert_int_equal(rec.source_origin, record->source_origin);
	assert_int_equal(rec.source_offset, record->source_offset);
	assert_int_equal(rec.bytes, record->bytes);
	assert_int_equal(rec.header_bytes, record->header_bytes);
	assert_int_equal(rec.seq, record->seq);
	s3_buffer_free(&b);
	seen->records++;
	return 0;
}

/* That it is what sample_summary() tells. */
static void check_summary(const void *data, size_t length)
{
	struct seen seen = {0};
	const struct s3_summary_visitor visitor = {see_header, see_record, &seen};
	struct s3_summary summary;
	int stopped;

	assert_int_equal(s3_summary_decode(data, length, sample_uuid, &visitor, &summary, &stopped),
		S3_GOOD);
	assert_int_equal(seen.headers, 4);
	assert_int_equal(seen.records, 7);
	assert_int_equal(summary.first, 5);
	assert_int_equal(summary.last, 8);
}

static void test_summary(void **state)
{
	struct s3_buffer b = {0};

	(void)state;
	sample_summary(&b);
	check_summary(b.data, b.length);
	s3_buffer_free(&b);
}

/* clang-format off */
/* sample_summary() before there were columns. */
static const uint8_t old_summary[] = {
	0x55, 0x53, 0x45, 0x52, 0x42, 0x4c, 0x4b, 0x53, 0x01, 0x00, 0x00, 0x00,
	0x43, 0xb4, 0x3f, 0xed, 0x3a, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x61, 0x62,
	0x63, 0x64, 0x65, 0x66, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x05, 0x08, 0x81, 0x03, 0x0c, 0x03, 0x04, 0x28, 0x01, 0xfc, 0xa7, 0x04,
	0x03, 0x69, 0x6e, 0x73, 0x74, 0x61, 0x6e, 0x63, 0x65, 0x69, 0x6e, 0x73,
	0x74, 0x61, 0x6e, 0x63, 0x00, 0x07, 0x01, 0xd0, 0x0f, 0x10, 0x00, 0x01,
	0xe5, 0x0f, 0x18, 0x00, 0x02, 0xc6, 0xff, 0xff, 0xff, 0xff, 0x03, 0x80,
	0x80, 0x80, 0x80, 0x20, 0x03, 0xff, 0xff, 0xff, 0xff, 0xbf, 0x04, 0x01,
	0x04, 0x09, 0x80, 0x40, 0x01, 0x01, 0x05, 0xc4, 0x01, 0x01, 0x4f, 0x09,
	0x02, 0x01, 0x06, 0xfe, 0xff, 0x07, 0x06, 0x02, 0x01, 0x00, 0x0c, 0x03,
	0x04, 0x28, 0x01, 0x80, 0x80, 0x0a, 0x28, 0x07, 0x01, 0xd0, 0x0f, 0x10,
	0x00, 0x01, 0xe5, 0x0f, 0x18, 0x00, 0x02, 0xc6, 0xff, 0xff, 0xff, 0xff,
	0x03, 0x80, 0x80, 0x80, 0x80, 0x20, 0x03, 0xff, 0xff, 0xff, 0xff, 0xbf,
	0x04, 0x01, 0x04, 0x09, 0x80, 0x40, 0x01, 0x01, 0x05, 0xc4, 0x01, 0x01,
	0x4f, 0x09, 0x02, 0x01, 0x06, 0xfe, 0xff, 0x07, 0x06, 0x02, 0x01, 0x03,
	0x0c, 0x03, 0x04, 0x28, 0x01, 0xfc, 0xa7, 0x04, 0x03, 0x07, 0x01, 0xd0,
	0x0f, 0x10, 0x00, 0x01, 0xe5, 0x0f, 0x18, 0x00, 0x02, 0xc6, 0xff, 0xff,
	0xff, 0xff, 0x03, 0x80, 0x80, 0x80, 0x80, 0x20, 0x03, 0xff, 0xff, 0xff,
	0xff, 0xbf, 0x04, 0x01, 0x04, 0x09, 0x80, 0x40, 0x01, 0x01, 0x05, 0xc4,
	0x01, 0x01, 0x4f, 0x09, 0x02, 0x01, 0x06, 0xfe, 0xff, 0x07, 0x06, 0x02,
	0x01, 0x00, 0x0c, 0x03, 0x04, 0x28, 0x01, 0x80, 0x80, 0x0a, 0x28, 0x07,
	0x01, 0xd0, 0x0f, 0x10, 0x00, 0x01, 0xe5, 0x0f, 0x18, 0x00, 0x02, 0xc6,
	0xff, 0xff, 0xff, 0xff, 0x03, 0x80, 0x80, 0x80, 0x80, 0x20, 0x03, 0xff,
	0xff, 0xff, 0xff, 0xbf, 0x04, 0x01, 0x04, 0x09, 0x80, 0x40, 0x01, 0x01,
	0x05, 0xc4, 0x01, 0x01, 0x4f, 0x09, 0x02, 0x01, 0x06, 0xfe, 0xff, 0x07,
	0x06, 0x02,
};
/* clang-format on */

static void test_old_summary(void **state)
{
	(void)state;
	check_summary(old_summary, sizeof old_summary);
}

/* A column that is longer or shorter than it says. */
static void test_summary_with_a_wrong_column(void **state)
{
	static const uint64_t more[] = {0, 1, UINT64_MAX, 1u << 28, 1ull << 63};
	struct s3_buffer good = {0}, b = {0};

	(void)state;
	sample_summary(&good);
	for (unsigned wrong = 0; wrong <= S3_SUMMARY_PLANES; wrong++)
		for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
			struct s3_reader r = {good.data + 48, good.data + good.length, false};

			b.length = 0;
			s3_buffer_bytes(&b, good.data, 48);
			s3_buffer_varint(&b, s3_read_varint(&r)); /* first */
			s3_buffer_varint(&b, s3_read_varint(&r)); /* last */
			for (unsigned column = 0; column <= S3_SUMMARY_PLANES; column++) {
				uint64_t length = s3_read_varint(&r);
				uint64_t stored = s3_read_varint(&r);

				s3_buffer_varint(&b, length + (column == wrong ? more[i] : 0));
				s3_buffer_varint(&b, stored);
				s3_buffer_bytes(&b, s3_read_bytes(&r, stored), stored);
			}
			s3_le_store(b.data + 16, b.length, 8);
			s3_le_store(b.data + 12, crc_without(b.data, b.length, 12), 4);
			assert_int_equal(
				read_summary(b.data, b.length), more[i] ? S3_INVALID : S3_GOOD);
		}
	s3_buffer_free(&b);
	s3_buffer_free(&good);
}

/* Headers of blocks at random, as of data that shrinks to nothing. */
#define MANY	    64u
#define MANY_BLOCKS 1024u

struct many {
	uint64_t lbas[MANY * MANY_BLOCKS];
	size_t n;
};

static int see_many(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	struct many *many = opaque;

	assert_int_equal(header->id, 1 + many->n / MANY_BLOCKS);
	assert_int_equal(record->op, S3_RECORD_WRITE);
	assert_true(record->lba == many->lbas[many->n]);
	assert_int_equal(record->count, 1);
	assert_int_equal(record->offset, many->n % MANY_BLOCKS);
	many->n++;
	return 0;
}

/* Adds header id of many; its bytes. */
static uint32_t add_many(struct s3_summary_writer *w, const struct many *many, uint64_t id)
{
	struct s3_object_header header = {
		.type = S3_TYPE_DATA, .flags = S3_FEATURE_ZSTD, .block_shift = 12, .id = id};
	size_t room = s3_header_room(MANY_BLOCKS, MANY_BLOCKS, 12, header.flags);
	uint8_t *buffer = malloc(room);
	struct s3_unit units[MANY_BLOCKS / 16];
	struct s3_header_writer writer;
	size_t length;

	for (size_t i = 0; i < MANY_BLOCKS / 16; i++)
		units[i] = (struct s3_unit){.bytes = 20};
	header.blocks = MANY_BLOCKS;
	s3_header_begin(&writer, &header, buffer, room);
	for (uint32_t i = 0; i < MANY_BLOCKS; i++)
		s3_header_add(&writer, &(struct s3_record){.op = S3_RECORD_WRITE,
					       .lba = many->lbas[(id - 1) * MANY_BLOCKS + i],
					       .count = 1,
					       .offset = i});
	length = s3_header_finish_units(&writer, units);
	assert_int_equal(s3_header_decode(buffer, length, NULL, &header), S3_GOOD);
	assert_int_equal(s3_summary_add(w, &header), 0);
	free(buffer);
	return header.header_bytes;
}

/* A summary takes for each block at random little more than its address does. */
static void test_summary_of_many(void **state)
{
	static struct many many;
	const struct s3_summary_visitor visitor = {ignore_header, see_many, &many};
	struct s3_summary_writer w = {0};
	struct s3_summary summary = {.epoch = 1};
	uint64_t random = 1, headers = 0, about;
	struct s3_buffer b = {0};
	int stopped;

	(void)state;
	for (size_t i = 0; i < MANY * MANY_BLOCKS; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		many.lbas[i] = random >> 36;
	}
	many.lbas[7] = 0;
	many.lbas[8] = S3_BLOCKS_MAX - 1;
	many.lbas[9] = 0;
	for (uint64_t id = 1; id <= MANY; id++)
		headers += add_many(&w, &many, id);
	about = w.bits / 8;
	s3_summary_finish(&w, &summary, &b);
	/* 28 bits, and what the distance of two such takes more. */
	assert_true(b.length < MANY * MANY_BLOCKS * 29 / 8);
	assert_true(b.length < headers * 18 / 100);
	assert_true(about > b.length * 9 / 10 && about < b.length * 11 / 10);
	assert_int_equal(
		s3_summary_decode(b.data, b.length, NULL, &visitor, &summary, &stopped), S3_GOOD);
	assert_int_equal(many.n, MANY * MANY_BLOCKS);
	s3_buffer_free(&b);
}

/* A summary that lacks a header tells so from then on. */
static void test_summary_with_a_gap(void **state)
{
	static struct many many;
	struct s3_summary_writer w = {0};
	struct s3_object_header header = {.type = S3_TYPE_FENCE, .block_shift = 12, .id = 3};

	(void)state;
	add_many(&w, &many, 1);
	assert_int_equal(s3_summary_add(&w, &header), -EINVAL);
	assert_true(w.failed);
	header.id = 2;
	assert_int_equal(s3_summary_add(&w, &header), -EINVAL);
	s3_summary_abandon(&w);
	assert_false(w.failed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_summary),
		cmocka_unit_test(test_old_summary),
		cmocka_unit_test(test_summary_with_a_wrong_column),
		cmocka_unit_test(test_summary_of_many),
		cmocka_unit_test(test_summary_with_a_gap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
