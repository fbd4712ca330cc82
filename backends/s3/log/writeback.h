/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The write-back log: a ring of entries in a file or on a device of this machine, so that a flush
 * needs not wait for the store. An entry is what a batch has got since the one before it, in the
 * form of an object of the log: header with CRC32C, volume and instance, then data, compressed and
 * encrypted as the volume's is. It is written when a flush asks for it, all that were asked for at
 * once are synced once, and it is there until its batch and all before it are in the store.
 *
 * Its entries are of one writer, its owner, which the super object of the volume names
 * (s3_super.write_back) as long as they may hold what the store lacks. So a volume is not opened
 * for writing without it, and as long as the super object names the owner nobody else has changed
 * the volume, but by replaying the log. Each object of a replay says up to which entry it goes: a
 * crash in the midst of it changes nothing about what is left.
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
 * Opens, or makes, a regular file (of size bytes; 0: 1 GiB, or what it has) or a block device (0:
 * all of it), which nobody else may use meanwhile. 0, or negative errno, reported in one line.
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
/* Under the volume's lock: everything up to a change (s3_volume.changes) is to be in the log. */
enum s3_writeback_state s3_writeback_want(struct s3_volume *v, uint64_t change);
/* Under the volume's lock: does a flush of everything up to a change have to wait for the store? */
bool s3_writeback_lacks(const struct s3_volume *v, uint64_t change);
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
