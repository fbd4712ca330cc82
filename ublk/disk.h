/* SPDX-License-Identifier: BSD-3-Clause */
/* /dev/ublkbN as its users see it: which programs use it, and what is not written yet. */
#ifndef USERBLK_UBLK_DISK_H
#define USERBLK_UBLK_DISK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ublk/claiming.h"

/* As ublk_claim(). */
int ublk_disk_claim(uint32_t id, struct ublk_claim *claim, const struct ublk_claim_limits *limits);

/* Is a disk mounted, or claimed by another program, of which ublk_disk_claim() answers this? Every
 * other failure leaves that open, unless the disk is gone. */
static inline bool ublk_disk_may_be_used(int claim)
{
	return claim < 0 && claim != -ENXIO && claim != -ENODEV;
}

/* How long ublk_disk_sync() waits. Its functions are asked again and again. */
struct ublk_sync_limits {
	bool (*over)(void *opaque); /* no longer */
	/* Although no request ends: does the device work on one? NULL: not known. */
	bool (*works)(void *opaque);
	void *opaque;
	bool forced; /* all disks of the machine have five minutes */
};

/*
 * Has the kernel write what it holds of the disk in memory, and waits for as long as requests end
 * or the device works on one. in_use: also what file systems hold: first those of the disk that are
 * mounted here, then all of the machine, which may be on it in other ways; if they are not, these
 * are not waited for long. limits: NULL: the device is not known. 0 or negative errno: -EIO: some
 * of it cannot be written, also if over() ended the rest; -ETIME: nothing was written for a while,
 * or not all in the time of forced; -ECANCELED: over(); others: it could not be tried.
 */
int ublk_disk_sync(uint32_t id, bool in_use, const struct ublk_sync_limits *limits);
/* Could it not be tried? */
static inline bool ublk_disk_unsynced(int r)
{
	return r < 0 && r != -EIO && r != -ETIME && r != -ECANCELED;
}
/* What such an error means for the disk's last writes if it is removed now. */
const char *ublk_disk_loss(int error);

/* How many writes and flushes have ended of the disk that a file is or lies on; 0: not known, as on
 * btrfs and NFS, whose device numbers are no disk's. */
uint64_t ublk_disk_writes_below(int fd);

/* What uses the disk or a partition: "dm-0 (vg-volume), md1, /mnt, swap", cut at size bytes; "":
 * not known. It is not opened for that, which may wait for its server. */
void ublk_disk_users(uint32_t id, char *text, size_t size);

#endif
