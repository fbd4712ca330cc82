/* SPDX-License-Identifier: BSD-3-Clause */
/* What the encoders share. */
#ifndef USERBLK_S3_FORMAT_INTERNAL_H
#define USERBLK_S3_FORMAT_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

/* What the super object and objects of the log share. */
#define S3_FORMAT_VERSION 1

/* ---- super.c ---- */

/* CRC32C of data in which the 4 bytes at hole count as zero. */
uint32_t s3_crc_around(const uint8_t *data, size_t length, size_t hole);
/* Magic and version of data of which 12 bytes are there. */
enum s3_check s3_check_kind(const uint8_t *data, const uint8_t magic[8]);

#endif
