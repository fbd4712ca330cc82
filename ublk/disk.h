/* SPDX-License-Identifier: BSD-3-Clause */
/* /dev/ublkbN as its users see it: which programs use it, and what is not written yet. */
#ifndef USERBLK_UBLK_DISK_H
#define USERBLK_UBLK_DISK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Keeps everybody else from mounting or claiming the disk. A descriptor, which the caller closes;
 * -EBUSY: it is mounted or claimed already; other negative errnos, as of open(2).
 */
int ublk_disk_claim(uint32_t id);

/* Is the disk mounted, or claimed by another program? */
bool ublk_disk_in_use(uint32_t id);

/*
 * Has the kernel write what it holds of the disk in memory, and waits for as long as it writes.
 * in_use: also what file systems hold, all of the machine. over(), asked again and again, may end
 * the wait; NULL: never. 0 or negative errno: -EIO: some of it cannot be written; -ETIME: nothing
 * was written for a while; -ECANCELED: over().
 */
int ublk_disk_sync(uint32_t id, bool in_use, bool (*over)(void *opaque), void *opaque);

#endif
