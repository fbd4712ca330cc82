/* SPDX-License-Identifier: BSD-3-Clause */
/* Commands to /dev/ublk-control. Every function returns 0 or a negative errno. */
#ifndef USERBLK_UBLK_CONTROL_H
#define USERBLK_UBLK_CONTROL_H

#include <liburing.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "ublk/uapi.h"

#define CONTROL_PATH "/dev/ublk-control"

/* Seconds after which a command that the kernel has not answered fails with -ETIME. */
#define CONTROL_LIMIT 60

struct control {
	int fd;
	struct io_uring ring;
	uint64_t features; /* UBLK_F_ that the kernel knows */
	uint64_t sent;	   /* commands so far */
};

/* -ENOENT: no ublk in this kernel; -EOPNOTSUPP: one that is too old (before 6.5). */
int control_open(struct control *c);
void control_close(struct control *c);

/* info: in the wish, out what the kernel made of it. info->dev_id -1: the kernel chooses. */
int control_add(struct control *c, struct ublksrv_ctrl_dev_info *info);
int control_set_params(struct control *c, uint32_t id, struct ublk_params_sent *params);
int control_get_params(struct control *c, uint32_t id, struct ublk_params_sent *params);
/*
 * Waits until every tag was fetched; then the kernel reads the partition table.
 * -ECANCELED: *ended, which another thread sets, was not 0 before that.
 */
int control_start(struct control *c, uint32_t id, const unsigned *ended);
int control_info(struct control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
/* CPUs that the kernel sends the queue's requests from. */
int control_affinity(struct control *c, uint32_t id, uint16_t queue, cpu_set_t *cpus);
/* Removes the disk; requests that nobody serves fail. */
int control_stop(struct control *c, uint32_t id);
/*
 * Deletes a stopped device. Waits until it is gone, but not long: the kernel keeps it for as long
 * as others have its disk open.
 */
int control_delete(struct control *c, uint32_t id);
/* Sends the server away once it has an idle tag in each queue. */
int control_quiesce(struct control *c, uint32_t id);
/* -EBUSY: the server has not closed the device yet. */
int control_start_recovery(struct control *c, uint32_t id);
/* As control_start(). */
int control_end_recovery(struct control *c, uint32_t id, const unsigned *ended);

#endif
