/* SPDX-License-Identifier: BSD-3-Clause */
/* What userblk-ublk prints of disks and of the driver: a line, or JSON. */
#ifndef USERBLK_UBLK_SHOW_H
#define USERBLK_UBLK_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include "ublk/control.h"
#include "ublk/options.h"

/* One disk, without a newline. */
void ublk_show_disk(const struct ublksrv_ctrl_dev_info *info, bool json);

/* These return an exit code, after an error message if it is not 0. */
int ublk_show_list(struct ublk_control *c, bool json);
int ublk_show_info(struct ublk_control *c, const struct ublk_options *o);
int ublk_show_features(const struct ublk_control *c, bool json);
/* Opens the driver. */
int ublk_open_control(struct ublk_control *c);
/* What the driver has of a disk. */
int ublk_examine(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);

#endif
