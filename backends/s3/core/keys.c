/* SPDX-License-Identifier: BSD-3-Clause */
/* Names in the store of what a volume has, and its size. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "backends/s3/core/keys.h"
#include "backends/s3/core/volume.h"
#include "backends/s3/format/format.h"
#include "backends/s3/state/map.h"

void s3_volume_key(const struct s3_volume *v, const struct s3_name *name, char *key)
{
	strcpy(key, v->base);
	s3_name_format(name, key + strlen(key));
}

void s3_volume_object_key(const struct s3_volume *v, uint64_t id, char *key)
{
	strcpy(key, v->base);
	s3_name_object(id, key + strlen(key));
}

void s3_volume_origin_key(const struct s3_volume *v, uint8_t origin, uint64_t id, char *key)
{
	if (!origin) {
		s3_volume_object_key(v, id, key);
		return;
	}
	/* read_super() has seen to the room. */
	strcpy(key, v->super.parents[origin - 1].path);
	strcat(key, "/");
	s3_name_object(id, key + strlen(key));
}

const uint8_t *s3_volume_origin_uuid(const struct s3_volume *v, uint8_t origin)
{
	return origin ? v->super.parents[origin - 1].uuid : v->super.uuid;
}

uint64_t s3_volume_size(const struct s3_volume *v)
{
	return (v->map ? s3_map_blocks(v->map) : v->super.blocks) << v->shift;
}

int s3_random(uint8_t uuid[S3_UUID])
{
	return getrandom(uuid, S3_UUID, 0) == S3_UUID ? 0 : -EIO;
}
