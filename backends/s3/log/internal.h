/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the log share. log.h is for the others. */
#ifndef USERBLK_S3_LOG_INTERNAL_H
#define USERBLK_S3_LOG_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/backend.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/state/map.h"

struct s3_record;

/* A thread that waits until a sequence number is in the store. */
struct s3_waiter {
	struct s3_waiter *next;
	struct backend_request *request;
	uint64_t seq;
	uint64_t change; /* or for this one to be in the write-back log */
};

enum s3_write_stage { S3_STAGE_HEAD, S3_STAGE_MIDDLE, S3_STAGE_TAIL, S3_STAGE_END };

/*
 * A write, trim or zero: a part of a block at its head, whole blocks, a part of a block at its
 * tail. Parts are read, changed and written; if the block has been written meanwhile, again.
 */
struct s3_write {
	struct s3_write *next;
	struct s3_volume *v;
	struct backend_request *request;
	enum s3_write_stage stage;
	uint64_t lba, end;	/* of the whole blocks that are left */
	uint64_t last_seq;	/* of the newest batch that has a part of it */
	bool on_heap;		/* it outlives s3_write() */
	struct iovec edge;	/* the block that head or tail is in; NULL: not read */
	struct s3_run edge_run; /* where it was read from */
	struct backend_request read;
};

/* What reserving a place says besides an error. */
enum { S3_LOG_DONE = 0, S3_LOG_STALLED = 1, S3_LOG_CHANGED = 2 };

/* ---- batch.c ---- */

/* Has the next batch no place among those in memory? Then an upload must end first. */
bool s3_log_window_full(const struct s3_volume *v);
/* The last record can no longer be continued. */
void s3_log_settle_last(struct s3_batch *b);
/* Adds a record; the last one is kept back, since the next may continue it. */
void s3_log_add_record(struct s3_batch *b, const struct s3_record *record);
/* Closes the open batch and gives it to the sealers. */
void s3_log_close_batch(struct s3_volume *v);
/* May a batch be closed because a flush wants it? If not, the next upload that ends closes it. */
void s3_log_close_for_flush(struct s3_volume *v);
/*
 * Do changes of the map wait: for a checkpoint that is about to capture it, or for one that waits
 * for the store, while what they note for it takes all the memory it may? Under the lock.
 */
bool s3_log_has_to_wait(const struct s3_volume *v);
/* Sees to an open batch with room. S3_LOG_DONE, S3_LOG_STALLED, or negative errno. */
int s3_log_make_room(struct s3_volume *v, bool data, uint32_t records);

/* ---- flush.c ---- */

/* Answers request when everything up to seq (0: all there is) is durable. */
void s3_log_answer_durable(struct s3_volume *v, uint64_t seq, struct backend_request *request);
/* Takes the waiters up to seq, or up to change, out of the list, under the lock. */
struct s3_waiter *s3_log_take_waiters(struct s3_volume *v, uint64_t seq, uint64_t change);
/* Answers the flushes of a list that was taken out. */
void s3_log_answer_waiters(struct s3_waiter *w, int r);

/* ---- write.c ---- */

/* The write has been done, or has failed: answers it. */
void s3_write_finish(struct s3_write *w, int r);
/* Goes on with a write until it is done or has to wait. */
void s3_write_run(struct s3_write *w);

/* ---- upload.c ---- */

/* Does nobody have to wait for the store, since it refuses what the log puts? Under the lock. */
bool s3_log_is_blocked(const struct s3_volume *v);
/* Uploads a sealed batch. */
void s3_log_upload(struct s3_batch *b);
/* Puts what the store has refused once more. Under the lock, which it releases for a time. */
void s3_log_put_refused(struct s3_volume *v);

static inline bool s3_log_has_data(const struct s3_write *w)
{
	return w->request->op == BACKEND_WRITE;
}

/* A writer, or the log itself, is done with a batch. With or without the lock. */
static inline bool s3_batch_drop_writer(struct s3_batch *b)
{
	return atomic_fetch_sub(&b->writers, 1) == 1;
}

#endif
