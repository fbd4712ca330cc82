/* SPDX-License-Identifier: BSD-3-Clause */
/* Commands to /dev/ublk-control. Every function returns 0 or a negative errno. */
#ifndef USERBLK_UBLK_CONTROL_H
#define USERBLK_UBLK_CONTROL_H

#include <liburing.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "ublk/uapi.h"

#define UBLK_CONTROL_PATH "/dev/ublk-control"

/* Seconds after which a command that the kernel has not answered fails with -ETIME. */
#define UBLK_CONTROL_LIMIT 60

struct ublk_control {
	int fd;
	struct io_uring ring;
	uint64_t features; /* UBLK_F_ that the kernel knows */
	uint64_t sent;	   /* commands so far */
};

/* -ENOENT: no ublk in this kernel; -EOPNOTSUPP: one that is too old (before 6.5); -ENOSYS: no
 * io_uring for this process. */
int ublk_control_open(struct ublk_control *c);
void ublk_control_close(struct ublk_control *c);

/* info: in the wish, out what the kernel made of it. info->dev_id -1: the kernel chooses. */
int ublk_control_add(struct ublk_control *c, struct ublksrv_ctrl_dev_info *info);
int ublk_control_set_params(struct ublk_control *c, uint32_t id, struct ublk_params_sent *params);
int ublk_control_get_params(struct ublk_control *c, uint32_t id, struct ublk_params_sent *params);
/*
 * Waits until every tag was fetched; then the kernel reads the partition table.
 * -ECANCELED: *ended, which another thread sets, was not 0 before that.
 */
int ublk_control_start(struct ublk_control *c, uint32_t id, const unsigned *ended);
/* Is it that cookie's? 0, -ENODEV, or another negative errno. */
int ublk_control_examine(struct ublk_control *c, uint32_t id, uint64_t cookie);
int ublk_control_info(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
/* CPUs that the kernel sends the queue's requests from. */
int ublk_control_affinity(struct ublk_control *c, uint32_t id, uint16_t queue, cpu_set_t *cpus);
/*
 * Removes the disk, once requests that are served have been answered; those that nobody serves
 * fail. over(), asked again and again, ends the wait for that, with -ECANCELED; NULL: the limit
 * does.
 */
int ublk_control_stop(
	struct ublk_control *c, uint32_t id, bool (*over)(void *opaque), void *opaque);
/*
 * Deletes a stopped device. Waits until it is gone, but not long: the kernel keeps it for as long
 * as others have its disk open. -ENODEV: also if the number is another disk's by now.
 */
int ublk_control_delete(struct ublk_control *c, uint32_t id, uint64_t cookie);
/*
 * Sends the server away once it has answered what it has: takes away the tags that wait for a
 * request, and lets all new requests wait. A queue of which the server has every tag hears nothing:
 * to be called again until the server has ended. -EBUSY: requests that wait hold all tags of a
 * queue, so that it never does.
 */
int ublk_control_quiesce(struct ublk_control *c, uint32_t id);
/* -EBUSY: the server has not closed the device yet. */
int ublk_control_start_recovery(struct ublk_control *c, uint32_t id);
/* As ublk_control_start(). */
int ublk_control_end_recovery(struct ublk_control *c, uint32_t id, const unsigned *ended);

#endif
