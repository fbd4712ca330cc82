/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Finds streams among reads: several at once, each in ascending order, though not necessarily
 * strictly, since requests of one reader that are in flight together overtake each other. Says
 * what to read before it is asked for. Knows addresses and no data.
 */
#ifndef USERBLK_S3_READAHEAD_H
#define USERBLK_S3_READAHEAD_H

#include <stdbool.h>
#include <stdint.h>

#define S3_AHEAD_STEP (4u << 20)  /* bytes that are read ahead at once, when a stream is well on */
#define S3_AHEAD_MAX  (16u << 20) /* bytes that a stream is read ahead */

struct s3_streams;

/* A range to read ahead, in bytes. */
struct s3_ahead {
	uint64_t from, to;
	unsigned stream; /* the detector's */
};

/* limit: bytes that may be ahead of all streams together. NULL: no memory. */
struct s3_streams *s3_streams_new(uint64_t limit);
void s3_streams_free(struct s3_streams *s);
/*
 * A read of length bytes at offset in a volume of size bytes. True: *ahead should be read, and
 * counts as being read.
 */
bool s3_streams_note(struct s3_streams *s, uint64_t offset, uint64_t length, uint64_t size,
	struct s3_ahead *ahead);
/* The caller reads only what is before reached; later calls return the rest again. */
void s3_streams_cut(struct s3_streams *s, const struct s3_ahead *ahead, uint64_t reached);

#endif
