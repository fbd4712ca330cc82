/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The write-back log: a ring of entries in a file or on a device of this machine, so that a flush
 * does not wait for the store. An entry holds what was added to a batch since the previous entry.
 * It has the form of an object of the log: a header with CRC32C, volume and instance, then data,
 * which is compressed and encrypted as the volume's is. A flush writes entries; concurrent flushes
 * share one sync. An entry stays until its batch and all earlier ones are in the store.
 *
 * All entries belong to one writer, the owner. The super object of the volume names it
 * (s3_super.write_back) as long as entries may hold data that the store lacks. During that time the
 * volume cannot be opened for writing without the log, and only a replay of the log changes the
 * volume. Each object of a replay records up to which entry it goes, so that a crash during the
 * replay loses nothing.
 *
 * Layout: magic (4 KiB), two places for the state (4 KiB each), the ring. Everything is a multiple
 * of 4 KiB. An entry does not wrap: one that does not fit before the end of the ring is at its
 * beginning.
 */
#ifndef USERBLK_S3_WRITEBACK_H
#define USERBLK_S3_WRITEBACK_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"

struct s3_volume;
struct s3_writeback;

#define S3_WRITEBACK_LEAST (UINT64_C(8) << 20)

/*
 * Opens or creates a regular file (of size bytes; 0: 1 GiB, or its present size), or opens a block
 * device (0: all of it), for exclusive use. 0, or negative errno, reported in one line.
 */
int s3_writeback_open(const char *path, uint64_t size, const struct backend_host *host,
	struct s3_writeback **out);
/* NULL is fine. */
void s3_writeback_close(struct s3_writeback *w);

/* 0 or a positive errno. */
int s3_writeback_start(struct s3_volume *v);
void s3_writeback_stop(struct s3_volume *v);

enum s3_writeback_state {
	S3_WRITEBACK_NOW,   /* it is in the log */
	S3_WRITEBACK_SOON,  /* s3_log_answer() will be called */
	S3_WRITEBACK_NEVER, /* the log is full or broken: the store has to be waited for */
};
/* Under the volume's lock: everything up to a change (s3_volume.changes) must be in the log. */
enum s3_writeback_state s3_writeback_want(struct s3_volume *v, uint64_t change);
/* Under the volume's lock: does a flush of everything up to a change have to wait for the store? */
bool s3_writeback_lacks(const struct s3_volume *v, uint64_t change);
/* Under the volume's lock: does the log hold everything up to a change that the store lacks? */
bool s3_writeback_holds(const struct s3_volume *v, uint64_t change);
/* Under the volume's lock: has the log failed, and the store everything that it holds? Once. */
bool s3_writeback_is_over(struct s3_volume *v);
/* Under the volume's lock: the frontier has moved. */
void s3_writeback_advance(struct s3_volume *v);

struct s3_writeback_counters {
	uint64_t entries, bytes, syncs; /* written */
	uint64_t used;			/* bytes that are not free */
	uint64_t full;			/* times that it had no room */
	uint64_t replayed;		/* entries, at open */
	bool failed;			/* flushes wait for the store */
};
void s3_writeback_counters(struct s3_volume *v, struct s3_writeback_counters *counters);

#endif
