/* SPDX-License-Identifier: BSD-3-Clause */
/* Names in the store of what a volume has, and its size. */
#ifndef USERBLK_S3_KEYS_H
#define USERBLK_S3_KEYS_H

#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_volume;

/* Bytes that the volume, or its snapshot that is served, has now. */
uint64_t s3_volume_size(const struct s3_volume *v);
/* Full keys; key has S3_KEY_MAX + 1 bytes. */
void s3_volume_key(const struct s3_volume *v, const struct s3_name *name, char *key);
void s3_volume_object_key(const struct s3_volume *v, uint64_t id, char *key);
/* The same of an object that may be an ancestor's; origin as in object_table.h. */
void s3_volume_origin_key(const struct s3_volume *v, uint8_t origin, uint64_t id, char *key);
/* The volume that objects of origin belong to. */
const uint8_t *s3_volume_origin_uuid(const struct s3_volume *v, uint8_t origin);

/* Random bytes for a uuid. 0 or -EIO. */
int s3_random(uint8_t uuid[S3_UUID]);

#endif
