/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cache's second level: lines (cache.h) in a file or on a device of this machine, which
 * survive a restart. It never has to be right: each page is checked with its own CRC32C when it is
 * read, and what does not match is not there. Nothing is synced, except when lines are dropped at
 * open.
 *
 * An object's number may come to hold other data only by a recovery that cut the log off before
 * it. So lines are kept at open only if the last writer of the volume is the one that this file
 * was last used with, and of these only those of objects that the recovered log still has.
 * Otherwise all are dropped.
 *
 * Layout: header (4 KiB), index (128 bytes per line), lines. Eviction is CLOCK.
 */
#ifndef USERBLK_S3_CACHEFILE_H
#define USERBLK_S3_CACHEFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"
#include "backends/s3/state/cache.h"
#include "backends/s3/format/format.h"

struct s3_cachefile;

/* Which lines may be kept. */
struct s3_cachefile_volume {
	uint8_t uuid[S3_UUID];
	uint8_t before[S3_UUID]; /* instance of the last writer before this opening */
	uint8_t now[S3_UUID];	 /* of the writer from now on */
	/* Newest object of the log that was recovered, before what a replay has put behind it. */
	uint64_t last_log;
	uint64_t next_gc; /* GC objects have lower numbers */
};

/* A line's pages to be read or written. Zero it, fill in the first part. */
struct s3_disk_job {
	struct s3_line_key key;
	uint16_t pages;
	uint8_t *memory[S3_LINE_PAGES]; /* of each page: S3_PAGE bytes, aligned to that */
	/* Called once by a thread of the file's. good: pages read and right. */
	void (*done)(struct s3_disk_job *job, uint16_t good);
	void *opaque;
	/* The file's own. */
	struct s3_disk_job *next;
	bool write;
};

/*
 * Opens, or makes, a regular file (of size bytes; 0: 1 GiB) or a block device (0: all of it), which
 * nobody else may use meanwhile. What holds anything but such a cache is refused. 0, or
 * negative errno, reported to host in one line.
 */
int s3_cachefile_open(const char *path, uint64_t size, const struct backend_host *host,
	struct s3_cachefile **out);
/* Finds what may be kept, before any other call but close. Makes no threads. As open. */
int s3_cachefile_attach(struct s3_cachefile *f, const struct s3_cachefile_volume *volume);
/* Finishes what has been begun. What was never attached is as it was. NULL is fine. */
void s3_cachefile_close(struct s3_cachefile *f);

/* Those of pages that are there, unless they are evicted before they are read. */
uint16_t s3_cachefile_find(struct s3_cachefile *f, const struct s3_line_key *key, uint16_t pages);
/* False: not accepted, done() will not be called. */
bool s3_cachefile_read(struct s3_cachefile *f, struct s3_disk_job *job);
/* The same; also if too much waits to be written already. */
bool s3_cachefile_write(struct s3_cachefile *f, struct s3_disk_job *job);

struct s3_cachefile_counters {
	uint64_t read, written; /* bytes */
	uint64_t damaged;	/* pages that were not what had been written */
	uint64_t kept;		/* lines, at open */
	uint64_t evictions;	/* lines */
};
void s3_cachefile_counters(struct s3_cachefile *f, struct s3_cachefile_counters *counters);

#endif
