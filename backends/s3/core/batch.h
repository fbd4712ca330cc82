/* SPDX-License-Identifier: BSD-3-Clause */
/* A log object in memory. */
#ifndef USERBLK_S3_BATCH_H
#define USERBLK_S3_BATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/s3/client/client.h"
#include "backends/s3/core/seal.h"
#include "backends/s3/format/format.h"

struct s3_volume;

/* Sequence numbers that may be uncertain at once: all uploads and what is being filled. */
#define S3_WINDOW 128

/* What of a batch is in the write-back log. */
struct s3_logged {
	size_t records; /* place in the header behind the last such record */
	uint32_t blocks;
};

/* A log object in memory, from its first write until it is in the cache and nobody reads it. */
struct s3_batch {
	struct s3_batch *next; /* of the queue to the sealer, or of the free ones */
	uint64_t seq;
	uint32_t slot;	 /* in the object table */
	uint32_t blocks; /* reserved */
	uint32_t n_records;
	uint64_t change;	  /* number of its last one, of s3_volume.changes */
	size_t records_end;	  /* in the header: where the last record ends; when closed */
	struct s3_logged logged;  /* of the write-back log's thread */
	unsigned refs;		  /* the log's, one of each reader; under the volume's lock */
	bool closed;		  /* takes nothing more */
	bool wanted;		  /* a flush waits for its end */
	bool relocates;		  /* holds RELOCATE records */
	bool refused;		  /* by the store, up to now */
	_Atomic unsigned writers; /* copies under way, and 1 until it is closed */
	_Atomic uint8_t *ready;	  /* of each block: enum s3_copied */
	uint8_t *data, *header;
	uint32_t *crcs; /* of each block, by who copies it; not where data is transformed */
	struct s3_stored stored; /* reads are answered from data */
	uint64_t began;		 /* ns, monotonic */
	struct s3_record last;	 /* not yet in the header: may still grow */
	struct s3_header_writer writer;
	struct s3_object_header sealed; /* what it wrote, once that is complete */
	/* Upload. */
	struct s3_volume *volume;
	struct s3_request request;
	unsigned made;	 /* s3_space_made() when it was put last */
	uint64_t put_ns; /* when that was, by s3_now_suspended() */
	struct iovec iov[2];
	uint32_t crc32c;    /* of these, with s3_volume.checksums */
	struct iovec probe; /* to look at what is there in its place */
	char key[S3_KEY_MAX + 1];
	char super_key[S3_KEY_MAX + 1]; /* while that is looked at */
	char stale[S3_ETAG_MAX + 1];	/* of the object to replace; "": none */
	char met[S3_ETAG_MAX + 1];	/* of another volume's that stands in its place; "": none */
};

/* The batch in memory of an object, held; NULL: it is in the store. */
struct s3_batch *s3_log_hold(struct s3_volume *v, uint32_t slot);
void s3_log_release(struct s3_volume *v, struct s3_batch *b);
/*
 * Waits for writers that are still copying blocks into a held batch. False: to some of them nothing
 * will ever be copied, since the map had no memory for all of a write, which failed the volume.
 */
bool s3_log_wait_copied(struct s3_batch *b, uint32_t first, uint32_t count);
void s3_batches_free(struct s3_volume *v);

/* Frees a batch that has left all lists. */
void s3_batch_free(struct s3_volume *v, struct s3_batch *b);
/* s3_log_release() under the lock. */
void s3_batch_release(struct s3_volume *v, struct s3_batch *b);

#endif
