/* SPDX-License-Identifier: BSD-3-Clause */
#include "backends/s3/base/bytes.h"
#include "tests/unit/s3_readers.h"
#include "tests/unit/s3_samples.h"

int ignore_header(void *opaque, const struct s3_object_header *header)
{
	(void)opaque;
	(void)header;
	return 0;
}

static int ignore_record(
	void *opaque, const struct s3_object_header *header, const struct s3_record *record)
{
	(void)opaque;
	(void)header;
	(void)record;
	return 0;
}

enum s3_check read_super(const void *data, size_t length)
{
	struct s3_super super;
	enum s3_check check = s3_super_decode(data, length, &super);

	if (!check)
		s3_super_free(&super);
	return check;
}

enum s3_check read_summary(const void *data, size_t length)
{
	const struct s3_summary_visitor visitor = {ignore_header, ignore_record, NULL};
	struct s3_summary summary;
	int stopped;

	return s3_summary_decode(data, length, sample_uuid, &visitor, &summary, &stopped);
}

enum s3_check read_root(const void *data, size_t length)
{
	struct s3_root root;
	enum s3_check check = s3_root_decode(data, length, sample_uuid, &root);

	if (!check)
		s3_root_free(&root);
	return check;
}

uint32_t crc_without(const uint8_t *p, size_t length, size_t hole)
{
	uint32_t crc = s3_crc32c(0, p, hole);

	crc = s3_crc32c(crc, "\0\0\0", 4);
	return s3_crc32c(crc, p + hole + 4, length - hole - 4);
}
