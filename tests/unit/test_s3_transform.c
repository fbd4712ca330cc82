/* SPDX-License-Identifier: BSD-3-Clause */
/* Compression and encryption of what the S3 device stores, and the keys of volumes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "tests/unit/s3_samples.h"
#include "tests/unit/support.h"

#define DATA (3 * S3_UNIT + 4096)

static void test_transform(void **state)
{
	static const uint8_t key[S3_KEY_BYTES] = "a key of thirty-two bytes......";
	uint8_t *data = malloc(DATA), *out = malloc(s3_transform_room(DATA)),
		*back = malloc(S3_UNIT);
	uint8_t *twice = malloc(s3_transform_room(DATA));
	uint32_t noise = 1;

	(void)state;
	memset(data, 'x', DATA);
	for (size_t i = 0; i < S3_UNIT; i++) /* a unit that does not shrink */
		data[i] = (uint8_t)((noise = noise * 1664525 + 1013904223) >> 24);
	for (uint32_t features = 1; features <= S3_FEATURES; features++) {
		struct s3_object_header header = {.id = 7}, other = {.id = 7};
		struct s3_unit units[4], units_other[4];
		struct s3_transform *t;
		size_t stored, stored_other, at = 0;

		assert_int_equal(s3_transform_new(features, key, sample_uuid, &t), 0);
		assert_int_equal(
			s3_transform_encode(t, &header, data, DATA, out, units, &stored), 0);
		assert_int_equal(header.flags, features);
		assert_true(stored <= s3_transform_room(DATA));
		if (features & S3_FEATURE_ZSTD)
			assert_true(units[0].raw && !units[1].raw && units[1].bytes < 1000);
		/* Built again, nothing is encrypted with the same key and nonce. */
		assert_int_equal(s3_transform_encode(
					 t, &other, data, DATA, twice, units_other, &stored_other),
			0);
		if (features & S3_FEATURE_AES) {
			assert_memory_not_equal(header.salt, other.salt, sizeof header.salt);
			assert_memory_not_equal(out, twice, 64);
		}
		for (uint32_t i = 0; i < 4; i++) {
			size_t length = i < 3 ? S3_UNIT : 4096;
			struct s3_object_header moved = header;
			struct s3_unit unit = units[i];

			assert_int_equal(
				s3_transform_decode(t, &header, i, &unit, out + at, back, length),
				0);
			assert_memory_equal(back, data + (size_t)i * S3_UNIT, length);
			/* Damage, another place, another object. */
			out[at + unit.bytes / 2] ^= 1;
			assert_int_equal(
				s3_transform_decode(t, &header, i, &unit, out + at, back, length),
				-EBADMSG);
			if (features & S3_FEATURE_AES) {
				unit.crc = s3_crc32c(0, out + at, unit.bytes);
				assert_int_equal(s3_transform_decode(t, &header, i, &unit, out + at,
							 back, length),
					-EBADMSG);
			}
			out[at + unit.bytes / 2] ^= 1;
			unit = units[i];
			if (features & S3_FEATURE_AES) {
				moved.id = 8;
				assert_int_equal(s3_transform_decode(t, &header, i + 1, &unit,
							 out + at, back, length),
					-EBADMSG);
				assert_int_equal(s3_transform_decode(t, &moved, i, &unit, out + at,
							 back, length),
					-EBADMSG);
			}
			at += unit.bytes;
		}
		assert_int_equal(at, stored);
		s3_transform_free(t);
	}
	free(data);
	free(out);
	free(twice);
	free(back);
}

