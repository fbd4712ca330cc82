/* SPDX-License-Identifier: BSD-3-Clause */
/* What a store has to be able to do. */
#ifndef USERBLK_S3_PROBE_H
#define USERBLK_S3_PROBE_H

struct s3_volume;

/*
 * Tests the store, once in an open: before the first PUT that relies on a condition. In a full
 * store the test takes the reserve, which may be that of a server: so it comes after all that may
 * refuse the open. 0 or negative errno, reported.
 */
int s3_volume_probe(struct s3_volume *v);

#endif
