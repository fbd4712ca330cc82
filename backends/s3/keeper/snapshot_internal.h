/* SPDX-License-Identifier: BSD-3-Clause */
/* What snapshots, clones and the size share. */
#ifndef USERBLK_S3_KEEPER_SNAPSHOT_INTERNAL_H
#define USERBLK_S3_KEEPER_SNAPSHOT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_request;
struct s3_root_snapshot;
struct s3_volume;

/* ---- snapshot.c ---- */

/* As s3_volume_put_at(), of bytes in one place. */
int s3_snapshot_put(struct s3_volume *v, const char *key, const void *data, size_t length,
	const char *etag, uint32_t deadline, struct s3_request *req);
/* 0, or -EINVAL, reported: not a name of a snapshot. */
int s3_snapshot_check_name(struct s3_volume *v, const char *name);
/* In a full store nothing is made that takes room and frees none: 0, or -ENOSPC, reported. */
int s3_snapshot_check_space(struct s3_volume *v, const char *name);
/* What the volume knows of a snapshot. False: nothing. */
bool s3_snapshot_find(struct s3_volume *v, const char *name, struct s3_root_snapshot *snapshot);
/* Tells that there is no snapshot of that name. -ENOENT. */
int s3_snapshot_refuse_unknown(struct s3_volume *v, const char *name);

/* ---- resize.c ---- */

/* Makes the volume larger. 0 or negative errno, reported. */
int s3_volume_grow(struct s3_volume *v, uint64_t blocks);

#endif
