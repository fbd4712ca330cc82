/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of this folder share. chunked.h is for the others. */
#ifndef USERBLK_S3_CHUNKED_INTERNAL_H
#define USERBLK_S3_CHUNKED_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"

/* A request; io->pending counts its pieces and gets, and 1 until all of them have been made. */
struct s3_chunk_piece {
	TAILQ_ENTRY(s3_chunk_piece) link;
	struct s3_io *io;
	uint64_t chunk;
	uint32_t from, bytes; /* in the chunk */
	uint64_t position;    /* in the request */
};

struct s3_io {
	struct s3_io *next;
	struct backend_request *request;
	unsigned pending;
	int result;
	uint64_t target; /* of a flush: what became dirty up to then must be stored */
	struct s3_chunk_piece only;
};

TAILQ_HEAD(s3_pieces, s3_chunk_piece);
TAILQ_HEAD(s3_chunks, s3_chunk);

enum s3_chunk_state { S3_CHUNK_IDLE, S3_CHUNK_LOADING, S3_CHUNK_STORING, S3_CHUNK_DELETING };

/* A chunk that is in memory, or that something happens to. */
struct s3_chunk {
	struct s3_chunk *next; /* in its bucket */
	TAILQ_ENTRY(s3_chunk) used, dirt, put;
	uint64_t index;
	enum s3_chunk_state state;
	bool dirty;
	bool full;		    /* dirty, and all of it written since it was not */
	bool store_next;	    /* it is loaded in order to be stored */
	uint64_t dirtied;	    /* number, in the order in which chunks became dirty */
	uint64_t since;		    /* when; ns */
	uint64_t tried;		    /* number of its last try while the store refused; 0: none */
	uint8_t *data;		    /* NULL: nothing of it is in memory */
	uint8_t *known;		    /* of each block: data holds it */
	uint32_t n_known;	    /* how many */
	uint8_t *written;	    /* of each block, while dirty: written since it was not */
	uint32_t n_written;	    /* how many */
	struct s3_chunk_piece *cut; /* the trim or zero that deletes it */
	struct s3_pieces waiting;
	struct s3_direct *d;
	struct s3_request request;
	struct iovec *iov; /* of a load */
	struct iovec body;
	uint32_t crc32c; /* of it, with s3_volume.checksums */
	char key[S3_KEY_MAX + 1];
};

struct s3_direct {
	struct s3_volume *v;
	uint32_t chunk_blocks, chunk_bytes;
	uint64_t n_chunks; /* of the volume */
	unsigned uploads, max_buffers;
	struct s3_chunk **buckets;
	size_t n_buckets; /* a power of two */
	uint8_t *sink;	  /* receives what is known already when the rest is loaded */
	uint32_t *tags; /* a reader's, of each chunk's object when it was listed; NULL: a writer */

	pthread_mutex_t lock;
	/* Below: under lock. */
	uint8_t *present;	/* bit of each chunk: it has an object */
	struct s3_chunks used;	/* with memory; the one used last is the last */
	struct s3_chunks dirty; /* in the order in which they became so */
	struct s3_chunks puts;	/* for the storer */
	struct s3_pieces stalled;
	uint8_t *spare; /* buffers; each begins with the address of the next */
	unsigned n_buffers, n_dirty, storing;
	uint64_t number;       /* of the chunk that became dirty last */
	uint64_t want_up_to;   /* what became dirty up to this must be stored at once */
	struct s3_io *ready;   /* to be answered when the lock is released */
	struct s3_io *waiters; /* flushes */
	struct s3_io *checked; /* flushes that wait for the epoch only */
	bool unchecked;	       /* something was stored since the epoch was looked at */
	bool checking, stopping;
	bool check_failing;    /* which has been reported */
	bool deletion_failing; /* the same of deletions */
	bool space_again;      /* to be reported when the lock is released */
	uint64_t retry_ns;     /* while the store refuses: when a chunk is put again */
	uint64_t tries;	       /* while it does */
	struct s3_request check;
	struct iovec check_iov;
	char super_key[S3_KEY_MAX + 1];
	uint64_t stored, stored_bytes, loaded, deleted, reads_memory, reads_store, stalls;
	pthread_cond_t work, quiet;
	pthread_t storer;
	_Atomic bool running;
};

/* ---- chunk.c ---- */

