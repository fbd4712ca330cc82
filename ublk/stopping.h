/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A server's disk is stopped by a process of its own. The kernel would stop it in a thread of the
 * server, for whose end a server that is killed waits before it closes its device; and that thread
 * waits until the device is closed: neither would ever end.
 */
#ifndef USERBLK_UBLK_STOPPING_H
#define USERBLK_UBLK_STOPPING_H

#include "ublk/control.h"

/* The exit code of that process if it could not even ask the driver. */
#define UBLK_STOP_FAILED 255

/*
 * As ublk_control_stop(), by `userblk-ublk stop-for-server ID COOKIE PID`, which goes on if this
 * process ends, and then deletes the device as well. -ENODEV: the number may be another disk's by
 * now.
 */
int ublk_stop_elsewhere(struct ublk_control *c, uint32_t id, uint64_t cookie,
	bool (*over)(void *opaque), void *opaque);
/* What that process does, for as long as it takes. parent: it may have ended before this one could
 * ask for its own. Its exit code is the errno, or 0. */
int ublk_stop_for_parent(struct ublk_control *c, uint32_t id, uint64_t cookie, pid_t parent);

#endif
