/* SPDX-License-Identifier: BSD-3-Clause */
/* Snapshots, clones, the volume's size: what is asked of the keeper. */
#ifndef USERBLK_S3_SNAPSHOT_H
#define USERBLK_S3_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/format/format.h"

struct s3_listed;
struct s3_volume;

/*
 * Any thread may call these, while the volume is served but for the rollback. They take as long
 * as the store does. The host also reports what a user can correct.
 */

/*
 * A snapshot of the volume as it is now, everything that was acknowledged before included, which
 * is durable with it. -EEXIST; -EINVAL: not a name (s3_name_valid()); -EROFS.
 */
int s3_snapshot_create(struct s3_volume *v, const char *name);
/* -ENOENT; -EBUSY: it has clones; -EROFS. */
int s3_snapshot_delete(struct s3_volume *v, const char *name);
/*
 * The volume becomes what the snapshot holds, which stays. The volume must not be served. Its
 * size stays, but for a smaller one than the snapshot's. -ENOENT; -EBUSY: there are younger
 * snapshots, to be deleted first; -EROFS.
 */
int s3_snapshot_rollback(struct s3_volume *v, const char *name);

struct s3_snapshot_info {
	char name[S3_NAME_MAX + 1];
	uint64_t seq, time, blocks; /* time: s since 1970; blocks: size of the volume then */
	uint32_t children;	    /* clones */
};
/* The oldest first; the caller frees list. */
int s3_snapshot_list(struct s3_volume *v, struct s3_snapshot_info **list, size_t *n);

/*
 * A new volume <new_prefix>/<new_volume> in the same bucket that begins as the snapshot is, and
 * reads what it has not overwritten from where it is. The snapshot cannot be deleted as long as
 * there is its marker, snap/<snapshot>/child/<uuid of the clone>, which the deletion of the clone
 * deletes last. parent may be open read-only, or served elsewhere. -ENOENT; -EEXIST: the name is
 * taken; -EMLINK: the parent is the 255th in its chain; -EBUSY: the snapshot is being deleted;
 * -EINVAL: not a name or prefix.
 */
int s3_volume_clone(struct s3_volume *parent, const char *snapshot, const char *new_prefix,
	const char *new_volume);
/*
 * What a marker tells of its clone. now: by the store's clock. Unknown: it cannot be read, or the
 * clone is missing and may still be made.
 */
enum s3_clone { S3_CLONE_NONE, S3_CLONE_EXISTS, S3_CLONE_UNKNOWN };
enum s3_clone s3_snapshot_clone_of(struct s3_volume *v, const struct s3_listed *marker,
	const uint8_t uuid[S3_UUID], int64_t now);
/*
 * Another size in bytes, a multiple of 4096. -ENOTEMPTY: what would be cut off is not empty: it has
 * to be trimmed first; -EINVAL: too small or large; -EROFS.
 */
int s3_volume_resize(struct s3_volume *v, uint64_t size);
/*
 * Wraps the keys of the volume and of its ancestors with another key of the user, which is then the
 * only one that opens the volume. Data, snapshots and clones do not change; a clone has its own
 * user's key. *derived: whether the old key still yields the key of the data, because an older
 * program derived one from the other. -EINVAL: the volume is not encrypted, or already has this
 * key; -EACCES: another process has changed the key; -EIO: the change failed, or may have happened
 * (the message says which).
 */
int s3_volume_rekey(struct s3_volume *v, const uint8_t key[S3_KEY_BYTES], bool *derived);

/*
 * What the above would refuse, as far as can be known before a writer's fence: 0, or the error,
 * reported. They change nothing, neither in memory nor in the store, and are for before_change of
 * struct s3_config: no thread of the volume runs yet.
 */
int s3_snapshot_may_create(struct s3_volume *v, const char *name);
int s3_snapshot_may_delete(struct s3_volume *v, const char *name);
int s3_snapshot_may_rollback(struct s3_volume *v, const char *name);
int s3_volume_may_resize(struct s3_volume *v, uint64_t size);
int s3_volume_may_rekey(struct s3_volume *v, const uint8_t key[S3_KEY_BYTES]);

#endif
