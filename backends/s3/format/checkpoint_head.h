/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What summaries and roots begin with: magic 8 | version 2 | flags 2 | CRC32C 4 (over everything,
 * itself zero) | length 8 | uuid 16 | epoch 8; the rest is numbers (varints) in the order of the
 * fields.
 */
#ifndef USERBLK_S3_CHECKPOINT_HEAD_H
#define USERBLK_S3_CHECKPOINT_HEAD_H

#include <stddef.h>
#include <stdint.h>

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"

#define CHECKPOINT_FLAGS 10
#define CHECKPOINT_HEAD	 48
/* A summary: it is in columns. A light root: it names such, so that who knows none refuses it. */
#define CHECKPOINT_PACKED 1u

/* Appends a head, without CRC and length: s3_checkpoint_seal(). */
void s3_checkpoint_head_put(struct s3_buffer *out, const uint8_t magic[8], unsigned flags,
	const uint8_t *uuid, uint64_t epoch);
/* Completes what begins at start. */
void s3_checkpoint_seal(struct s3_buffer *out, size_t start);
/* uuid NULL: any. */
enum s3_check s3_checkpoint_head_check(
	const uint8_t *p, size_t length, const uint8_t magic[8], const uint8_t *uuid);
/* Numbers of 32 bits: more than that makes the reader bad. */
static inline uint32_t s3_checkpoint_u32(struct s3_reader *r, uint64_t v)
{
	if (v > UINT32_MAX)
		r->bad = true;
	return (uint32_t)v;
}

#endif
