/* SPDX-License-Identifier: BSD-3-Clause */
/* The volume behind an S3 device that a test has opened. */
#ifndef USERBLK_TESTS_UNIT_S3_VOLUME_DEVICE_H
#define USERBLK_TESTS_UNIT_S3_VOLUME_DEVICE_H

#include "backends/s3/core/volume.h"
#include "tests/unit/support.h"

struct s3_volume *volume_of(const struct device *d);
/* Stores a checkpoint: 0 or negative errno. */
int try_checkpoint(struct device *d);
/* Ends a server as a crash does: nothing more is stored. */
void crash(struct device *d);

/* Flushes until that succeeds; fails the test after a minute. */
void device_flush_at_last(struct device *d);

#endif
