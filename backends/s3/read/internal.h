/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of this folder share. */
#ifndef USERBLK_S3_READ_INTERNAL_H
#define USERBLK_S3_READ_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "backends/backend.h"
#include "backends/s3/base/iov.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/state/map.h"
#include "backends/s3/state/object_table.h"

struct s3_line;

/* Runs looked up at once, and bytes that they cover at most. */
#define S3_READ_RUNS  256
#define S3_READ_PIECE (4u << 20)
/* Lines that these can touch. */
#define S3_READ_WANTS (S3_READ_PIECE / S3_LINE + 2 * S3_READ_RUNS)

/* A unit of transformed data. */
struct s3_placed {
	struct s3_unit unit;
	uint32_t at; /* bytes of the stored data before it */
};

/* Those of one object. */
struct s3_crcs {
	struct s3_crcs *next;	       /* in its bucket */
	struct s3_crcs *newer, *older; /* by use */
	uint64_t id;		       /* s3_crcs_tag() it */
	uint8_t origin;
	uint32_t n;
	unsigned refs; /* gets that use it, and the load */
	bool loading;
	int result;		/* of the load */
	struct s3_get *waiting; /* for the load */
	uint32_t *crc;		/* of each block */
	/* Instead of that, if the data is transformed: */
	struct s3_placed *units;
	uint32_t flags;
	uint8_t salt[sizeof((struct s3_object_header *)0)->salt];
	/* The load. */
	struct s3_volume *volume;
	struct s3_request request;
	struct iovec iov;
	unsigned attempts;
	char key[S3_KEY_MAX + 1];
};

struct s3_crc_cache {
	pthread_mutex_t lock;
	struct s3_crcs **buckets;
	size_t n_buckets; /* a power of two */
	struct s3_crcs *newest, *oldest;
	uint64_t bytes, limit;
};

struct s3_read {
	struct s3_volume *v;
	struct backend_request *request;
	_Atomic unsigned pending; /* gets, and 1 until all have been started */
	_Atomic int result;
	/* Where whole blocks go: the request's vector, or a buffer if it does not end at blocks. */
	const struct iovec *iov;
	uint64_t base; /* byte address of the vector's beginning */
	struct iovec whole;
};

/* One run from the store: of a read, or the first member of a fill. */
struct s3_get {
	struct s3_volume *v;
	struct s3_read *read; /* NULL: of a fill */
	struct s3_get *next;  /* waits for the same checksums */
	struct s3_object object;
	uint32_t slot, first, count; /* blocks in the object's data */
	_Atomic unsigned parts;	     /* data, checksums */
	_Atomic int result;
	unsigned attempts;
	struct s3_crcs *crcs; /* held */
	bool transformed;
	struct iovec stored;  /* of what is transformed: units, which hold the blocks */
	struct iovec both[2]; /* header and stored */
	bool loads;	      /* the header comes along: this is the load of crcs, too */
	void *header;	      /* where it goes if it comes along and is not needed */
	struct s3_request request;
	char key[S3_KEY_MAX + 1];
	struct iovec *iov; /* one before it is free, for the header */
	int iovcnt;
};

/* Pages of a line that have to be fetched. */
struct s3_want {
	struct s3_object object;
	uint32_t slot;
	uint32_t number;
	struct s3_line *line; /* held */
	uint16_t pages;	      /* claimed */
};

/* What to fetch for a piece of a read, or for reading ahead. */
struct s3_plan {
	struct s3_volume *v;
	bool ahead, generous;
	unsigned n;
	struct s3_want wants[S3_READ_WANTS];
};

/* ---- crc_cache.c ---- */

