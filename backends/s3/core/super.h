/* SPDX-License-Identifier: BSD-3-Clause */
/* The super object: whose is it, and its changes while the volume is open. */
#ifndef USERBLK_S3_SUPER_H
#define USERBLK_S3_SUPER_H

#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_volume;

/*
 * Is there the super object of the volume with that UUID? 0: it is; -ESTALE: another volume's;
 * -ENOENT: nothing; after other errors, which it does not report, that is not known. epoch (may be
 * NULL): of the writer that stored it, 0: it is as it was made.
 */
int s3_super_look(
	struct s3_volume *v, const char *key, const uint8_t uuid[S3_UUID], uint32_t *epoch);

/*
 * Rewrites the super object, unless another writer took over. change() gets it as it is now, maybe
 * more than once, and answers 1: it has changed it, 0: it need not, or negative errno, which it
 * has reported. 0 or negative errno, reported; with what late says (may be NULL) if it may be
 * changed all the same.
 */
int s3_volume_change_super(struct s3_volume *v,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque,
	const char *late);

#endif
