/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes: open batch, uploads, frontier, flush. */
#ifndef USERBLK_S3_LOG_H
#define USERBLK_S3_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"
#include "backends/s3/format/format.h"

struct s3_batch;
struct s3_object;
struct s3_volume;

void s3_write(struct s3_volume *v, struct backend_request *request);
void s3_flush(struct s3_volume *v, struct backend_request *request);
void *s3_sealer(void *volume);
/* What was acknowledged and would be lost with this process. */
struct s3_lag {
	uint64_t objects, bytes;
	uint64_t changes; /* objects without those that only we have written: none of the user's */
	uint64_t oldest;  /* when the first of it was written, ns, monotonic; 0: nothing */
	bool kept;	  /* the write-back log holds all of it */
};
void s3_log_lag(struct s3_volume *v, struct s3_lag *lag);
/* The same; if there are no changes, or they are kept, the volume ends with that, and nothing is
 * reported. */
void s3_log_end(struct s3_volume *v, struct s3_lag *lag);
/*
 * Waits until all that was written is in the store, or has failed; while the keeper runs not for a
 * store that refuses it. 0 or negative errno.
 */
int s3_log_drain(struct s3_volume *v);
/* The same, however long the store refuses it: only a failure of the volume ends it. */
int s3_log_drain_at_last(struct s3_volume *v);
/* Answers everything that waits, after a failure. */
void s3_log_give_up(struct s3_volume *v);
/*
 * Closes the open batch and stops writes until s3_log_resume(); waits until all batches are
 * sealed. Answers the newest sequence number in the map.
 */
uint64_t s3_log_pause(struct s3_volume *v);
void s3_log_resume(struct s3_volume *v);
/*
 * Enters a GC object that is in the store: puts RELOCATE records into the log and the map, as
 * one step. Those whose source has changed meanwhile do nothing. 0 or negative errno.
 */
int s3_log_relocate(struct s3_volume *v, const struct s3_object *object,
	const struct s3_record *records, size_t n);
/*
 * Appends an object to the log, which may be empty, with a record (NULL: none) in it. 0 or
 * negative errno.
 */
int s3_log_mark(struct s3_volume *v, const struct s3_record *record);
/* The same up to seq. */
int s3_log_wait(struct s3_volume *v, uint64_t seq);

/* Bytes that the header of a batch may take. */
size_t s3_log_header_room(const struct s3_volume *v);

/* A part of a batch that goes to the write-back log; the batch is held. */
struct s3_part {
	struct s3_batch *batch;
	struct s3_object_header records; /* to be walked from position on; else empty */
	size_t position;
	uint32_t first, count; /* blocks of data, which may still be copied */
	uint64_t change;       /* with it everything up to this change has been taken */
};
/*
 * Under the lock: the oldest part that is neither in the store nor before *part, which an earlier
 * call returned. False: there are no more.
 */
bool s3_log_take(struct s3_volume *v, struct s3_part *part);
/* Under the lock: it is in the write-back log, or (logged false) not. The batch is let go. */
void s3_log_put(struct s3_volume *v, struct s3_part *part, bool logged);
/* Under the lock: flushes wait for the store now. */
void s3_log_push(struct s3_volume *v);
/* Answers the flushes of what is in the write-back log up to change. */
void s3_log_answer(struct s3_volume *v, uint64_t change);

#endif
