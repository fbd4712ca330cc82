/* SPDX-License-Identifier: BSD-3-Clause */
/* The command replace. */
#ifndef USERBLK_UBLK_REPLACE_H
#define USERBLK_UBLK_REPLACE_H

#include "ublk/options.h"

/*
 * Another server takes the place of a disk's. Until it serves, a process waits that would serve the
 * disk as before. argv: as it was given. An exit code, reported.
 */
int ublk_replace(const struct ublk_options *o, char *const *argv);

#endif
