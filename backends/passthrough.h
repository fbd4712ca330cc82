/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An open block device, partition or regular file, as the two halves of the device see it:
 * passthrough_open.c finds out what it is and can do, passthrough.c serves it.
 */
#ifndef USERBLK_PASSTHROUGH_H
#define USERBLK_PASSTHROUGH_H

#include <pthread.h>
#include <sys/types.h>

#include "backends/device.h"

struct passthrough_config {
	char *file;
	bool direct;
	bool readonly;
	uint64_t size;
};

/* Calls of fdatasync(), one at a time: see sync_together(). */
struct passthrough_syncs {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t begun, ended;
};

struct passthrough {
	struct backend backend;
	int fd;
	/*
	 * Learns of what the kernel could not write back, for flushes: it reports that to each
	 * descriptor once, and a durable write by fd may have got it. -1: no such writes.
	 */
	int loss_fd;
	char *file;
	bool created, extended; /* by the open; undone by the close, unless it was started */
	bool is_device;
	bool is_scheduled; /* by an I/O scheduler, which gets direct I/O of a device as it comes */
	bool is_stacked;   /* on overlayfs, which asks the file system below only in a sync */
	dev_t disk;	   /* the device itself or the one below the file; may be anonymous */
	uint32_t sector;   /* logical block size of a device; 1 for a file */
	uint32_t block;	   /* what info tells: of direct I/O, or sector */
	uint32_t memory;   /* alignment of addresses, for direct I/O; otherwise 1 */
	struct direct *direct; /* NULL with direct=off */
	struct backend_info info;
	pthread_mutex_t seek_lock; /* the file offset, which lseek() needs and nothing else uses */
	/*
	 * Zeroes and trims, which hold it for writing, begin with dropping pages that may be dirty:
	 * until they are done, neither these nor the zeroes are on the disk, and nothing may be
	 * acknowledged as durable. See sync_locked().
	 */
	pthread_rwlock_t drop_lock;
	/*
	 * The page cache may hold something that is not durable: with direct I/O until the first
	 * sync, from earlier users of the disk or file, and the edges of zeroes in a file. The
	 * kernel reports a failure to write it back once, to any sync or durable write. Becomes
	 * true under drop_lock for writing, false under drop_lock.
	 */
	_Atomic bool is_cached;
	struct passthrough_syncs syncs;
	/* What the kernel has not refused yet. */
	_Atomic bool has_dsync, has_punch, has_zero_range, has_zeroout;
	_Atomic bool shrink_told;
	_Atomic int flush_error; /* errno of the first failed flush; see sync_data() */
};

/* As backend_ops.open, start and close. */
int passthrough_open(
	const void *config, uint64_t size, const struct backend_host *host, struct backend **out);
void passthrough_start(struct backend *b);
int passthrough_close(struct backend *b);

/* Bytes that the file has now; negative errno. */
int64_t passthrough_current_size(const struct passthrough *p);

/* A number from the queue directory of a disk or of the disk of a partition. */
uint64_t passthrough_queue_limit(dev_t disk, const char *name, uint64_t otherwise);

#endif
