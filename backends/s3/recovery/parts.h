/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The parts of a checkpoint, fetched in order, several at a time, so that the caller seldom waits
 * for the store's latency.
 */
#ifndef USERBLK_S3_PARTS_H
#define USERBLK_S3_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_volume;

/* A region or a summary, as a root tells of it. */
struct s3_root_part {
	struct s3_name name;
	uint32_t bytes, crc;
};

struct s3_parts;

/* n parts (which stay) of the volume under base (copied). NULL: no memory. */
struct s3_parts *s3_parts_new(
	struct s3_volume *v, const char *base, const struct s3_root_part *parts, size_t n);
/*
 * The next part that nobody has: its index, and its bytes, which are as the root says; free() them.
 * Several threads may call. 1; 0: there are no more; -ENOENT: there is none in the store, or a
 * damaged one; -ENOMEM; other errors have been reported.
 */
int s3_parts_next(struct s3_parts *p, size_t *index, void **data);
/* Waits for what is on its way. NULL is fine. */
void s3_parts_free(struct s3_parts *p);

#endif
