/* SPDX-License-Identifier: BSD-3-Clause */
/* A disk of Linux's nbd driver whose requests come over a socket pair. */
#ifndef USERBLK_BUSE_DISK_H
#define USERBLK_BUSE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"
#include "buse/guard.h"
#include "buse/holder.h"
#include "buse/netlink.h"

struct disk {
	char path[32];
	int index;  /* N of /dev/nbdN; negative: not connected */
	bool shown; /* the kernel shows its identity: since Linux 5.14, if there is a sysfs */
	char identity[sizeof((struct netlink_disk *)0)->identity];
	int sockets[2]; /* the kernel's end, which the guard has; ours */
	uint64_t size;	/* bytes, whole blocks */
	struct guard guard;
	struct holder holder; /* has /dev/nbdN open */
	struct netlink netlink;
};

/* To be called before there are threads. 0 or negative errno; disk_close() in each case. */
int disk_prepare(struct disk *disk);
/*
 * Connects /dev/nbdN; requests then come to disk->sockets[1], which must be served at once. path:
 * NULL, the first one that nobody has, or a new one: the kernel chooses, so that no two programs
 * choose the same. 0 or negative errno, reported through host; -EBUSY: mounted, connected already,
 * or open elsewhere for long; nothing was changed.
 */
int disk_connect(struct disk *disk, const char *path, unsigned timeout,
	const struct backend_info *info, const struct backend_host *host);
/* Until the disk has its size, and all errors since are seen by disk_sync(). Reads from it. 0 or
 * negative errno, reported. No thread of ours waits for the disk in the kernel, here and below. */
int disk_open(struct disk *disk, const struct backend_host *host);
/* What was written to the disk and its partitions is in the device. 0 or negative errno. */
int disk_sync(struct disk *disk);
/* The kernel says goodbye and fails what is still to come. */
void disk_disconnect(struct disk *disk);
void disk_close(struct disk *disk);

#endif
