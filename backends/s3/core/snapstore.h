/* SPDX-License-Identifier: BSD-3-Clause */
/* What is stored of snapshots. Of the keeper, or recovery. */
#ifndef USERBLK_S3_SNAPSTORE_H
#define USERBLK_S3_SNAPSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_request;
struct s3_root_snapshot;
struct s3_volume;

/* What is stored of a snapshot. */
struct s3_snapshot_files {
	char name[S3_NAME_MAX + 1];
	bool root, deleting; /* its own root; the mark that it is being deleted */
	uint32_t children;
};
/* All of them, by name; files is to be freed. 0 or negative errno, of the store (req) or -ENOMEM.
 */
int s3_snapshot_look(
	struct s3_volume *v, struct s3_snapshot_files **files, size_t *n, struct s3_request *req);
/* Deletes a snapshot's own root and its mark; and the mark alone. 0 or negative errno. */
int s3_snapshot_erase(struct s3_volume *v, const char *name);
int s3_snapshot_unmark(struct s3_volume *v, const char *name);
/* The head is a snapshot, now: enters it. No change of the map meanwhile. 0 or -ENOMEM. */
int s3_snapshot_enter(struct s3_volume *v, const struct s3_root_snapshot *snapshot);
/* Forgets that at seq; now: newest sequence number applied. As s3_objects_snapshot_delete(). */
int s3_snapshot_drop(struct s3_volume *v, uint64_t seq, uint64_t now);

/* The key of a snapshot's own root. */
void s3_snapshot_root_key(const struct s3_volume *v, const char *name, char *key);
/* uuid: the clone's; all zero: the mark that the snapshot is being deleted. */
void s3_snapshot_child_key(
	const char *base, const char *name, const uint8_t uuid[S3_UUID], char *key);
/* All zero. */
extern const uint8_t s3_no_uuid[S3_UUID];

#endif
