/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Data of objects in memory: blocks as the volume sees them, checked, by (origin, object, place).
 * Objects never change, so that nothing is ever invalidated; a process never uses an
 * object's number twice.
 *
 * A line is 64 KiB of an object's data, in pages of 4 KiB, each of which is valid, being fetched,
 * or absent. Memory is allocated by the page. A caller that needs absent pages claims them: it must
 * fetch them and settle the line, while others wait. No page is fetched twice at the same time.
 *
 * Eviction is S3-FIFO (Yang et al., SOSP 2023): lines begin in a small queue, from which those
 * that were asked for again go to the main one. What was read ahead waits in a queue of its
 * own until it is asked for; that queue never takes more than half.
 *
 * Any number of threads; no function waits for anything.
 */
#ifndef USERBLK_S3_CACHE_H
#define USERBLK_S3_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define S3_LINE	      (64u << 10) /* bytes of an object's data */
#define S3_PAGE	      4096u
#define S3_LINE_PAGES (S3_LINE / S3_PAGE)

struct s3_cache;
struct s3_line;

struct s3_line_key {
	uint64_t id;	 /* of the object: format.h */
	uint32_t number; /* of the line in its data */
	uint8_t origin;
};

/* A thread that waits for pages of a line. */
struct s3_page_waiter {
	struct s3_page_waiter *next;
	uint16_t pages; /* waited for; a bit each */
	/*
	 * They are no longer being fetched: those of valid may be copied, the others could
	 * not be fetched; error: why, or 0 if they were damaged. The line is held. Called from any
	 * thread, without locks.
	 */
	void (*ready)(struct s3_page_waiter *w, struct s3_line *line, uint16_t valid, int error);
};

/* What there is of the pages of a line. */
struct s3_claim {
	struct s3_line *line; /* NULL: nothing, and no memory for it */
	uint16_t valid;	      /* may be copied */
	uint16_t claimed;     /* the caller has to get them, and to call s3_cache_settle() */
};

/* bytes: of memory. NULL: no memory, or so little that nothing can be kept. */
struct s3_cache *s3_cache_new(uint64_t bytes);
/* Nobody holds or fills anything. NULL is fine. */
void s3_cache_free(struct s3_cache *c);

/* The line, held (s3_cache_release()), if all of pages are there; NULL: not all. */
struct s3_line *s3_cache_lookup(struct s3_cache *c, const struct s3_line_key *key, uint16_t pages);
/*
 * Claims those of pages that are absent: all of them, or none when memory does not suffice (then
 * claim->line is NULL). with, which includes pages, are those to fetch too if any page is absent.
 * If claim->line is not NULL, it is held for the caller. With waiter, unless all pages are valid,
 * its ready() will be called. Without, nobody asks for the pages yet: they are read ahead.
 */
void s3_cache_claim(struct s3_cache *c, const struct s3_line_key *key, uint16_t pages,
	uint16_t with, struct s3_page_waiter *waiter, struct s3_claim *claim);
/*
 * Ends the fetching of claimed pages: those of good hold their data, the others could not be
 * fetched. Calls the waiters, and returns their number.
 */
unsigned s3_cache_settle(
	struct s3_cache *c, struct s3_line *line, uint16_t claimed, uint16_t good, int error);
void s3_cache_hold(struct s3_line *line); /* once more, by who holds it */
void s3_cache_release(struct s3_line *line);
/* The memory of a page of a held or claimed line: S3_PAGE bytes, aligned to that. */
uint8_t *s3_cache_page(const struct s3_cache *c, const struct s3_line *line, unsigned page);
struct s3_line_key s3_cache_key(const struct s3_line *line);

/* Keeps data of an object, from its beginning, that is at hand: copied, as far as there is room. */
void s3_cache_insert(
	struct s3_cache *c, uint8_t origin, uint64_t id, const void *data, size_t length);
/*
 * Takes up to bytes of memory from the cache for something else; how many, until they are given
 * back: then they have to be free again.
 */
uint64_t s3_cache_lend(struct s3_cache *c, uint64_t bytes);
void s3_cache_return(struct s3_cache *c, uint64_t bytes);
/* Bytes that may be read ahead and not yet asked for. */
uint64_t s3_cache_ahead_limit(const struct s3_cache *c);

struct s3_cache_counters {
	uint64_t hits,
		misses; /* bytes asked for, in whole pages; those that were waited for are hits */
	uint64_t ahead_used, ahead_wasted; /* bytes that were asked for later, that never were */
	uint64_t evictions;		   /* lines */
	uint64_t bytes;			   /* held now */
	uint64_t lent;			   /* bytes, now */
};
void s3_cache_counters(struct s3_cache *c, struct s3_cache_counters *counters);

#endif
