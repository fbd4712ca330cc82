/* SPDX-License-Identifier: BSD-3-Clause */
/* Readers of what an S3 volume stores, which keep nothing of it: is it good? */
#ifndef USERBLK_TESTS_UNIT_S3_READERS_H
#define USERBLK_TESTS_UNIT_S3_READERS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/checkpoint.h"
#include "backends/s3/format/format.h"

/* For a visitor that looks at records only. */
int ignore_header(void *opaque, const struct s3_object_header *header);

enum s3_check read_super(const void *data, size_t length);
enum s3_check read_summary(const void *data, size_t length);
enum s3_check read_root(const void *data, size_t length);

/* The checksum of p as if the four bytes at hole, where it is stored, were zero. */
uint32_t crc_without(const uint8_t *p, size_t length, size_t hole);

#endif
