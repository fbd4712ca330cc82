/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "backends/s3/format/checkpoint_head.h"

#define VERSION 1
#define CRC	12
#define LENGTH	16

static uint32_t crc_of(const uint8_t *p, size_t length)
{
	static const uint8_t zero[4];
	uint32_t crc = s3_crc32c(0, p, CRC);

	crc = s3_crc32c(crc, zero, sizeof zero);
	return s3_crc32c(crc, p + CRC + 4, length - CRC - 4);
}

void s3_checkpoint_head_put(struct s3_buffer *out, const uint8_t magic[8], unsigned flags,
	const uint8_t *uuid, uint64_t epoch)
{
	s3_buffer_bytes(out, magic, 8);
	s3_buffer_number(out, VERSION, 2);
	s3_buffer_number(out, flags, 2);
	s3_buffer_number(out, 0, 4); /* CRC and length: s3_checkpoint_seal() */
	s3_buffer_number(out, 0, 8);
	s3_buffer_bytes(out, uuid, S3_UUID);
	s3_buffer_number(out, epoch, 8);
}

void s3_checkpoint_seal(struct s3_buffer *out, size_t start)
{
	size_t length = out->length - start;

	if (out->failed)
		return;
	s3_le_store(out->data + start + LENGTH, length, 8);
	s3_le_store(out->data + start + CRC, crc_of(out->data + start, length), 4);
}

enum s3_check s3_checkpoint_head_check(
	const uint8_t *p, size_t length, const uint8_t magic[8], const uint8_t *uuid)
{
	if (length < CHECKPOINT_HEAD)
		return length >= 8 && memcmp(p, magic, 8) ? S3_NOT_OURS : S3_SHORT;
	if (memcmp(p, magic, 8))
		return S3_NOT_OURS;
	if (s3_le_load(p + 8, 2) > VERSION)
		return S3_NEWER;
	if (length < s3_le_load(p + LENGTH, 8))
		return S3_SHORT;
	if (length != s3_le_load(p + LENGTH, 8) || crc_of(p, length) != s3_le_load(p + CRC, 4))
		return S3_CHECKSUM;
	if (s3_le_load(p + CHECKPOINT_FLAGS, 2) & ~CHECKPOINT_PACKED)
		return S3_UNKNOWN_FLAG;
	if (s3_le_load(p + 8, 2) != VERSION)
		return S3_INVALID;
	if (uuid && memcmp(p + 24, uuid, S3_UUID))
		return S3_OTHER_VOLUME;
	return S3_GOOD;
}
