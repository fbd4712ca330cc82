/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of this folder share. lifecycle.h is for the others. */
#ifndef USERBLK_S3_LIFECYCLE_INTERNAL_H
#define USERBLK_S3_LIFECYCLE_INTERNAL_H

#include <stdint.h>

struct s3_config;
struct s3_volume;

/* ---- create.c ---- */

/* Creates the volume, of size bytes unless size= says otherwise. 0 or negative errno, reported. */
int s3_volume_create(
	struct s3_volume *v, const struct s3_config *c, uint64_t size, const char *super_key);

/* ---- features.c ---- */

/* Reads the file of encryption-key= into v->key. 0 or negative errno, reported. */
int s3_volume_read_key(struct s3_volume *v, const char *path);
/* Do the parameters go with the volume, which knows by itself how its data is stored? */
int s3_volume_check_features(struct s3_volume *v, const struct s3_config *c);
/* What compresses and encrypts, for the volume and its parents. 0, -ENOMEM or -EIO. */
int s3_volume_make_transforms(struct s3_volume *v);

/* ---- log_layout.c ---- */

/* What layout=log has: caches, and what recovery finds in the store. 0 or negative errno, reported.
 */
int s3_log_open(struct s3_volume *v, const struct s3_config *c);

#endif
