/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of compaction share. */
#ifndef USERBLK_S3_KEEPER_COMPACTION_H
#define USERBLK_S3_KEEPER_COMPACTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/s3/client/client.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/object_table.h"

struct s3_volume;

/* Objects compacted in one go. */
#define S3_GC_OBJECTS 32

/* A run of blocks that will move. */
struct s3_gc_piece {
	uint64_t lba;
	uint32_t count, source; /* index in the round */
	uint32_t offset;	/* block in the source's data */
};

/* An object, all of which is in memory, or a window of it if it is larger than what there is. */
struct s3_gc_source {
	uint32_t slot;
	struct s3_object object;
	uint8_t *raw; /* as stored, which header points into: all of it, or the header */
	size_t length;
	uint8_t *window;   /* what of the data is at hand, if not all; else NULL */
	uint8_t *plain;	   /* blocks of the window; NULL: they are stored as they are */
	uint32_t from, to; /* the window, in blocks of the data */
	struct s3_object_header header;
	struct iovec iov;
	struct s3_request req;
	char key[S3_KEY_MAX + 1];
};

/* Requests of a round that are under way. */
struct s3_gc_flight {
	pthread_mutex_t lock;
	pthread_cond_t landed;
	unsigned n;
};

struct s3_gc_round {
	struct s3_gc_source sources[S3_GC_OBJECTS];
	size_t n_sources;
	struct s3_gc_piece *pieces;
	size_t n_pieces, room;
	uint64_t memory; /* bytes that it may take, half of them for what is read */
	struct s3_gc_flight reads, writes;
};

/* ---- compaction_read.c ---- */

/* Begins to read length bytes of a source into memory of its own, *to. 0 or negative errno. */
int s3_gc_begin_read(struct s3_volume *v, struct s3_gc_round *round, struct s3_gc_source *s,
	uint8_t **to, uint64_t offset, size_t length);
/* Waits for all reads or writes that are under way. */
void s3_gc_wait_all(struct s3_gc_flight *f);
/* Is what was read of a source the expected object? 0 or -EIO. */
int s3_gc_check_source(const struct s3_volume *v, struct s3_gc_source *s);
/* Finds what is alive in a source's window, and checks it. 0 or negative errno. */
int s3_gc_use_source(struct s3_volume *v, struct s3_gc_round *round, uint32_t index);
/* A block of a source's window. */
const uint8_t *s3_gc_source_block(
	const struct s3_volume *v, const struct s3_gc_source *s, uint32_t block);
/* Bytes that a source takes while it is read and moved, if all of it is in memory. */
uint64_t s3_gc_source_bytes(const struct s3_volume *v, const struct s3_object *object);
/*
 * Forgets what a source has had in memory of it behind the first used bytes of the room, and moves
 * its window on. False: that was all.
 */
bool s3_gc_next_window(struct s3_volume *v, size_t used, struct s3_gc_source *s, uint32_t blocks);
/* Where the data of a block is stored, behind the header: the beginning of its unit. */
uint64_t s3_gc_stored_at(const struct s3_volume *v, const struct s3_gc_source *s, uint32_t block);
void s3_gc_free_source(const struct s3_volume *v, struct s3_gc_source *s);
/* A request goes, and its answer has come. */
void s3_gc_take_off(struct s3_gc_flight *f);
void s3_gc_land(struct s3_gc_flight *f);

/* ---- compaction_write.c ---- */

/*
 * Writes all pieces into new objects, in the order of the volume's blocks; some are on their way.
 * 0 or negative errno.
 */
int s3_gc_move_pieces(struct s3_volume *v, struct s3_gc_round *round);

#endif