/* The key of a chunk's object; key has S3_KEY_MAX + 1 bytes. */
void s3_chunk_key(const struct s3_direct *d, uint64_t index, char *key);
/* Remembers whether the store has one. */
void s3_chunk_set_present(struct s3_direct *d, uint64_t index, bool present);
/* Releases the lock and answers what became ready under it. */
void s3_direct_leave(struct s3_direct *d);
/* Puts a request at the head of a list. */
void s3_io_push(struct s3_io **list, struct s3_io *io);
/* A part of a request has ended. */
void s3_io_end_part(struct s3_direct *d, struct s3_io *io, int result);
/* A piece of a request has ended; it is freed. */
void s3_io_end_piece(struct s3_direct *d, struct s3_chunk_piece *p, int result);
/* A request that is under way. NULL: no memory, which has been answered. */
struct s3_io *s3_io_make(struct backend_request *request);
/* A chunk's entry, or NULL. */
struct s3_chunk *s3_chunk_find(struct s3_direct *d, uint64_t index);
/* A chunk's entry, which is made if there is none. NULL: no memory. */
struct s3_chunk *s3_chunk_entry(struct s3_direct *d, uint64_t index);
/* Frees an entry that has left all lists. */
void s3_chunk_free(struct s3_chunk *c);
/* Forgets an entry that is no longer needed. */
void s3_chunk_drop_idle(struct s3_direct *d, struct s3_chunk *c);
/* The blocks from first to the one before end have been changed and must be stored. */
void s3_chunk_mark_dirty(struct s3_direct *d, struct s3_chunk *c, uint32_t first, uint32_t end);
/* It need no longer be stored. */
void s3_chunk_mark_clean(struct s3_direct *d, struct s3_chunk *c);
/* The chunk needs what it has in memory no more. */
void s3_chunk_release_memory(struct s3_direct *d, struct s3_chunk *c);
/* Can a chunk get memory now? */
bool s3_direct_memory_left(struct s3_direct *d);
/* The chunk has been used: its memory is taken last. */
void s3_chunk_touch(struct s3_direct *d, struct s3_chunk *c);
/* Sees to memory for the chunk. 0, -EAGAIN: something must be stored first, or -ENOMEM. */
int s3_chunk_want_memory(struct s3_direct *d, struct s3_chunk *c);
/* The blocks from first to the one before end are in memory. */
void s3_chunk_set_known(struct s3_chunk *c, uint32_t first, uint32_t end);
/* The end of the run of blocks that are as known as the first; at most end. */
uint32_t s3_chunk_run_end(const struct s3_chunk *c, uint32_t first, uint32_t end);
/* What is not known of a chunk without an object is zeroes. */
void s3_chunk_fill_with_zeroes(
	struct s3_direct *d, struct s3_chunk *c, uint32_t first, uint32_t end);
/* Those who waited for the chunk, until one of them makes it busy again. */
void s3_chunk_run_waiting(struct s3_direct *d, struct s3_chunk *c);

/* ---- transfer.c ---- */

/*
 * A request about a chunk has ended in an error. Nothing can be stored from now on. To be called
 * without the lock.
 */
void s3_direct_fail(struct s3_direct *d, const struct s3_request *req);
/* Gives a complete chunk to the store. By the storer without the lock: a digest takes its time. */
void s3_chunk_put(struct s3_direct *d, struct s3_chunk *c);
/* Reads what is not known of a chunk that has an object. False: no memory. */
bool s3_chunk_load(struct s3_direct *d, struct s3_chunk *c, bool store_next);
/* Starts to store what is due, the oldest first; if the store refuses, in turn. */
void s3_direct_begin_stores(struct s3_direct *d);
/* All of a chunk becomes zeroes. */
void s3_chunk_cut(struct s3_direct *d, struct s3_chunk *c, struct s3_chunk_piece *p);

/* ---- change.c ---- */

/* Does what a piece asks for, or has it wait. */
void s3_io_run_piece(struct s3_direct *d, struct s3_chunk_piece *p);
/* After any event: those who wait for memory, chunks that are due, flushes that are done. */
void s3_direct_settle(struct s3_direct *d);
/*
 * Reads the epoch, and waits for it: fails the volume if it is not ours. unchecked stays if the
 * store does not tell. Under the lock, which is released meanwhile.
 */
void s3_direct_look_at_epoch(struct s3_direct *d);
/* Answers everything that waits, after a failure. */
void s3_direct_give_up(struct s3_volume *v);

/* ---- read.c ---- */

/* Reads a piece of a request, from memory or from the store. */
void s3_chunk_read(struct s3_direct *d, struct s3_io *io, uint64_t chunk, uint32_t from,
	uint32_t bytes, uint64_t position);

/* Bytes of a chunk; the last one of the volume may be shorter. */
static inline uint32_t s3_chunk_bytes(const struct s3_direct *d, uint64_t index)
{
	uint64_t left = s3_volume_size(d->v) - index * d->chunk_bytes;

	return left < d->chunk_bytes ? (uint32_t)left : d->chunk_bytes;
}

/* The same in blocks. */
static inline uint32_t s3_chunk_blocks(const struct s3_direct *d, uint64_t index)
{
	return s3_chunk_bytes(d, index) >> d->v->shift;
}

/* Does the store have an object of the chunk? Under the lock. */
static inline bool s3_chunk_is_present(const struct s3_direct *d, uint64_t index)
{
	return d->present[index / 8] >> index % 8 & 1;
}

#endif
