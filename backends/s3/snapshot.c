/* SPDX-License-Identifier: BSD-3-Clause */
/* Snapshots, clones, the volume's size: the interface, to be filled. */
#include <errno.h>

#include "backends/s3/volume.h"

int s3_snapshot_create(struct s3_volume *v, const char *name)
{
	(void)v, (void)name;
	return -ENOTSUP;
}

int s3_snapshot_delete(struct s3_volume *v, const char *name)
{
	(void)v, (void)name;
	return -ENOTSUP;
}

int s3_snapshot_rollback(struct s3_volume *v, const char *name)
{
	(void)v, (void)name;
	return -ENOTSUP;
}

int s3_snapshot_list(struct s3_volume *v, struct s3_snapshot_info **list, size_t *n)
{
	(void)v, (void)list, (void)n;
	return -ENOTSUP;
}

int s3_volume_clone(struct s3_volume *parent, const char *snapshot, const char *new_prefix,
	const char *new_volume)
{
	(void)parent, (void)snapshot, (void)new_prefix, (void)new_volume;
	return -ENOTSUP;
}

int s3_volume_resize(struct s3_volume *v, uint64_t size)
{
	(void)v, (void)size;
	return -ENOTSUP;
}

int s3_volume_gc(struct s3_volume *v, void (*progress)(void *opaque, uint64_t done, uint64_t total),
	void *opaque)
{
	(void)v, (void)progress, (void)opaque;
	return -ENOTSUP;
}