/* The checksums of the object of a tag, or NULL. */
struct s3_crcs *s3_crcs_find(struct s3_crc_cache *c, uint64_t id);
/* Takes an entry out of the list by use. */
void s3_crcs_unlink(struct s3_crc_cache *c, struct s3_crcs *e);
/* Puts it at the list's newer end. */
void s3_crcs_link_newest(struct s3_crc_cache *c, struct s3_crcs *e);
/* Frees an entry. */
void s3_crcs_drop(struct s3_crc_cache *c, struct s3_crcs *e);
/* Drops what was not used for longest, above the limit. */
void s3_crcs_shrink(struct s3_crc_cache *c);
/* n: of checksums. */
struct s3_crcs *s3_crcs_insert(struct s3_crc_cache *c, uint64_t id, uint32_t n, bool transformed);
/* Takes over what the object's header says. */
void s3_crcs_fill_in(struct s3_crcs *e, const struct s3_object_header *header);

/* ---- get.c ---- */

/* A part of a read has ended; the last one answers the request. */
void s3_read_end_part(struct s3_read *r, int result);
/* Frees a get and lets go of what it held. */
void s3_get_free(struct s3_get *g);
/* The units that hold the blocks of a get: the first, and the one after the last. */
void s3_get_units_of(const struct s3_get *g, uint32_t *first, uint32_t *end);
/* Restores the blocks in unit i of the fetched data. 0; -EBADMSG: damaged; -ENOMEM, -EIO. */
int s3_get_restore_unit(const struct s3_get *g, uint32_t i);
/* Asks for the data, and for the checksums if they are not at hand. g is filled but for these. */
void s3_get_begin(struct s3_get *g);
/* Starts to read a run, whose object is pinned, from the store. */
void s3_get_start(struct s3_read *r, const struct s3_run *run);

/* ---- fill.c ---- */

/* Pages in which blocks of an object's data that are all in one line lie. */
uint16_t s3_fill_pages_of(const struct s3_volume *v, uint32_t offset, uint64_t count);
/* Pages to fetch together with these, because blocks and units are checked as a whole. */
uint16_t s3_fill_whole_blocks(
	const struct s3_volume *v, const struct s3_object *object, uint32_t number, uint16_t pages);
/* Cuts what is in one line off the beginning of a run. False: nothing is left. */
bool s3_fill_next_in_line(const struct s3_volume *v, struct s3_run *rest, struct s3_run *part);
/* The key of a line of an object in the cache. */
struct s3_line_key s3_line_key_of(
	const struct s3_volume *v, const struct s3_object *object, const struct s3_run *part);
/* Reads a part of which something is not in memory. False: all memory is in use. */
bool s3_fill_read_part(struct s3_plan *plan, struct s3_read *r, const struct s3_run *run,
	const struct s3_object *object);
/* Copies what is in memory off the beginning of a run. */
void s3_fill_read_cached(struct s3_read *r, struct s3_run *rest, const struct s3_object *object);
/* All of a fill that will come has come. */
void s3_fill_end(struct s3_get *g, int result);
/* Did it pay so far to get more than what was asked for? */
bool s3_fill_is_generous(struct s3_volume *v);
/* Gets what a plan wants; it is empty then. */
void s3_fill_carry_out(struct s3_plan *plan);

/* What tells the objects of a volume and its ancestors apart: no number has come to these bits. */
static inline uint64_t s3_crcs_tag(uint8_t origin, uint64_t id)
{
	return id ^ (uint64_t)origin << 55;
}

/* The bucket of a tag. Under the lock of the cache. */
static inline struct s3_crcs **s3_crcs_bucket(struct s3_crc_cache *c, uint64_t id)
{
	return &c->buckets[(id ^ id >> 40) & (c->n_buckets - 1)];
}

/* Fills a part of the read's memory, from position on, from data; NULL: with zeroes. */
static inline void s3_read_deliver(
	struct s3_read *r, uint64_t position, const uint8_t *data, uint64_t length)
{
	s3_iov_fill(r->iov, position, data, length);
}

/* Where a run's bytes go in the read's memory. */
static inline uint64_t s3_read_position(const struct s3_read *r, const struct s3_run *run)
{
	return (run->lba << r->v->shift) - r->base;
}

/* Are there checksums for all that was asked for? */
static inline bool s3_get_has_sums(const struct s3_get *g)
{
	return g->transformed || g->crcs->n >= g->first + g->count;
}

#endif
