/* SPDX-License-Identifier: BSD-3-Clause */
/* The write-back log as the log writes it and recovery reads it. */
#ifndef USERBLK_S3_LOG_WRITEBACK_FILE_H
#define USERBLK_S3_LOG_WRITEBACK_FILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/s3/base/localfile.h"
#include "backends/s3/core/batch.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/format/format.h"
#include "backends/s3/log/writeback.h"

#define S3_WRITEBACK_BLOCK  4096u
#define S3_WRITEBACK_STATES 2u
#define S3_WRITEBACK_RING   (S3_WRITEBACK_BLOCK * (1 + S3_WRITEBACK_STATES)) /* where it begins */

/* What there is in the ring, as stored. */
struct s3_writeback_stored {
	uint64_t generation; /* 0: there is none */
	bool live;	     /* there may be entries that the store lacks */
	uint8_t uuid[S3_UUID];
	uint8_t owner[S3_UUID]; /* instance of the writer whose the entries are */
	uint8_t next[S3_UUID];	/* of the one that takes it over, when nothing is needed */
	uint64_t epoch;		/* the owner's */
	uint64_t ring;		/* bytes */
	uint64_t tail;		/* position of the oldest entry, or of the next one */
	uint64_t entry;		/* its number */
	uint64_t frontier;	/* the owner's then */
};

/* Behind the last entry of an object of the log. */
struct s3_writeback_end {
	uint64_t seq, position, entry;
};

struct s3_writeback {
	struct s3_localfile file;
	uint64_t ring; /* bytes */
	bool used;     /* by a volume */
	bool damaged;  /* there is a state, and it cannot be read */
	struct s3_writeback_stored state;
	uint8_t *block;
	pthread_t thread;
	bool running;
	/* The thread's own. */
	uint8_t *header;
	uint32_t *crcs;
	struct s3_stored stored;
	uint64_t synced; /* newest entry that is */
	/* Below: under the volume's lock. Positions count all bytes that the ring ever had. */
	pthread_cond_t work;
	bool stopping, failed, full;
	bool given_up;		 /* it has failed, and nobody needs what is in it */
	uint64_t newest;	 /* object of the log of which there is something in it */
	uint64_t wanted, logged; /* changes */
	uint64_t head, entry;	 /* of the next one */
	struct s3_writeback_end ends[S3_WINDOW]; /* [seq % S3_WINDOW], of those past the frontier */
	struct s3_writeback_end freed;		 /* up to here the ring is no longer needed */
	struct s3_writeback_counters counters;
};

/* ---- writeback.c ---- */

/* The owner in a log without an owner; what kind of file it is. */
extern const uint8_t s3_writeback_nobody[S3_UUID];
extern const struct s3_localfile_kind s3_writeback_kind;
/* Makes next the state, durably, in place of the one before the last. 0 or negative errno. */
int s3_writeback_write_state(struct s3_writeback *w, const struct s3_writeback_stored *next);

/* Rounds up to whole blocks of the file. */
static inline uint64_t s3_writeback_align(uint64_t bytes)
{
	return (bytes + S3_WRITEBACK_BLOCK - 1) / S3_WRITEBACK_BLOCK * S3_WRITEBACK_BLOCK;
}

#endif
