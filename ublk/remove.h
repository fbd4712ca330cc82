/* SPDX-License-Identifier: BSD-3-Clause */
/* The command delete. */
#ifndef USERBLK_UBLK_REMOVE_H
#define USERBLK_UBLK_REMOVE_H

#include "ublk/control.h"
#include "ublk/options.h"

/* Writes a disk back and removes it, unless it is in use. An exit code, reported. */
int ublk_delete(struct ublk_control *c, const struct ublk_options *o);

#endif
