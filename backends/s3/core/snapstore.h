/* SPDX-License-Identifier: BSD-3-Clause */
/* What is stored of snapshots. Used by the keeper and by recovery. */
#ifndef USERBLK_S3_SNAPSTORE_H
#define USERBLK_S3_SNAPSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_request;
struct s3_root_snapshot;
struct s3_volume;

/*
 * What is stored of snapshots, by name: of each its marks and markers, then its roots. names is to
 * be freed. 0 or negative errno, of the store (req) or -ENOMEM.
 */
int s3_snapshot_look(
	struct s3_volume *v, struct s3_name **names, size_t *n, struct s3_request *req);
/* Deletes a snapshot's own root, then its marks; and the marks alone. 0 or negative errno. */
int s3_snapshot_erase(struct s3_volume *v, const char *name, uint64_t seq);
int s3_snapshot_unmark(struct s3_volume *v, const char *name);
/* Takes away all marks of earlier writers. By the keeper's thread. */
void s3_snapshot_unmark_all(struct s3_volume *v);
/* Older programs would not find what has a number in its key. 0, or negative errno, reported. */
int s3_snapshot_keep_older_out(struct s3_volume *v);
/* The head is a snapshot, now: enters it. No change of the map meanwhile. 0 or -ENOMEM. */
int s3_snapshot_enter(struct s3_volume *v, const struct s3_root_snapshot *snapshot);
/* Forgets that at seq; now: newest sequence number applied. As s3_objects_snapshot_delete(). */
int s3_snapshot_drop(struct s3_volume *v, uint64_t seq, uint64_t now);

/* The key of a snapshot's own root. seq 0: as older programs had it. */
void s3_snapshot_root_key(const struct s3_volume *v, const char *name, uint64_t seq, char *key);
/* uuid: the clone's, or of a mark that the snapshot is being deleted. */
void s3_snapshot_child_key(
	const char *base, const char *name, const uint8_t uuid[S3_UUID], char *key);
/* The key of a new mark: the snapshot is being made or deleted. 0 or -EIO. */
int s3_snapshot_mark_key(const struct s3_volume *v, const char *name, char *key);
/* What the keys of all marks of a snapshot, and of nothing else, begin with; below the volume's. */
void s3_snapshot_marks_prefix(const char *name, char prefix[S3_KEY_ROOM]);

/*
 * The next root has to be a full one, and needs no part of those before it: the volume has been
 * rolled back, or they are damaged. By recovery and the keeper only.
 */
void s3_roots_forget(struct s3_volume *v);

#endif
