/* SPDX-License-Identifier: BSD-3-Clause */
/* The super object, changed while the volume is open. */
#ifndef USERBLK_S3_SUPER_H
#define USERBLK_S3_SUPER_H

struct s3_super;
struct s3_volume;

/*
 * Rewrites the super object, unless another writer took over. change() gets it as it is now, maybe
 * more than once, and answers 1: it has changed it, 0: it need not, or negative errno, which it
 * has reported. 0 or negative errno, reported.
 */
int s3_volume_change_super(struct s3_volume *v,
	int (*change)(void *opaque, struct s3_volume *v, struct s3_super *super), void *opaque);

#endif