static void test_keys(void **state)
{
	static const uint8_t key[S3_KEY_BYTES + 1] = "a key of thirty-two bytes......";
	uint8_t read[S3_KEY_BYTES], check[16], other[16];
	struct s3_transform *t, *wrong;
	struct s3_object_header header = {.id = 7};
	struct s3_unit unit;
	uint8_t data[4096] = {0}, out[4096 + 64];
	size_t stored;

	(void)state;
	for (size_t length = 31; length <= 33; length++) {
		const char *path = scratch_path("key");
		FILE *file = fopen(path, "w");

		assert_int_equal(fwrite(key, 1, length, file), length);
		fclose(file);
		assert_int_equal(s3_transform_read_key(path, read), length == 32 ? 0 : -EINVAL);
	}
	assert_memory_equal(read, key, sizeof read);
	assert_int_equal(s3_transform_read_key("/nonexistent", read), -ENOENT);
	read[0] ^= 1;
	assert_int_equal(s3_transform_key_check(key, sample_uuid, check), 0);
	assert_int_equal(s3_transform_key_check(read, sample_uuid, other), 0);
	assert_memory_not_equal(check, other, sizeof check);
	assert_int_equal(s3_transform_new(S3_FEATURE_AES, key, sample_uuid, &t), 0);
	assert_int_equal(s3_transform_new(S3_FEATURE_AES, read, sample_uuid, &wrong), 0);
	assert_int_equal(
		s3_transform_encode(t, &header, data, sizeof data, out, &unit, &stored), 0);
	assert_int_equal(
		s3_transform_decode(wrong, &header, 0, &unit, out, data, sizeof data), -EBADMSG);
	/* Not encrypted in a volume that is: not ours, even with a good checksum. */
	header.flags = 0;
	assert_int_equal(
		s3_transform_decode(t, &header, 0, &unit, out, data, sizeof data), -EBADMSG);
	s3_transform_free(t);
	s3_transform_free(wrong);
}

/* Keys are wrapped for one volume and its ancestors, and only the user's key opens them. */
static void test_wrapped_keys(void **state)
{
	static const uint8_t user[S3_KEY_BYTES + 1] = "a key of thirty-two bytes......",
						 other[S3_KEY_BYTES + 1] =
							 "another of thirty-two bytes....";
	uint8_t keys[3][S3_KEY_BYTES], back[3][S3_KEY_BYTES], wrapped[S3_WRAPPED(2)];
	struct s3_super super;
	struct s3_buffer b = {0};

	(void)state;
	sample_super(&b);
	assert_int_equal(s3_super_decode(b.data, b.length, &super), S3_GOOD);
	for (int i = 0; i < 3; i++)
		assert_int_equal(s3_transform_draw_key(keys[i]), 0);
	assert_memory_not_equal(keys[0], keys[1], S3_KEY_BYTES);
	for (int twice = 0; twice < 2; twice++) {
		memcpy(wrapped, super.wrapped, sizeof wrapped);
		assert_int_equal(s3_transform_wrap_keys(user, &super,
					 (const uint8_t(*)[S3_KEY_BYTES])keys, super.wrapped),
			0);
		assert_memory_not_equal(wrapped, super.wrapped, sizeof wrapped);
		assert_null(memmem(super.wrapped, sizeof wrapped, keys[1], S3_KEY_BYTES));
		assert_int_equal(s3_transform_volume_keys(user, &super, back), 0);
		assert_memory_equal(keys, back, sizeof keys);
	}
	assert_int_equal(s3_transform_volume_keys(other, &super, back), -EBADMSG);
	for (size_t i = 0; i < sizeof wrapped; i++) {
		super.wrapped[i] ^= 1;
		assert_int_equal(s3_transform_volume_keys(user, &super, back), -EBADMSG);
		super.wrapped[i] ^= 1;
	}
	super.parents[1].uuid[0] ^= 1; /* another ancestor's */
	assert_int_equal(s3_transform_volume_keys(user, &super, back), -EBADMSG);
	super.parents[1].uuid[0] ^= 1;
	/* As older programs have it. */
	free(super.wrapped);
	super.wrapped = NULL;
	assert_int_equal(s3_transform_volume_keys(user, &super, back), 0);
	assert_int_equal(s3_transform_derive_key(user, super.parents[1].uuid, keys[2]), 0);
	assert_memory_equal(keys[2], back[2], S3_KEY_BYTES);
	s3_super_free(&super);
	s3_buffer_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transform),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_wrapped_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
