/* SPDX-License-Identifier: BSD-3-Clause */
/* What the S3 device stores is refused when it is cut, changed, forged or of a newer program. */
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

static enum s3_check read_header(const void *data, size_t length)
{
	struct s3_object_header header;

	return s3_header_decode(data, length, sample_uuid, &header);
}

static enum s3_check read_region(const void *data, size_t length)
{
	struct s3_objects *objects = s3_objects_new(1024);
	struct s3_map *map = s3_map_new(objects, 2 * S3_REGION_BLOCKS);
	struct s3_buffer table = {0}, region = {0};
	enum s3_check check;

	sample_map(&table, &region);
	assert_int_equal(s3_objects_decode(objects, table.data, table.length), S3_GOOD);
	check = s3_map_load(map, 1, data, length);
	s3_map_free(map);
	s3_objects_free(objects);
	s3_buffer_free(&table);
	s3_buffer_free(&region);
	return check;
}

static void write_region(struct s3_buffer *out)
{
	struct s3_buffer table = {0};

	sample_map(&table, out);
	s3_buffer_free(&table);
}

static void write_header(struct s3_buffer *out)
{
	sample_header(out, 5, 0);
}

static void write_header_units(struct s3_buffer *out)
{
	sample_header(out, 5, S3_FEATURES);
}

static void write_root(struct s3_buffer *out)
{
	sample_root(out, false);
}

static void write_light_root(struct s3_buffer *out)
{
	sample_root(out, true);
}

static const struct {
	void (*write)(struct s3_buffer *out);
	enum s3_check (*read)(const void *data, size_t length);
	size_t crc;
	bool magic_only; /* the uuid is not checked */
} kinds[] = {
	{sample_super, read_super, 20, true},
	{write_header, read_header, 20, false},
	{write_header_units, read_header, 20, false},
	{sample_summary, read_summary, 12, false},
	{write_root, read_root, 12, false},
	{write_light_root, read_root, 12, false},
	{write_region, read_region, 20, true},
};

#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* A copy of exactly that size, so that ASan sees each byte too many. */
static enum s3_check read_copy(size_t kind, const uint8_t *data, size_t length)
{
	uint8_t *copy = malloc(length ? length : 1);
	enum s3_check check;

	memcpy(copy, data, length);
	check = kinds[kind].read(copy, length);
	free(copy);
	return check;
}

static void test_truncated(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_KINDS; k++) {
		struct s3_buffer b = {0};

		kinds[k].write(&b);
		assert_false(b.failed);
		assert_int_equal(read_copy(k, b.data, b.length), S3_GOOD);
		for (size_t length = 0; length < b.length; length += length < 300 ? 1 : 97)
			assert_int_not_equal(read_copy(k, b.data, length), S3_GOOD);
		s3_buffer_free(&b);
	}
}

static void test_flipped(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_KINDS; k++) {
		struct s3_buffer b = {0};

		kinds[k].write(&b);
		for (size_t i = 0; i < b.length; i += i < 300 ? 1 : 53) {
			b.data[i] ^= 1u << i % 8;
			assert_int_not_equal(read_copy(k, b.data, b.length), S3_GOOD);
			b.data[i] ^= 1u << i % 8;
		}
		s3_buffer_free(&b);
	}
}

/* The same with a checksum that matches: whatever the answer is, it is an answer. */
static void test_forged(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_KINDS; k++) {
		struct s3_buffer b = {0};

		kinds[k].write(&b);
		for (size_t i = 8; i < b.length; i += i < 400 ? 1 : 53)
			for (unsigned flip = 0; flip < 3; flip++) {
				uint8_t kept = b.data[i];

				b.data[i] = (uint8_t)(flip == 0 ? kept ^ 1 : flip == 1 ? 0xff : 0);
				s3_le_store(b.data + kinds[k].crc,
					crc_without(b.data, b.length, kinds[k].crc), 4);
				read_copy(k, b.data, b.length);
				b.data[i] = kept;
			}
		s3_buffer_free(&b);
	}
}

/* Says what it is that is wrong. */
static void test_verdicts(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_KINDS; k++) {
		struct s3_buffer b = {0};

		kinds[k].write(&b);
		b.data[0] ^= 1;
		assert_int_equal(read_copy(k, b.data, b.length), S3_NOT_OURS);
		b.data[0] ^= 1;
		b.data[8]++;
		assert_int_equal(read_copy(k, b.data, b.length), S3_NEWER);
		b.data[8]--;
		b.data[kinds[k].crc] ^= 1;
		assert_int_equal(read_copy(k, b.data, b.length), S3_CHECKSUM);
		b.data[kinds[k].crc] ^= 1;
		if (!kinds[k].magic_only) {
			b.data[24] ^= 1;
			s3_le_store(b.data + kinds[k].crc,
				crc_without(b.data, b.length, kinds[k].crc), 4);
			assert_int_equal(read_copy(k, b.data, b.length), S3_OTHER_VOLUME);
		}
		s3_buffer_free(&b);
	}
}

static void test_unknown_flags(void **state)
{
	struct s3_buffer b = {0};

	(void)state;
	write_header(&b);
	b.data[10] |= 0x80;
	s3_le_store(b.data + 20, crc_without(b.data, b.length, 20), 4);
	assert_int_equal(read_header(b.data, b.length), S3_UNKNOWN_FLAG);
	b.length = 0;
	sample_super(&b);
	b.data[15] |= 0x80;
	s3_le_store(b.data + 20, crc_without(b.data, b.length, 20), 4);
	assert_int_equal(read_super(b.data, b.length), S3_UNKNOWN_FLAG);
	b.length = 0;
	sample_summary(&b);
	b.data[10] |= 2;
	s3_le_store(b.data + 12, crc_without(b.data, b.length, 12), 4);
	assert_int_equal(read_summary(b.data, b.length), S3_UNKNOWN_FLAG);
	b.length = 0;
	sample_root(&b, true);
	b.data[10] |= 2;
	s3_le_store(b.data + 12, crc_without(b.data, b.length, 12), 4);
	assert_int_equal(read_root(b.data, b.length), S3_UNKNOWN_FLAG);
	s3_buffer_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_flipped),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_verdicts),
		cmocka_unit_test(test_unknown_flags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
